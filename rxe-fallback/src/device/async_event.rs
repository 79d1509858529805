//! Asynchronous events of objects, ports and devices.
//!
//! An event is acknowledged as soon as its object's token has been copied out, so that destroying
//! an object never waits for an unacknowledged event.
#![expect(unsafe_code, reason = "calls into libibverbs")]

use std::mem::{MaybeUninit, offset_of};
use std::os::fd::BorrowedFd;

use doorbell_sys as sys;

use super::Context;
use crate::error::{Error, Result};

/// An asynchronous event, already acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AsyncEvent {
    /// What happened.
    pub kind: AsyncKind,
    /// The object that the event concerns.
    pub object: AsyncObject,
}

/// The object of an asynchronous event. Tokens are those that were given at creation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AsyncObject {
    /// A QP: its number and its token.
    Qp(u32, u64),
    /// A CQ's token.
    Cq(u64),
    /// An SRQ's token.
    Srq(u64),
    /// A port, counted from 1.
    Port(u8),
    /// The whole device, or an object that this crate does not have.
    Device,
}

/// Kinds of asynchronous events.
///
/// # References
/// ibv_get_async_event(3)
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names are those of enum ibv_event_type")]
pub enum AsyncKind {
    CqError,
    QpFatal,
    QpRequestError,
    QpAccessError,
    CommunicationEstablished,
    SendQueueDrained,
    PathMigrated,
    PathMigrationError,
    DeviceFatal,
    PortActive,
    PortError,
    LidChange,
    PkeyChange,
    SmChange,
    SrqError,
    SrqLimitReached,
    QpLastWqeReached,
    ClientReregister,
    GidChange,
    WqFatal,
    /// A value this crate does not know.
    Other(u32),
}

impl From<u32> for AsyncKind {
    fn from(value: u32) -> Self {
        match value {
            0 => AsyncKind::CqError,
            1 => AsyncKind::QpFatal,
            2 => AsyncKind::QpRequestError,
            3 => AsyncKind::QpAccessError,
            4 => AsyncKind::CommunicationEstablished,
            5 => AsyncKind::SendQueueDrained,
            6 => AsyncKind::PathMigrated,
            7 => AsyncKind::PathMigrationError,
            8 => AsyncKind::DeviceFatal,
            9 => AsyncKind::PortActive,
            10 => AsyncKind::PortError,
            11 => AsyncKind::LidChange,
            12 => AsyncKind::PkeyChange,
            13 => AsyncKind::SmChange,
            14 => AsyncKind::SrqError,
            15 => AsyncKind::SrqLimitReached,
            16 => AsyncKind::QpLastWqeReached,
            17 => AsyncKind::ClientReregister,
            18 => AsyncKind::GidChange,
            19 => AsyncKind::WqFatal,
            other => AsyncKind::Other(other),
        }
    }
}

/// `ibv_async_event` with the kind as a number. doorbell-sys has a Rust enum, for which a kind of a
/// newer kernel would be an invalid value.
#[repr(C)]
struct RawEvent {
    element: sys::ibv_async_event_element_t,
    event_type: u32,
}

const _: () = assert!(size_of::<RawEvent>() == size_of::<sys::ibv_async_event>());
const _: () = assert!(offset_of!(RawEvent, event_type) == offset_of!(sys::ibv_async_event, event_type));

impl Context {
    /// The descriptor that is readable while there are asynchronous events; non-blocking.
    #[must_use]
    pub fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the context owns the descriptor and is open for the borrow.
        unsafe { BorrowedFd::borrow_raw((*self.raw()).async_fd) }
    }

    /// The next asynchronous event, acknowledged; `None` without an event.
    ///
    /// # Errors
    /// `ibv_get_async_event`'s errno, EIO when the device has been removed.
    ///
    /// # References
    /// ibv_get_async_event(3)
    pub fn next_async_event(&self) -> Result<Option<AsyncEvent>> {
        let mut raw = MaybeUninit::<RawEvent>::zeroed();
        // SAFETY: the context is open; RawEvent has the layout of ibv_async_event (asserted above).
        let returned = unsafe { sys::ibv_get_async_event(self.raw(), raw.as_mut_ptr().cast()) };
        if returned != 0 {
            let error = Error::last("ibv_get_async_event");
            return match error.errno() {
                libc::EAGAIN | libc::EINTR => Ok(None),
                _ => Err(error),
            };
        }
        // SAFETY: a return of 0 means it was filled in; every bit pattern is valid.
        let raw = unsafe { raw.assume_init_mut() };
        let kind = AsyncKind::from(raw.event_type);
        // SAFETY: libibverbs fills in the view of the union that goes with the kind; the object it
        // names cannot have been destroyed, because destroying waits until each event read has been
        // acknowledged (below, once).
        let object = unsafe { object_of(kind, &raw.element) };
        // SAFETY: an event just read, acknowledged once.
        unsafe { sys::ibv_ack_async_event(std::ptr::from_mut(raw).cast()) };
        Ok(Some(AsyncEvent { kind, object }))
    }
}

