//! The rdma_cm front end: the device node `/dev/infiniband/rdma_cm`.
//!
//! Commands written to a descriptor go through `abi` (bytes at literal offsets) to `state::Cm`, a
//! state machine with the kernel's states, events and errors. Peers are other identifiers of this
//! process or of other processes on this machine. Other processes are reached over abstract Unix
//! sockets (`links`). This module carries no data: both ends learn each other's QPN, PSN and
//! private data, and the data engine addresses a queue pair by its number.
//!
//! | variable | meaning |
//! |---|---|
//! | `MLX5_EMU_SESSION` | processes with the same value reach each other's listeners and QPs |
//! | `MLX5_EMU_CM_TIMEOUT_MS` | time limit of an unanswered connect (see below); default 10000 |
//!
//! An unanswered connect ends in UNREACHABLE after `MLX5_EMU_CM_TIMEOUT_MS`, or after 7 times as
//! long if the peer has received the request.
//!
//! Addresses of this machine belong to the device. Other addresses do not answer: ADDR_ERROR with
//! -ETIMEDOUT after the caller's timeout. An address of 192.0.2.0/24 resolves and then never
//! answers a connect: UNREACHABLE.
//!
//! Differences from a kernel: ports chosen for active sides are not reserved; paths cannot
//! be set; in the InfiniBand address family only the wildcard can be bound.
//!
//! # References
//! rdma-core kernel-headers/rdma/rdma_user_cm.h and librdmacm/cma.c; kernel
//! drivers/infiniband/core/{ucma,cma,cm}.c.

use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

mod abi;
mod addr;
mod command;
mod engine;
mod groups;
mod links;
mod net;
mod peer;
mod query;
mod sock;
mod state;
mod wire;

#[cfg(test)]
mod tests;

use crate::host::mem::{copy_from_user, copy_to_user};
use crate::host::sys;
use crate::host::vfile::{self, VirtualFile};
use abi::{Command, Errno};
use state::FileId;

