//! One queue: the commands that come over one connection. The transport gives each command to
//! [`Queue::begin`] and does what the answer says. Nothing here knows the transport.

use crate::backend::IoOp;
use crate::controller::{Controller, Waker};
use crate::limits::{NAMESPACES, PAGE, PARKED_EVENTS};
use crate::proto::fabrics::{self, ConnectData, ConnectParameters, NO_FLOW_CONTROL};
use crate::proto::identify::{self, ControllerTraits};
use crate::proto::{Cqe, Data, DsmRange, Sqe, Status, admin, io, log, text};
use crate::subsystem::Namespace;
use crate::target::Target;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, IntoBytes};

/// The end of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The status.
    pub status: Status,
    /// The result.
    pub result: u64,
}

impl Reply {
    /// Success, without a result.
    pub const SUCCESS: Self = Self { status: Status::SUCCESS, result: 0 };

    /// Success with a result.
    pub fn result(result: impl Into<u64>) -> Self {
        Self { status: Status::SUCCESS, result: result.into() }
    }
}

impl From<Status> for Reply {
    fn from(status: Status) -> Self {
        Self { status, result: 0 }
    }
}

/// What the transport has to do next for a command.
#[derive(Debug)]
pub enum Step {
    /// Send this response.
    Reply(Reply),
    /// Transfer these data to the host, then respond with success.
    Answer(Vec<u8>),
    /// Fetch this many bytes of the command's data and give them to [`Queue::with_data`].
    Fetch(u32),
    /// Execute this operation on blocks.
    Io(Io),
    /// Deallocate these bytes.
    Deallocate(Arc<Namespace>, Vec<Range<u64>>),
    /// Abort this command of this queue, if it waits.
    Abort {
        /// The number of the queue.
        queue: u16,
        /// The number of the command.
        command: u16,
    },
    /// No response now: [`Queue::event`] has it later.
    Park,
}

impl From<Status> for Step {
    fn from(status: Status) -> Self {
        Self::Reply(status.into())
    }
}

impl From<Reply> for Step {
    fn from(reply: Reply) -> Self {
        Self::Reply(reply)
    }
}

/// An operation on blocks.
#[derive(Clone, Debug)]
pub struct Io {
    /// The namespace.
    pub namespace: Arc<Namespace>,
    /// What to do.
    pub op: IoOp,
    /// The first byte. The bytes were inside of the namespace when this was checked.
    pub offset: u64,
    /// The number of bytes. Those of operations with data are the length of the data.
    pub length: u32,
    /// The data must be stable before the response.
    pub fua: bool,
}

/// The state of a queue.
pub struct Queue {
    number: u16,
    /// The number of entries, for the head.
    entries: u16,
    head: u16,
    flow_control: bool,
    controller: Option<Arc<Controller>>,
    /// The namespaces as of `generation`.
    namespaces: Vec<Arc<Namespace>>,
    generation: u64,
    waker: Waker,
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("number", &self.number).field("controller", &self.controller).finish()
    }
}

/// The result of a refused Connect: where the invalid parameter is.
#[derive(Clone, Copy)]
enum Parameter {
    InCommand(u16),
    InData(u16),
}

impl From<Parameter> for Reply {
    fn from(parameter: Parameter) -> Self {
        let result = match parameter {
            Parameter::InCommand(offset) => u64::from(offset),
            Parameter::InData(offset) => 1 << 16 | u64::from(offset),
        };
        Self { status: Status::CONNECT_PARAMETER, result }
    }
}

impl Queue {
    /// The queue of a connection whose host asked for this queue and got `credits` commands at a
    /// time.
    pub fn new(number: u16, credits: u16, waker: Waker) -> Self {
        Self {
            number,
            entries: credits,
            head: 0,
            flow_control: true,
            controller: None,
            namespaces: Vec::new(),
            generation: 0,
            waker,
        }
    }

    /// Its number; 0 is the admin queue.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// The controller, once Connect has succeeded.
    pub fn controller(&self) -> Option<&Arc<Controller>> {
        self.controller.as_ref()
    }

    /// Whether the connection has to be closed.
    pub fn has_ended(&self) -> bool {
        self.controller.as_ref().is_some_and(|controller| controller.has_ended())
    }

