//! Devices: the device list, open devices and their attributes.
#![expect(unsafe_code, reason = "calls into libibverbs")]

use std::ffi::c_void;
use std::ffi::{CStr, OsStr};
use std::fmt;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use doorbell_sys as sys;

use crate::error::{Error, Result, check};

mod async_event;
mod attr;
mod gid;
mod selector;

pub use async_event::{AsyncEvent, AsyncKind, AsyncObject};
pub use attr::{AtomicCap, DeviceAttr, LinkLayer, PortAttr, PortState};
pub(crate) use attr::{mtu_bytes, mtu_code};
pub use gid::{Gid, GidEntry, GidKind};
pub use selector::Selector;

/// A device in the list of devices, not opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Kernel name, as in `rxe0` or `mlx5_0`.
    pub name: String,
    /// Node GUID, in host byte order.
    pub guid: u64,
    /// The kind of node.
    pub node_type: NodeType,
    /// The transport family.
    pub transport: Transport,
}

/// Kind of node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeType {
    /// InfiniBand or RoCE channel adapter.
    ChannelAdapter,
    /// InfiniBand switch.
    Switch,
    /// InfiniBand router.
    Router,
    /// iWARP network card.
    Rnic,
    /// Another value of libibverbs.
    Other(i32),
}

/// Transport family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Transport {
    /// InfiniBand and RoCE.
    Ib,
    /// iWARP.
    Iwarp,
    /// Another value of libibverbs.
    Other(i32),
}

impl From<i32> for NodeType {
    fn from(value: i32) -> Self {
        use sys::ibv_node_type as t;
        match value {
            t::IBV_NODE_CA => NodeType::ChannelAdapter,
            t::IBV_NODE_SWITCH => NodeType::Switch,
            t::IBV_NODE_ROUTER => NodeType::Router,
            t::IBV_NODE_RNIC => NodeType::Rnic,
            other => NodeType::Other(other),
        }
    }
}

impl From<i32> for Transport {
    fn from(value: i32) -> Self {
        use sys::ibv_transport_type as t;
        match value {
            t::IBV_TRANSPORT_IB => Transport::Ib,
            t::IBV_TRANSPORT_IWARP => Transport::Iwarp,
            other => Transport::Other(other),
        }
    }
}

/// libibverbs' list of devices, freed on drop.
struct DeviceList {
    list: NonNull<*mut sys::ibv_device>,
    len: usize,
}

impl DeviceList {
    fn get() -> Result<Self> {
        let mut len = 0;
        // SAFETY: `len` is written before the call returns a list.
        let list = unsafe { sys::ibv_get_device_list(&mut len) };
        let Some(list) = NonNull::new(list) else {
            let error = Error::last("ibv_get_device_list");
            return Err(match error.errno() {
                libc::ENOSYS => error.with_detail("the kernel has no verbs: load the module ib_uverbs"),
                _ => error,
            });
        };
        Ok(Self { list, len: usize::try_from(len).unwrap_or(0) })
    }

    fn devices(&self) -> &[*mut sys::ibv_device] {
        // SAFETY: libibverbs gave `len` pointers at `list`, which live until the list is freed.
        unsafe { std::slice::from_raw_parts(self.list.as_ptr(), self.len) }
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: got from ibv_get_device_list, freed once.
        unsafe { sys::ibv_free_device_list(self.list.as_ptr()) };
    }
}

/// # Safety
/// `device` is a device of a live list or of an open context.
unsafe fn device_name(device: *mut sys::ibv_device) -> String {
    // SAFETY: the caller's promise; libibverbs keeps a NUL-terminated name in the device.
    unsafe { CStr::from_ptr(sys::ibv_get_device_name(device)) }.to_string_lossy().into_owned()
}

/// The verbs devices of this machine.
///
/// # Errors
/// ENOSYS when the kernel has no verbs at all.
///
/// # References
/// ibv_get_device_list(3)
pub fn devices() -> Result<Vec<DeviceInfo>> {
    let list = DeviceList::get()?;
    Ok(list
        .devices()
        .iter()
        .map(|&device| {
            // SAFETY: the list lives until the end of this function.
            let (name, guid, node, transport) = unsafe {
                (
                    device_name(device),
                    sys::ibv_get_device_guid(device),
                    (*device).node_type,
                    (*device).transport_type,
                )
            };
            DeviceInfo { name, guid: u64::from_be(guid), node_type: node.into(), transport: transport.into() }
        })
        .collect())
}

