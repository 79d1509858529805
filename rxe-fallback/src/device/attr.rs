//! Attributes of devices and ports as plain Rust values.
#![expect(unsafe_code, reason = "reads a C character array")]

use std::ffi::CStr;

use doorbell_sys as sys;

/// Limits and capabilities of a device. Counts are numbers of objects, sizes are bytes.
///
/// # References
/// ibv_query_device(3)
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeviceAttr {
    /// Firmware version.
    pub fw_ver: String,
    /// Node GUID, host byte order.
    pub node_guid: u64,
    /// System image GUID, host byte order.
    pub sys_image_guid: u64,
    /// Largest MR in bytes.
    pub max_mr_size: u64,
    /// The page sizes that the device supports, one bit each.
    pub page_size_cap: u64,
    /// Vendor, an IEEE OUI.
    pub vendor_id: u32,
    /// Part number, per vendor.
    pub vendor_part_id: u32,
    /// Hardware revision.
    pub hw_ver: u32,
    /// QPs.
    pub max_qp: u32,
    /// Work requests in one queue of a QP.
    pub max_qp_wr: u32,
    /// All `IBV_DEVICE_*` capability bits.
    pub capabilities: u32,
    /// Segments of a work request, except an RDMA read.
    pub max_sge: u32,
    /// Segments of an RDMA read.
    pub max_sge_rd: u32,
    /// CQs.
    pub max_cq: u32,
    /// Entries in one CQ.
    pub max_cqe: u32,
    /// MRs.
    pub max_mr: u32,
    /// PDs.
    pub max_pd: u32,
    /// RDMA reads and atomics a QP can serve at a time.
    pub max_qp_rd_atom: u32,
    /// RDMA reads and atomics all QPs together can serve at a time.
    pub max_res_rd_atom: u32,
    /// RDMA reads and atomics a QP can have under way.
    pub max_qp_init_rd_atom: u32,
    /// The scope of atomics.
    pub atomic_cap: AtomicCap,
    /// Memory windows; 0 if not supported.
    pub max_mw: u32,
    /// Address handles.
    pub max_ah: u32,
    /// SRQs.
    pub max_srq: u32,
    /// Work requests in one SRQ.
    pub max_srq_wr: u32,
    /// Segments of a work request in an SRQ.
    pub max_srq_sge: u32,
    /// Partition keys.
    pub max_pkeys: u16,
    /// Local ACK delay, as the exponent of 4.096 us.
    pub local_ca_ack_delay: u8,
    /// Ports, counted from 1.
    pub phys_port_cnt: u8,
    /// Whether an SRQ can be resized (`IBV_DEVICE_SRQ_RESIZE`).
    pub srq_resize: bool,
    /// Whether work requests can invalidate keys, also a peer's (`IBV_DEVICE_MEM_MGT_EXTENSIONS`).
    pub memory_management: bool,
    /// Whether there are memory windows of type 1.
    pub memory_windows: bool,
    /// Whether there are memory windows of type 2.
    pub memory_windows_type2: bool,
}

/// The scope in which an atomic operation is atomic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AtomicCap {
    /// No atomics.
    #[default]
    None,
    /// Atomic among the atomics of this device.
    Device,
    /// Atomic with respect to all accesses, including those of the CPU.
    Global,
}

