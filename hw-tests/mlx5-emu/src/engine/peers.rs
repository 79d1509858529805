//! What arrives from other processes.

use super::card::Card;
use crate::wire::{Frame, Payload, parse};

impl Card {
    /// Reads the frames of peers, answers them, and writes waiting data.
    pub(super) fn run_net(&mut self) {
        let lost = self.net.look();
        let mut incoming = self.net.take_incoming();
        for peer in &mut incoming {
            peer.serve(|frame| self.frame(frame));
        }
        self.net.put_back(incoming);
        // What a lost peer has answered before its end counts.
        for slot in lost {
            self.peer_lost(slot);
        }
        if self.net.write_waiting() {
            self.unblock_all();
        }
    }

    fn frame(&mut self, frame: &[u8]) {
        match parse(frame) {
            Some(Frame::Request(request, payload)) => {
                let reply = self.respond(&request, Payload::Bytes(payload));
                if request.kind.is_reliable() {
                    self.net.send_reply(&request, reply);
                }
            }
            Some(Frame::Reply { qpn, number, reply, data }) if !self.dead => {
                self.answered(qpn, number, reply, data);
            }
            _ => {}
        }
    }
}
