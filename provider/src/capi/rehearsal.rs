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
use super::objects::IaObject;
use super::raw::{In, Out};
use super::{code_pages, ep, evd, lmr};
use crate::types::{EvdFlags, MemPriv};
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
        object.ia.device.reactor.wait_until_running();
    }
}

/// Objects, and the functions that free them.
#[derive(Default)]
struct Made(Vec<(Handle, Free)>);

type Free = extern "C" fn(Handle) -> u32;

impl Made {
    /// Calls `create` and keeps the object that it creates. `None` if it fails.
    fn add(&mut self, free: Free, create: impl FnOnce(Out<Handle>) -> u32) -> Option<Handle> {
        let (code, handle) = Out::taken(Handle::NULL, create);
        (code == 0).then(|| {
            self.0.push((handle, free));
            handle
        })
    }

    /// Frees the objects, the youngest first.
    fn free(self) {
        for (handle, free) in self.0.into_iter().rev() {
            if free(handle) != 0 {
                tracing::debug!(
                    "an object of the rehearsal cannot be freed and stays until the IA is closed"
                );
            }
        }
    }
}

/// Creates one object of each kind. `None` if one cannot be created.
fn create(ia: Handle, made: &mut Made) -> Option<()> {
    let region = Region { first: PAGE.0.as_ptr() as usize, second: 0 };
    let (len, all) = (PAGE.0.len() as u64, MemPriv::all().bits());
    let (no_context, no_number) = (Out::null(), Out::null());
    let pz = made.add(lmr::pz_free, |pz| lmr::pz_create(ia, pz))?;
    made.add(lmr::lmr_free, |out| {
        lmr::lmr_create(ia, 0, region, len, pz, all, 0, out, no_context, no_context, no_number, no_number)
    })?;
    let mut evd = |flags: EvdFlags| {
        made.add(evd::evd_free, |evd| evd::evd_create(ia, 1, Handle::NULL, flags.bits(), evd))
    };
    let (connect, dto) = (evd(EvdFlags::CONNECTION)?, evd(EvdFlags::DTO)?);
    made.add(ep::ep_free, |ep| ep::ep_create(ia, pz, dto, dto, connect, In::at(0), ep))?;
    Some(())
}
