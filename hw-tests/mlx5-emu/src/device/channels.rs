//! Completion channels and asynchronous event channels: packet sockets. The program reads the other
//! end.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd as _, RawFd};
use std::sync::Arc;

use super::{Device, lock};
use crate::host::sys;
use crate::host::vfile::{self, VirtualFile};
use crate::objects::Channel;

/// The registry's side of a channel: learns when the program closes it.
struct ChannelFile {
    id: usize,
}

impl VirtualFile for ChannelFile {
    fn released(&self) {
        let mut device = lock();
        if let Some(channel) = device.card.channels.get_mut(self.id) {
            channel.closed = true;
            let fd = channel.fd;
            device.channel_fds.retain(|&known, &mut id| known != fd || id != self.id);
            device.card.reap_channel(self.id);
        }
    }
}

impl Device {
    /// Makes a channel; returns its index and the program's descriptor.
    pub(crate) fn open_channel(&mut self) -> io::Result<(usize, RawFd)> {
        let (ours, program) = sys::seqpacket_pair()?;
        let theirs = sys::dup_cloexec(program.as_raw_fd())?;
        let fd = program.as_raw_fd();
        let id = self
            .card
            .channels
            .insert(Channel { ours, theirs, fd, backlog: VecDeque::new(), closed: false, users: 0 })
            .ok_or_else(|| sys::errno(libc::ENOMEM))?;
        match vfile::open(program, Arc::new(ChannelFile { id })) {
            Ok(fd) => {
                self.channel_fds.insert(fd, id);
                Ok((id, fd))
            }
            Err(error) => {
                self.card.channels.remove(id);
                Err(error)
            }
        }
    }
}
