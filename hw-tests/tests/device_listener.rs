//! EVDs and CNOs in event loops: when their descriptors are readable, and what a poll then returns.

use doorbell::inside::EpEvds;
use doorbell::{
    Cno, CnoListener, CompletionFlags, EpAttr, Evd, EvdFlags, EvdListener, Event, ReturnType, Subtype,
};
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Pair, Rig, dat, tests};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::AsFd;
use std::time::Duration;

fn main() {
    doorbell_hw_tests::run(tests![
        a_message_makes_the_descriptor_readable,
        events_of_every_stream_make_it_readable,
        a_poll_without_events_does_not_block,
        the_listener_is_the_only_waiter,
        an_ended_wait_leaves_no_signal,
        the_cno_is_triggered_only_without_a_wait,
        unsolicited_messages_end_no_wait,
        a_freed_evd_aborts_the_wait,
        an_unwaitable_evd_ends_the_wait,
        a_cno_makes_its_descriptor_readable,
        a_freed_cno_makes_its_descriptor_readable,
        a_cno_without_a_descriptor_has_no_listener,
    ])
    .exit();
}

/// Sleeps until the descriptor is readable; false if the time is over.
fn readable(fd: &impl AsFd, time: Duration) -> bool {
    let mut fds = [PollFd::new(fd.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::try_from(time).unwrap()).unwrap() > 0
}

/// Sleeps on the descriptor, never anywhere else, until a poll returns an event.
#[track_caller]
fn await_event(listener: &mut EvdListener) -> Event {
    loop {
        if let Some(event) = listener.poll().unwrap() {
            return event;
        }
        assert!(readable(listener, LONG), "no event");
    }
}

/// Polls until the listener waits and its descriptor is not readable.
#[track_caller]
fn begin(listener: &mut EvdListener) {
    loop {
        assert!(listener.poll().unwrap().is_none());
        if !readable(listener, Duration::ZERO) {
            return;
        }
    }
}

/// A connection whose server receives on an EVD of its own, 16 buffers of 64 bytes on its SRQ.
fn receiving(rig: &Rig, cno: Option<&Cno>, flags: CompletionFlags) -> (Evd, Pair) {
    let server = &rig.server;
    let mut srq = server.srq(16);
    server.post(&mut srq, 16, 64, 0, 0);
    let recv = Evd::new(&server.ia, 64, EvdFlags::DTO).unwrap();
    recv.set_cno(cno).unwrap();
    let evds = EpEvds { recv: Some(&recv), ..server.evds() };
    let attr = EpAttr { recv_completion_flags: flags, ..EpAttr::default() };
    let ep =
        doorbell::Ep::builder(&server.ia, &server.pz).evds(evds).srq(&srq).attributes(&attr).build().unwrap();
    let pair = rig.connect(ep, rig.client.ep(&EpAttr::default()));
    (recv, pair)
}

fn cookie(event: &Event) -> u64 {
    event.completion().unwrap().cookie
}

fn a_message_makes_the_descriptor_readable() {
    let rig = Rig::new();
    let (recv, mut pair) = receiving(&rig, None, CompletionFlags::empty());
    let mut listener = EvdListener::new(&recv).unwrap();
    for message in 0..10 {
        begin(&mut listener);
        rig.send(&mut pair, 0, 8);
        assert!(readable(&listener, LONG));
        assert_eq!(cookie(&await_event(&mut listener)), message);
    }
}

/// Also on an EVD without a CQ.
fn events_of_every_stream_make_it_readable() {
    let rig = Rig::new();
    let software = Evd::new(&rig.server.ia, 8, EvdFlags::SOFTWARE).unwrap();
    let mut listener = EvdListener::new(&software).unwrap();
    begin(&mut listener);
    software.post_software_event(7).unwrap();
    assert!(readable(&listener, LONG));
    assert!(matches!(await_event(&mut listener), Event::Software(7)));

    let (_recv, pair) = receiving(&rig, None, CompletionFlags::empty());
    let mut listener = EvdListener::new(&rig.server.connect).unwrap();
    begin(&mut listener);
    pair.client.disconnect(doorbell::CloseFlags::Abrupt).unwrap();
    assert!(matches!(await_event(&mut listener), Event::Disconnected(_)));
}

/// Events that are queued already are returned without a look at the descriptor.
fn a_poll_without_events_does_not_block() {
    let rig = Rig::new();
    let evd = Evd::new(&rig.server.ia, 8, EvdFlags::SOFTWARE).unwrap();
    evd.post_software_event(1).unwrap();
    evd.post_software_event(2).unwrap();
    let mut listener = EvdListener::new(&evd).unwrap();
    assert!(matches!(listener.poll().unwrap(), Some(Event::Software(1))));
    assert!(matches!(listener.poll().unwrap(), Some(Event::Software(2))));
    assert!(listener.poll().unwrap().is_none());
}

/// While a poll has left a wait, other waits and dequeues are refused (R248); after `cancel`, after
/// a drop, an event and a dequeue of the listener they are not.
fn the_listener_is_the_only_waiter() {
    let rig = Rig::new();
    let evd = Evd::new(&rig.server.ia, 8, EvdFlags::SOFTWARE).unwrap();
    let refused = |evd: &Evd| {
        assert_eq!(evd.dequeue().unwrap_err().code(), dat::INVALID_STATE_EVD_WAITER);
        assert_eq!(evd.wait().unwrap_err().code(), dat::INVALID_STATE_EVD_WAITER);
        let mut second = EvdListener::new(evd).unwrap();
        assert_eq!(second.poll().unwrap_err().code(), dat::INVALID_STATE_EVD_WAITER);
    };
    let allowed = |evd: &Evd| {
        assert!(evd.dequeue().unwrap().is_none());
    };
    let mut listener = EvdListener::new(&evd).unwrap();
    allowed(&evd);
    begin(&mut listener);
    refused(&evd);
    listener.cancel();
    allowed(&evd);
    begin(&mut listener);
    refused(&evd);
    evd.post_software_event(3).unwrap();
    await_event(&mut listener);
    allowed(&evd);
    begin(&mut listener);
    refused(&evd);
    assert!(listener.dequeue().unwrap().is_none());
    allowed(&evd);
    begin(&mut listener);
    drop(listener);
    allowed(&evd);
}

/// A wait that was ended before its event was taken does not make the descriptor readable for ever.
fn an_ended_wait_leaves_no_signal() {
    let rig = Rig::new();
    let evd = Evd::new(&rig.server.ia, 8, EvdFlags::SOFTWARE).unwrap();
    let mut listener = EvdListener::new(&evd).unwrap();
    begin(&mut listener);
    evd.post_software_event(3).unwrap();
    assert!(readable(&listener, LONG));
    listener.cancel();
    assert!(matches!(evd.dequeue().unwrap(), Some(Event::Software(3))));

    assert!(listener.poll().unwrap().is_none());
    assert!(!readable(&listener, Duration::ZERO), "readable without an event");
    evd.post_software_event(4).unwrap();
    assert!(readable(&listener, LONG));
    assert!(matches!(await_event(&mut listener), Event::Software(4)));
}

/// Also R250.
fn the_cno_is_triggered_only_without_a_wait() {
    let rig = Rig::new();
    let cno = Cno::new(&rig.server.ia).unwrap();
    let (recv, mut pair) = receiving(&rig, Some(&cno), CompletionFlags::empty());
    let mut listener = EvdListener::new(&recv).unwrap();
    begin(&mut listener);
    rig.send(&mut pair, 0, 8);
    assert_eq!(cookie(&await_event(&mut listener)), 0);
    let waited = cno.wait(Some(SHORT)).unwrap_err();
    assert_eq!(waited.return_type(), ReturnType::TimeoutExpired);
    begin(&mut listener);
    listener.cancel();
    rig.send(&mut pair, 0, 8);
    assert_eq!(cno.wait(Some(LONG)).unwrap(), recv.id());
    assert_eq!(dto(&recv).cookie, 1);
}

/// Also R234, R235.
fn unsolicited_messages_end_no_wait() {
    let rig = Rig::new();
    let (recv, mut pair) = receiving(&rig, None, CompletionFlags::SOLICITED_WAIT);
    let mut listener = EvdListener::new(&recv).unwrap();
    begin(&mut listener);
    rig.send(&mut pair, 0, 8);
    until("the message is queued", || recv.query().unwrap().queued == 1);
    assert!(listener.poll().unwrap().is_none());
    rig.send_with(&mut pair, 0, 8, CompletionFlags::SOLICITED_WAIT);
    assert_eq!(cookie(&await_event(&mut listener)), 0);
    assert_eq!(dto(&recv).cookie, 1);
}

fn a_freed_evd_aborts_the_wait() {
    let rig = Rig::new();
    let evd = Evd::new(&rig.server.ia, 8, EvdFlags::SOFTWARE).unwrap();
    let mut listener = EvdListener::new(&evd).unwrap();
    begin(&mut listener);
    evd.clone().close().unwrap();
    assert!(readable(&listener, LONG));
    assert_eq!(listener.poll().unwrap_err().return_type(), ReturnType::Abort);
    assert_eq!(listener.poll().unwrap_err().return_type(), ReturnType::InvalidHandle);
    assert_eq!(EvdListener::new(&evd).unwrap_err().return_type(), ReturnType::InvalidHandle);
}

/// Also R249.
fn an_unwaitable_evd_ends_the_wait() {
    let rig = Rig::new();
    let evd = Evd::new(&rig.server.ia, 8, EvdFlags::SOFTWARE).unwrap();
    let mut listener = EvdListener::new(&evd).unwrap();
    begin(&mut listener);
    evd.set_unwaitable().unwrap();
    assert!(readable(&listener, LONG));
    assert_eq!(listener.poll().unwrap_err().code(), dat::INVALID_STATE_EVD_UNWAITABLE);
    evd.clear_unwaitable().unwrap();
    assert!(listener.poll().unwrap().is_none());
}

fn a_cno_makes_its_descriptor_readable() {
    let rig = Rig::new();
    let cno = Cno::with_fd(&rig.server.ia).unwrap();
    let (recv, mut pair) = receiving(&rig, Some(&cno), CompletionFlags::empty());
    let listener = CnoListener::new(&cno).unwrap();
    assert!(!readable(&listener, Duration::ZERO));
    assert_eq!(listener.poll().unwrap(), None);
    rig.send(&mut pair, 0, 8);
    assert!(readable(&listener, LONG));
    assert_eq!(listener.poll().unwrap(), Some(recv.id()));
    assert!(!readable(&listener, Duration::ZERO));
}

fn a_freed_cno_makes_its_descriptor_readable() {
    let rig = Rig::new();
    let cno = Cno::with_fd(&rig.server.ia).unwrap();
    let listener = CnoListener::new(&cno).unwrap();
    assert!(!readable(&listener, Duration::ZERO));
    cno.close().unwrap();
    assert!(readable(&listener, LONG));
    assert_eq!(listener.poll().unwrap_err().subtype(), Subtype::InvalidStateCnoDead);
}

fn a_cno_without_a_descriptor_has_no_listener() {
    let rig = Rig::new();
    let cno = Cno::new(&rig.server.ia).unwrap();
    assert_eq!(CnoListener::new(&cno).unwrap_err().return_type(), ReturnType::InvalidParameter);
}