/// # Safety
/// `element` was filled in by libibverbs for an event of this kind that has not been acknowledged.
unsafe fn object_of(kind: AsyncKind, element: &sys::ibv_async_event_element_t) -> AsyncObject {
    use AsyncKind as K;
    // SAFETY: the caller's promise.
    unsafe {
        match kind {
            K::CqError => AsyncObject::Cq(crate::token_from((*element.cq).cq_context)),
            K::QpFatal
            | K::QpRequestError
            | K::QpAccessError
            | K::CommunicationEstablished
            | K::SendQueueDrained
            | K::PathMigrated
            | K::PathMigrationError
            | K::QpLastWqeReached => {
                AsyncObject::Qp((*element.qp).qp_num, crate::token_from((*element.qp).qp_context))
            }
            K::SrqError | K::SrqLimitReached => {
                AsyncObject::Srq(crate::token_from((*element.srq).srq_context))
            }
            K::PortActive
            | K::PortError
            | K::LidChange
            | K::PkeyChange
            | K::SmChange
            | K::ClientReregister
            | K::GidChange => AsyncObject::Port(u8::try_from(element.port_num).unwrap_or(0)),
            K::DeviceFatal | K::WqFatal | K::Other(_) => AsyncObject::Device,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_follow_the_c_enum() {
        use sys::ibv_event_type as e;
        let pairs = [
            (e::IBV_EVENT_CQ_ERR, AsyncKind::CqError),
            (e::IBV_EVENT_QP_FATAL, AsyncKind::QpFatal),
            (e::IBV_EVENT_QP_REQ_ERR, AsyncKind::QpRequestError),
            (e::IBV_EVENT_QP_ACCESS_ERR, AsyncKind::QpAccessError),
            (e::IBV_EVENT_COMM_EST, AsyncKind::CommunicationEstablished),
            (e::IBV_EVENT_SQ_DRAINED, AsyncKind::SendQueueDrained),
            (e::IBV_EVENT_PATH_MIG, AsyncKind::PathMigrated),
            (e::IBV_EVENT_PATH_MIG_ERR, AsyncKind::PathMigrationError),
            (e::IBV_EVENT_DEVICE_FATAL, AsyncKind::DeviceFatal),
            (e::IBV_EVENT_PORT_ACTIVE, AsyncKind::PortActive),
            (e::IBV_EVENT_PORT_ERR, AsyncKind::PortError),
            (e::IBV_EVENT_LID_CHANGE, AsyncKind::LidChange),
            (e::IBV_EVENT_PKEY_CHANGE, AsyncKind::PkeyChange),
            (e::IBV_EVENT_SM_CHANGE, AsyncKind::SmChange),
            (e::IBV_EVENT_SRQ_ERR, AsyncKind::SrqError),
            (e::IBV_EVENT_SRQ_LIMIT_REACHED, AsyncKind::SrqLimitReached),
            (e::IBV_EVENT_QP_LAST_WQE_REACHED, AsyncKind::QpLastWqeReached),
            (e::IBV_EVENT_CLIENT_REREGISTER, AsyncKind::ClientReregister),
            (e::IBV_EVENT_GID_CHANGE, AsyncKind::GidChange),
            (e::IBV_EVENT_WQ_FATAL, AsyncKind::WqFatal),
        ];
        for (raw, kind) in pairs {
            assert_eq!(AsyncKind::from(raw as u32), kind);
        }
        assert_eq!(AsyncKind::from(4711), AsyncKind::Other(4711));
    }
}