/// An open device; cheap to clone.
#[derive(Clone)]
pub struct Context {
    inner: Arc<ContextInner>,
}

struct ContextInner {
    raw: NonNull<sys::ibv_context>,
    name: String,
    driver: String,
    attr: DeviceAttr,
    /// The link layer of each port, once it is known. It cannot change while a device is open.
    link_layers: Box<[OnceLock<LinkLayer>]>,
}

// SAFETY: verbs on one context may be called by any thread at once (ibv_open_device(3), libibverbs
// is thread safe).
unsafe impl Send for ContextInner {}
// SAFETY: as above.
unsafe impl Sync for ContextInner {}

impl Drop for ContextInner {
    fn drop(&mut self) {
        // SAFETY: opened by ibv_open_device, closed only here; every object made on it holds a
        // clone, so none is left.
        let returned = unsafe { sys::ibv_close_device(self.raw.as_ptr()) };
        crate::log_failed_drop("ibv_close_device", returned);
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("name", &self.name())
            .field("driver", &self.driver())
            .finish_non_exhaustive()
    }
}

impl Context {
    /// Opens the device called `name`.
    ///
    /// # Errors
    /// ENODEV if there is no such device, with the names of the existing ones; otherwise
    /// `ibv_open_device`'s errno.
    ///
    /// # References
    /// ibv_open_device(3)
    pub fn open(name: &str) -> Result<Self> {
        let list = DeviceList::get()?;
        // SAFETY: the list is alive.
        let found = list.devices().iter().copied().find(|&device| unsafe { device_name(device) } == name);
        let Some(device) = found else {
            // SAFETY: the list is alive.
            let names: Vec<_> = list.devices().iter().map(|&device| unsafe { device_name(device) }).collect();
            return Err(no_device("ibv_open_device", &format!("RDMA device \"{name}\""), &names));
        };
        // SAFETY: the device belongs to a live list; an open context keeps its device after the
        // list is freed.
        let raw = unsafe { sys::ibv_open_device(device) };
        let raw = NonNull::new(raw).ok_or_else(|| open_failed(name))?;
        let mut inner = ContextInner {
            raw,
            name: name.to_owned(),
            driver: String::new(),
            attr: DeviceAttr::default(),
            link_layers: Box::default(),
        };
        inner.attr = query_device(raw)?;
        inner.driver = attr::driver_of(name, inner.attr.vendor_id);
        inner.link_layers = (0..inner.attr.phys_port_cnt).map(|_| OnceLock::new()).collect();
        let context = Self { inner: Arc::new(inner) };
        crate::set_nonblocking(context.async_fd())?;
        Ok(context)
    }

    /// The device's kernel name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// The device's folder in sysfs, where its counters are.
    #[must_use]
    pub fn sysfs_path(&self) -> PathBuf {
        // SAFETY: an open context keeps its device; libibverbs writes the path, with a NUL, before
        // it shows the device.
        let path = unsafe { CStr::from_ptr((*(*self.raw()).device).ibdev_path.as_ptr()) };
        PathBuf::from(OsStr::from_bytes(path.to_bytes()))
    }

    /// The kernel driver, such as `rdma_rxe` or `mlx5_core`; `unknown` if it cannot be determined.
    #[must_use]
    pub fn driver(&self) -> &str {
        &self.inner.driver
    }

    /// The transport family of the device.
    #[must_use]
    pub fn transport(&self) -> Transport {
        // SAFETY: an open context has its device.
        unsafe { (*(*self.raw()).device).transport_type }.into()
    }

    /// The attributes of the device, as read when it was opened.
    #[must_use]
    pub fn attributes(&self) -> &DeviceAttr {
        &self.inner.attr
    }

    /// The number of completion vectors.
    #[must_use]
    pub fn comp_vectors(&self) -> u32 {
        // SAFETY: the context is open; the field does not change.
        u32::try_from(unsafe { (*self.raw()).num_comp_vectors }).unwrap_or(0)
    }

