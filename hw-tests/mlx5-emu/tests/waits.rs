//! Threads that sleep in poll(2) on a completion channel, while peers in other processes send.
//!
//! In mode `stepped` there is no helper thread, so the sleeping threads do all the work.
#![expect(unsafe_code, reason = "raw verbs calls, signals")]

mod common;
#[path = "common/direct.rs"]
mod direct;
#[path = "common/end.rs"]
mod end;
#[path = "common/other.rs"]
mod other;

use common::*;
use direct::*;
use end::End;
use other::{Other, line, say};
use std::os::fd::{AsRawFd as _, RawFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ibv_wr_opcode::IBV_WR_RDMA_READ;
use mlx5_emu::{Mode, set_mode};
use nix::sys::eventfd::EventFd;

/// Far more than any wait of these tests takes, and shorter than the helper's longest sleep.
const LIMIT: Duration = Duration::from_secs(8);
const ROUNDS: u64 = 300;
/// At most the receives of a queue.
const DIRECT_ROUNDS: u64 = 60;

/// One end of a connection, whose thread sleeps until there are completions.
struct Side {
    cq: *mut ibv_cq,
    channel: RawFd,
    comp_channel: *mut ibv_comp_channel,
    qp: *mut ibv_qp,
    memory: Memory,
    received: u64,
}

// SAFETY: verbs objects may be used by any thread, and one thread at a time uses a side.
unsafe impl Send for Side {}

impl Side {
    fn new(rig: &mut Rig) -> Self {
        let comp_channel = rig.channel();
        let cq = rig.cq_on(256, comp_channel);
        let qp = rig.qp(ibv_qp_type::IBV_QPT_RC, cq, cq, null_mut());
        let memory = rig.memory(4096);
        to_init(qp);
        // SAFETY: a live channel.
        let channel = unsafe { (*comp_channel).fd };
        let side = Self { cq, channel, comp_channel, qp, memory, received: 0 };
        side.post();
        side
    }

    /// The data that the other side needs.
    fn words(&self) -> String {
        End::line(self.qp, &self.memory)
    }

    /// Connects; returns the other side's rkey and address.
    fn connect(&self, words: &str) -> (u32, u64) {
        let other = End::read(words);
        to_rtr(self.qp, other.qpn);
        // Without a limit of time: a peer may be slow to run.
        to_rts_with(self.qp, 0, 7, 7);
        (other.rkey, other.addr)
    }

    /// Connects with the other process.
    fn meet(rig: &mut Rig, other: &mut Other) -> Self {
        let side = Self::new(rig);
        other.tell(&side.words());
        side.connect(&other.says());
        side
    }

    /// Connects with another process that echoes, and exchanges one of so many messages with it.
    /// No event is left on the channel.
    fn meet_echo(rig: &mut Rig, mode: Mode, count: u64) -> (Self, Other) {
        let mut other = start(mode, "echo");
        let mut side = Self::meet(rig, &mut other);
        other.tell(&count.to_string());
        side.rounds(1);
        take_events(side.comp_channel);
        (side, other)
    }

    fn post(&self) {
        assert_eq!(post_recv(self.qp, 1, &[self.memory.sge(0, 8)]), 0);
    }

    fn send(&self) {
        send(self.qp, 2, SIGNALED, &[self.memory.sge(8, 8)]);
    }

    fn arm(&self) {
        // SAFETY: a live CQ.
        assert_eq!(unsafe { ibv_req_notify_cq(self.cq, 0) }, 0);
    }

    /// Sleeps until a message has come.
    fn receive(&mut self) {
        let since = Instant::now();
        while self.received == 0 {
            self.arm();
            self.received += self.look();
            if self.received == 0 {
                sleep(&[self.channel], Some(LIMIT));
                take_events(self.comp_channel);
                self.received += self.look();
                assert!(since.elapsed() < LIMIT, "no message has come");
            }
        }
        self.received -= 1;
        self.post();
    }

    /// Messages that have come.
    fn look(&self) -> u64 {
        let found = poll_all(self.cq);
        assert!(found.iter().all(|wc| wc.status == 0));
        found.iter().filter(|wc| wc.wr_id == 1).count() as u64
    }

    fn rounds(&mut self, count: u64) {
        for _ in 0..count {
            self.send();
            self.receive();
        }
    }

    fn echo(&mut self, count: u64) {
        for _ in 0..count {
            self.receive();
            self.send();
        }
    }
}

/// Takes the events from the channel; returns their number.
fn take_events(channel: *mut ibv_comp_channel) -> u32 {
    (0..).take_while(|_| comp_event(channel)).map(|_| 1).sum()
}

/// poll(2) for input; returns its result and the events.
fn sleep(descriptors: &[RawFd], limit: Option<Duration>) -> (i32, Vec<i16>) {
    let mut list: Vec<libc::pollfd> =
        descriptors.iter().map(|&fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect();
    let time = limit.map_or(-1, |limit| limit.as_millis() as i32);
    // SAFETY: pointer and length describe `list`.
    let result = unsafe { libc::poll(list.as_mut_ptr(), list.len() as libc::nfds_t, time) };
    (result, list.iter().map(|entry| entry.revents).collect())
}

/// Starts a process that runs this part of [`other_process`] in the same mode.
fn start(mode: Mode, part: &str) -> Other {
    set_mode(mode);
    let mode = if mode == Mode::Auto { "auto" } else { "stepped" };
    let arguments = ["--exact", "other_process", "--ignored", "--nocapture"];
    Other::start(&arguments, &[("WAITS_PART", part), ("MLX5_EMU_MODE", mode)])
}

/// Tells the other process to end, and waits until it has.
fn end(mut other: Other) {
    other.tell("end");
    other.ends_well();
}

#[test]
#[ignore = "the second process of the other tests"]
fn other_process() {
    let part = std::env::var("WAITS_PART").expect("started by the other tests only");
    let mut rig = Rig::new();
    let mut side = Side::new(&mut rig);
    let words = line();
    let (rkey, addr) = side.connect(&words);
    say(&side.words());
    match part.as_str() {
        "echo" => side.echo(line().parse().unwrap()),
        "direct" => {
            let mut direct = Direct::new(&side);
            assert_eq!(line(), "go");
            for round in 1..=DIRECT_ROUNDS {
                direct.wait_for(round, round - 1);
                direct.send();
            }
            direct.wait_for(DIRECT_ROUNDS, DIRECT_ROUNDS);
        }
        "reader" => {
            side.echo(ROUNDS);
            assert_eq!(line(), "read");
            let into = side.memory.sge(64, 8);
            let read = |wr: &mut ibv_send_wr| (wr.wr.rdma.remote_addr, wr.wr.rdma.rkey) = (addr, rkey);
            assert_eq!(post_send(side.qp, 3, IBV_WR_RDMA_READ, SIGNALED, &[into], read), 0);
            let since = Instant::now();
            while !poll_all(side.cq).iter().any(|wc| (wc.wr_id, wc.status) == (3, 0)) {
                assert!(since.elapsed() < LIMIT, "the READ was not answered");
            }
            say("read");
        }
        other => panic!("no part {other}"),
    }
    // The peer has the answers when it says so.
    assert_eq!(line(), "end");
}

#[test]
fn sleeping_threads_serve_each_other_without_a_helper() {
    let mut rig = Rig::new();
    let mut other = start(Mode::Stepped, "echo");
    let mut side = Side::meet(&mut rig, &mut other);
    other.tell(&ROUNDS.to_string());
    side.rounds(ROUNDS);
    end(other);
}

/// Nobody else serves a thread that has polled without a pause before it sleeps.
#[test]
fn sleeping_thread_is_served_after_many_polls_without_a_helper() {
    const FEW: u64 = 10;
    let mut rig = Rig::new();
    let mut other = start(Mode::Stepped, "echo");
    let mut side = Side::meet(&mut rig, &mut other);
    other.tell(&FEW.to_string());
    for _ in 0..FEW {
        (0..100).for_each(|_| assert_eq!(side.look(), 0));
        side.send();
        side.receive();
    }
    end(other);
}

/// Sends, arms, polls and so on without the functions of libmlx5 that the device hooks.
struct Direct {
    sq: DirectSq,
    cq: DirectCq,
    comp_channel: *mut ibv_comp_channel,
    channel: RawFd,
    sge: ibv_sge,
    serial: u32,
    received: u64,
    sent: u64,
}

/// Opcode of a completion of the receiver.
const MESSAGE: u8 = 2;

impl Direct {
    fn new(side: &Side) -> Self {
        // libmlx5 does not learn that receives have completed, so all are posted in advance.
        (1..DIRECT_ROUNDS).for_each(|_| side.post());
        Self {
            sq: DirectSq::new(side.qp),
            cq: DirectCq::new(side.cq),
            comp_channel: side.comp_channel,
            channel: side.channel,
            sge: side.memory.sge(8, 8),
            serial: 0,
            received: 0,
            sent: 0,
        }
    }

    fn send(&mut self) {
        let words = self.sq.write(&self.sge);
        self.sq.ring_only(words);
    }

    fn look(&mut self) {
        while let Some(opcode) = self.cq.next_opcode() {
            let is_message = opcode == MESSAGE;
            *(if is_message { &mut self.received } else { &mut self.sent }) += 1;
        }
    }

    /// Sleeps until so many messages have come and so many sends are complete.
    fn wait_for(&mut self, received: u64, sent: u64) {
        let since = Instant::now();
        let reached = |direct: &Self| direct.received >= received && direct.sent >= sent;
        self.look();
        while !reached(self) {
            self.cq.arm(self.serial);
            self.look();
            if !reached(self) {
                sleep(&[self.channel], Some(LIMIT));
                self.serial += take_events(self.comp_channel);
                self.look();
                assert!(since.elapsed() < LIMIT, "{} messages, {} sends", self.received, self.sent);
            }
        }
    }
}

fn direct_rounds(mode: Mode) {
    let mut rig = Rig::new();
    let mut other = start(mode, "direct");
    let side = Side::meet(&mut rig, &mut other);
    let mut direct = Direct::new(&side);
    other.tell("go");
    for round in 1..=DIRECT_ROUNDS {
        direct.send();
        direct.wait_for(round, round);
    }
    end(other);
}

#[test]
fn sleeping_threads_take_the_doorbells_of_other_drivers() {
    direct_rounds(Mode::Stepped);
}

#[test]
fn no_doorbell_is_lost_between_waits_and_helper() {
    direct_rounds(Mode::Auto);
}

#[test]
fn a_program_that_stops_waiting_is_served() {
    let mut rig = Rig::new();
    let mut other = start(Mode::Auto, "reader");
    let mut side = Side::meet(&mut rig, &mut other);
    side.rounds(ROUNDS);
    take_events(side.comp_channel);
    // Long enough for the helper to stop looking at the doorbell pages, and to leave all to the
    // thread that sleeps.
    assert_eq!(sleep(&[side.channel], Some(Duration::from_millis(100))).0, 0);
    other.tell("read");
    // The READ needs this process, whose thread sleeps elsewhere.
    assert_eq!(other.says(), "read");
    end(other);
}

#[test]
fn poll_answers_as_without_peers() {
    let mut rig = Rig::new();
    let (side, other) = Side::meet_echo(&mut rig, Mode::Stepped, 1);

    let (since, short) = (Instant::now(), Duration::from_millis(30));
    assert_eq!(sleep(&[side.channel], Some(short)), (0, vec![0]));
    assert!(since.elapsed() >= short);
    assert_eq!(sleep(&[side.channel], Some(Duration::ZERO)), (0, vec![0]));

    let event = EventFd::from_value(1).unwrap();
    let ready = (1, vec![0, libc::POLLIN]);
    assert_eq!(sleep(&[side.channel, event.as_raw_fd()], None), ready);
    event.read().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| event.write(1).unwrap());
        assert_eq!(sleep(&[side.channel, event.as_raw_fd()], None), ready);
    });
    assert_eq!(sleep(&[side.channel, 1 << 20], None), (1, vec![0, libc::POLLNVAL]));
    assert_eq!(sleep(&[-1, side.channel], Some(short)), (0, vec![0, 0]));

    let time = |tv_sec, tv_nsec| libc::timespec { tv_sec, tv_nsec };
    let ppoll = |time: libc::timespec, events| {
        let mut list = libc::pollfd { fd: side.channel, events, revents: 0 };
        // SAFETY: one entry, a time, no mask.
        let result = unsafe { libc::ppoll(&raw mut list, 1, &raw const time, std::ptr::null()) };
        if result < 0 { Err(nix::errno::Errno::last()) } else { Ok((result, list.revents)) }
    };
    assert_eq!(ppoll(time(0, 1_000_000), libc::POLLIN), Ok((0, 0)));
    assert_eq!(ppoll(time(0, 1_000_000_000), libc::POLLIN), Err(nix::errno::Errno::EINVAL));
    assert_eq!(ppoll(time(-1, 0), libc::POLLIN), Err(nix::errno::Errno::EINVAL));
    assert_eq!(ppoll(time(100, 0), libc::POLLOUT), Ok((1, libc::POLLOUT)));
    end(other);
}