impl DeviceAttr {
    pub(crate) fn of(attr: &sys::ibv_device_attr) -> Self {
        let count = |value: i32| u32::try_from(value).unwrap_or(0);
        let has = |flag: sys::ibv_device_cap_flags| attr.device_cap_flags & flag.0 != 0;
        type Cap = sys::ibv_device_cap_flags;
        let mut fw_ver = attr.fw_ver;
        fw_ver[fw_ver.len() - 1] = 0;
        Self {
            // SAFETY: the last character was made a NUL.
            fw_ver: unsafe { CStr::from_ptr(fw_ver.as_ptr()) }.to_string_lossy().into_owned(),
            node_guid: u64::from_be(attr.node_guid),
            sys_image_guid: u64::from_be(attr.sys_image_guid),
            max_mr_size: attr.max_mr_size,
            page_size_cap: attr.page_size_cap,
            vendor_id: attr.vendor_id,
            vendor_part_id: attr.vendor_part_id,
            hw_ver: attr.hw_ver,
            max_qp: count(attr.max_qp),
            max_qp_wr: count(attr.max_qp_wr),
            capabilities: attr.device_cap_flags,
            max_sge: count(attr.max_sge),
            max_sge_rd: count(attr.max_sge_rd),
            max_cq: count(attr.max_cq),
            max_cqe: count(attr.max_cqe),
            max_mr: count(attr.max_mr),
            max_pd: count(attr.max_pd),
            max_qp_rd_atom: count(attr.max_qp_rd_atom),
            max_res_rd_atom: count(attr.max_res_rd_atom),
            max_qp_init_rd_atom: count(attr.max_qp_init_rd_atom),
            atomic_cap: match attr.atomic_cap {
                sys::ibv_atomic_cap::IBV_ATOMIC_HCA => AtomicCap::Device,
                sys::ibv_atomic_cap::IBV_ATOMIC_GLOB => AtomicCap::Global,
                _ => AtomicCap::None,
            },
            max_mw: count(attr.max_mw),
            max_ah: count(attr.max_ah),
            max_srq: count(attr.max_srq),
            max_srq_wr: count(attr.max_srq_wr),
            max_srq_sge: count(attr.max_srq_sge),
            max_pkeys: attr.max_pkeys,
            local_ca_ack_delay: attr.local_ca_ack_delay,
            phys_port_cnt: attr.phys_port_cnt,
            srq_resize: has(Cap::IBV_DEVICE_SRQ_RESIZE),
            memory_management: has(Cap::IBV_DEVICE_MEM_MGT_EXTENSIONS),
            memory_windows: has(Cap::IBV_DEVICE_MEM_WINDOW),
            memory_windows_type2: has(Cap::IBV_DEVICE_MEM_WINDOW_TYPE_2A)
                || has(Cap::IBV_DEVICE_MEM_WINDOW_TYPE_2B),
        }
    }
}

/// State of a port.
///
/// # References
/// ibv_query_port(3)
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortAttr {
    /// Logical state.
    pub state: PortState,
    /// Largest MTU in bytes.
    pub max_mtu: u32,
    /// MTU in use, in bytes.
    pub active_mtu: u32,
    /// The link layer.
    pub link_layer: LinkLayer,
    /// GID table entries.
    pub gid_tbl_len: u32,
    /// Largest message in bytes.
    pub max_msg_sz: u32,
    /// Partition keys.
    pub pkey_tbl_len: u16,
    /// Local identifier; 0 on Ethernet.
    pub lid: u16,
    /// Subnet manager's identifier.
    pub sm_lid: u16,
    /// Link width code.
    pub active_width: u8,
    /// Link speed code.
    pub active_speed: u8,
}

/// Logical state of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PortState {
    /// No state.
    Nop,
    /// No link.
    Down,
    /// Link, but not configured.
    Init,
    /// Configured, not in use.
    Armed,
    /// In use.
    Active,
    /// In use; the link was lost for a moment.
    ActiveDefer,
    /// A value this crate does not know.
    Other(u32),
}

/// Link layer of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LinkLayer {
    /// The driver does not say (treat as InfiniBand).
    Unspecified,
    /// InfiniBand.
    InfiniBand,
    /// Ethernet: RoCE or iWARP.
    Ethernet,
    /// A value this crate does not know.
    Other(u8),
}

impl PortAttr {
    /// Whether the port is active.
    #[must_use]
    pub fn is_active(&self) -> bool {
        matches!(self.state, PortState::Active | PortState::ActiveDefer)
    }
}

