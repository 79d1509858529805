//! Counters of IAs, EPs and EVDs: reading and printing them; starting and stopping those of the
//! port.

use super::code::Code;
use super::handle::Handle;
use super::objects::{EpObject, EvdObject, IaObject};
use super::raw::{Out, say};
use provider::{Counter, Counters, PortCounters, Subtype};
use std::fmt::Write;

/// The types of objects that have counters, as `DAT_HANDLE_TYPE`.
const EP: u32 = 1;
const EVD: u32 = 2;
const IA: u32 = 3;

/// The type of an object with counters; INVALID_HANDLE for every other handle.
fn counted(handle: Handle) -> Result<u32, Code> {
    let kind = handle.kind().ok_or_else(|| Code::handle(Subtype::InvalidHandle1))?;
    if ![EP, EVD, IA].contains(&kind) {
        tracing::debug!(kind, "only IAs, EPs and EVDs have counters");
        return Err(Code::handle(Subtype::InvalidHandle1));
    }
    Ok(kind)
}

type Values = Vec<(&'static str, u64)>;

/// Counter `n`, which is argument 2. One past the last counter stands for all counters.
fn chosen<C: Counter>(
    n: i32,
    reset: bool,
    take: impl FnOnce(&[C]) -> provider::Result<Counters<C>>,
) -> Result<Values, Code> {
    let n = usize::try_from(n).map_err(|_| Code::arg(2))?;
    let which = if n == C::ALL.len() { Some(C::ALL) } else { C::ALL.get(n..=n) };
    let which = which.ok_or_else(|| Code::arg(2))?;
    let now = take(if reset { which } else { &[] })?;
    Ok(which.iter().map(|&counter| (counter.name(), now[counter])).collect())
}

fn read(handle: Handle, kind: u32, n: i32, reset: bool) -> Result<Values, Code> {
    match kind {
        EP => {
            let object = handle.get::<EpObject>()?;
            chosen(n, reset, |which| object.ep.take_counters(which))
        }
        EVD => {
            let evd = handle.get::<EvdObject>()?.evd.clone();
            chosen(n, reset, |which| evd.take_counters(which))
        }
        _ => {
            let object = handle.get::<IaObject>()?;
            chosen(n, reset, |which| object.ia.take_counters(which))
        }
    }
}

/// Writes one counter to `out`, or all counters to the array at `out`. libdaplofa, if built with
/// counters, writes a single counter to its index in such an array, which is past the end of a
/// single number.
pub(super) fn query(handle: Handle, n: i32, out: Out<u64>, reset: bool) -> Result<(), Code> {
    let kind = counted(handle)?;
    out.need(3)?;
    let values = read(handle, kind, n, reset)?;
    for (at, (_, value)) in values.into_iter().enumerate() {
        out.set_nth(at, value);
    }
    Ok(())
}

/// Prints the same lines as libdaplofa, in order with the program's own output.
pub(super) fn print(handle: Handle, n: i32, reset: bool) -> Result<(), Code> {
    let values = read(handle, counted(handle)?, n, reset)?;
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let mut text = String::new();
    for (name, value) in values {
        // Writing to a string does not fail.
        let _ = writeln!(text, " {}:{:#x}: {name} = {value} ", host.trim_end(), std::process::id());
    }
    say(&text);
    Ok(())
}

/// `DAT_IA_COUNTER_TYPE`, which is argument 2.
fn group(n: i32) -> Result<PortCounters, Code> {
    let n = usize::try_from(n).map_err(|_| Code::arg(2))?;
    PortCounters::ALL.get(n).copied().ok_or_else(|| Code::arg(2))
}

pub(super) fn start(ia: Handle, n: i32) -> Result<(), Code> {
    let object = ia.get::<IaObject>()?;
    Ok(object.ia.start_counters(group(n)?)?)
}

pub(super) fn stop(ia: Handle, n: i32) -> Result<(), Code> {
    let object = ia.get::<IaObject>()?;
    Ok(object.ia.stop_counters(group(n)?)?)
}