#[test]
fn a_signal_ends_the_sleep() {
    extern "C" fn nothing(_: i32) {}
    let mut rig = Rig::new();
    let (side, other) = Side::meet_echo(&mut rig, Mode::Stepped, 1);

    let action = nix::sys::signal::SigAction::new(
        nix::sys::signal::SigHandler::Handler(nothing),
        nix::sys::signal::SaFlags::empty(),
        nix::sys::signal::SigSet::empty(),
    );
    // SAFETY: the handler does nothing.
    unsafe { nix::sys::signal::sigaction(nix::sys::signal::SIGUSR1, &action).unwrap() };
    // SAFETY: no preconditions.
    let sleeper = unsafe { libc::pthread_self() } as usize;
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                // SAFETY: the thread waits for this one.
                unsafe { libc::pthread_kill(sleeper as libc::pthread_t, libc::SIGUSR1) };
                std::thread::yield_now();
            }
        });
        let (result, _) = sleep(&[side.channel], None);
        let error = nix::errno::Errno::last();
        over.store(true, Ordering::Relaxed);
        assert_eq!((result, error), (-1, nix::errno::Errno::EINTR));
    });
    end(other);
}

#[test]
fn a_peer_that_is_new_is_served_by_a_thread_that_sleeps() {
    let mut rig = Rig::new();
    let (mut side, known) = Side::meet_echo(&mut rig, Mode::Stepped, 2);
    let mut new = start(Mode::Stepped, "echo");
    let mut second = Side::meet(&mut rig, &mut new);
    new.tell(&ROUNDS.to_string());
    second.rounds(ROUNDS);
    side.rounds(1);
    for other in [known, new] {
        end(other);
    }
}

/// One thread sleeps and gets nothing, so it serves the device for another one. Then it leaves.
#[test]
fn threads_that_sleep_at_once_are_all_served() {
    let mut rig = Rig::new();
    let (first, idle) = Side::meet_echo(&mut rig, Mode::Auto, 1);
    let mut busy = start(Mode::Auto, "echo");
    let mut second = Side::meet(&mut rig, &mut busy);
    busy.tell(&(2 * ROUNDS).to_string());
    let event = EventFd::new().unwrap();
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| sleep(&[first.channel, event.as_raw_fd()], None));
        second.rounds(ROUNDS);
        event.write(1).unwrap();
        assert_eq!(sleeper.join().unwrap(), (1, vec![0, libc::POLLIN]));
        second.rounds(ROUNDS);
    });
    for other in [idle, busy] {
        end(other);
    }
}
