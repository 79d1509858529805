use super::*;
use crate::backend::Backend;
use crate::limits::Limits;
use crate::proto::DISCOVERY_NQN;
use crate::subsystem::{Subsystem, derived_uuid};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

const NQN: &str = "nqn.2026-11.example:disk";
const HOST: &str = "nqn.2026-11.example:host";

/// A target with a namespace of 256 blocks of 4 KiB and one of 256 blocks of 512 bytes.
fn target() -> Target {
    let target = Target::new(Limits { queues: 4, ..Limits::default() });
    target.put(subsystem(None, &[1, 5]));
    target
}

fn subsystem(hosts: Option<BTreeSet<String>>, namespaces: &[u32]) -> Subsystem {
    let namespaces = namespaces.iter().map(|&number| {
        let shift = if number == 1 { 12 } else { 9 };
        Arc::new(Namespace::new(number, shift, derived_uuid(NQN, number), Backend::null(256 << shift)))
    });
    Subsystem::new(NQN, "S1", "M", hosts, namespaces)
}

fn waker() -> (Waker, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let calls = count.clone();
    let waker = move || {
        calls.fetch_add(1, Ordering::Relaxed);
    };
    (Arc::new(waker), count)
}

fn keyed(length: u32) -> Data {
    Data::Keyed { address: 0x1000, length, key: 1, invalidate: true }
}

fn connect_command(qid: u16, entries: u16, keep_alive: u32) -> Sqe {
    let mut sqe = Sqe { opcode: fabrics::OPCODE, nsid: u32::from(fabrics::CONNECT).into(), ..Sqe::default() };
    let parameters = ConnectParameters::new(qid, entries, keep_alive);
    sqe.as_mut_bytes()[40..].copy_from_slice(parameters.as_bytes());
    sqe
}

fn connect(queue: &mut Queue, target: &Target, sqe: &Sqe, data: &ConnectData) -> Reply {
    assert!(matches!(queue.begin(target, sqe, &keyed(1024)), Step::Fetch(1024)));
    reply(queue.with_data(target, sqe, data.as_bytes()))
}

fn reply(step: Step) -> Reply {
    match step {
        Step::Reply(reply) => reply,
        other => panic!("a reply was expected, not {other:?}"),
    }
}

fn answer(step: Step) -> Vec<u8> {
    match step {
        Step::Answer(answer) => answer,
        other => panic!("an answer was expected, not {other:?}"),
    }
}

fn property_set(queue: &mut Queue, target: &Target, offset: u32, value: u32) -> Status {
    let sqe = Sqe {
        opcode: fabrics::OPCODE,
        nsid: u32::from(fabrics::PROPERTY_SET).into(),
        cdw11: offset.into(),
        cdw12: value.into(),
        ..Sqe::default()
    };
    reply(queue.begin(target, &sqe, &Data::None)).status
}

fn property(queue: &mut Queue, target: &Target, offset: u32, wide: bool) -> Reply {
    let sqe = Sqe {
        opcode: fabrics::OPCODE,
        nsid: u32::from(fabrics::PROPERTY_GET).into(),
        cdw10: u32::from(wide).into(),
        cdw11: offset.into(),
        ..Sqe::default()
    };
    reply(queue.begin(target, &sqe, &Data::None))
}

/// The value of CC that a host writes.
const ENABLE: u32 = 1 | 6 << 16 | 4 << 20;

/// A connected and enabled admin queue.
fn admin(target: &Target, nqn: &str) -> Queue {
    let mut queue = Queue::new(0, 32, waker().0);
    let data = ConnectData::new([7; 16], 0xffff, nqn, HOST);
    let connected = connect(&mut queue, target, &connect_command(0, 32, 5000), &data);
    assert!(connected.status.is_success());
    assert_eq!(connected.result, u64::from(queue.controller().unwrap().number));
    assert!(property_set(&mut queue, target, fabrics::CC, ENABLE).is_success());
    queue
}

fn io_queue(target: &Target, admin: &Queue, qid: u16) -> Queue {
    let mut queue = Queue::new(qid, 128, waker().0);
    let id = admin.controller().unwrap().number;
    let data = ConnectData::new([7; 16], id, NQN, HOST);
    assert!(connect(&mut queue, target, &connect_command(qid, 128, 0), &data).status.is_success());
    queue
}

