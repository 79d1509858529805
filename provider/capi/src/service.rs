//! PSPs, RSPs and CSPs.

use super::abi::{Comm, CspParam, PspParam, RspParam};
use super::code::{Code, guard};
use super::convert::{ia_of, optional_evd};
use super::handle::Handle;
use super::objects::{CspObject, EpObject, IaObject, PspObject, RspObject};
use super::raw::{In, Out, SockAddrHead};
use super::sockaddr::SockAddr;
use provider::inside::Csp;
use provider::inside::sync::{Mutex, MutexGuard, rank};
use provider::{Evd, Ia, Psp, PspBuilder, Rsp, SpId, Subtype};
use std::sync::PoisonError;

static NAMING: Mutex<{ rank::NAMING }, ()> = Mutex::new(());

/// Locks [`NAMING`] for a fork.
pub(super) fn hold_shared_locks() -> Vec<Box<dyn std::any::Any>> {
    vec![Box::new(NAMING.hold())]
}

/// Held from before a service point listens until its handle is known by number.
fn naming() -> MutexGuard<'static, ()> {
    NAMING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The handle of a service point.
pub(super) fn sp_handle(id: SpId) -> Handle {
    match Handle::of_id(id.0) {
        Handle::NULL => {
            // A request has arrived before the call that creates the service point has returned.
            drop(naming());
            Handle::of_id(id.0)
        }
        handle => handle,
    }
}

fn cr_evd(evd: Handle) -> Result<Evd, Code> {
    optional_evd(evd, Subtype::InvalidHandleEvdCr)?.ok_or_else(|| Code::handle(Subtype::InvalidHandleEvdCr))
}

/// Who creates the EPs: the program (0) or the provider (1).
fn provider_makes_eps(flags: u32) -> Result<bool, Code> {
    match flags {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Code::arg(4)),
    }
}

fn builder<'a>(ia: &'a Ia, evd: &'a Evd, provides: bool) -> PspBuilder<'a> {
    let builder = Psp::builder(ia, evd);
    if provides { builder.provide_eps() } else { builder }
}

pub(super) extern "C" fn psp_create(
    ia: Handle,
    conn_qual: u64,
    evd: Handle,
    flags: u32,
    out: Out<Handle>,
) -> u32 {
    guard("dat_psp_create", || {
        let object = ia.get::<IaObject>()?;
        let to = cr_evd(evd)?;
        out.need(5)?;
        let provides = provider_makes_eps(flags)?;
        let naming = naming();
        let psp = builder(&object.ia, &to, provides).conn_qual(conn_qual).build()?;
        out.set(name(ia, psp, evd)?);
        drop(naming);
        Ok(())
    })
}

pub(super) extern "C" fn psp_create_any(
    ia: Handle,
    conn_qual: Out<u64>,
    evd: Handle,
    flags: u32,
    out: Out<Handle>,
) -> u32 {
    guard("dat_psp_create_any", || {
        let object = ia.get::<IaObject>()?;
        let to = cr_evd(evd)?;
        conn_qual.need(2)?;
        out.need(5)?;
        let provides = provider_makes_eps(flags)?;
        let naming = naming();
        let psp = builder(&object.ia, &to, provides).build()?;
        let qual = psp.conn_qual();
        out.set(name(ia, psp, evd)?);
        conn_qual.set(qual);
        drop(naming);
        Ok(())
    })
}

fn name(ia: Handle, psp: Psp, evd: Handle) -> Result<Handle, Code> {
    let id = psp.id();
    ia.sibling_known_as(PspObject { psp, evd }, id.0)
}

pub(super) extern "C" fn psp_query(psp: Handle, mask: u32, param: Out<PspParam>) -> u32 {
    guard("dat_psp_query", || {
        let object = psp.get::<PspObject>()?;
        if mask & !0xf != 0 {
            return Err(Code::arg(2));
        }
        param.need(3)?;
        param.set(PspParam {
            ia_handle: ia_of(psp),
            conn_qual: object.psp.conn_qual(),
            evd_handle: object.evd.0,
            psp_flags: object.psp.provides_eps().into(),
            pad: 0,
        });
        Ok(())
    })
}

