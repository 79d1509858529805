//! Checks of EP attributes and of the completion flags of its streams, for creation and modify.

use super::ud_state::not_here;
use crate::device::Device;
use crate::evd::{Stream, StreamKind};
use crate::types::{CompletionFlags, ServiceType};
use crate::{EpAttr, Error, Result, RetryAttr};

/// No device takes more inline data in a request, in bytes. Most take less, and refuse the QP.
const MAX_INLINE: u32 = 1024;

/// Checks new attributes against the limits of the device. Errors name argument `arg` of the call.
pub(super) fn check_attr(device: &Device, attr: &EpAttr, arg: u16, on_srq: bool) -> Result<()> {
    let a = &device.attr;
    let within = |name: &str, value: u32, most: u32| {
        if value <= most {
            Ok(())
        } else {
            Err(Error::arg(arg, format!("{name} is 0 to {most} here, not {value}")))
        }
    };
    check_flags(attr.recv_completion_flags, true, arg)?;
    check_flags(attr.request_completion_flags, false, arg)?;
    if !on_srq {
        within("recv_depth", attr.recv_depth, a.max_ep_depth)?;
        within("recv_segments", attr.recv_segments, a.max_segments)?;
    }
    within("request_depth", attr.request_depth, a.max_ep_depth)?;
    within("request_segments", attr.request_segments, a.max_segments)?;
    within("max_inline", attr.max_inline, MAX_INLINE)?;
    if attr.service_type == ServiceType::Ud {
        return check_ud_attr(device, attr, arg);
    }
    check_retry(&attr.retry, arg)?;
    within("rdma_reads_in", attr.rdma_reads_in, a.max_rdma_reads_in)?;
    within("rdma_reads_out", attr.rdma_reads_out, a.max_rdma_reads_out)?;
    within("rdma_read_segments", attr.rdma_read_segments, a.max_read_segments)?;
    within("rdma_write_segments", attr.rdma_write_segments, a.max_write_segments)
}

/// Checks that the device can encode the values.
fn check_retry(retry: &RetryAttr, arg: u16) -> Result<()> {
    let RetryAttr { rnr_retry, rnr_timer, retry_count, timeout } = *retry;
    let values = [
        ("rnr_retry", rnr_retry, 7),
        ("rnr_timer", rnr_timer, 31),
        ("retry_count", retry_count, 7),
        ("timeout", timeout, 31),
    ];
    for (name, value, most) in values {
        if let Some(value) = value.filter(|value| *value > most) {
            return Err(Error::arg(arg, format!("{name} is 0 to {most}, not {value}")));
        }
    }
    Ok(())
}

/// Flags that each request may carry, whatever the flags of its EP are.
const ALWAYS: CompletionFlags =
    CompletionFlags::SUPPRESS.union(CompletionFlags::SOLICITED_WAIT).union(CompletionFlags::BARRIER_FENCE);

/// The notification mode of requests of an EP with these flags. The attribute says which flags
/// posts may carry. Flags that every post may carry therefore have no effect in the attribute
/// (dat_ep_modify(3DAT)).
pub(super) fn request_mode(flags: CompletionFlags) -> CompletionFlags {
    flags.difference(ALWAYS)
}

/// Checks the attributes that only UD EPs need.
fn check_ud_attr(device: &Device, attr: &EpAttr, arg: u16) -> Result<()> {
    if !device.attr.datagrams {
        return Err(not_here());
    }
    let most = device.attr.mtu;
    if attr.max_message_size > most {
        let text = format!("a datagram is one packet, {most} bytes at most, not {}", attr.max_message_size);
        return Err(Error::arg(arg, text));
    }
    Ok(())
}

/// Checks that the mode of a stream is one of the legal modes (R148).
pub(super) fn check_flags(flags: CompletionFlags, recv: bool, arg: u16) -> Result<()> {
    let mode = if recv { flags } else { request_mode(flags) };
    let legal = mode.is_empty()
        || mode == CompletionFlags::UNSIGNALLED
        || mode == CompletionFlags::EVD_THRESHOLD
        || (recv && mode == CompletionFlags::SOLICITED_WAIT);
    let stream = if recv { "receive" } else { "request" };
    if legal { Ok(()) } else { Err(Error::arg(arg, format!("illegal {stream} flags {:#x}", flags.bits()))) }
}

/// Checks the sharing rules between the two streams of one EP on one EVD (R149-R151).
pub(super) fn pair_fits(recv: Stream, request: Stream) -> Result<()> {
    let differ = |flag| recv.flags.contains(flag) != request.flags.contains(flag);
    let threshold_srq = matches!(recv.kind, StreamKind::Recv { srq: true });
    if differ(CompletionFlags::UNSIGNALLED)
        || recv.flags.contains(CompletionFlags::SOLICITED_WAIT)
        || (threshold_srq
            && recv.flags.contains(CompletionFlags::EVD_THRESHOLD)
            && differ(CompletionFlags::EVD_THRESHOLD))
    {
        return Err(Error::arg(3, "these receive and request modes cannot share one EVD"));
    }
    Ok(())
}