    /// Looks at a command with these data.
    pub fn begin(&mut self, target: &Target, sqe: &Sqe, data: &Data) -> Step {
        if !sqe.has_valid_flags() {
            return Status::INVALID_FIELD.into();
        }
        let Some(controller) = &self.controller else {
            return match (sqe.opcode, sqe.fabrics_type()) {
                (fabrics::OPCODE, fabrics::CONNECT) => fetch(data, size_of::<ConnectData>()),
                _ => Status::INVALID_OPCODE.into(),
            };
        };
        controller.note_activity();
        match (sqe.opcode, self.number) {
            (fabrics::OPCODE, 0) => match sqe.fabrics_type() {
                fabrics::CONNECT => Status(Status::CONNECT_BUSY.0 | Status::DNR).into(),
                fabrics::PROPERTY_GET => self.property_get(controller, target, sqe).into(),
                fabrics::PROPERTY_SET => self.property_set(controller, sqe).into(),
                _ => Status::INVALID_OPCODE.into(),
            },
            (fabrics::OPCODE, _) => match sqe.fabrics_type() {
                fabrics::CONNECT => Status(Status::CONNECT_BUSY.0 | Status::DNR).into(),
                _ => Status::INVALID_OPCODE.into(),
            },
            _ if !controller.is_ready() => Status::SEQUENCE_ERROR.into(),
            (_, 0) => {
                let controller = controller.clone();
                admin_command(&controller, target, sqe, data)
            }
            _ => self.io_command(target, sqe, data).unwrap_or_else(Step::from),
        }
    }

    /// Goes on with a command whose data were fetched, as [`Step::Fetch`] has asked.
    pub fn with_data(&mut self, target: &Target, sqe: &Sqe, data: &[u8]) -> Step {
        match (sqe.opcode, sqe.fabrics_type()) {
            (fabrics::OPCODE, fabrics::CONNECT) => {
                self.connect(target, sqe, data).unwrap_or_else(|no| no).into()
            }
            (io::DATASET_MANAGEMENT, _) if self.number != 0 => {
                self.deallocate(sqe, data).unwrap_or_else(Step::from)
            }
            _ => Status::INVALID_OPCODE.into(),
        }
    }

    /// The response for a command.
    pub fn response(&mut self, command: u16, reply: Reply) -> Cqe {
        if self.flow_control {
            self.head = if self.head + 1 < self.entries { self.head + 1 } else { 0 };
        }
        Cqe {
            result: reply.result.into(),
            sq_head: if self.flow_control { self.head.into() } else { u16::MAX.into() },
            sq_id: self.number.into(),
            command_id: command.into(),
            status: (reply.status.0 << 1).into(),
        }
    }

    /// The next event for a parked command of an admin queue: the command and its reply.
    pub fn event(&self) -> Option<(u16, Reply)> {
        let controller = self.controller.as_ref().filter(|_| self.number == 0)?;
        controller.next_event().map(|(command, result)| (command, Reply::result(result)))
    }

    /// The connection has ended.
    pub fn close(&mut self, target: &Target) {
        self.namespaces.clear();
        let Some(controller) = self.controller.take() else { return };
        controller.detach(self.number);
        if self.number == 0 {
            target.remove_controller(&controller);
        }
    }

    fn connect(&mut self, target: &Target, sqe: &Sqe, data: &[u8]) -> Result<Reply, Reply> {
        if self.controller.is_some() {
            // Two Connects at once.
            return Err(Status(Status::CONNECT_BUSY.0 | Status::DNR).into());
        }
        let parameters = ConnectParameters::of(sqe);
        let Ok(data) = ConnectData::ref_from_bytes(data) else {
            return Err(Status::SGL_LENGTH.into());
        };
        if parameters.format.get() != 0 {
            return Err(Status::CONNECT_FORMAT.into());
        }
        let (qid, size) = (parameters.qid.get(), parameters.size.get());
        if qid != self.number || qid > target.limits.queues {
            return Err(Parameter::InCommand(42).into());
        }
        if size == 0 || size >= self.entries {
            return Err(Parameter::InCommand(44).into());
        }
        let subsystem = text(&data.subsystem).and_then(|nqn| target.subsystem(nqn));
        let subsystem = subsystem.ok_or(Parameter::InData(256))?;
        let host = text(&data.host).filter(|host| !host.is_empty()).ok_or(Parameter::InData(512))?;
        if !subsystem.admits(host) {
            return Err(Status::CONNECT_HOST.into());
        }
        let id = data.controller.get();
        let controller = if qid == 0 {
            if id != 0xffff {
                return Err(Parameter::InData(16).into());
            }
            let controller = target
                .add_controller(&subsystem, (host, data.host_id), &self.waker)
                .ok_or(Status::CONNECT_BUSY)?;
            let timeout = Duration::from_millis(parameters.keep_alive.get().into());
            controller.set_keep_alive(timeout, Instant::now());
            controller
        } else {
            let is_own = |c: &Arc<Controller>| Arc::ptr_eq(&c.subsystem, &subsystem) && c.host == host;
            let controller = target.controller(id).filter(is_own).ok_or(Parameter::InData(16))?;
            if controller.discovery {
                return Err(Parameter::InCommand(42).into());
            }
            controller.attach(qid, &self.waker)?;
            controller
        };
        self.entries = size + 1;
        self.flow_control = parameters.attributes & NO_FLOW_CONTROL == 0;
        let number = controller.number;
        self.controller = Some(controller);
        Ok(Reply::result(number))
    }