pub(super) extern "C" fn psp_free(psp: Handle) -> u32 {
    guard("dat_psp_free", || {
        let mut outcome = Ok(());
        psp.end::<PspObject>(|object| {
            outcome = object.psp.close();
            Ok(())
        })?;
        Ok(outcome?)
    })
}

pub(super) extern "C" fn rsp_create(
    ia: Handle,
    conn_qual: u64,
    ep: Handle,
    evd: Handle,
    out: Out<Handle>,
) -> u32 {
    guard("dat_rsp_create", || {
        let object = ia.get::<IaObject>()?;
        let reserved = ep.get::<EpObject>()?;
        let to = cr_evd(evd)?;
        out.need(5)?;
        let naming = naming();
        let rsp = Rsp::at_conn_qual(&object.ia, conn_qual, &reserved.ep, &to)?;
        let id = rsp.id();
        let handle = ia.sibling_known_as(RspObject { rsp, conn_qual, evd, ep }, id.0)?;
        drop(naming);
        out.set(handle);
        Ok(())
    })
}

pub(super) extern "C" fn rsp_query(rsp: Handle, mask: u32, param: Out<RspParam>) -> u32 {
    guard("dat_rsp_query", || {
        let object = rsp.get::<RspObject>()?;
        if mask & !0xf != 0 {
            return Err(Code::arg(2));
        }
        param.need(3)?;
        param.set(RspParam {
            ia_handle: ia_of(rsp),
            conn_qual: object.conn_qual,
            evd_handle: object.evd.0,
            ep_handle: object.ep.0,
        });
        Ok(())
    })
}

pub(super) extern "C" fn rsp_free(rsp: Handle) -> u32 {
    guard("dat_rsp_free", || {
        let mut outcome = Ok(());
        rsp.end::<RspObject>(|object| {
            outcome = object.rsp.close();
            Ok(())
        })?;
        Ok(outcome?)
    })
}

pub(super) extern "C" fn csp_create(
    ia: Handle,
    comm: In<Comm>,
    address: In<SockAddrHead>,
    evd: Handle,
    out: Out<Handle>,
) -> u32 {
    guard("dat_csp_create", || {
        let object = ia.get::<IaObject>()?;
        let to = cr_evd(evd)?;
        let Comm { domain, kind, protocol } = comm.need(2)?;
        let address = address.socket(3)?;
        out.need(5)?;
        let naming = naming();
        let csp = Csp::new(&object.ia, provider::inside::Comm { domain, kind, protocol }, address, &to)?;
        let id = csp.id();
        let comm = Box::new(Comm::new(csp.comm()));
        let address = Box::new(SockAddr::new(csp.address()));
        let handle = ia.sibling_known_as(CspObject { csp, comm, address, evd }, id.0)?;
        drop(naming);
        out.set(handle);
        Ok(())
    })
}

pub(super) extern "C" fn csp_query(csp: Handle, mask: u32, param: Out<CspParam>) -> u32 {
    guard("dat_csp_query", || {
        let object = csp.get::<CspObject>()?;
        if mask & !0xf != 0 {
            return Err(Code::arg(2));
        }
        param.need(3)?;
        param.set(CspParam {
            ia_handle: ia_of(csp),
            comm: std::ptr::from_ref(&*object.comm) as usize,
            address_ptr: object.address.address(),
            evd_handle: object.evd.0,
        });
        Ok(())
    })
}

pub(super) extern "C" fn csp_free(csp: Handle) -> u32 {
    guard("dat_csp_free", || {
        let mut outcome = Ok(());
        csp.end::<CspObject>(|object| {
            outcome = object.csp.close();
            Ok(())
        })?;
        Ok(outcome?)
    })
}