fn io_command(opcode: u8, nsid: u32, start: u64, blocks: u16) -> Sqe {
    Sqe {
        opcode,
        nsid: nsid.into(),
        cdw10: (start as u32).into(),
        cdw11: ((start >> 32) as u32).into(),
        cdw12: u32::from(blocks - 1).into(),
        ..Sqe::default()
    }
}

#[test]
fn nothing_but_connect_is_taken_before_connect() {
    let target = target();
    let mut queue = Queue::new(0, 32, waker().0);
    for opcode in 0..=255 {
        let sqe = Sqe { opcode, ..Sqe::default() };
        assert_eq!(reply(queue.begin(&target, &sqe, &keyed(4096))).status, Status::INVALID_OPCODE);
    }
    let short = queue.begin(&target, &connect_command(0, 32, 0), &keyed(1023));
    assert_eq!(reply(short).status, Status::SGL_LENGTH);
}

#[test]
fn connect_says_what_is_wrong() {
    let target = target();
    target.put(subsystem(Some(BTreeSet::from([HOST.to_owned()])), &[1]));
    let data = ConnectData::new([7; 16], 0xffff, NQN, HOST);
    let refused = |qid, sqe: &Sqe, data: &ConnectData| {
        let mut queue = Queue::new(qid, 32, waker().0);
        let refused = connect(&mut queue, &target, sqe, data);
        assert!(queue.controller().is_none());
        (refused.status, refused.result)
    };
    let good = connect_command(0, 32, 0);
    let mut format = good;
    format.cdw10 = 1.into();
    assert_eq!(refused(0, &format, &data), (Status::CONNECT_FORMAT, 0));
    let parameter = Status::CONNECT_PARAMETER;
    assert_eq!(refused(0, &connect_command(1, 32, 0), &data), (parameter, 42));
    assert_eq!(refused(5, &connect_command(5, 32, 0), &data), (parameter, 42));
    assert_eq!(refused(0, &connect_command(0, 1, 0), &data), (parameter, 44));
    assert_eq!(refused(0, &connect_command(0, 33, 0), &data), (parameter, 44));
    assert_eq!(refused(0, &connect_command(0, 0, 0), &data), (parameter, 44));
    let other = |controller, nqn, host| ConnectData::new([7; 16], controller, nqn, host);
    assert_eq!(refused(0, &good, &other(1, NQN, HOST)), (parameter, 1 << 16 | 16));
    assert_eq!(refused(0, &good, &other(0xffff, "nqn.x", HOST)), (parameter, 1 << 16 | 256));
    assert_eq!(refused(0, &good, &other(0xffff, NQN, "")), (parameter, 1 << 16 | 512));
    assert_eq!(refused(0, &good, &other(0xffff, NQN, "nqn.other")), (Status::CONNECT_HOST, 0));
    let mut endless = data;
    endless.subsystem = [b'n'; 256];
    assert_eq!(refused(0, &good, &endless), (parameter, 1 << 16 | 256));
    assert_eq!(refused(1, &connect_command(1, 32, 0), &other(77, NQN, HOST)), (parameter, 1 << 16 | 16));
}

#[test]
fn an_io_queue_needs_its_controller() {
    let target = target();
    let admin_queue = admin(&target, NQN);
    let id = admin_queue.controller().unwrap().number;
    let first = io_queue(&target, &admin_queue, 1);
    assert_eq!(first.controller().unwrap().io_queues(), 1);
    let mut again = Queue::new(1, 128, waker().0);
    let data = ConnectData::new([7; 16], id, NQN, HOST);
    assert_eq!(
        connect(&mut again, &target, &connect_command(1, 128, 0), &data).status,
        Status::SEQUENCE_ERROR
    );
    // Another host's.
    let data = ConnectData::new([7; 16], id, NQN, "nqn.other");
    let mut other = Queue::new(2, 128, waker().0);
    assert_eq!(connect(&mut other, &target, &connect_command(2, 128, 0), &data).result, 1 << 16 | 16);
    // A discovery controller has none.
    let discovery = admin(&target, DISCOVERY_NQN);
    let id = discovery.controller().unwrap().number;
    let data = ConnectData::new([7; 16], id, DISCOVERY_NQN, HOST);
    let mut none = Queue::new(1, 128, waker().0);
    assert_eq!(connect(&mut none, &target, &connect_command(1, 128, 0), &data).result, 42);
}

