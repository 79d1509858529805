//! Flow rules of the verbs (header specifications), and of mlx5's own matchers.

use std::io;
use std::os::fd::RawFd;

use super::attr::{Attr, DRIVER, find, need};
use super::command::{Answer, Command};
use super::file::Uverbs;
use crate::device::Device;
use crate::host::sys;
use crate::objects::{FIELDS, Flow, Matcher, ObjectKind, QpType, field};

/// The default priority of a matcher's rules is behind those of the verbs.
const MATCHER_PRIORITY: u32 = 1 << 16;

fn not_supported() -> io::Error {
    sys::errno(libc::EOPNOTSUPP)
}

fn invalid() -> io::Error {
    sys::errno(libc::EINVAL)
}

/// Source offset of a field in a specification, destination offset, and length.
type Move = (usize, usize, usize);

/// The fields of one kind of specification, and the size of its values.
fn fields(kind: u32) -> Option<(&'static [Move], usize)> {
    const ETH: u32 = 0x20;
    const IPV4: u32 = 0x30;
    const IPV6: u32 = 0x31;
    const TCP: u32 = 0x40;
    const UDP: u32 = 0x41;
    Some(match kind {
        ETH => (
            &[
                (0, field::DEST_MAC, 6),
                (6, field::SOURCE_MAC, 6),
                (12, field::ETHERTYPE, 2),
                (14, field::VLAN, 2),
            ],
            16,
        ),
        IPV4 => (
            &[
                (0, field::SOURCE_IP + 12, 4),
                (4, field::DEST_IP + 12, 4),
                (8, field::PROTOCOL, 1),
                (9, field::TRAFFIC_CLASS, 1),
                (10, field::HOP_LIMIT, 1),
            ],
            12,
        ),
        IPV6 => (
            &[
                (0, field::SOURCE_IP, 16),
                (16, field::DEST_IP, 16),
                (36, field::PROTOCOL, 1),
                (37, field::TRAFFIC_CLASS, 1),
                (38, field::HOP_LIMIT, 1),
            ],
            40,
        ),
        TCP => (&[(0, field::TCP_DEST, 2), (2, field::TCP_SOURCE, 2)], 4),
        UDP => (&[(0, field::UDP_DEST, 2), (2, field::UDP_SOURCE, 2)], 4),
        _ => return None,
    })
}

/// Adds one specification to a rule.
fn add_spec(flow: &mut Flow, kind: u32, body: &[u8]) -> io::Result<()> {
    let (moves, half) = fields(kind).ok_or_else(not_supported)?;
    if body.len() != half * 2 {
        return Err(invalid());
    }
    let (value, mask) = body.split_at(half);
    for &(from, to, len) in moves {
        flow.value[to..to + len].copy_from_slice(&value[from..from + len]);
        flow.mask[to..to + len].copy_from_slice(&mask[from..from + len]);
    }
    // The layer itself has to be there.
    let (at, value, mask) = match kind {
        0x30 => (field::VERSION, 4 << 1, 0x1e),
        0x31 => (field::VERSION, 6 << 1, 0x1e),
        0x40 => (field::PROTOCOL, 6, 0xff),
        0x41 => (field::PROTOCOL, 17, 0xff),
        _ => return Ok(()),
    };
    flow.value[at] = flow.value[at] & !mask | value;
    flow.mask[at] |= mask;
    Ok(())
}

impl Device {
    /// The raw packet QP that a rule names.
    fn flow_target(&self, context: usize, handle: u32) -> io::Result<usize> {
        let qp = self.object(context, handle, ObjectKind::Qp)?;
        if self.card.qps[qp].kind == QpType::RawPacket { Ok(qp) } else { Err(invalid()) }
    }

    fn add_flow(&mut self, context: usize, flow: Flow) -> io::Result<u32> {
        let index = self.card.flows.insert(flow).ok_or_else(|| sys::errno(libc::ENOMEM))?;
        Ok(self.add_handle(context, ObjectKind::Flow, index))
    }