    fn property_get(&self, controller: &Controller, target: &Target, sqe: &Sqe) -> Reply {
        let wide = sqe.cdw10.get() & 1 != 0;
        match controller.property(sqe.cdw11.get(), wide, target.limits.depth) {
            Ok(value) => Reply::result(value),
            Err(status) => status.into(),
        }
    }

    fn property_set(&self, controller: &Controller, sqe: &Sqe) -> Reply {
        let wide = sqe.cdw10.get() & 1 != 0;
        let value = Sqe::wide(sqe.cdw12, sqe.cdw13);
        controller.set_property(sqe.cdw11.get(), wide, value).err().unwrap_or(Status::SUCCESS).into()
    }

    /// The namespace with this number.
    fn namespace(&mut self, number: u32) -> Result<&Arc<Namespace>, Status> {
        let subsystem = &self.controller.as_ref().ok_or(Status::SEQUENCE_ERROR)?.subsystem;
        let generation = subsystem.generation();
        if generation != self.generation {
            self.namespaces = subsystem.namespaces();
            self.generation = generation;
        }
        self.namespaces.iter().find(|n| n.number == number).ok_or(Status::INVALID_NAMESPACE)
    }

    fn io_command(&mut self, target: &Target, sqe: &Sqe, data: &Data) -> Result<Step, Status> {
        let op = match sqe.opcode {
            io::READ => IoOp::Read,
            io::WRITE => IoOp::Write,
            io::COMPARE => IoOp::Compare,
            io::WRITE_ZEROES => IoOp::WriteZeroes,
            io::FLUSH => IoOp::Flush,
            io::DATASET_MANAGEMENT => {
                self.namespace(sqe.nsid.get())?;
                let ranges = (sqe.cdw10.get() as usize & 0xff) + 1;
                return Ok(fetch(data, ranges * size_of::<DsmRange>()));
            }
            _ => return Err(Status::INVALID_OPCODE),
        };
        let limit = target.limits.transfer;
        let namespace = self.namespace(sqe.nsid.get())?;
        let (offset, length) = match op {
            IoOp::Flush => (0, 0),
            _ => {
                let blocks = u64::from(sqe.cdw12.get() as u16) + 1;
                bytes(namespace, Sqe::wide(sqe.cdw10, sqe.cdw11), blocks)?
            }
        };
        // At most 65,536 blocks of 4 KiB.
        let length = u32::try_from(length).map_err(|_| Status::INVALID_FIELD)?;
        // Data for the host cannot be in the capsule.
        if op == IoOp::Read && matches!(data, Data::Capsule { .. }) {
            return Err(Status::INVALID_FIELD);
        }
        let transfers = match op {
            IoOp::Read | IoOp::Write => Some(limit),
            // The backend's data need as much memory again.
            IoOp::Compare => Some(limit / 2),
            IoOp::Flush | IoOp::WriteZeroes => None,
        };
        if data.length() != transfers.map_or(0, |_| length) {
            return Err(Status::SGL_LENGTH);
        }
        if length > transfers.unwrap_or(limit) {
            return Err(Status::INVALID_FIELD);
        }
        let fua = sqe.cdw12.get() & 1 << 30 != 0;
        Ok(Step::Io(Io { namespace: namespace.clone(), op, offset, length, fua }))
    }