#[test]
fn a_second_connect_is_refused() {
    let target = target();
    let mut queue = admin(&target, NQN);
    let busy = Status(Status::CONNECT_BUSY.0 | Status::DNR);
    let step = queue.begin(&target, &connect_command(0, 32, 0), &keyed(1024));
    assert_eq!(reply(step).status, busy);
    // Also when its data are fetched already.
    let data = ConnectData::new([7; 16], 0xffff, NQN, HOST);
    let step = queue.with_data(&target, &connect_command(0, 32, 0), data.as_bytes());
    assert_eq!(reply(step).status, busy);
    assert_eq!(target.controllers().len(), 1);
}

#[test]
fn a_controller_ends_with_its_admin_queue() {
    let target = target();
    let mut admin_queue = admin(&target, NQN);
    let mut io = io_queue(&target, &admin_queue, 1);
    assert!(!io.has_ended());
    admin_queue.close(&target);
    assert!(io.has_ended() && target.controllers().is_empty());
    let step = io.begin(&target, &io_command(io::READ, 1, 0, 1), &keyed(4096));
    assert_eq!(reply(step).status, Status::SEQUENCE_ERROR);
    io.close(&target);
    assert!(!io.has_ended());
}

#[test]
fn enabling_and_shutting_down() {
    let target = target();
    let mut queue = admin(&target, NQN);
    let cap = property(&mut queue, &target, fabrics::CAP, true).result;
    assert_eq!((cap & 0xffff, cap >> 24 & 0xff, cap >> 37 & 1), (127, 15, 1));
    assert_eq!(property(&mut queue, &target, fabrics::VS, false).result, 0x10400);
    assert_eq!(property(&mut queue, &target, fabrics::CSTS, false).result, 1);
    assert_eq!(property(&mut queue, &target, fabrics::CC, false).result, u64::from(ENABLE));
    assert_eq!(property(&mut queue, &target, fabrics::CAP, false).status, Status::INVALID_FIELD);
    assert_eq!(property(&mut queue, &target, fabrics::CSTS, true).status, Status::INVALID_FIELD);
    assert_eq!(property(&mut queue, &target, 0x20, false).status, Status::INVALID_FIELD);
    assert_eq!(property_set(&mut queue, &target, fabrics::CSTS, 0), Status::INVALID_FIELD);
    assert!(property_set(&mut queue, &target, fabrics::CC, ENABLE | 1 << 14).is_success());
    assert_eq!(property(&mut queue, &target, fabrics::CSTS, false).result >> 2 & 3, 2);
    assert!(property_set(&mut queue, &target, fabrics::CC, 0).is_success());
    let identify = Sqe { opcode: admin::IDENTIFY, cdw10: 1.into(), ..Sqe::default() };
    assert_eq!(reply(queue.begin(&target, &identify, &keyed(4096))).status, Status::SEQUENCE_ERROR);
    for wrong in [ENABLE | 1 << 7, ENABLE | 1 << 11, ENABLE | 1 << 4, ENABLE ^ 1 << 16, ENABLE ^ 1 << 20] {
        property_set(&mut queue, &target, fabrics::CC, 0);
        property_set(&mut queue, &target, fabrics::CC, wrong);
        assert_eq!(property(&mut queue, &target, fabrics::CSTS, false).result & 3, 2, "{wrong:#x}");
    }
}

