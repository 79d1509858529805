//! The objects of handles: an object of the core, and values that only C queries.

use super::abi::{Agent, Comm, LmrCookie, NamedAttr, Region};
use super::handle::Handle;
use super::sockaddr::SockAddr;
use provider::inside::sync::{Mutex, rank};
use provider::inside::{Csp, SrqInner};
use provider::{Cno, Cr, Ep, Evd, Ia, Lmr, Psp, Pz, Rmr, Rsp, Subtype};
use std::collections::HashMap;
use std::ffi::CString;
use std::sync::Arc;
use std::sync::atomic::AtomicU8;

/// The object of a handle.
pub(super) enum Object {
    Cr(CrObject),
    Csp(CspObject),
    Ep(Box<EpObject>),
    Evd(EvdObject),
    Ia(Box<IaObject>),
    Lmr(LmrObject),
    Psp(PspObject),
    Pz(Pz),
    Rmr(RmrObject),
    Rsp(RspObject),
    Cno(CnoObject),
    Srq(SrqObject),
}

impl EpObject {
    pub(super) fn new(ep: Ep, pz: Handle, evds: [Handle; 3], srq: Handle) -> Self {
        let [recv_evd, request_evd, connect_evd] = evds;
        Self {
            ep,
            pz,
            recv_evd,
            request_evd,
            connect_evd,
            srq,
            private_data: Mutex::default(),
            addresses: Mutex::default(),
        }
    }
}

impl Object {
    /// `DAT_HANDLE_TYPE`.
    pub(super) fn kind(&self) -> u32 {
        match self {
            Self::Cr(_) => 0,
            Self::Ep(_) => 1,
            Self::Evd(_) => 2,
            Self::Ia(_) => 3,
            Self::Lmr(_) => 4,
            Self::Psp(_) => 5,
            Self::Pz(_) => 6,
            Self::Rmr(_) => 7,
            Self::Rsp(_) => 8,
            Self::Cno(_) => 9,
            Self::Srq(_) => 10,
            Self::Csp(_) => 11,
        }
    }

    /// The number by which events name the object.
    pub(super) fn number(&self) -> Option<u64> {
        match self {
            Self::Evd(object) => Some(object.evd.id().0),
            Self::Rmr(object) => Some(object.rmr.id().0),
            _ => None,
        }
    }
}

/// A type of object that handle slots store.
pub(super) trait Stored: Sized + 'static {
    /// The subtype of INVALID_HANDLE for a wrong or stale handle.
    const SUBTYPE: Subtype;
    /// The object, if it is of this type.
    fn of(object: &Object) -> Option<&Self>;
    /// The object for a change.
    fn of_mut(object: &mut Object) -> Option<&mut Self>;
    /// The object by value. An object of another type is returned as an error.
    fn into(object: Object) -> Result<Self, Object>;
    /// The object in the form in which slots store it.
    fn wrap(self) -> Object;
}

macro_rules! stored {
    ($variant:ident, $name:ty, $subtype:ident) => {
        impl Stored for $name {
            const SUBTYPE: Subtype = Subtype::$subtype;

            fn of(object: &Object) -> Option<&Self> {
                match object {
                    Object::$variant(object) => Some(object),
                    _ => None,
                }
            }

            fn of_mut(object: &mut Object) -> Option<&mut Self> {
                match object {
                    Object::$variant(object) => Some(object),
                    _ => None,
                }
            }

            fn into(object: Object) -> Result<Self, Object> {
                match object {
                    Object::$variant(object) => Ok(object),
                    other => Err(other),
                }
            }

            fn wrap(self) -> Object {
                Object::$variant(self)
            }
        }
    };
    (boxed $variant:ident, $name:ty, $subtype:ident) => {
        impl Stored for $name {
            const SUBTYPE: Subtype = Subtype::$subtype;

            fn of(object: &Object) -> Option<&Self> {
                match object {
                    Object::$variant(object) => Some(object),
                    _ => None,
                }
            }

            fn of_mut(object: &mut Object) -> Option<&mut Self> {
                match object {
                    Object::$variant(object) => Some(object),
                    _ => None,
                }
            }

            fn into(object: Object) -> Result<Self, Object> {
                match object {
                    Object::$variant(object) => Ok(*object),
                    other => Err(other),
                }
            }

            fn wrap(self) -> Object {
                Object::$variant(Box::new(self))
            }
        }
    };
}

