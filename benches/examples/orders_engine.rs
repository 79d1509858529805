//! The market of doorbell-orders for C: what `benches/c/orders_verbs.c` answers orders with. A static
//! library.
//!
//! One thread at a time uses a market.

#![expect(unsafe_code, reason = "functions for C programs")]

use doorbell_orders::config::Config;
use doorbell_orders::login::{Login, Refusal, Welcome};
use doorbell_orders::market::Market;
use doorbell_orders::ouch::Inbound;
use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use zerocopy::IntoBytes;

/// The market that a configuration of the gateway describes; null if it is not valid.
///
/// # Safety
/// `config` is the name of a file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orders_open(config: *const c_char) -> Option<Box<Market>> {
    // SAFETY: by contract.
    let name = OsStr::from_bytes(unsafe { CStr::from_ptr(config) }.to_bytes());
    match Config::read(name.as_ref()) {
        Ok(config) => Some(Box::new(Market::new(config.rules, config.sizes, &config.listings))),
        Err(error) => {
            eprintln!("{error}");
            None
        }
    }
}

/// Logs a session in, by the private data of its connection. Returns its number, writes the number of
/// its next message, and the private data of the answer; or returns the negative of a reason.
///
/// # Safety
/// `login` has `length` bytes, `next` can be written, and so can the 16 bytes of `welcome`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orders_login(
    market: &mut Market,
    now: u64,
    login: *const u8,
    length: usize,
    next: &mut u64,
    welcome: &mut [u8; 16],
) -> i32 {
    let refused = |reason: Refusal| -i32::from(reason as u8);
    // SAFETY: by contract.
    let bytes = unsafe { std::slice::from_raw_parts(login, length) };
    let Some(login) = Login::parse(bytes) else { return refused(Refusal::NoLogin) };
    market.advance(now);
    let Some(number) = market.login(login.user, login.cancel_at_end == 1) else {
        return refused(Refusal::Full);
    };
    let session = market.sessions.get(number);
    *next = match login.next.get() {
        0 => session.outbox.next(),
        wanted => wanted,
    };
    *welcome = [0; 16];
    let answer = Welcome::new(*next, session.last_urn.saturating_add(1));
    welcome[..answer.as_bytes().len()].copy_from_slice(answer.as_bytes());
    number as i32
}

/// The connection of a session has ended.
#[unsafe(no_mangle)]
pub extern "C" fn orders_gone(market: &mut Market, now: u64, session: u32) {
    market.advance(now);
    market.gone(session);
}

/// A message of a session. Returns false if it is none.
///
/// # Safety
/// `message` has `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orders_message(
    market: &mut Market,
    now: u64,
    session: u32,
    message: *const u8,
    length: usize,
) -> bool {
    // SAFETY: by contract.
    let Some(message) = Inbound::parse(unsafe { std::slice::from_raw_parts(message, length) }) else {
        return false;
    };
    if !matches!(message, Inbound::Heartbeat) {
        market.advance(now);
        market.handle(session, message);
    }
    true
}

/// The next session with new messages; -1 if there is none.
#[unsafe(no_mangle)]
pub extern "C" fn orders_dirty(market: &mut Market) -> i32 {
    market.sessions.take_dirty().map_or(-1, |number| number as i32)
}

/// The message of a session that has this number: its length, and where it is; 0 if it is not there.
#[unsafe(no_mangle)]
pub extern "C" fn orders_answer(
    market: &Market,
    session: u32,
    number: u64,
    message: &mut *const u8,
) -> usize {
    let Some((bytes, _)) = market.sessions.get(session).outbox.get(number) else { return 0 };
    *message = bytes.as_ptr();
    bytes.len()
}