#[test]
fn identify_by_cns() {
    let target = target();
    let mut queue = admin(&target, NQN);
    let mut ask = |cns: u32, nsid: u32| {
        let sqe = Sqe { opcode: admin::IDENTIFY, nsid: nsid.into(), cdw10: cns.into(), ..Sqe::default() };
        queue.begin(&target, &sqe, &keyed(4096))
    };
    let controller = answer(ask(1, 0));
    assert_eq!(controller[77], 6);
    assert_eq!(answer(ask(0, 1))[..3], [0, 1, 0]);
    assert_eq!(answer(ask(0, 5))[128..132], [0, 0, 9, 0]);
    assert_eq!(answer(ask(0, 2)), vec![0; 4096]);
    assert_eq!(reply(ask(0, u32::MAX)).status, Status::INVALID_NAMESPACE);
    assert_eq!(answer(ask(2, 0))[..12], [1, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(answer(ask(2, 1))[..8], [5, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(reply(ask(2, u32::MAX)).status, Status::INVALID_NAMESPACE);
    assert_eq!(answer(ask(3, 5))[24..40], derived_uuid(NQN, 5));
    assert_eq!(reply(ask(3, 2)).status, Status::INVALID_NAMESPACE);
    assert_eq!(answer(ask(6, 0))[..4], [0, 6, 0, 0]);
    for cns in [4, 5, 7, 8, 0x10, 0x1f, 0xff] {
        assert_eq!(reply(ask(cns, 1)).status, Status::INVALID_FIELD, "{cns}");
    }
    let sqe = Sqe { opcode: admin::IDENTIFY, cdw10: 1.into(), ..Sqe::default() };
    assert_eq!(reply(queue.begin(&target, &sqe, &keyed(4095))).status, Status::SGL_LENGTH);
}

#[test]
fn features() {
    let target = target();
    let mut queue = admin(&target, NQN);
    let mut feature = |opcode: u8, id: u32, value: u32| {
        let sqe = Sqe { opcode, cdw10: id.into(), cdw11: value.into(), ..Sqe::default() };
        queue.begin(&target, &sqe, &keyed(4096))
    };
    let (set, get) = (admin::SET_FEATURES, admin::GET_FEATURES);
    assert_eq!(reply(feature(set, 7, 1 << 16 | 1)).result, 1 << 16 | 1);
    assert_eq!(reply(feature(set, 7, 99 << 16 | 99)).result, 3 << 16 | 3);
    assert_eq!(reply(feature(set, 7, 0xffff_ffff)).status, Status::INVALID_FIELD);
    assert_eq!(reply(feature(get, 7, 0)).result, 3 << 16 | 3);
    assert_eq!(reply(feature(get, 0x0f, 0)).result, 5000);
    assert!(reply(feature(set, 0x0f, 7000)).status.is_success());
    assert_eq!(reply(feature(get, 0x0f, 0)).result, 7000);
    assert!(reply(feature(set, 0x0b, 1 << 8)).status.is_success());
    assert_eq!(reply(feature(get, 0x0b, 0)).result, 1 << 8);
    assert_eq!(reply(feature(set, 0x0b, 1)).status, Status::INVALID_FIELD);
    assert_eq!(answer(feature(get, 0x81, 1)), [7; 16]);
    assert_eq!(reply(feature(get, 0x81, 0)).status, Status::INVALID_FIELD);
    assert_eq!(reply(feature(set, 0x81, 1)).status, Status::SEQUENCE_ERROR);
    assert_eq!(reply(feature(get, 0x107, 0)).status, Status::INVALID_FIELD);
    assert_eq!(reply(feature(get, 0x42, 0)).status, Status::INVALID_FIELD);
}

fn log_command(page: u8, offset: u64, length: u32) -> Sqe {
    Sqe {
        opcode: admin::GET_LOG_PAGE,
        cdw10: (u32::from(page) | (length / 4 - 1) << 16).into(),
        cdw12: (offset as u32).into(),
        cdw13: ((offset >> 32) as u32).into(),
        ..Sqe::default()
    }
}

#[test]
fn the_discovery_log_can_be_read_in_pieces() {
    let target = target();
    target.add_port("10.9.0.1:4420".parse().unwrap());
    let mut queue = admin(&target, DISCOVERY_NQN);
    let mut read = |offset, length| queue.begin(&target, &log_command(0x70, offset, length), &keyed(length));
    let whole = answer(read(0, 4096));
    assert_eq!(whole[8], 2);
    let pieces: Vec<u8> = (0..24).flat_map(|n| answer(read(n * 128, 128))).collect();
    assert_eq!(pieces, whole[..3072]);
    // Behind the last byte; beyond; not a multiple of 4.
    assert_eq!(answer(read(3072, 64)), vec![0; 64]);
    for offset in [3076, 1 << 40, u64::MAX - 3, 2] {
        assert_eq!(reply(read(offset, 64)).status, Status::INVALID_FIELD, "{offset}");
    }
    let id = Sqe { opcode: admin::IDENTIFY, cdw10: 2.into(), ..Sqe::default() };
    assert_eq!(reply(queue.begin(&target, &id, &keyed(4096))).status, Status::INVALID_FIELD);
    let health = log_command(2, 0, 512);
    assert_eq!(reply(queue.begin(&target, &health, &keyed(512))).status, Status::INVALID_LOG_PAGE);
}

#[test]
fn other_logs() {
    let target = target();
    let mut queue = admin(&target, NQN);
    for (page, length) in [(1, 64), (2, 512), (3, 512), (4, 4096), (5, 4096)] {
        assert_eq!(
            answer(queue.begin(&target, &log_command(page, 0, length), &keyed(length))).len(),
            length as usize
        );
    }
    let sqe = log_command(0x70, 0, 1024);
    assert_eq!(reply(queue.begin(&target, &sqe, &keyed(1024))).status, Status::INVALID_LOG_PAGE);
    let sqe = Sqe { cdw11: 1.into(), ..log_command(5, 0, 4096) };
    assert_eq!(reply(queue.begin(&target, &sqe, &keyed(0xff_ffff))).status, Status::INVALID_FIELD);
}

#[test]
fn a_changed_namespace_is_one_event_until_its_log_is_read() {
    let target = target();
    let (waker, wakes) = waker();
    let mut queue = Queue::new(0, 32, waker);
    let data = ConnectData::new([7; 16], 0xffff, NQN, HOST);
    connect(&mut queue, &target, &connect_command(0, 32, 0), &data);
    property_set(&mut queue, &target, fabrics::CC, ENABLE);
    let enable = Sqe { opcode: admin::SET_FEATURES, cdw10: 0x0b.into(), cdw11: 256.into(), ..Sqe::default() };
    reply(queue.begin(&target, &enable, &Data::None));
    let event = |id: u16| Sqe { opcode: admin::ASYNC_EVENT, command_id: id.into(), ..Sqe::default() };
    for id in 0..4 {
        assert!(matches!(queue.begin(&target, &event(id), &Data::None), Step::Park));
    }
    assert_eq!(reply(queue.begin(&target, &event(4), &Data::None)).status, Status::TOO_MANY_EVENTS);
    assert_eq!(queue.event(), None);

    let before = wakes.load(Ordering::Relaxed);
    target.put(subsystem(None, &[1]));
    assert!(wakes.load(Ordering::Relaxed) > before);
    assert_eq!(queue.event(), Some((0, Reply::result(0x04_00_02u32))));
    target.put(subsystem(None, &[1, 5, 6]));
    assert_eq!(queue.event(), None);
    let log = answer(queue.begin(&target, &log_command(4, 0, 4096), &keyed(4096)));
    // All of them: each `put` makes new backends.
    assert_eq!(log[..16], [1, 0, 0, 0, 5, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(queue.event(), None);
    target.put(subsystem(None, &[1]));
    assert_eq!(queue.event().unwrap().0, 1);
}

#[test]
fn reads_and_writes_stay_inside_of_the_namespace() {
    let target = target();
    let admin_queue = admin(&target, NQN);
    let mut queue = io_queue(&target, &admin_queue, 1);
    let mut ask = |sqe: &Sqe, length| match queue.begin(&target, sqe, &keyed(length)) {
        Step::Io(io) => Ok((io.offset, io.length)),
        Step::Reply(reply) => Err(reply.status),
        other => panic!("{other:?}"),
    };
    for opcode in [io::READ, io::WRITE] {
        assert_eq!(ask(&io_command(opcode, 1, 3, 2), 8192), Ok((3 << 12, 8192)));
        assert_eq!(ask(&io_command(opcode, 5, 255, 1), 512), Ok((255 << 9, 512)));
        assert_eq!(ask(&io_command(opcode, 1, 255, 2), 8192), Err(Status::LBA_RANGE));
        assert_eq!(ask(&io_command(opcode, 1, u64::MAX, 1), 4096), Err(Status::LBA_RANGE));
        assert_eq!(ask(&io_command(opcode, 1, 1 << 52, 1), 4096), Err(Status::LBA_RANGE));
        assert_eq!(ask(&io_command(opcode, 1, 0, 2), 4096), Err(Status::SGL_LENGTH));
        assert_eq!(ask(&io_command(opcode, 1, 0, 65), 65 << 12), Err(Status::INVALID_FIELD));
        assert_eq!(ask(&io_command(opcode, 2, 0, 1), 4096), Err(Status::INVALID_NAMESPACE));
        assert_eq!(ask(&io_command(opcode, u32::MAX, 0, 1), 4096), Err(Status::INVALID_NAMESPACE));
    }
    assert_eq!(ask(&io_command(io::COMPARE, 1, 0, 33), 33 << 12), Err(Status::INVALID_FIELD));
    assert_eq!(ask(&io_command(io::WRITE_ZEROES, 1, 0, 64), 0), Ok((0, 64 << 12)));
    assert_eq!(ask(&io_command(io::WRITE_ZEROES, 1, 0, 65), 0), Err(Status::INVALID_FIELD));
    assert_eq!(ask(&io_command(io::WRITE_ZEROES, 1, 0, 1), 4096), Err(Status::SGL_LENGTH));
    assert_eq!(ask(&io_command(io::FLUSH, 1, 0, 1), 0), Ok((0, 0)));
    assert_eq!(ask(&io_command(0x0d, 1, 0, 1), 0), Err(Status::INVALID_OPCODE));
    let mut fua = io_command(io::WRITE, 1, 0, 1);
    fua.cdw12 = (1 << 30).into();
    assert!(matches!(queue.begin(&target, &fua, &keyed(4096)), Step::Io(Io { fua: true, .. })));
}

#[test]
fn data_for_the_host_are_never_in_the_capsule() {
    let target = target();
    let mut admin_queue = admin(&target, NQN);
    let mut queue = io_queue(&target, &admin_queue, 1);
    let capsule = Data::Capsule { offset: 0, length: 4096 };
    let status = |step| reply(step).status;
    let read = io_command(io::READ, 1, 0, 1);
    assert_eq!(status(queue.begin(&target, &read, &capsule)), Status::INVALID_FIELD);
    let identify = Sqe { opcode: admin::IDENTIFY, cdw10: 1.into(), ..Sqe::default() };
    assert_eq!(status(admin_queue.begin(&target, &identify, &capsule)), Status::INVALID_FIELD);
    let host_id = Sqe { opcode: admin::GET_FEATURES, cdw10: 0x81.into(), cdw11: 1.into(), ..Sqe::default() };
    assert_eq!(status(admin_queue.begin(&target, &host_id, &capsule)), Status::INVALID_FIELD);
    assert_eq!(status(admin_queue.begin(&target, &host_id, &keyed(15))), Status::SGL_LENGTH);
    let fused = Sqe { flags: 0x41, ..read };
    assert_eq!(status(queue.begin(&target, &fused, &keyed(4096))), Status::INVALID_FIELD);
}

#[test]
fn deallocation_checks_all_ranges() {
    let target = target();
    let admin_queue = admin(&target, NQN);
    let mut queue = io_queue(&target, &admin_queue, 1);
    let sqe = Sqe {
        opcode: io::DATASET_MANAGEMENT,
        nsid: 1.into(),
        cdw10: 1.into(),
        cdw11: 4.into(),
        ..Sqe::default()
    };
    assert!(matches!(queue.begin(&target, &sqe, &keyed(32)), Step::Fetch(32)));
    assert_eq!(reply(queue.begin(&target, &sqe, &keyed(31))).status, Status::SGL_LENGTH);
    let range = |start: u64, blocks: u32| DsmRange {
        attributes: 0.into(),
        blocks: blocks.into(),
        start: start.into(),
    };
    let mut ask = |ranges: [DsmRange; 2]| queue.with_data(&target, &sqe, ranges.as_bytes());
    match ask([range(1, 2), range(255, 1)]) {
        Step::Deallocate(_, ranges) => assert_eq!(ranges, [4096..12288, 255 << 12..1 << 20]),
        other => panic!("{other:?}"),
    }
    assert_eq!(reply(ask([range(1, 2), range(255, 2)])).status, Status::LBA_RANGE);
    assert_eq!(reply(ask([range(u64::MAX, 1), range(0, 1)])).status, Status::LBA_RANGE);
}

#[test]
fn a_silent_host_loses_its_controller() {
    let target = target();
    let mut queue = admin(&target, NQN);
    let controller = queue.controller().unwrap().clone();
    let later = |seconds| Instant::now() + Duration::from_secs(seconds);
    assert!(!controller.check_keep_alive(later(0)));
    // The commands of `admin` count.
    assert!(!controller.check_keep_alive(later(6)));
    assert!(!controller.check_keep_alive(later(10)));
    let alive = Sqe { opcode: admin::KEEP_ALIVE, ..Sqe::default() };
    assert!(reply(queue.begin(&target, &alive, &Data::None)).status.is_success());
    assert!(!controller.check_keep_alive(later(12)));
    assert!(controller.check_keep_alive(later(18)));
    assert!(queue.has_ended());
}

#[test]
fn the_head_moves_with_each_response() {
    let target = target();
    let admin_queue = admin(&target, NQN);
    let mut queue = io_queue(&target, &admin_queue, 3);
    for n in 1..=128u16 {
        let cqe = queue.response(n, Reply::from(Status::LBA_RANGE));
        assert_eq!((cqe.sq_head.get(), cqe.sq_id.get(), cqe.command_id.get()), (n % 128, 3, n));
        assert_eq!(cqe.status.get(), 0x8100);
    }
    let mut without = Queue::new(4, 128, waker().0);
    let mut sqe = connect_command(4, 128, 0);
    sqe.as_mut_bytes()[46] = NO_FLOW_CONTROL;
    let id = admin_queue.controller().unwrap().number;
    connect(&mut without, &target, &sqe, &ConnectData::new([7; 16], id, NQN, HOST));
    assert_eq!(without.response(1, Reply::SUCCESS).sq_head.get(), 0xffff);
}

/// A command whose fields are likely to mean something.
fn commands() -> impl Strategy<Value = (Sqe, u32)> {
    let opcode = prop_oneof![
        Just(fabrics::OPCODE),
        Just(admin::GET_LOG_PAGE),
        Just(admin::IDENTIFY),
        Just(admin::SET_FEATURES),
        Just(admin::GET_FEATURES),
        Just(admin::ASYNC_EVENT),
        Just(io::DATASET_MANAGEMENT),
        Just(io::COMPARE),
        Just(io::WRITE),
        any::<u8>(),
    ];
    let word = || prop_oneof![0u32..10, Just(u32::MAX), any::<u32>()];
    let length = prop_oneof![Just(1024u32), Just(4096), 0u32..0x100_0000];
    (opcode, proptest::array::uniform6(word()), word(), length).prop_map(|(opcode, words, nsid, length)| {
        let [a, b, c, d, e, f] = words.map(zerocopy::little_endian::U32::new);
        let sqe = Sqe {
            opcode,
            nsid: nsid.into(),
            cdw10: a,
            cdw11: b,
            cdw12: c,
            cdw13: d,
            cdw14: e,
            cdw15: f,
            ..Sqe::default()
        };
        (sqe, length)
    })
}

proptest! {
    /// Whatever comes, there is an answer that keeps the promises of its kind.
    #[test]
    fn random_capsules(
        commands in proptest::collection::vec((0usize..4, commands(), proptest::collection::vec(any::<u8>(), 0..64)), 1..60)
    ) {
        let target = target();
        target.add_port("10.9.0.1:4420".parse().unwrap());
        let first = admin(&target, NQN);
        let mut queues = [io_queue(&target, &first, 1), first, admin(&target, DISCOVERY_NQN), Queue::new(0, 32, waker().0)];
        for (which, (sqe, length), bytes) in commands {
            let queue = &mut queues[which];
            let data = keyed(length);
            let mut step = queue.begin(&target, &sqe, &data);
            if let Step::Fetch(wanted) = step {
                prop_assert!(wanted <= length && wanted <= 4096);
                let mut fetched = bytes.clone();
                fetched.resize(wanted as usize, 0);
                step = queue.with_data(&target, &sqe, &fetched);
                prop_assert!(!matches!(step, Step::Fetch(_)));
            }
            match step {
                Step::Answer(answer) => prop_assert!(answer.len() <= length as usize && !answer.is_empty()),
                Step::Io(io) => {
                    prop_assert_eq!(which, 0);
                    let end = io.offset + u64::from(io.length);
                    prop_assert!(end <= io.namespace.backend.bytes());
                }
                Step::Deallocate(namespace, ranges) => {
                    prop_assert!(ranges.iter().all(|range| range.end <= namespace.backend.bytes()));
                }
                Step::Reply(_) | Step::Park | Step::Abort { .. } => {}
                Step::Fetch(_) => unreachable!(),
            }
        }
        for queue in &mut queues {
            queue.close(&target);
        }
        prop_assert!(target.controllers().is_empty());
    }

    #[test]
    fn random_bytes_are_no_panic(bytes in proptest::array::uniform32(any::<u8>()), in_capsule in 0usize..8192) {
        let sqe = Sqe::read_from_bytes(&[bytes, bytes].concat()).unwrap();
        if let Ok(Data::Capsule { offset, length }) = Data::of(&sqe, in_capsule) {
            prop_assert!(offset + length as usize <= in_capsule);
        }
        let target = target();
        let first = admin(&target, NQN);
        let mut queue = io_queue(&target, &first, 1);
        queue.begin(&target, &sqe, &keyed(4096));
        queue.with_data(&target, &sqe, &bytes);
    }
}