stored!(Cr, CrObject, InvalidHandleCr);
stored!(Csp, CspObject, InvalidHandleCsp);
stored!(boxed Ep, EpObject, InvalidHandleEp);
stored!(Evd, EvdObject, InvalidHandleEvdRequest);
stored!(boxed Ia, IaObject, InvalidHandleIa);
stored!(Lmr, LmrObject, InvalidHandleLmr);
stored!(Psp, PspObject, InvalidHandlePsp);
stored!(Pz, Pz, InvalidHandlePz);
stored!(Rmr, RmrObject, InvalidHandleRmr);
stored!(Rsp, RspObject, InvalidHandleRsp);
stored!(Cno, CnoObject, InvalidHandleCno);
stored!(Srq, SrqObject, InvalidHandleSrq);

pub(super) struct IaObject {
    pub(super) ia: Ia,
    /// NULL if the IA was opened without one.
    pub(super) async_evd: Handle,
    pub(super) address: &'static SockAddr,
    pub(super) named: NamedAttrs,
}

pub(super) struct CrObject {
    pub(super) cr: Cr,
    pub(super) remote: Box<SockAddr>,
    /// C has the address and may write there.
    pub(super) private_data: Box<[AtomicU8]>,
    /// The EP that the provider created for the request.
    pub(super) provided: Handle,
}

pub(super) struct EpObject {
    pub(super) ep: Ep,
    pub(super) pz: Handle,
    pub(super) recv_evd: Handle,
    pub(super) request_evd: Handle,
    pub(super) connect_evd: Handle,
    pub(super) srq: Handle,
    /// Private data of events. C has its address.
    pub(super) private_data: Mutex<{ rank::TABLE }, Box<EventPrivateData>>,
    /// The addresses of the last query. C has pointers to them.
    pub(super) addresses: Mutex<{ rank::TABLE }, [Option<Box<SockAddr>>; 2]>,
}

#[derive(Default)]
pub(super) struct EventPrivateData {
    /// Private data of the last connection event that had some.
    pub(super) last: Vec<u8>,
    /// Private data of datagram events, each until its CM handle is freed.
    pub(super) by_cm: HashMap<u64, Vec<u8>>,
}

pub(super) struct EvdObject {
    pub(super) evd: Evd,
    pub(super) cno: Handle,
}

pub(super) struct LmrObject {
    pub(super) lmr: Lmr,
    pub(super) pz: Handle,
    pub(super) mem_type: u32,
    pub(super) region: Region,
    /// The cookie of shared memory. C has its address.
    pub(super) _cookie: Option<Box<LmrCookie>>,
    /// The privileges as given, including extension bits.
    pub(super) privileges: u32,
}

pub(super) struct CspObject {
    pub(super) csp: Csp,
    /// C has the addresses of these two fields.
    pub(super) comm: Box<Comm>,
    pub(super) address: Box<SockAddr>,
    pub(super) evd: Handle,
}

pub(super) struct PspObject {
    pub(super) psp: Psp,
    pub(super) evd: Handle,
}

pub(super) struct RmrObject {
    pub(super) rmr: Rmr,
    pub(super) pz: Handle,
}

pub(super) struct RspObject {
    pub(super) rsp: Rsp,
    pub(super) conn_qual: u64,
    pub(super) evd: Handle,
    pub(super) ep: Handle,
}

pub(super) struct CnoObject {
    pub(super) cno: Cno,
    pub(super) agent: Agent,
}

/// The SRQ itself is in the slot's [`BiasedLock`](biased_lock::BiasedLock).
pub(super) struct SrqObject {
    pub(super) srq: Arc<SrqInner>,
    pub(super) pz: Handle,
}

/// Named attributes, and the strings to which they point.
pub(super) struct NamedAttrs {
    _strings: Vec<CString>,
    raw: Box<[NamedAttr]>,
}

impl NamedAttrs {
    pub(super) fn new(pairs: &[(&str, String)]) -> Self {
        let string = |text: &str| CString::new(text).unwrap_or_default();
        let strings: Vec<_> = pairs.iter().flat_map(|(name, value)| [string(name), string(value)]).collect();
        let raw = strings
            .chunks_exact(2)
            .map(|pair| NamedAttr { name: pair[0].as_ptr() as usize, value: pair[1].as_ptr() as usize })
            .collect();
        Self { _strings: strings, raw }
    }

    pub(super) fn len(&self) -> i32 {
        i32::try_from(self.raw.len()).unwrap_or(0)
    }

    pub(super) fn address(&self) -> usize {
        self.raw.as_ptr() as usize
    }
}
