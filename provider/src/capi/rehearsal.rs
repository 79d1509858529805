//! What the first open of an IA does ahead of a program's first calls.
//!
//! The first call of its kind in a process takes up to twice as long as later ones: its code is not
//! in the processor's caches, its memory has page faults, and libibverbs finds out which commands
//! the device takes. Programs set up a connection once, so this is what they would see. The first
//! open therefore creates one object of each kind that a connection needs, and frees it.

use crate::types::{EvdFlags, MemPriv};
use crate::{Ep, EpEvds, Evd, Ia, Lmr, Pz, Result};
use std::sync::atomic::{AtomicBool, Ordering};

/// Rehearses on the first IA of the process. Without memory, descriptors or queues of the device
/// it does less: the calls of the program then report what is missing.
pub(super) fn rehearse_once(ia: &Ia) {
    static DONE: AtomicBool = AtomicBool::new(false);
    if DONE.swap(true, Ordering::Relaxed) {
        return;
    }
    if let Err(error) = rehearse(ia) {
        tracing::debug!(%error, "the first calls of the program will take longer");
    }
    // The program has created none of these objects.
    ia.device.counts.clear();
}

/// Dropping an object frees it.
fn rehearse(ia: &Ia) -> Result<()> {
    const LEN: usize = 4096;
    let pz = Pz::create(ia)?;
    drop(Lmr::create(ia, &pz, LEN, MemPriv::all())?);
    let connect = Evd::create(ia, 1, None, EvdFlags::CONNECTION)?;
    let dto = Evd::create(ia, 1, None, EvdFlags::DTO)?;
    let evds = EpEvds { recv: Some(&dto), request: Some(&dto), connect: Some(&connect) };
    drop(Ep::create(ia, &pz, evds, None)?);
    Ok(())
}