    fn deallocate(&mut self, sqe: &Sqe, data: &[u8]) -> Result<Step, Status> {
        let namespace = self.namespace(sqe.nsid.get())?;
        let ranges = <[DsmRange]>::ref_from_bytes(data).map_err(|_| Status::SGL_LENGTH)?;
        let range = |range: &DsmRange| {
            let (offset, length) = bytes(namespace, range.start.get(), range.blocks.get().into())?;
            Ok(offset..offset + length)
        };
        let ranges = ranges.iter().map(range).collect::<Result<Vec<_>, _>>()?;
        // Without the attribute "deallocate", the ranges are hints for reads and writes.
        if sqe.cdw11.get() & 1 << 2 == 0 {
            return Ok(Reply::SUCCESS.into());
        }
        Ok(Step::Deallocate(namespace.clone(), ranges))
    }
}

/// The offset and length in bytes of these blocks.
fn bytes(namespace: &Namespace, start: u64, blocks: u64) -> Result<(u64, u64), Status> {
    let end = start.checked_add(blocks).filter(|&end| end <= namespace.blocks());
    end.ok_or(Status::LBA_RANGE)?;
    Ok((start << namespace.shift, blocks << namespace.shift))
}

/// Asks for the first `length` bytes of the data.
fn fetch(data: &Data, length: usize) -> Step {
    match data.length() as usize >= length {
        true => Step::Fetch(length as u32),
        false => Status::SGL_LENGTH.into(),
    }
}

fn admin_command(controller: &Arc<Controller>, target: &Target, sqe: &Sqe, data: &Data) -> Step {
    let answer = match sqe.opcode {
        admin::IDENTIFY => identify(controller, target, sqe),
        admin::GET_LOG_PAGE => log_page(controller, target, sqe),
        admin::GET_FEATURES => return get_features(controller, target, sqe, data),
        admin::SET_FEATURES => return set_features(controller, target, sqe).into(),
        admin::KEEP_ALIVE => return Reply::SUCCESS.into(),
        admin::ABORT => {
            let which = sqe.cdw10.get();
            return Step::Abort { queue: which as u16, command: (which >> 16) as u16 };
        }
        admin::ASYNC_EVENT => {
            return match controller.park(sqe.command_id.get()) {
                Ok(()) => Step::Park,
                Err(status) => status.into(),
            };
        }
        _ => Err(Status::INVALID_OPCODE),
    };
    answer.map_or_else(Step::from, |answer| answer_with(answer, data))
}

/// Sends this answer, if the data pointer has a place for it.
fn answer_with(answer: Vec<u8>, data: &Data) -> Step {
    match data {
        Data::Capsule { .. } => Status::INVALID_FIELD.into(),
        _ if answer.len() > data.length() as usize => Status::SGL_LENGTH.into(),
        _ => Step::Answer(answer),
    }
}

/// The longest transfer, as a power of two of pages.
fn mdts(target: &Target) -> u8 {
    (target.limits.transfer / PAGE).ilog2() as u8
}

fn identify(controller: &Controller, target: &Target, sqe: &Sqe) -> Result<Vec<u8>, Status> {
    let cns = sqe.cdw10.get() as u8;
    let subsystem = &controller.subsystem;
    let number = sqe.nsid.get();
    if cns == identify::CONTROLLER {
        let namespaces = subsystem.namespaces();
        let traits = ControllerTraits {
            id: controller.number,
            nqn: &subsystem.nqn,
            serial: &subsystem.serial,
            model: &subsystem.model,
            discovery: controller.discovery,
            mdts: mdts(target),
            in_capsule: target.limits.in_capsule,
            depth: target.limits.depth,
            cache: namespaces.iter().any(|namespace| namespace.backend.has_cache()),
            events: PARKED_EVENTS as u8 - 1,
            namespaces: NAMESPACES,
        };
        return Ok(identify::Controller::new(traits).as_bytes().into());
    }
    if controller.discovery {
        return Err(Status::INVALID_FIELD);
    }
    match cns {
        identify::NAMESPACE if number == u32::MAX => Err(Status::INVALID_NAMESPACE),
        identify::NAMESPACE => Ok(match subsystem.namespace(number) {
            Some(n) => identify::Namespace::new(n.blocks(), n.shift, n.uuid).as_bytes().into(),
            None => vec![0; identify::LEN],
        }),
        identify::ACTIVE_NAMESPACES if number >= 0xffff_fffe => Err(Status::INVALID_NAMESPACE),
        identify::ACTIVE_NAMESPACES => {
            let numbers = subsystem.namespaces();
            Ok(identify::namespaces(numbers.iter().map(|n| n.number).filter(|&n| n > number)))
        }
        identify::DESCRIPTORS => {
            let namespace = subsystem.namespace(number).ok_or(Status::INVALID_NAMESPACE)?;
            Ok(identify::descriptors(namespace.uuid))
        }
        identify::COMMAND_SET_CONTROLLER if sqe.cdw11.get() >> 24 == 0 => {
            Ok(identify::nvm_controller(mdts(target)))
        }
        _ => Err(Status::INVALID_FIELD),
    }
}

