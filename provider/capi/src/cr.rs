//! Connection requests.

use super::abi::CrParam;
use super::code::{Code, guard};
use super::handle::Handle;
use super::objects::{CrObject, EpObject};
use super::raw::{In, Out};
use super::sockaddr::SockAddr;
use provider::inside::CrInner;
use provider::{Cr, ReturnType};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::AtomicU8;

/// The object of a connection request's handle. `provided` is the EP that the provider created for
/// the request, or NULL.
pub(super) fn object(cr: Cr, provided: Handle) -> CrObject {
    let remote = cr.remote().unwrap_or_else(|| SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0));
    let private_data = cr.private_data().iter().map(|&byte| AtomicU8::new(byte)).collect();
    CrObject { cr, remote: Box::new(SockAddr::new(remote)), private_data, provided }
}

pub(super) extern "C" fn cr_query(cr: Handle, mask: u32, param: Out<CrParam>) -> u32 {
    guard("dat_cr_query", || {
        let object = cr.get::<CrObject>()?;
        if mask & !0x1f != 0 {
            return Err(Code::arg(2));
        }
        param.need(3)?;
        param.set(CrParam {
            remote_ia_address_ptr: object.remote.address(),
            remote_port_qual: object.cr.remote().map_or(0, |remote| remote.port().into()),
            private_data_size: object.private_data.len() as i32,
            pad: 0,
            private_data: object.private_data.as_ptr() as usize,
            // The context of an EP in the core is its handle.
            local_ep_handle: object.cr.reserved_context().unwrap_or(0) as usize,
        });
        Ok(())
    })
}

/// Answers the request and then retires its handle. Returns the handle of the EP that the provider
/// had created for the request. Other threads may query the request meanwhile; threads that also
/// answer it wait.
fn answer(cr: Handle, how: impl FnOnce(&CrInner) -> provider::Result<()>) -> Result<Handle, Code> {
    let object = cr.get::<CrObject>()?;
    let (inner, provided) = (object.cr.inner.clone(), object.provided);
    drop(object);
    if !cr.is_inherited() {
        how(&inner)?;
    }
    // The close of the IA may have retired the handle before.
    drop(cr.take::<CrObject>(|_| Ok(())));
    Ok(provided)
}

/// Frees the EP that the provider had created for a request.
pub(super) fn retire_provided_ep(ep: Handle) {
    drop(ep.take::<EpObject>(|_| Ok(())));
}

pub(super) extern "C" fn cr_accept(cr: Handle, ep_handle: Handle, size: i32, private_data: In<u8>) -> u32 {
    guard("dat_cr_accept", || {
        cr.get::<CrObject>()?;
        let ep = ep_handle.given().map(|ep| ep.get::<EpObject>()).transpose()?;
        // The private data may lie in the request's own buffer.
        let private_data = private_data.bytes(size, 3, 4)?;
        let provided = answer(cr, |request| match &ep {
            Some(ep) => request.accept(&ep.ep.inner, &private_data),
            None => request.accept_reserved(&private_data),
        })?;
        drop(ep);
        if !ep_handle.is_null() && ep_handle != provided {
            retire_provided_ep(provided);
        }
        Ok(())
    })
}

pub(super) extern "C" fn cr_reject(cr: Handle, size: i32, private_data: In<u8>) -> u32 {
    guard("dat_cr_reject", || {
        cr.get::<CrObject>()?;
        let private_data = private_data.bytes(size, 2, 3)?;
        // The request is answered even if the peer no longer waits.
        let mut gone = Ok(());
        let provided = answer(cr, |request| match request.reject(&private_data) {
            Err(error) if error.return_type() == ReturnType::Abort => {
                gone = Err(error);
                Ok(())
            }
            outcome => outcome,
        })?;
        retire_provided_ep(provided);
        Ok(gone?)
    })
}

pub(super) extern "C" fn cr_handoff(cr: Handle, to: u64) -> u32 {
    guard("dat_cr_handoff", || {
        retire_provided_ep(answer(cr, |request| request.hand_off(to))?);
        Ok(())
    })
}