impl From<u32> for PortState {
    fn from(value: u32) -> Self {
        match value {
            0 => PortState::Nop,
            1 => PortState::Down,
            2 => PortState::Init,
            3 => PortState::Armed,
            4 => PortState::Active,
            5 => PortState::ActiveDefer,
            other => PortState::Other(other),
        }
    }
}

impl PortAttr {
    pub(crate) fn of(attr: &sys::ibv_port_attr) -> Self {
        Self {
            state: attr.state.into(),
            max_mtu: mtu_bytes(attr.max_mtu),
            active_mtu: mtu_bytes(attr.active_mtu),
            link_layer: match attr.link_layer {
                0 => LinkLayer::Unspecified,
                1 => LinkLayer::InfiniBand,
                2 => LinkLayer::Ethernet,
                other => LinkLayer::Other(other),
            },
            gid_tbl_len: u32::try_from(attr.gid_tbl_len).unwrap_or(0),
            max_msg_sz: attr.max_msg_sz,
            pkey_tbl_len: attr.pkey_tbl_len,
            lid: attr.lid,
            sm_lid: attr.sm_lid,
            active_width: attr.active_width,
            active_speed: attr.active_speed,
        }
    }
}

/// The bytes of an `enum ibv_mtu` value; 0 for an unknown value.
pub(crate) fn mtu_bytes(code: u32) -> u32 {
    if (1..=5).contains(&code) { 128 << code } else { 0 }
}

/// The `enum ibv_mtu` value of an MTU in bytes, rounded down; 256 at least.
pub(crate) fn mtu_code(bytes: u32) -> u32 {
    (1..=5).rev().find(|&code| mtu_bytes(code) <= bytes).unwrap_or(1)
}

/// The kernel driver of a device: from sysfs, else from its vendor or its name.
pub(crate) fn driver_of(name: &str, vendor_id: u32) -> String {
    let link = format!("/sys/class/infiniband/{name}/device/driver");
    let from_sysfs = std::fs::read_link(link).ok();
    match from_sysfs.as_deref().and_then(|path| path.file_name()) {
        Some(file) => file.to_string_lossy().into_owned(),
        None => guess_driver(name, vendor_id).to_owned(),
    }
}

/// Soft devices have no parent in sysfs; their vendor identifiers are fixed.
fn guess_driver(name: &str, vendor_id: u32) -> &'static str {
    const RXE: u32 = 0xff_ffff;
    const SIW: u32 = 0x62_6d74;
    match (vendor_id, name) {
        (RXE, _) => "rdma_rxe",
        (SIW, _) => "siw",
        (_, name) if name.starts_with("mlx5") => "mlx5_core",
        (_, name) if name.starts_with("mlx4") => "mlx4_core",
        (_, name) if name.starts_with("rxe") => "rdma_rxe",
        (_, name) if name.starts_with("siw") => "siw",
        _ => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mtu_codes_and_bytes_go_both_ways() {
        for bytes in [256, 512, 1024, 2048, 4096] {
            assert_eq!(mtu_bytes(mtu_code(bytes)), bytes);
        }
        assert_eq!((mtu_bytes(0), mtu_bytes(6)), (0, 0));
    }

    #[test]
    fn mtu_between_two_steps_is_rounded_down() {
        assert_eq!(mtu_bytes(mtu_code(1500)), 1024);
        assert_eq!(mtu_bytes(mtu_code(9000)), 4096);
        assert_eq!(mtu_bytes(mtu_code(1)), 256);
    }

    #[test]
    fn soft_devices_are_known_by_their_vendor() {
        assert_eq!(guess_driver("lab", 0xff_ffff), "rdma_rxe");
        assert_eq!(guess_driver("lab", 0x62_6d74), "siw");
        assert_eq!(guess_driver("mlx5_3", 0x02c9), "mlx5_core");
        assert_eq!(guess_driver("lab", 1), "unknown");
    }
}
