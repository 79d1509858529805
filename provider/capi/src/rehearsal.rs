//! What the first open of an IA does ahead of a program's first calls.
//!
//! The first call of its kind in a process takes up to twice as long as later ones: its code is not
//! in the processor's caches, its memory and its code have page faults, and libibverbs finds out
//! which commands the device takes. Programs set up a connection once, so this is what they would
//! see. The first open therefore maps the provider's code, and creates one object of each kind that
//! a connection needs, by the functions that the program will call, and frees it. It also waits until
//! the progress thread runs, because a new thread has page faults of its own.

use super::abi::Region;
use super::code::rehearsing;
use super::handle::Handle;
use super::objects::{EpObject, EvdObject, IaObject, LmrObject, Stored};
use super::raw::{In, Out};
use super::{code_pages, ep, evd, lmr};
use provider::Pz;
use provider::{EvdFlags, MemPriv};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// Memory to register, a page of its own: a child that is forked meanwhile may not get the page.
#[repr(C, align(4096))]
struct Page([AtomicU8; 4096]);

static PAGE: Page = Page([const { AtomicU8::new(0) }; 4096]);

/// Does all this on the first IA of the process. Without memory, descriptors or queues of the device
/// it does less: the calls of the program then report what is missing.
pub(super) fn rehearse_once(ia: Handle) {
    static DONE: AtomicBool = AtomicBool::new(false);
    if DONE.swap(true, Ordering::Relaxed) {
        return;
    }
    code_pages::map();
    // What fails here fails again in the program's own call.
    let complete = rehearsing(|| {
        let mut made = Made::default();
        let complete = create(ia, &mut made).is_some();
        made.free();
        complete
    });
    if !complete {
        tracing::debug!("the first calls of the program will take longer");
    }
    // The program has created none of these objects.
    if let Ok(object) = ia.get::<IaObject>() {
        object.ia.device.counts.clear();
    }
}

/// How an object ends.
#[derive(Clone, Copy)]
struct End {
    free: extern "C" fn(Handle) -> u32,
    /// For an object that the device refuses to free: no handle leads to it any more, and the IA can
    /// be closed without it.
    drop: fn(Handle),
}

impl End {
    fn of<K: Stored>(free: extern "C" fn(Handle) -> u32) -> Self {
        let drop = |handle: Handle| {
            // An error says that the handle is free already.
            let _ = handle.end::<K>(|_| Ok(()));
        };
        Self { free, drop }
    }
}

/// Objects, and how they end.
#[derive(Default)]
struct Made(Vec<(Handle, End)>);

impl Made {
    /// Calls `create` and keeps the object that it creates. `None` if it fails.
    fn add(&mut self, end: End, create: impl FnOnce(Out<Handle>) -> u32) -> Option<Handle> {
        let (code, handle) = Out::taken(Handle::NULL, create);
        (code == 0).then(|| {
            self.0.push((handle, end));
            handle
        })
    }

    /// Frees the objects, the youngest first.
    fn free(self) {
        for (handle, end) in self.0.into_iter().rev() {
            if (end.free)(handle) != 0 {
                (end.drop)(handle);
            }
        }
    }
}

/// Creates one object of each kind. `None` if one cannot be created.
fn create(ia: Handle, made: &mut Made) -> Option<()> {
    let region = Region { first: PAGE.0.as_ptr() as usize, second: 0 };
    let (len, all) = (PAGE.0.len() as u64, MemPriv::all().bits());
    let (no_context, no_number) = (Out::null(), Out::null());
    let pz = made.add(End::of::<Pz>(lmr::pz_free), |pz| lmr::pz_create(ia, pz))?;
    made.add(End::of::<LmrObject>(lmr::lmr_free), |out| {
        lmr::lmr_create(ia, 0, region, len, pz, all, 0, out, no_context, no_context, no_number, no_number)
    })?;
    let mut evd = |flags: EvdFlags| {
        made.add(End::of::<EvdObject>(evd::evd_free), |evd| {
            evd::evd_create(ia, 1, Handle::NULL, flags.bits(), evd)
        })
    };
    let (connect, dto) = (evd(EvdFlags::CONNECTION)?, evd(EvdFlags::DTO)?);
    made.add(End::of::<EpObject>(ep::ep_free), |ep| ep::ep_create(ia, pz, dto, dto, connect, In::at(0), ep))?;
    Some(())
}
