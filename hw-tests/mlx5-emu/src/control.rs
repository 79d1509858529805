//! Control of the device by a test.

use crate::device;
use crate::host::config::{self, Mode, mode};
use crate::objects::faults::Rule;
use crate::objects::{QpState, event};
use crate::program::helper;

/// Does all pending work: doorbells, send queues, expired timers, frames from other processes,
/// waiting events.
///
/// In the modes without a helper thread this function also checks the data that was copied into
/// doorbell registers. No other thread may be inside a post during this call.
pub fn step() {
    let mut device = device::lock();
    device.card.settled = matches!(mode(), Mode::Manual | Mode::Stepped);
    device.card.step();
    device.card.settled = false;
}

/// Chooses who runs the engine. A test program calls this function before it opens the device: the
/// hooks of contexts that are already open do not change.
pub fn set_mode(mode: Mode) {
    config::store_mode(mode);
    helper::mode_changed();
}

/// Puts a fault into force.
pub fn inject(rule: Rule) {
    device::lock().card.faults.add(rule);
}

/// Takes all faults out of force.
pub fn no_faults() {
    device::lock().card.faults.clear();
}

/// Makes receive completions that
/// [`Fault::LateReceive`](crate::objects::faults::Fault::LateReceive) holds back visible, and
/// delivers the events that wait for them.
pub fn release_late() {
    device::lock().card.release_late();
}

/// Takes the port down or up, with its event. While it is down nothing is answered.
pub fn set_port(up: bool) {
    let mut device = device::lock();
    if device.card.port_up == up {
        return;
    }
    device.card.port_up = up;
    let event = if up { event::PORT_ACTIVE } else { event::PORT_ERR };
    device.card.broadcast(1, event);
}

/// A fatal error: an event to every context; from then on only destroying works.
pub fn fatal_error() {
    let mut device = device::lock();
    device.card.broadcast(0, event::DEVICE_FATAL);
    device.card.dead = true;
}

/// Takes the device away: a fatal event, and it is not found any more.
pub fn remove_device() {
    fatal_error();
    crate::host::devices::set_present(false);
}

/// The device's state of a QP of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QpInfo {
    /// Its state as the device has it.
    pub state: QpState,
    /// Its peer.
    pub dest_qpn: u32,
}

/// Looks a QP up by number.
pub fn qp_info(qpn: u32) -> Option<QpInfo> {
    let device = device::lock();
    let index = device.card.qp_by_number(qpn)?;
    let qp = &device.card.qps[index];
    Some(QpInfo { state: qp.state, dest_qpn: qp.attr.dest_qpn })
}