    pub(super) fn cmd_create_flow(&mut self, context: usize, command: &Command) -> io::Result<()> {
        const NORMAL: u32 = 0;
        const ALL: u32 = 1;
        const SPECS: usize = 24;
        const HEADER: usize = 8;
        command.need(SPECS, 8)?;
        if !sys::may(sys::CAP_NET_RAW) {
            return Err(sys::errno(libc::EPERM));
        }
        let request = command.core();
        let (kind, size, priority) = (request.u32(8), usize::from(request.u16(12)), request.u16(14));
        let (count, port, flags) = (request.u8(16), request.u8(19), request.u32(20));
        if request.u32(0) != 0 || port != 1 || command.core.len() != SPECS + size {
            return Err(invalid());
        }
        if !matches!(kind, NORMAL | ALL) || flags != 0 {
            return Err(not_supported());
        }
        let mut flow = Flow {
            value: [0; FIELDS],
            mask: [0; FIELDS],
            priority: if kind == ALL { u32::MAX } else { u32::from(priority) },
            qp: Some(self.flow_target(context, request.u32(4))?),
            tag: 0,
        };
        let mut at = SPECS;
        for _ in 0..count {
            let (kind, len) = (request.u32(at), usize::from(request.u16(at + 4)));
            let body = command.core.get(at + HEADER..at + len).ok_or_else(invalid)?;
            add_spec(&mut flow, kind, body)?;
            at += len;
        }
        if at != command.core.len() {
            return Err(invalid());
        }
        let handle = self.add_flow(context, flow)?;
        let mut out = Answer::default();
        out.u32(0).u32(handle);
        command.answer(&out.0)
    }

    pub(super) fn cmd_destroy_flow(&mut self, context: usize, command: &Command) -> io::Result<()> {
        command.need(8, 0)?;
        let handle = command.core().u32(4);
        let index = self.object(context, handle, ObjectKind::Flow)?;
        self.card.flows.remove(index);
        self.drop_handle(context, handle);
        Ok(())
    }

    /// Removes the rules towards a QP. A kernel would not destroy the QP before these rules.
    pub(super) fn remove_flows_to(&mut self, qp: usize) {
        for (_, flow) in self.card.flows.iter_mut().filter(|(_, flow)| flow.qp == Some(qp)) {
            flow.qp = None;
        }
    }
}

/// Match parameters of mlx5. The outer headers come first; the device supports no other parameters.
fn outer_headers(bytes: &[u8]) -> io::Result<[u8; FIELDS]> {
    let (outer, rest) = bytes.split_at(bytes.len().min(FIELDS));
    if rest.iter().any(|&byte| byte != 0) {
        return Err(not_supported());
    }
    let mut out = [0; FIELDS];
    out[..outer.len()].copy_from_slice(outer);
    Ok(out)
}

pub(super) fn create_matcher(file: &Uverbs, fd: RawFd, attrs: &[Attr]) -> io::Result<()> {
    const NIC_RX: u64 = 0;
    let handle = need(attrs, DRIVER)?;
    let mask = outer_headers(&need(attrs, DRIVER + 1)?.input()?)?;
    let priority = need(attrs, DRIVER + 2)?.data as u16;
    if find(attrs, DRIVER + 4).is_some_and(|flags| flags.data != 0)
        || find(attrs, DRIVER + 5).is_some_and(|table| table.data & 0xff != NIC_RX)
    {
        return Err(not_supported());
    }
    let (mut device, context) = file.locked(fd)?;
    let matcher = Matcher { mask, priority: MATCHER_PRIORITY + u32::from(priority) };
    let index = device.matchers.insert(matcher).ok_or_else(|| sys::errno(libc::ENOMEM))?;
    let object = device.add_handle(context, ObjectKind::Matcher, index);
    drop(device);
    handle.answer_handle(object)
}

pub(super) fn destroy_matcher(file: &Uverbs, fd: RawFd, attrs: &[Attr]) -> io::Result<()> {
    let handle = need(attrs, DRIVER)?.data as u32;
    let (mut device, context) = file.locked(fd)?;
    let index = device.object(context, handle, ObjectKind::Matcher)?;
    device.matchers.remove(index);
    device.drop_handle(context, handle);
    Ok(())
}

pub(super) fn create_flow(file: &Uverbs, fd: RawFd, attrs: &[Attr]) -> io::Result<()> {
    const DROP: u64 = 2;
    let handle = need(attrs, DRIVER)?;
    let value = outer_headers(&need(attrs, DRIVER + 1)?.input()?)?;
    if attrs
        .iter()
        .any(|attr| matches!(attr.id, id if id == DRIVER + 3 || id == DRIVER + 5 || id == DRIVER + 7))
    {
        return Err(not_supported());
    }
    let (mut device, context) = file.locked(fd)?;
    let matcher = device.object(context, need(attrs, DRIVER + 4)?.data as u32, ObjectKind::Matcher)?;
    let matcher = device.matchers[matcher].clone();
    let qp = match find(attrs, DRIVER + 2) {
        Some(qp) => Some(device.flow_target(context, qp.data as u32)?),
        None if find(attrs, DRIVER + 9).is_some_and(|flags| flags.data & DROP != 0) => None,
        None => return Err(not_supported()),
    };
    let tag = find(attrs, DRIVER + 6).map_or(0, |tag| tag.data as u32 & 0xff_ffff);
    let flow = Flow { value, mask: matcher.mask, priority: matcher.priority, qp, tag };
    let object = device.add_flow(context, flow)?;
    drop(device);
    handle.answer_handle(object)
}
