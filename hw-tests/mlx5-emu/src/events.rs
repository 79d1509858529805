//! Completion channels and asynchronous event channels: packet sockets. The program reads the other
//! end.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd as _, RawFd};
use std::sync::Arc;

use crate::device::Device;
use crate::objects::Channel;
use crate::sys;
use crate::vfile::{self, VirtualFile};

/// The registry's side of a channel: learns when the program closes it.
struct ChannelFile {
    id: usize,
}

impl VirtualFile for ChannelFile {
    fn released(&self) {
        let mut device = crate::device::lock();
        if let Some(channel) = device.channels.get_mut(self.id) {
            channel.closed = true;
            let fd = channel.fd;
            device.channel_fds.retain(|&known, &mut id| known != fd || id != self.id);
            device.reap_channel(self.id);
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
            .channels
            .insert(Channel { ours, theirs, fd, backlog: VecDeque::new(), closed: false, users: 0 })
            .ok_or_else(|| sys::errno(libc::ENOMEM))?;
        match vfile::open(program, Arc::new(ChannelFile { id })) {
            Ok(fd) => {
                self.channel_fds.insert(fd, id);
                Ok((id, fd))
            }
            Err(error) => {
                self.channels.remove(id);
                Err(error)
            }
        }
    }

    pub(crate) fn hold_channel(&mut self, id: usize) {
        if let Some(channel) = self.channels.get_mut(id) {
            channel.users += 1;
        }
    }

    pub(crate) fn put_channel(&mut self, id: usize) {
        if let Some(channel) = self.channels.get_mut(id) {
            channel.users = channel.users.saturating_sub(1);
        }
        self.reap_channel(id);
    }

    fn reap_channel(&mut self, id: usize) {
        if self.channels.get(id).is_some_and(|channel| channel.closed && channel.users == 0) {
            self.channels.remove(id);
        }
    }

    fn queue(&mut self, id: usize, packet: &[u8]) {
        let Some(channel) = self.channels.get_mut(id) else { return };
        if channel.closed {
            return;
        }
        if !channel.backlog.is_empty() || sys::send_packet(channel.ours.as_raw_fd(), packet).is_err() {
            channel.backlog.push_back(packet.to_vec());
            self.backlogged = true;
        }
    }

    /// Moves waiting events into sockets that have room again.
    pub(crate) fn flush_backlog(&mut self) {
        let mut left = false;
        for (_, channel) in self.channels.iter_mut() {
            while let Some(packet) = channel.backlog.front() {
                if sys::send_packet(channel.ours.as_raw_fd(), packet).is_err() {
                    left = true;
                    break;
                }
                channel.backlog.pop_front();
            }
        }
        self.backlogged = left;
    }

    /// Queues a completion event for a CQ's channel.
    pub(crate) fn completion_event(&mut self, cq: usize) {
        let cq = &mut self.cqs[cq];
        let Some(channel) = cq.channel else { return };
        cq.comp_events += 1;
        let packet = cq.user_handle.to_ne_bytes();
        self.queue(channel, &packet);
    }

    /// Queues an asynchronous event of `context` about `element` (a user handle or a port number).
    pub(crate) fn async_event(&mut self, context: usize, element: u64, event: u32) {
        let Some(id) = self.contexts.get(context).and_then(|context| context.async_channel) else { return };
        let mut packet = [0; 16];
        packet[..8].copy_from_slice(&element.to_ne_bytes());
        packet[8..12].copy_from_slice(&event.to_ne_bytes());
        self.queue(id, &packet);
    }

    /// Takes back the unread events of a channel that `is_ours` picks; how many.
    pub(crate) fn take_back(&mut self, id: usize, is_ours: impl Fn(&[u8]) -> bool) -> u32 {
        let Some(channel) = self.channels.get_mut(id) else { return 0 };
        let mut taken = 0;
        let mut keep = VecDeque::new();
        let mut buf = [0; 64];
        while let Some(len) = sys::recv_packet(channel.theirs.as_raw_fd(), &mut buf) {
            if is_ours(&buf[..len]) {
                taken += 1;
            } else {
                keep.push_back(buf[..len].to_vec());
            }
        }
        for packet in std::mem::take(&mut channel.backlog) {
            if is_ours(&packet) {
                taken += 1;
            } else {
                keep.push_back(packet);
            }
        }
        channel.backlog = keep;
        self.backlogged = true;
        self.flush_backlog();
        taken
    }

    /// Takes back unread asynchronous events of the given kinds about `element`; how many.
    pub(crate) fn take_back_async(&mut self, context: usize, element: u64, kinds: &[u32]) -> u32 {
        let Some(id) = self.contexts.get(context).and_then(|context| context.async_channel) else { return 0 };
        self.take_back(id, |packet| {
            packet.len() == 16
                && packet[..8] == element.to_ne_bytes()
                && kinds.iter().any(|kind| packet[8..12] == kind.to_ne_bytes())
        })
    }
}