    /// The state of port `port`, counted from 1.
    ///
    /// # Errors
    /// EINVAL when the device has no such port.
    ///
    /// # References
    /// ibv_query_port(3)
    pub fn port(&self, port: u8) -> Result<PortAttr> {
        let ports = self.attributes().phys_port_cnt;
        if port == 0 || port > ports {
            return Err(Error::invalid(
                "ibv_query_port",
                format!("{} has ports 1 to {ports}, not {port}", self.name()),
            ));
        }
        let mut attr = MaybeUninit::<sys::ibv_port_attr>::zeroed();
        // SAFETY: the context is open and the struct is large enough; zeroes are valid for it
        // (plain integers).
        let attr = unsafe {
            check("ibv_query_port", sys::___ibv_query_port(self.raw(), port, attr.as_mut_ptr()))?;
            attr.assume_init()
        };
        let attr = PortAttr::of(&attr);
        if let Some(link_layer) = self.inner.link_layers.get(usize::from(port) - 1) {
            // The same value if it is set already.
            let _ = link_layer.set(attr.link_layer);
        }
        Ok(attr)
    }

    /// The link layer of port `port`, counted from 1. Asks the device once for each port.
    ///
    /// # Errors
    /// As [`Context::port`].
    pub fn link_layer(&self, port: u8) -> Result<LinkLayer> {
        let known = usize::from(port).checked_sub(1).and_then(|at| self.inner.link_layers.get(at)?.get());
        known.map_or_else(|| self.port(port).map(|attr| attr.link_layer), |known| Ok(*known))
    }

    /// The verbs object, for calls that this crate does not wrap; valid while a clone of this
    /// context lives.
    #[must_use]
    pub fn as_raw(&self) -> *mut c_void {
        self.raw().cast()
    }

    pub(crate) fn raw(&self) -> *mut sys::ibv_context {
        self.inner.raw.as_ptr()
    }

    /// Whether `other` is a clone of this context.
    #[must_use]
    pub fn same(&self, other: &Context) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

fn query_device(raw: NonNull<sys::ibv_context>) -> Result<DeviceAttr> {
    let mut attr = MaybeUninit::<sys::ibv_device_attr>::zeroed();
    // SAFETY: the context is open and the struct is large enough; zeroes are valid for it.
    let attr = unsafe {
        check("ibv_query_device", sys::ibv_query_device(raw.as_ptr(), attr.as_mut_ptr()))?;
        attr.assume_init()
    };
    Ok(DeviceAttr::of(&attr))
}

/// "There is no X; the devices are ...".
fn no_device(verb: &'static str, what: &str, found: &[String]) -> Error {
    let found = match found {
        [] => "this machine has no RDMA device".to_owned(),
        names => format!("the RDMA devices are: {}", names.join(", ")),
    };
    Error::new(verb, libc::ENODEV).with_detail(format!("there is no {what}; {found}"))
}

fn open_failed(name: &str) -> Error {
    let error = Error::last("ibv_open_device");
    match error.errno() {
        libc::EACCES | libc::EPERM => error.with_detail(format!(
            "no access to the verbs device of \"{name}\": see the permissions of /dev/infiniband/uverbs*"
        )),
        libc::ENOENT | libc::ENXIO => {
            error.with_detail(format!("\"{name}\" has no node under /dev/infiniband: is udev running?"))
        }
        _ => error.with_detail(format!("device \"{name}\"")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_device_lists_those_found() {
        let found = ["rxe0".to_owned(), "mlx5_0".to_owned()];
        let text = no_device("ibv_open_device", "RDMA device \"ib0\"", &found).to_string();
        assert_eq!(
            text,
            "ibv_open_device: No such device (ENODEV): there is no RDMA device \"ib0\"; the RDMA devices are: \
             rxe0, mlx5_0"
        );
    }

    #[test]
    fn unknown_device_is_refused_with_advice() {
        let error = Context::open("nosuch-device-9").unwrap_err();
        assert!(matches!(error.errno(), libc::ENODEV | libc::ENOSYS), "{error}");
        assert!(error.detail().is_some(), "{error}");
    }

    #[test]
    fn missing_device_says_when_there_is_none_at_all() {
        let text = no_device("ibv_open_device", "RDMA device \"ib0\"", &[]).to_string();
        assert!(text.ends_with("this machine has no RDMA device"), "{text}");
    }
}