/// One open of the device.
struct CmFile(FileId, #[expect(dead_code, reason = "keeps the other end open")] Arc<OwnedFd>);

/// The open files, to find the one behind a descriptor (MIGRATE_ID).
static FILES: Mutex<Vec<Weak<CmFile>>> = Mutex::new(Vec::new());

/// The locks of the manager and of the list, for a thread that forks.
pub(crate) struct Held(
    engine::Held,
    #[expect(dead_code, reason = "held")] MutexGuard<'static, Vec<Weak<CmFile>>>,
);

pub(crate) fn hold() -> Held {
    Held(engine::hold(), FILES.lock().unwrap_or_else(PoisonError::into_inner))
}

impl Held {
    /// A forked child starts a manager of its own.
    pub(crate) fn forget_in_child(&mut self) {
        self.0.forget_in_child();
    }
}

/// Opens the connection manager.
///
/// # Errors
/// The system's errors for sockets and threads.
pub(crate) fn open() -> io::Result<RawFd> {
    let (program, ours) = sys::seqpacket_pair()?;
    let ours = Arc::new(ours);
    let file = Arc::new(CmFile(engine::open(ours.clone())?, ours));
    {
        let mut files = FILES.lock().unwrap_or_else(PoisonError::into_inner);
        files.retain(|file| file.strong_count() > 0);
        files.push(Arc::downgrade(&file));
    }
    vfile::open(program, file)
}

/// The file behind a descriptor.
fn file_of(fd: RawFd) -> Result<FileId, Errno> {
    let found = vfile::find(fd).ok_or(libc::EBADF)?;
    let address = Arc::as_ptr(&found).cast::<()>();
    let files = FILES.lock().unwrap_or_else(PoisonError::into_inner);
    let file = files.iter().filter_map(Weak::upgrade).find(|file| Arc::as_ptr(file).cast::<()>() == address);
    file.map(|file| file.0).ok_or(libc::EINVAL)
}

/// The address of an answer, and the answer.
type Answer = Option<(u64, Vec<u8>)>;

impl CmFile {
    /// Runs one command; `fd` is the descriptor it was written to.
    fn run(&self, fd: RawFd, command: Command) -> io::Result<Answer> {
        if let Some(errno) = fault(&command) {
            return Err(sys::errno(errno));
        }
        let file = self.0;
        let known = [(file, fd)];
        let answer: Result<Answer, Errno> = match command {
            Command::GetEvent { response, room } => return self.get_event(fd, response, room),
            Command::SetOption { id, level, name, value, len } => {
                if len > 4096 {
                    return Err(sys::errno(libc::EINVAL));
                }
                let mut bytes = vec![0; len as usize];
                copy_from_user(value, &mut bytes)?;
                engine::with(&known, |cm, _| cm.set_option(file, id, level, name, &bytes))?.map(|()| None)
            }
            Command::MigrateId { response, id, fd: old_fd } => {
                let old = file_of(old_fd).map_err(sys::errno)?;
                let known = [(file, fd), (old, old_fd)];
                engine::with(&known, |cm, _| cm.migrate(old, file, id))?
                    .map(|reported| Some((response, reported.to_ne_bytes().to_vec())))
            }
            command => engine::with(&known, |cm, cx| simple(cm, cx, file, command))?,
        };
        answer.map_err(sys::errno)
    }

    fn get_event(&self, fd: RawFd, response: u64, room: usize) -> io::Result<Answer> {
        let file = self.0;
        loop {
            let event = engine::with(&[(file, fd)], |cm, cx| {
                // If this leaves a descriptor readable without an event, `settle` in the caller
                // clears it.
                cm.take_event(cx, file)
            })?;
            if let Some(e) = event {
                let number = match crate::device::exists() {
                    true => crate::device::lock().card.faults.event(e.kind as u32),
                    false => e.kind as u32,
                };
                let reply = abi::event(e.uid, e.group.unwrap_or(e.id), number, e.status, &e.param, e.ece);
                return Ok(Some((response, reply.cut(room))));
            }
            if sys::is_nonblocking(fd) {
                return Err(sys::errno(libc::EAGAIN));
            }
            // Waits for the byte without taking it; a signal interrupts as it does a read.
            match sock::receive(fd, &mut [0; 1], libc::MSG_PEEK) {
                Ok(0) => return Err(sys::errno(libc::EBADF)),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// The errno of a fault on demand that strikes this command.
fn fault(command: &Command) -> Option<Errno> {
    let name = match command {
        Command::ResolveAddr { .. } => "resolve_addr",
        Command::ResolveRoute { .. } => "resolve_route",
        Command::Connect { .. } => "connect",
        Command::Listen { .. } => "listen",
        Command::Accept { param: Some(_), .. } => "accept",
        Command::Accept { param: None, .. } => "establish",
        Command::Reject { .. } => "reject",
        Command::Disconnect { .. } => "disconnect",
        Command::InitQpAttr { .. } => "init_qp_attr",
        _ => return None,
    };
    if !crate::device::exists() {
        return None;
    }
    crate::device::lock().card.faults.command_error_named(name)
}

/// The commands that need nothing but the manager.
fn simple(
    cm: &mut state::Cm,
    cx: &mut state::Cx<'_>,
    file: FileId,
    command: Command,
) -> Result<Answer, Errno> {
    match command {
        Command::CreateId { response, uid, port_space, qp_type } => {
            let id = cm.create_id(file, uid, port_space, qp_type)?;
            return Ok(Some((response, id.to_ne_bytes().to_vec())));
        }
        Command::DestroyId { response, id } => {
            let reported = cm.destroy_id(cx, file, id)?;
            return Ok(Some((response, reported.to_ne_bytes().to_vec())));
        }
        Command::QueryRoute { response, id, room } => {
            return cm.query_route(file, id, room).map(|bytes| Some((response, bytes)));
        }
        Command::QueryAddr { response, id, room } => {
            return cm.query_addr(file, id, room).map(|bytes| Some((response, bytes)));
        }
        Command::QueryPath { response, id, room } => {
            return cm.query_path(file, id, room).map(|bytes| Some((response, bytes)));
        }
        Command::QueryGid { response, id, room } => {
            return cm.query_gid(file, id, room).map(|bytes| Some((response, bytes)));
        }
        Command::InitQpAttr { response, id, qp_state } => {
            return cm.init_qp_attr(file, id, qp_state).map(|bytes| Some((response, bytes)));
        }
        Command::Join { response, uid, id, addr } => {
            let group = cm.join(file, id, uid, addr)?;
            return Ok(Some((response, group.to_ne_bytes().to_vec())));
        }
        Command::Leave { response, group } => {
            let reported = cm.leave(file, group)?;
            return Ok(Some((response, reported.to_ne_bytes().to_vec())));
        }
        Command::Bind { id, addr } => cm.bind(cx, file, id, addr)?,
        Command::ResolveAddr { id, timeout_ms, src, dst } => {
            cm.resolve_addr(cx, file, id, src, dst, timeout_ms)?;
        }
        Command::ResolveRoute { id } => cm.resolve_route(file, id)?,
        Command::Connect { id, param, ece } => cm.connect(cx, file, id, param, ece)?,
        Command::Listen { id, backlog } => cm.listen(cx, file, id, backlog)?,
        Command::Accept { id, uid, param, ece } => cm.accept(cx, file, id, uid, param, ece)?,
        Command::Reject { id, reason, private } => cm.reject(cx, file, id, reason, private)?,
        Command::Disconnect { id } => cm.disconnect(cx, file, id)?,
        Command::Notify { id, event } => cm.notify(file, id, event)?,
        Command::WriteEvent { id, event, status, arg } => cm.write_event(file, id, event, status, arg)?,
        Command::GetEvent { .. } | Command::SetOption { .. } | Command::MigrateId { .. } => {
            return Err(libc::EINVAL);
        }
    }
    Ok(None)
}

impl VirtualFile for CmFile {
    fn write(&self, fd: RawFd, buf: &[u8]) -> io::Result<usize> {
        let command = abi::parse(buf).map_err(sys::errno)?;
        if let Some((address, bytes)) = self.run(fd, command)? {
            copy_to_user(address, &bytes)?;
        }
        Ok(buf.len())
    }

    fn device_number(&self) -> Option<(u32, u32)> {
        Some(crate::host::devices::RDMA_CM)
    }

    fn released(&self) {
        engine::close(self.0);
    }
}
