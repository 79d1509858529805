//! Events, into the sockets of their channels.

use std::collections::VecDeque;
use std::os::fd::AsRawFd as _;

use super::card::Card;
use crate::host::sys;

impl Card {
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

    pub(crate) fn reap_channel(&mut self, id: usize) {
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
    pub(super) fn flush_backlog(&mut self) {
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
    pub(super) fn completion_event(&mut self, cq: usize) {
        let cq = &mut self.cqs[cq];
        let Some(channel) = cq.channel else { return };
        cq.comp_events += 1;
        let packet = cq.user_handle.to_ne_bytes();
        self.queue(channel, &packet);
    }

    /// Queues an asynchronous event of `context` about `element` (a user handle or a port number).
    pub(super) fn async_event(&mut self, context: usize, element: u64, event: u32) {
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

    /// Queues an asynchronous event about a QP.
    pub(super) fn qp_event(&mut self, index: usize, event: u32) {
        let qp = &mut self.qps[index];
        qp.async_events += 1;
        let (context, element) = (qp.context, qp.user_handle);
        self.async_event(context, element, event);
    }

    /// An asynchronous event to every context.
    pub(crate) fn broadcast(&mut self, element: u64, event: u32) {
        let contexts: Vec<usize> = self.contexts.iter().map(|(context, _)| context).collect();
        for context in contexts {
            self.async_event(context, element, event);
        }
    }
}
