//! Random programs that use pools.

use doorbell::{ConnectOptions, DtoCompletion, EpAttr, RecvBuf, RecvPool, Refused, SendBuf, SendPool, Srq};
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Pair, Rig, Test, tests};
use std::mem;

pub(crate) const TESTS: &[Test] = tests![guards_keep_their_bytes_in_random_programs,];

/// Pseudo-random numbers (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}

/// A program that sends, receives, keeps completions and offers them again, forgets guards and
/// pools, and loses its connections, in random order.
struct Program {
    random: Random,
    rig: Rig,
    srq: Srq,
    pools: Vec<RecvPool>,
    sends: SendPool,
    pair: Pair,
    /// Guards, and the bytes that they had when they came.
    guards: Vec<(RecvBuf, Vec<u8>)>,
    unsent: Option<SendBuf>,
    kept: Vec<DtoCompletion>,
    number: u8,
    received: usize,
}

/// The contents of the message with this number.
fn contents(number: u8) -> Vec<u8> {
    (0..=usize::from(number)).map(|i| number.wrapping_mul(31).wrapping_add(i as u8)).collect()
}

impl Program {
    const DEPTH: u32 = 8;

    fn new(seed: u64) -> Self {
        let rig = Rig::new();
        let (srq, pool, pair) = rig.pooled(Self::DEPTH);
        let sends = SendPool::new(&rig.client.ia, &rig.client.pz, 3, SIZE).unwrap();
        Self {
            random: Random(seed),
            srq,
            pools: vec![pool],
            sends,
            pair,
            guards: vec![],
            unsent: None,
            kept: vec![],
            number: 0,
            received: 0,
            rig,
        }
    }

    fn new_pool(&self) -> RecvPool {
        RecvPool::new(&self.rig.server.ia, &self.rig.server.pz, 4, SIZE).unwrap()
    }

    /// Sends a message. The next buffer from the send pool is overwritten at once; the message may
    /// still be under way.
    fn send(&mut self) {
        let Some(mut buf) = self.unsent.take().or_else(|| self.sends.take()) else { return };
        self.number = (self.number + 1) % 100;
        let bytes = contents(self.number);
        buf[..bytes.len()].copy_from_slice(&bytes);
        match self.sends.send(buf).len(bytes.len()).post(&mut self.pair.client) {
            Ok(()) => self.unsent = self.sends.take(),
            Err(Refused { object: buf, .. }) => self.unsent = Some(buf),
        }
        if let Some(next) = &mut self.unsent {
            next.fill(0xee);
        }
    }

    /// Passes the completions in the EVD to every pool.
    fn reap(&mut self) {
        for evd in [&self.rig.client.request, &self.rig.server.recv] {
            let Ok(Some(event)) = evd.dequeue() else { continue };
            let Some(dto) = event.completion().copied() else { continue };
            self.kept.push(dto);
            self.sends.completed(&dto);
            let mut taken = self.pools.iter_mut().filter_map(|pool| pool.take(&dto));
            let Some(guard) = taken.next() else { continue };
            assert!(taken.next().is_none(), "two pools have taken one completion");
            drop(taken);
            assert_eq!(*guard, *contents(guard.len() as u8 - 1), "a message is not what was sent");
            self.received += 1;
            let bytes = guard.to_vec();
            self.guards.push((guard, bytes));
        }
    }

    fn offer_again(&mut self) {
        if self.kept.is_empty() {
            return;
        }
        let old = self.kept[self.random.below(self.kept.len())];
        assert!(!self.sends.completed(&old));
        assert!(self.pools.iter_mut().all(|pool| pool.take(&old).is_none()));
    }

    fn connect_again(&mut self) {
        let rig = &self.rig;
        let _ended = self.pair.client.disconnect(doorbell::CloseFlags::Abrupt);
        let srq = rig.server.srq(Self::DEPTH);
        let pair = mem::replace(&mut self.pair, {
            let attr = EpAttr::default();
            let (server, client) = (rig.server.srq_ep(&srq, &attr), rig.client.ep(&attr));
            while rig.server.connect.dequeue().unwrap().is_some()
                || rig.client.connect.dequeue().unwrap().is_some()
            {}
            let psp = doorbell::Psp::builder(&rig.server.ia, &rig.server.cr).build().unwrap();
            let port = psp.port();
            client
                .connect_with((rig.server.ia.address(), port).into(), ConnectOptions::new().timeout(LONG))
                .unwrap();
            connection_request(&rig.server.cr).cr.accept(&server, &[]).unwrap();
            for (side, ep) in [(&rig.server, &server), (&rig.client, &client)] {
                // Ends of earlier connections may still come.
                while connection(&side.connect).ep != ep.id() {}
                until("connected", || ep.state() == doorbell::EpState::Connected);
            }
            drop(psp);
            Pair { server, client }
        });
        drop((pair, mem::replace(&mut self.srq, srq)));
        // Buffers on the old SRQ do not come back, so the pools that posted them are replaced.
        let mut new = self.new_pool();
        new.refill(&mut self.srq).unwrap();
        self.pools.push(new);
        self.pools.drain(..self.pools.len().saturating_sub(3));
    }

    fn step(&mut self) {
        match self.random.below(16) {
            0..=4 => self.send(),
            5..=8 => self.reap(),
            9 | 10 => self.offer_again(),
            11 | 12 => {
                for pool in &mut self.pools {
                    let _full = pool.refill(&mut self.srq);
                }
            }
            13 if !self.guards.is_empty() => {
                let at = self.random.below(self.guards.len());
                let (guard, _) = self.guards.swap_remove(at);
                match self.random.below(8) {
                    0 => mem::forget(guard),
                    1 => drop(std::thread::spawn(move || drop(guard)).join()),
                    _ => drop(guard),
                }
            }
            14 if self.random.below(3) == 0 => {
                let new = self.new_pool();
                self.pools.push(new);
                if self.pools.len() > 2 {
                    let at = self.random.below(self.pools.len());
                    let old = self.pools.swap_remove(at);
                    if self.random.below(4) == 0 { mem::forget(old) } else { drop(old) }
                }
            }
            15 => match self.random.below(6) {
                0 => self.connect_again(),
                1 => drop(self.srq.resize(8 + self.random.below(8) as u32)),
                _ => self.reap(),
            },
            _ => {}
        }
        for (guard, bytes) in &self.guards {
            assert_eq!(**guard, **bytes, "bytes have changed under a guard");
        }
        if let Some(unsent) = &self.unsent {
            assert!(
                unsent[SIZE - 100..].iter().all(|&byte| byte == 0xee),
                "a buffer has changed before it was sent"
            );
        }
        let broken = self.pair.client.state() != doorbell::EpState::Connected;
        if broken || self.pair.server.state() != doorbell::EpState::Connected {
            self.connect_again();
        }
    }
}

fn guards_keep_their_bytes_in_random_programs() {
    for seed in [1, 0x9e37_79b9_7f4a_7c15, 0x2545_f491_4f6c_dd1d] {
        let mut program = Program::new(seed);
        for _ in 0..600 {
            program.step();
        }
        // A slow device needs more steps until as many messages have come.
        until("21 messages", || {
            program.step();
            program.received > 20
        });
        let Program { guards, .. } = program;
        assert!(guards.iter().all(|(guard, bytes)| **guard == **bytes));
    }
}