fn log_page(controller: &Controller, target: &Target, sqe: &Sqe) -> Result<Vec<u8>, Status> {
    let page = sqe.cdw10.get() as u8;
    let retain = sqe.cdw10.get() & 1 << 15 != 0;
    let dwords = u64::from(sqe.cdw11.get() & 0xffff) << 16 | u64::from(sqe.cdw10.get() >> 16);
    let length = (dwords + 1) * 4;
    let offset = Sqe::wide(sqe.cdw12, sqe.cdw13);
    if !offset.is_multiple_of(4) || length > target.limits.transfer.into() {
        return Err(Status::INVALID_FIELD);
    }
    let log = match page {
        log::DISCOVERY if controller.discovery => target.discovery_log(&controller.host),
        _ if controller.discovery => return Err(Status::INVALID_LOG_PAGE),
        log::ERRORS => vec![0; log::ERRORS_LEN],
        log::HEALTH => log::health(),
        log::FIRMWARE => log::firmware(),
        log::CHANGED_NAMESPACES => controller.changed_log(!retain),
        log::EFFECTS => log::effects(),
        _ => return Err(Status::INVALID_LOG_PAGE),
    };
    let offset = usize::try_from(offset).ok().filter(|&offset| offset <= log.len());
    let rest = &log[offset.ok_or(Status::INVALID_FIELD)?..];
    // Behind the end of the log are zeroes.
    let mut answer = vec![0; length as usize];
    let present = rest.len().min(answer.len());
    answer[..present].copy_from_slice(&rest[..present]);
    Ok(answer)
}

/// Numbers of features.
mod feature {
    pub(super) const WRITE_CACHE: u8 = 0x06;
    pub(super) const QUEUES: u8 = 0x07;
    pub(super) const ASYNC_EVENTS: u8 = 0x0b;
    pub(super) const KEEP_ALIVE: u8 = 0x0f;
    pub(super) const HOST_ID: u8 = 0x81;
}

/// Numbers of I/O queues as the feature has them: submission and completion queues, each less one.
fn queue_counts(queues: u16) -> u32 {
    let queues = u32::from(queues - 1);
    queues << 16 | queues
}

fn get_features(controller: &Controller, target: &Target, sqe: &Sqe, data: &Data) -> Step {
    if sqe.cdw10.get() >> 8 & 0b111 != 0 {
        return Status::INVALID_FIELD.into(); // only present values
    }
    let value = match sqe.cdw10.get() as u8 {
        feature::KEEP_ALIVE => controller.keep_alive().as_millis() as u32,
        feature::ASYNC_EVENTS => controller.events_enabled(),
        _ if controller.discovery => return Status::INVALID_FIELD.into(),
        feature::WRITE_CACHE => 1,
        feature::QUEUES => queue_counts(target.limits.queues),
        // The extended form, of 16 bytes.
        feature::HOST_ID if sqe.cdw11.get() & 1 != 0 => return answer_with(controller.host_id.into(), data),
        _ => return Status::INVALID_FIELD.into(),
    };
    Reply::result(value).into()
}

fn set_features(controller: &Controller, target: &Target, sqe: &Sqe) -> Reply {
    let value = sqe.cdw11.get();
    match sqe.cdw10.get() as u8 {
        feature::KEEP_ALIVE => {
            controller.set_keep_alive(Duration::from_millis(value.into()), Instant::now());
            Reply::result(value)
        }
        feature::ASYNC_EVENTS => match controller.enable_events(value) {
            Ok(()) => Reply::SUCCESS,
            Err(status) => status.into(),
        },
        _ if controller.discovery => Status::INVALID_FIELD.into(),
        feature::QUEUES => {
            let asked = (value as u16).min((value >> 16) as u16);
            if value as u16 == u16::MAX || value >> 16 == 0xffff {
                return Status::INVALID_FIELD.into();
            }
            Reply::result(queue_counts((asked + 1).min(target.limits.queues)))
        }
        feature::HOST_ID => Status::SEQUENCE_ERROR.into(),
        feature::WRITE_CACHE => Status::NOT_CHANGEABLE.into(),
        _ => Status::INVALID_FIELD.into(),
    }
}

#[cfg(test)]
mod tests;
