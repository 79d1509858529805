//! The storage daemon, `doorbell-nvmf`, and hosts that do what they must not do. After each test,
//! the target has lost no buffer, no slot and no credit, and other hosts have noticed nothing.

use doorbell_hw_tests::rig::until;
use doorbell_hw_tests::{devices, tests};
use doorbell_nvmf::backend::{Backend, Faults};
use doorbell_nvmf::host::{Connection, Dial, Error, Host, Queue, point};
use doorbell_nvmf::limits::Limits;
use doorbell_nvmf::proto::fabrics::{self, Reject, RequestData};
use doorbell_nvmf::proto::{Cqe, DISCOVERY_NQN, DsmRange, Sqe, Status, admin, io};
use doorbell_nvmf::rdma::{Control, Counts, Engine, Handle, Options};
use doorbell_nvmf::subsystem::{Namespace, Subsystem, derived_uuid};
use doorbell_nvmf::target::Target;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use zerocopy::IntoBytes;

fn main() {
    doorbell_hw_tests::run(tests![
        a_host_discovers_the_subsystem,
        what_was_written_is_read,
        in_capsule_data_are_written,
        transfers_of_every_length,
        many_commands_at_a_time,
        compare_zeroes_and_deallocate,
        keys_are_invalidated,
        files_keep_blocks,
        a_namespace_that_grows_is_an_event,
        wrong_private_data_is_rejected,
        more_queues_than_the_target_holds_are_rejected,
        capsules_of_wrong_length,
        unknown_commands_get_a_status,
        ranges_that_wrap_get_a_status,
        a_key_that_is_not_valid_ends_the_queue,
        two_connects,
        a_host_that_vanishes_in_the_middle_of_a_read,
        a_host_without_receives_harms_nobody,
        a_host_that_sends_beyond_its_credit,
        slow_storage_lets_others_connect,
        a_storm_of_connections_leaves_nothing_behind,
        a_silent_host_is_dropped,
        a_host_that_never_connects_is_dropped,
        a_host_that_is_not_on_the_list,
        random_capsules,
        commands_that_wait_are_aborted,
        threads_share_the_connections,
        responses_wait_for_a_host_that_posts_receives_late,
        descriptors_beyond_the_limits_get_a_status,
        a_host_that_asks_for_65535_queues,
    ])
    .exit();
}

const NQN: &str = "nqn.2026-11.example:disk";
const HOST: &str = "nqn.2026-11.example:host";

/// A target with its threads.
struct Server {
    target: Arc<Target>,
    /// That of the first thread, and of all.
    handle: Handle,
    handles: Vec<Handle>,
    threads: Vec<JoinHandle<doorbell::Result<()>>>,
    faults: Arc<Faults>,
    buffers: u64,
}

const RAM: u64 = 8 << 20;

fn options() -> Options {
    Options {
        device: devices().expect("a device").0,
        port: 0,
        credits: 512,
        admin_credits: 512,
        buffers: Counts { control: 8, small: 16, large: 4 },
        ..Options::default()
    }
}

impl Server {
    fn new() -> Self {
        Self::with(options())
    }

    /// Namespace 1: RAM, blocks of 4 KiB. 2: RAM behind faults, blocks of 512 bytes.
    fn with(options: Options) -> Self {
        let limits = Limits { queues: 16, ..Limits::default() };
        let target = Arc::new(Target::new(limits));
        let faults = Arc::new(Faults::default());
        target.put(subsystem(&faults, None, vec![]));
        let Counts { control, small, large } = options.buffers;
        let engines = Engine::open(&target, &options).unwrap();
        let handles: Vec<_> = engines.iter().map(Engine::handle).collect();
        let threads = engines.into_iter().map(|engine| std::thread::spawn(move || engine.run())).collect();
        let buffers = (control + small + large) as u64;
        Self { target, handle: handles[0].clone(), handles, threads, faults, buffers }
    }

    fn host(&self) -> Host {
        Host::open(&devices().expect("a device").1).unwrap()
    }

    /// An enabled controller and its first I/O queue.
    fn connect(&self, host: &Host) -> (Connection, Connection) {
        let (admin, controller) = self.connect_admin(host, NQN, 0);
        let io = self.connect_io(host, controller, 1);
        (admin, io)
    }

    fn connect_admin(&self, host: &Host, subsystem: &str, keep_alive: u32) -> (Connection, u16) {
        let queue = Queue { number: 0, entries: 32, controller: 0xffff, subsystem, host: HOST, keep_alive };
        let (mut admin, cqe) = host.connect(self.handle.address, queue).unwrap();
        assert_eq!(status(&cqe), Status::SUCCESS);
        let sqe = Sqe {
            opcode: fabrics::OPCODE,
            cdw11: fabrics::CC.into(),
            cdw12: (1 | 6 << 16 | 4 << 20).into(),
            ..Sqe::default()
        };
        assert_eq!(status(&admin.execute(sqe).unwrap()), Status::SUCCESS);
        (admin, cqe.result.get() as u16)
    }

    fn connect_io(&self, host: &Host, controller: u16, number: u16) -> Connection {
        let queue = Queue { number, entries: 32, controller, subsystem: NQN, host: HOST, keep_alive: 0 };
        let (io, cqe) = host.connect(self.handle.address, queue).unwrap();
        assert_eq!(status(&cqe), Status::SUCCESS);
        io
    }

    /// Everything is as it was at the start.
    fn is_clean(&self) {
        let get = |gauge: &AtomicU64| gauge.load(Ordering::Relaxed);
        until("no controller is left", || self.target.controllers().is_empty());
        for stats in self.handles.iter().map(Handle::stats) {
            let before = get(&stats.updates);
            until("the gauges are new", || get(&stats.updates) > before);
            until("no connection is left", || get(&stats.connections) == 0);
            until("no command is left", || get(&stats.commands) == 0);
            until("no credit is granted", || get(&stats.credits) == 0);
            until("all buffers are free", || get(&stats.buffers_free) == self.buffers);
            until("all receives are posted", || get(&stats.receives_posted) == get(&stats.receives));
            assert_eq!(get(&stats.buffers_awaited), 0);
        }
        let in_flight: Vec<_> = self.target.hosts().iter().map(|(_, host)| get(&host.in_flight)).collect();
        assert!(in_flight.iter().all(|&commands| commands == 0), "{in_flight:?}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.handles.iter().for_each(Handle::stop);
        for thread in self.threads.drain(..) {
            let ended = thread.join();
            if !std::thread::panicking() {
                ended.expect("the engine did not panic").expect("the engine served to the end");
            }
        }
    }
}

fn subsystem(faults: &Arc<Faults>, hosts: Option<BTreeSet<String>>, more: Vec<Arc<Namespace>>) -> Subsystem {
    let namespace =
        |number, shift, backend| Arc::new(Namespace::new(number, shift, derived_uuid(NQN, number), backend));
    let mut namespaces = vec![
        namespace(1, 12, Backend::ram(RAM)),
        namespace(2, 9, Backend::faulty(Backend::ram(RAM), faults.clone())),
        namespace(3, 12, Backend::null(1 << 40)),
    ];
    namespaces.extend(more);
    Subsystem::new(NQN, "S1", "M", hosts, namespaces)
}

fn status(cqe: &Cqe) -> Status {
    Status(cqe.status.get() >> 1)
}

fn block_command(opcode: u8, nsid: u32, start: u64, blocks: u32) -> Sqe {
    Sqe {
        opcode,
        nsid: nsid.into(),
        cdw10: (start as u32).into(),
        cdw11: ((start >> 32) as u32).into(),
        cdw12: (blocks - 1).into(),
        ..Sqe::default()
    }
}

/// Points a command at data behind it in its capsule.
fn in_capsule(sqe: &mut Sqe, length: u32) {
    sqe.data = [0; 16];
    sqe.data[8..12].copy_from_slice(&length.to_le_bytes());
    sqe.data[15] = 1;
}

/// Bytes that depend on this number.
fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|n| (n as u8).wrapping_mul(31) ^ (n >> 8) as u8 ^ seed).collect()
}

/// Writes and reads blocks by keyed descriptors.
fn transfer(io: &mut Connection, opcode: u8, nsid: u32, start: u64, blocks: u32, bytes: u32) -> Status {
    let mut sqe = block_command(opcode, nsid, start, blocks);
    io.keyed(&mut sqe, 0, bytes);
    status(&io.execute(sqe).unwrap())
}

/// Writes something and reads it back: this host is served.
fn is_served(io: &mut Connection) {
    let bytes = pattern(4096, 99);
    io.write(0, &bytes).unwrap();
    assert_eq!(transfer(io, io::WRITE, 1, 100, 1, 4096), Status::SUCCESS);
    io.write(0, &[0; 4096]).unwrap();
    assert_eq!(transfer(io, io::READ, 1, 100, 1, 4096), Status::SUCCESS);
    assert_eq!(io.read(0, 4096).unwrap(), bytes);
}

fn identify(connection: &mut Connection, cns: u32, nsid: u32) -> (Status, Vec<u8>) {
    let mut sqe = Sqe { opcode: admin::IDENTIFY, nsid: nsid.into(), cdw10: cns.into(), ..Sqe::default() };
    connection.keyed(&mut sqe, 0, 4096);
    let cqe = connection.execute(sqe).unwrap();
    (status(&cqe), connection.read(0, 4096).unwrap())
}

fn log_page(connection: &mut Connection, page: u32, length: u32) -> (Status, Vec<u8>) {
    let mut sqe =
        Sqe { opcode: admin::GET_LOG_PAGE, cdw10: (page | (length / 4 - 1) << 16).into(), ..Sqe::default() };
    connection.keyed(&mut sqe, 0, length);
    let cqe = connection.execute(sqe).unwrap();
    (status(&cqe), connection.read(0, length as usize).unwrap())
}

fn a_host_discovers_the_subsystem() {
    let server = Server::new();
    let host = server.host();
    let (mut discovery, _) = server.connect_admin(&host, DISCOVERY_NQN, 0);
    let (status, log) = log_page(&mut discovery, 0x70, 3072);
    assert_eq!((status, log[8]), (Status::SUCCESS, 2));
    assert!(log[1024 + 256..].starts_with(NQN.as_bytes()));
    let port = server.handle.address.port().to_string();
    assert!(log[1024 + 32..].starts_with(port.as_bytes()));
    discovery.close();
    server.is_clean();
}

fn what_was_written_is_read() {
    let server = Server::new();
    let host = server.host();
    let (mut admin, mut io) = server.connect(&host);
    let (status, id) = identify(&mut admin, 0, 1);
    assert_eq!((status, &id[..2]), (Status::SUCCESS, &[0, 8][..]));
    is_served(&mut io);
    // Reads of the null backend give zeroes, whatever buffers have held.
    assert_eq!(transfer(&mut io, io::WRITE, 3, 1 << 20, 1, 4096), Status::SUCCESS);
    assert_eq!(transfer(&mut io, io::READ, 3, 1 << 20, 1, 4096), Status::SUCCESS);
    assert_eq!(io.read(0, 4096).unwrap(), [0; 4096]);
    io.close();
    admin.close();
    server.is_clean();
}

fn in_capsule_data_are_written() {
    let server = Server::new();
    let host = server.host();
    let (admin, mut io) = server.connect(&host);
    for (nsid, blocks, length) in [(1, 1, 4096usize), (2, 8, 4096), (2, 1, 512), (3, 1, 4096)] {
        let bytes = pattern(length, nsid);
        let mut sqe = block_command(io::WRITE, nsid.into(), 8, blocks);
        in_capsule(&mut sqe, length as u32);
        io.send(&[sqe.as_bytes(), &bytes].concat()).unwrap();
        assert_eq!(status(&io.response().unwrap().0), Status::SUCCESS);
        assert_eq!(transfer(&mut io, io::READ, nsid.into(), 8, blocks, length as u32), Status::SUCCESS);
        if nsid != 3 {
            assert_eq!(io.read(0, length).unwrap(), bytes);
        }
    }
    // Data that the capsule does not hold.
    let mut sqe = block_command(io::WRITE, 1, 8, 1);
    in_capsule(&mut sqe, 4096);
    io.send(sqe.as_bytes()).unwrap();
    assert_eq!(status(&io.response().unwrap().0), Status::SGL_OFFSET);
    io.close();
    admin.close();
    server.is_clean();
}

fn transfers_of_every_length() {
    let server = Server::new();
    let host = server.host();
    let (admin, mut io) = server.connect(&host);
    for nsid in [1u32, 2] {
        let block = if nsid == 1 { 4096 } else { 512 };
        for bytes in [block, 2 * block, 8192, 12288, 65536, 256 << 10] {
            let sent = pattern(bytes as usize, nsid as u8);
            io.write(0, &sent).unwrap();
            assert_eq!(transfer(&mut io, io::WRITE, nsid, 3, bytes / block, bytes), Status::SUCCESS);
            io.write(0, &vec![0; bytes as usize]).unwrap();
            assert_eq!(transfer(&mut io, io::READ, nsid, 3, bytes / block, bytes), Status::SUCCESS);
            assert!(io.read(0, bytes as usize).unwrap() == sent, "{bytes} bytes of namespace {nsid}");
        }
        let most = (256 << 10) / block;
        let too_long = transfer(&mut io, io::READ, nsid, 0, most + 1, (most + 1) * block);
        assert_eq!(too_long, Status::INVALID_FIELD);
    }
    io.close();
    admin.close();
    server.is_clean();
}

/// All entries of several queues, in turns of writes and reads, through few buffers.
fn many_commands_at_a_time() {
    let server = Server::new();
    let host = server.host();
    let (admin, controller) = server.connect_admin(&host, NQN, 0);
    server.faults.delay.store(200, Ordering::Relaxed);
    let mut queues: Vec<_> = (1..=4).map(|number| server.connect_io(&host, controller, number)).collect();
    for round in 0..4u8 {
        for (queue, io) in (0u64..).zip(&mut queues) {
            io.write(0, &pattern(32 * 4096, round)).unwrap();
            for n in 0..31u64 {
                let mut sqe = block_command(io::WRITE, 2, (queue * 32 + n) * 8, 8);
                io.keyed(&mut sqe, n as usize * 4096, 4096);
                io.submit(sqe).unwrap();
            }
        }
        for io in &mut queues {
            (0..31).for_each(|_| assert_eq!(status(&io.response().unwrap().0), Status::SUCCESS));
        }
        for (queue, io) in (0u64..).zip(&mut queues) {
            io.write(0, &[0; 32 * 4096]).unwrap();
            for n in 0..31u64 {
                let mut sqe = block_command(io::READ, 2, (queue * 32 + n) * 8, 8);
                io.keyed(&mut sqe, n as usize * 4096, 4096);
                io.submit(sqe).unwrap();
            }
        }
        for io in &mut queues {
            (0..31).for_each(|_| assert_eq!(status(&io.response().unwrap().0), Status::SUCCESS));
            assert!(io.read(0, 31 * 4096).unwrap() == pattern(32 * 4096, round)[..31 * 4096]);
        }
    }
    queues.into_iter().for_each(Connection::close);
    admin.close();
    server.is_clean();
}

fn compare_zeroes_and_deallocate() {
    let server = Server::new();
    let host = server.host();
    let (admin, mut io) = server.connect(&host);
    for (nsid, block) in [(1u32, 4096u32), (2, 512)] {
        let blocks = 8192 / block;
        io.write(0, &pattern(8192, 1)).unwrap();
        assert_eq!(transfer(&mut io, io::WRITE, nsid, 5, blocks, 8192), Status::SUCCESS);
        assert_eq!(transfer(&mut io, io::COMPARE, nsid, 5, blocks, 8192), Status::SUCCESS);
        io.write(8191, &[0]).unwrap();
        assert_eq!(transfer(&mut io, io::COMPARE, nsid, 5, blocks, 8192), Status::COMPARE_FAILURE);
        let zeroes = io.execute(block_command(io::WRITE_ZEROES, nsid, 5, 1)).unwrap();
        assert_eq!(status(&zeroes), Status::SUCCESS);
        assert_eq!(transfer(&mut io, io::READ, nsid, 5, blocks, 8192), Status::SUCCESS);
        let read = io.read(0, 8192).unwrap();
        assert!(read[..block as usize].iter().all(|&byte| byte == 0));
        assert_eq!(read[block as usize..], pattern(8192, 1)[block as usize..]);
        assert_eq!(status(&io.execute(block_command(io::FLUSH, nsid, 0, 1)).unwrap()), Status::SUCCESS);
        // The rest of the namespace is more than is zeroed at a time.
        let end = RAM / u64::from(block);
        assert_eq!(transfer(&mut io, io::WRITE, nsid, end - 1, 1, block), Status::SUCCESS);
        let ranges = [(6u64, end as u32 - 7), (0, 0), (end - 1, 1)].map(|(start, blocks)| DsmRange {
            blocks: blocks.into(),
            start: start.into(),
            ..DsmRange::default()
        });
        io.write(0, ranges.as_bytes()).unwrap();
        let mut sqe = Sqe {
            opcode: io::DATASET_MANAGEMENT,
            nsid: nsid.into(),
            cdw10: 2.into(),
            cdw11: 4.into(),
            ..Sqe::default()
        };
        io.keyed(&mut sqe, 0, 48);
        assert_eq!(status(&io.execute(sqe).unwrap()), Status::SUCCESS);
        for start in [6, end - 1] {
            io.write(0, &pattern(8192, 2)).unwrap();
            assert_eq!(transfer(&mut io, io::READ, nsid, start, 1, block), Status::SUCCESS);
            assert!(io.read(0, block as usize).unwrap().iter().all(|&byte| byte == 0), "block {start}");
        }
    }
    io.close();
    admin.close();
    server.is_clean();
}

/// The host asks for invalidation of the key that it has bound for a command. A key that was
/// invalidated cannot be used again.
fn keys_are_invalidated() {
    let server = Server::new();
    let host = server.host();
    let (admin, mut io) = server.connect(&host);
    let mut sqe = block_command(io::READ, 1, 0, 1);
    io.keyed(&mut sqe, 0, 4096);
    io.submit(sqe).unwrap();
    assert_eq!(io.response().unwrap().1, None);
    if Connection::can_invalidate(&host) {
        for opcode in [io::WRITE, io::READ] {
            let (_window, key) = io.bind(0, 4096).unwrap();
            let mut sqe = block_command(opcode, 1, 0, 1);
            point(&mut sqe, io.address(0), 4096, key, 0x4f);
            io.submit(sqe).unwrap();
            let (cqe, invalidated) = io.response().unwrap();
            assert_eq!((status(&cqe), invalidated), (Status::SUCCESS, Some(key)));
        }
    }
    io.close();
    admin.close();
    server.is_clean();
}

fn files_keep_blocks() {
    let server = Server::new();
    let host = server.host();
    let folder =
        std::env::temp_dir().join(format!("nvmf-{}-{}", std::process::id(), server.handle.address.port()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("blocks");
    std::fs::write(&path, vec![0xee; 1 << 20]).unwrap();
    let file = Arc::new(Namespace::new(4, 12, derived_uuid(NQN, 4), Backend::file(&path).unwrap()));
    server.target.put(subsystem(&server.faults, None, vec![file]));
    let (admin, mut io) = server.connect(&host);
    assert_eq!(transfer(&mut io, io::READ, 4, 255, 1, 4096), Status::SUCCESS);
    assert_eq!(io.read(0, 4096).unwrap(), [0xee; 4096]);
    io.write(0, &pattern(64 << 10, 4)).unwrap();
    assert_eq!(transfer(&mut io, io::WRITE, 4, 16, 16, 64 << 10), Status::SUCCESS);
    assert_eq!(transfer(&mut io, io::COMPARE, 4, 16, 16, 64 << 10), Status::SUCCESS);
    assert_eq!(transfer(&mut io, io::COMPARE, 4, 17, 16, 64 << 10), Status::COMPARE_FAILURE);
    let mut fua = block_command(io::WRITE, 4, 0, 1);
    fua.cdw12 = (1 << 30).into();
    io.keyed(&mut fua, 0, 4096);
    assert_eq!(status(&io.execute(fua).unwrap()), Status::SUCCESS);
    assert_eq!(status(&io.execute(block_command(io::FLUSH, 4, 0, 1)).unwrap()), Status::SUCCESS);
    assert_eq!(status(&io.execute(block_command(io::WRITE_ZEROES, 4, 20, 2)).unwrap()), Status::SUCCESS);
    let range = |start: u64, blocks: u32| DsmRange {
        blocks: blocks.into(),
        start: start.into(),
        ..DsmRange::default()
    };
    io.write(0, [range(24, 1), range(26, 0), range(28, 2)].as_bytes()).unwrap();
    let mut sqe = Sqe {
        opcode: io::DATASET_MANAGEMENT,
        nsid: 4.into(),
        cdw10: 2.into(),
        cdw11: 4.into(),
        ..Sqe::default()
    };
    io.keyed(&mut sqe, 0, 48);
    assert_eq!(status(&io.execute(sqe).unwrap()), Status::SUCCESS);
    let mut expected = vec![0xee; 1 << 20];
    expected[16 << 12..32 << 12].copy_from_slice(&pattern(64 << 10, 4));
    expected[..4096].copy_from_slice(&pattern(4096, 4));
    for zero in [20, 21, 24, 28, 29] {
        expected[zero << 12..(zero + 1) << 12].fill(0);
    }
    assert!(std::fs::read(&path).unwrap() == expected);
    // The file shrinks behind the namespace.
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(512 << 10).unwrap();
    assert_eq!(transfer(&mut io, io::READ, 4, 255, 1, 4096), Status::READ_ERROR);
    io.close();
    admin.close();
    server.is_clean();
    std::fs::remove_dir_all(&folder).unwrap();
}

fn a_namespace_that_grows_is_an_event() {
    let server = Server::new();
    let host = server.host();
    let (mut admin, _) = server.connect_admin(&host, NQN, 0);
    let enable = Sqe { opcode: admin::SET_FEATURES, cdw10: 0x0b.into(), cdw11: 256.into(), ..Sqe::default() };
    assert_eq!(status(&admin.execute(enable).unwrap()), Status::SUCCESS);
    let parked = admin.submit(Sqe { opcode: admin::ASYNC_EVENT, ..Sqe::default() }).unwrap();
    server.faults.bytes.store(1 << 20, Ordering::Relaxed);
    server.target.update_sizes();
    let (event, _) = admin.response().unwrap();
    assert_eq!((event.command_id.get(), event.result.get()), (parked, 0x04_00_02));
    assert_eq!(log_page(&mut admin, 4, 4096).1[..8], [2, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(identify(&mut admin, 0, 2).1[..2], [0, 8]);
    admin.close();
    server.is_clean();
}

fn wrong_private_data_is_rejected() {
    let server = Server::new();
    let host = server.host();
    let good = RequestData::new(0, 32, 0);
    let short = |n: usize| good.as_bytes()[..n].to_vec();
    let change = |at: usize, value: u8| {
        let mut bytes = good.as_bytes().to_vec();
        bytes[at] = value;
        bytes
    };
    let cases = [
        (change(0, 1), Reject::Format),
        (change(2, 17), Reject::Queue),
        (change(3, 0xff), Reject::Queue),
        (change(6, 32), Reject::SendSize),
        ([&[0u8, 0, 1, 0, 0xff, 0xff, 0xff, 0xff][..], &[0; 24]].concat(), Reject::SendSize),
        (change(4, 31), Reject::ReceiveSize),
    ];
    for (private_data, reason) in cases {
        match host.dial(server.handle.address, Dial::new(&private_data, 32)) {
            Err(Error::Rejected(data)) => assert!(data.starts_with(reason.data().as_bytes()), "{data:?}"),
            other => panic!("{reason}: {other:?}"),
        }
    }
    // rdma_cm pads what is short with zeroes, so that some of these are requests for an admin queue.
    for n in 0..32 {
        match host.dial(server.handle.address, Dial::new(&short(n), 32)) {
            Err(Error::Rejected(_)) => {}
            Ok(connection) => connection.close(),
            Err(error) => panic!("{n} bytes: {error}"),
        }
    }
    let (admin, mut io) = server.connect(&host);
    is_served(&mut io);
    io.close();
    admin.close();
    server.is_clean();
}

fn more_queues_than_the_target_holds_are_rejected() {
    let server = Server::with(Options { credits: 96, ..options() });
    let host = server.host();
    let (admin, controller) = server.connect_admin(&host, NQN, 0);
    let mut queues: Vec<_> = (1..=3).map(|number| server.connect_io(&host, controller, number)).collect();
    let fourth = RequestData::new(4, 32, controller);
    match host.dial(server.handle.address, Dial::new(fourth.as_bytes(), 32)) {
        Err(Error::Rejected(data)) => assert!(data.starts_with(Reject::Resources.data().as_bytes())),
        other => panic!("{other:?}"),
    }
    // Admin queues have credits of their own.
    let (second, _) = server.connect_admin(&host, NQN, 0);
    second.close();
    queues.pop().unwrap().close();
    until("the credits have come back", || {
        host.dial(server.handle.address, Dial::new(fourth.as_bytes(), 32)).map(Connection::close).is_ok()
    });
    queues.iter_mut().for_each(is_served);
    queues.into_iter().for_each(Connection::close);
    admin.close();
    server.is_clean();
}

fn capsules_of_wrong_length() {
    let server = Server::new();
    let host = server.host();
    let (admin, mut good) = server.connect(&host);
    for length in [0, 1, 63] {
        let (other, controller) = server.connect_admin(&host, NQN, 0);
        let mut io = server.connect_io(&host, controller, 1);
        io.send(&vec![0; length]).unwrap();
        io.end().unwrap();
        other.close();
    }
    // Longer than the target's receives: the device ends the connection.
    let (other, controller) = server.connect_admin(&host, NQN, 0);
    let mut io = server.connect_io(&host, controller, 1);
    io.send(&vec![0; 64 + 4097]).unwrap();
    io.end().unwrap();
    other.close();
    // Bytes behind the command that nobody asks for.
    let mut sqe = block_command(io::READ, 1, 0, 1);
    good.keyed(&mut sqe, 0, 4096);
    good.send(&[sqe.as_bytes(), &[1; 1000]].concat()).unwrap();
    assert_eq!(status(&good.response().unwrap().0), Status::SUCCESS);
    is_served(&mut good);
    good.close();
    admin.close();
    server.is_clean();
}

fn unknown_commands_get_a_status() {
    let server = Server::new();
    let host = server.host();
    let (mut admin, mut io) = server.connect(&host);
    for opcode in 0x10..0x7f {
        if opcode != admin::KEEP_ALIVE {
            let sqe = Sqe { opcode, ..Sqe::default() };
            assert_eq!(status(&admin.execute(sqe).unwrap()), Status::INVALID_OPCODE);
            assert_eq!(status(&io.execute(sqe).unwrap()), Status::INVALID_OPCODE);
        }
    }
    for cns in 7..=255 {
        assert_eq!(identify(&mut admin, cns, 1).0, Status::INVALID_FIELD, "CNS {cns}");
    }
    for kind in [0x00, 0x10, 0x50, 0xff] {
        let mut sqe = block_command(io::READ, 1, 0, 1);
        sqe.data[15] = kind;
        sqe.data[0] = 1;
        assert_eq!(status(&io.execute(sqe).unwrap()), Status::INVALID_FIELD, "descriptor {kind:#x}");
    }
    is_served(&mut io);
    io.close();
    admin.close();
    server.is_clean();
}

fn ranges_that_wrap_get_a_status() {
    let server = Server::new();
    let host = server.host();
    let (admin, mut io) = server.connect(&host);
    let blocks = RAM >> 12;
    for start in [blocks, blocks - 1, u64::MAX, u64::MAX - 1, 1 << 52, 1 << 63] {
        for opcode in [io::READ, io::WRITE, io::COMPARE] {
            assert_eq!(transfer(&mut io, opcode, 1, start, 2, 8192), Status::LBA_RANGE, "{start:#x}");
        }
        let zeroes = io.execute(block_command(io::WRITE_ZEROES, 1, start, 2)).unwrap();
        assert_eq!(status(&zeroes), Status::LBA_RANGE);
    }
    for (nsid, expected) in [
        (0, Status::INVALID_NAMESPACE),
        (9, Status::INVALID_NAMESPACE),
        (u32::MAX, Status::INVALID_NAMESPACE),
    ] {
        assert_eq!(transfer(&mut io, io::READ, nsid, 0, 1, 4096), expected);
    }
    assert_eq!(transfer(&mut io, io::READ, 1, 0, 2, 4096), Status::SGL_LENGTH);
    is_served(&mut io);
    io.close();
    admin.close();
    server.is_clean();
}

fn a_key_that_is_not_valid_ends_the_queue() {
    let server = Server::new();
    let host = server.host();
    let (good_admin, mut good) = server.connect(&host);
    for opcode in [io::READ, io::WRITE] {
        // A key that does not exist; memory that ends in the middle.
        for wrong in 0..2 {
            let (other, controller) = server.connect_admin(&host, NQN, 0);
            let mut io = server.connect_io(&host, controller, 1);
            let mut sqe = block_command(opcode, 1, 0, 16);
            match wrong {
                0 => point(&mut sqe, 0x1000, 65536, !io.key(), 0x40),
                _ => io.keyed(&mut sqe, (1 << 20) - 4096, 65536),
            }
            io.submit(sqe).unwrap();
            io.end().unwrap();
            other.close();
        }
    }
    is_served(&mut good);
    good.close();
    good_admin.close();
    server.is_clean();
}

fn two_connects() {
    let server = Server::new();
    let host = server.host();
    let (mut admin, controller) = server.connect_admin(&host, NQN, 0);
    let mut io = server.connect_io(&host, controller, 1);
    // The same queue again, on a connection of its own.
    let queue = Queue { number: 1, entries: 32, controller, subsystem: NQN, host: HOST, keep_alive: 0 };
    let (again, cqe) = host.connect(server.handle.address, queue).unwrap();
    assert_eq!(status(&cqe), Status::SEQUENCE_ERROR);
    again.close();
    // Connect again on the same connection.
    let busy = Status(Status::CONNECT_BUSY.0 | Status::DNR);
    for connection in [&mut admin, &mut io] {
        let mut sqe = Sqe { opcode: fabrics::OPCODE, nsid: 1.into(), ..Sqe::default() };
        connection.keyed(&mut sqe, 0, 1024);
        assert_eq!(status(&connection.execute(sqe).unwrap()), busy);
    }
    is_served(&mut io);
    io.close();
    admin.close();
    server.is_clean();
}

fn a_host_that_vanishes_in_the_middle_of_a_read() {
    let server = Server::new();
    let host = server.host();
    let (good_admin, mut good) = server.connect(&host);
    for _ in 0..4 {
        let (other, mut io) = server.connect(&host);
        server.faults.delay.store(2000, Ordering::Relaxed);
        for n in 0..31 {
            let opcode = if n % 2 == 0 { io::READ } else { io::WRITE };
            let mut sqe = block_command(opcode, 1 + n % 2, 0, 256);
            sqe.nsid = 2.into();
            io.keyed(&mut sqe, 0, 128 << 10);
            io.submit(sqe).unwrap();
        }
        // Without a goodbye on either queue.
        drop(io);
        drop(other);
        server.faults.delay.store(0, Ordering::Relaxed);
        is_served(&mut good);
    }
    good.close();
    good_admin.close();
    server.is_clean();
}

/// Its responses wait in the target's send queue, until it goes.
fn a_host_without_receives_harms_nobody() {
    let server = Server::new();
    let host = server.host();
    let (good_admin, mut good) = server.connect(&host);
    let private_data = RequestData::new(0, 32, 0);
    let dial = Dial { receives: 0, ..Dial::new(private_data.as_bytes(), 32) };
    let mut silent = host.dial(server.handle.address, dial).unwrap();
    for _ in 0..32 {
        silent.submit(Sqe { opcode: 0x42, ..Sqe::default() }).unwrap();
    }
    is_served(&mut good);
    drop(silent);
    is_served(&mut good);
    good.close();
    good_admin.close();
    server.is_clean();
}

fn a_host_that_sends_beyond_its_credit() {
    let server = Server::new();
    let host = server.host();
    let (good_admin, mut good) = server.connect(&host);
    let (greedy_admin, controller) = server.connect_admin(&host, NQN, 0);
    // Four commands were granted. The host has more room.
    let private_data = RequestData::new(1, 4, controller);
    let mut greedy = host.dial(server.handle.address, Dial::new(private_data.as_bytes(), 64)).unwrap();
    server.faults.delay.store(50_000, Ordering::Relaxed);
    let mut sqe = Sqe { opcode: fabrics::OPCODE, nsid: 1.into(), ..Sqe::default() };
    greedy.keyed(&mut sqe, 0, 1024);
    // Commands that are answered only when their data were fetched.
    for _ in 0..64 {
        if greedy.submit(sqe).is_err() {
            break;
        }
    }
    greedy.end().unwrap();
    is_served(&mut good);
    greedy_admin.close();
    good.close();
    good_admin.close();
    server.is_clean();
}

/// SPDK's issue 2180: commands in slow storage held all receives.
fn slow_storage_lets_others_connect() {
    let server = Server::with(Options { credits: 256, ..options() });
    let host = server.host();
    let (admin, controller) = server.connect_admin(&host, NQN, 0);
    let mut queues: Vec<_> = (1..=7).map(|number| server.connect_io(&host, controller, number)).collect();
    // No command ends as long as this test needs.
    server.faults.delay.store(3_000_000, Ordering::Relaxed);
    for io in &mut queues {
        for n in 0..31 {
            let mut sqe = block_command(if n % 2 == 0 { io::READ } else { io::WRITE }, 2, 0, 8);
            if n % 2 == 0 {
                io.keyed(&mut sqe, 0, 4096);
                io.submit(sqe).unwrap();
            } else {
                // Data that hold a receive.
                in_capsule(&mut sqe, 4096);
                io.send(&[sqe.as_bytes(), &[n as u8; 4096]].concat()).unwrap();
            }
        }
    }
    let waiting = &server.handle.stats().buffers_awaited;
    until("commands wait for buffers", || waiting.load(Ordering::Relaxed) > 0);
    // Others connect, and use what is fast.
    let (other_admin, mut other) = server.connect(&host);
    is_served(&mut other);
    assert!(waiting.load(Ordering::Relaxed) > 0, "the storage was not slow enough for this test");
    server.faults.delay.store(0, Ordering::Relaxed);
    for io in &mut queues {
        (0..31).for_each(|_| assert_eq!(status(&io.response().unwrap().0), Status::SUCCESS));
    }
    queues.into_iter().chain([other, other_admin, admin]).for_each(Connection::close);
    server.is_clean();
}

/// Abort ends what waits for storage, for a buffer or for an event, and nothing else.
fn commands_that_wait_are_aborted() {
    let server = Server::new();
    let host = server.host();
    let (mut admin, mut io) = server.connect(&host);
    let abort = |admin: &mut Connection, queue: u32, command: u16| {
        let sqe =
            Sqe { opcode: admin::ABORT, cdw10: (u32::from(command) << 16 | queue).into(), ..Sqe::default() };
        admin.submit(sqe).unwrap()
    };
    // No command ends as long as this test needs.
    server.faults.delay.store(3_600_000_000, Ordering::Relaxed);
    // More than there are buffers, so that the last ones wait for one.
    let mut commands: Vec<_> = (0..31)
        .map(|_| {
            let mut sqe = block_command(io::READ, 2, 0, 8);
            io.keyed(&mut sqe, 0, 4096);
            io.submit(sqe).unwrap()
        })
        .collect();
    let waiting = &server.handle.stats().buffers_awaited;
    until("commands wait for buffers", || waiting.load(Ordering::Relaxed) > 0);
    // The last ones first: a buffer that an aborted command frees goes to the next one.
    while let Some(command) = commands.pop() {
        let number = abort(&mut admin, 1, command);
        let (aborted, _) = io.response().unwrap();
        assert_eq!((aborted.command_id.get(), status(&aborted)), (command, Status::ABORTED));
        let (cqe, _) = admin.response().unwrap();
        assert_eq!((cqe.command_id.get(), status(&cqe), cqe.result.get()), (number, Status::SUCCESS, 0));
    }
    let event = admin.submit(Sqe { opcode: admin::ASYNC_EVENT, ..Sqe::default() }).unwrap();
    let number = abort(&mut admin, 0, event);
    let (first, _) = admin.response().unwrap();
    assert_eq!((first.command_id.get(), status(&first)), (event, Status::ABORTED));
    let (second, _) = admin.response().unwrap();
    assert_eq!((second.command_id.get(), second.result.get()), (number, 0));
    for (queue, command) in [(1, 7), (0, event), (2, 0), (9, 9)] {
        abort(&mut admin, queue, command);
        assert_eq!(admin.response().unwrap().0.result.get(), 1, "command {command} of queue {queue}");
    }
    server.faults.delay.store(0, Ordering::Relaxed);
    is_served(&mut io);
    io.close();
    admin.close();
    server.is_clean();
}

/// SPDK's issue 2937: after a storm, nobody could connect any more.
fn a_storm_of_connections_leaves_nothing_behind() {
    let server = Server::new();
    let host = server.host();
    for round in 0..20 {
        let (admin, controller) = server.connect_admin(&host, NQN, 0);
        let queues: Vec<_> = (1..=3).map(|number| server.connect_io(&host, controller, number)).collect();
        if round % 2 == 0 {
            // The admin queue first: the target ends the others.
            admin.close();
            for mut queue in queues {
                queue.end().unwrap();
            }
        } else {
            drop((queues, admin));
        }
    }
    let (admin, mut io) = server.connect(&host);
    is_served(&mut io);
    io.close();
    admin.close();
    server.is_clean();
}

fn a_silent_host_is_dropped() {
    let server = Server::new();
    let host = server.host();
    // Long enough to connect both queues in, also on a slow machine.
    let (mut admin, controller) = server.connect_admin(&host, NQN, 4000);
    let mut io = server.connect_io(&host, controller, 1);
    admin.end().unwrap();
    io.end().unwrap();
    server.is_clean();
}

fn a_host_that_never_connects_is_dropped() {
    // Long enough for the other host to connect, also on a slow machine.
    let server = Server::with(Options { connect_time: Duration::from_secs(4), ..options() });
    let host = server.host();
    let (admin, mut io) = server.connect(&host);
    let private_data = RequestData::new(2, 32, 1);
    let mut idle = host.dial(server.handle.address, Dial::new(private_data.as_bytes(), 32)).unwrap();
    idle.end().unwrap();
    is_served(&mut io);
    io.close();
    admin.close();
    server.is_clean();
}

fn a_host_that_is_not_on_the_list() {
    let server = Server::new();
    let host = server.host();
    let (admin, mut io) = server.connect(&host);
    let list = Some(BTreeSet::from(["nqn.2026-11.example:other".to_owned()]));
    server.target.put(subsystem(&server.faults, list, vec![]));
    let queue =
        Queue { number: 0, entries: 32, controller: 0xffff, subsystem: NQN, host: HOST, keep_alive: 0 };
    let (refused, cqe) = host.connect(server.handle.address, queue).unwrap();
    assert_eq!(status(&cqe), Status::CONNECT_HOST);
    refused.close();
    // Who is connected stays so.
    is_served(&mut io);
    io.close();
    admin.close();
    server.is_clean();
}

/// Each thread of a device gets some of the connections. Their controller is one: its end reaches all.
fn threads_share_the_connections() {
    let server = Server::with(Options { threads: 3, ..options() });
    let host = server.host();
    let (admin, controller) = server.connect_admin(&host, NQN, 0);
    let mut queues: Vec<_> = (1..=8).map(|number| server.connect_io(&host, controller, number)).collect();
    for handle in &server.handles {
        until("a third of the connections", || handle.stats().connections.load(Ordering::Relaxed) == 3);
    }
    for round in 0..3u8 {
        // All at once: each queue writes blocks of its own, and reads those of the next one.
        let blocks = |queue: usize| (queue as u64 * 31, pattern(31 * 4096, round * 16 + queue as u8));
        for opcode in [io::WRITE, io::READ] {
            for (queue, io) in queues.iter_mut().enumerate() {
                let (start, bytes) = blocks(queue + usize::from(opcode == io::READ));
                if opcode == io::WRITE {
                    io.write(0, &bytes).unwrap();
                }
                for n in 0..31 {
                    let mut sqe = block_command(opcode, 1, start + n, 1);
                    io.keyed(&mut sqe, n as usize * 4096, 4096);
                    io.submit(sqe).unwrap();
                }
            }
            for io in &mut queues {
                (0..31).for_each(|_| assert_eq!(status(&io.response().unwrap().0), Status::SUCCESS));
            }
        }
        for (queue, io) in queues[..7].iter().enumerate() {
            assert!(io.read(0, 31 * 4096).unwrap() == blocks(queue + 1).1, "queue {queue} of round {round}");
        }
    }
    admin.close();
    for mut io in queues {
        io.end().unwrap();
    }
    server.is_clean();
}

/// SPDK's issue 2429: the host gives up because the target does not ask for endless retries. Here the
/// target is the one that has to wait: it retries until the host has posted receives.
fn responses_wait_for_a_host_that_posts_receives_late() {
    let server = Server::new();
    let host = server.host();
    let private_data = RequestData::new(0, 32, 0);
    let dial = Dial { receives: 0, room: 32, ..Dial::new(private_data.as_bytes(), 32) };
    let mut late = host.dial(server.handle.address, dial).unwrap();
    for _ in 0..32 {
        late.submit(Sqe { opcode: 0x42, ..Sqe::default() }).unwrap();
    }
    // Another host is served meanwhile, and the responses have found no receive.
    let (admin, mut io) = server.connect(&host);
    is_served(&mut io);
    late.post_receives(32);
    for _ in 0..32 {
        assert_eq!(status(&late.response().unwrap().0), Status::INVALID_OPCODE);
    }
    [late, io, admin].into_iter().for_each(Connection::close);
    server.is_clean();
}

/// SPDK's issue 640: descriptors that are longer than the limits.
fn descriptors_beyond_the_limits_get_a_status() {
    let server = Server::new();
    let host = server.host();
    let (mut admin, mut io) = server.connect(&host);
    // All 24 bits of the length, and one block more than the limit of transfers.
    for length in [0xff_ffff, 0xff_f000, (256 << 10) + 4096] {
        let blocks = u32::div_ceil(length, 4096);
        for opcode in [io::READ, io::WRITE, io::COMPARE] {
            let mut sqe = block_command(opcode, 3, 0, blocks);
            point(&mut sqe, io.address(0), length, io.key(), 0x40);
            let status = status(&io.execute(sqe).unwrap());
            assert!([Status::INVALID_FIELD, Status::SGL_LENGTH].contains(&status), "{length:#x}: {status:?}");
        }
        let mut sqe = Sqe { opcode: io::DATASET_MANAGEMENT, nsid: 1.into(), ..Sqe::default() };
        sqe.cdw10 = 255.into();
        point(&mut sqe, io.address(0), 255 * 16, io.key(), 0x40);
        assert_eq!(status(&io.execute(sqe).unwrap()), Status::SGL_LENGTH);
    }
    // A log of one dword more, by the upper half of the number of dwords.
    let mut sqe = Sqe { opcode: admin::GET_LOG_PAGE, cdw10: 2.into(), cdw11: 1.into(), ..Sqe::default() };
    admin.keyed(&mut sqe, 0, (256 << 10) + 4);
    assert_eq!(status(&admin.execute(sqe).unwrap()), Status::INVALID_FIELD);
    is_served(&mut io);
    io.close();
    admin.close();
    server.is_clean();
}

/// It gets as many as the target has, and connections beyond are rejected, whatever their numbers.
fn a_host_that_asks_for_65535_queues() {
    let server = Server::new();
    let host = server.host();
    let (mut admin, controller) = server.connect_admin(&host, NQN, 0);
    let mut ask = |queues: u32| {
        let value = (queues - 1) << 16 | (queues - 1);
        let sqe = Sqe { opcode: admin::SET_FEATURES, cdw10: 7.into(), cdw11: value.into(), ..Sqe::default() };
        let cqe = admin.execute(sqe).unwrap();
        (status(&cqe), cqe.result.get())
    };
    assert_eq!(ask(65_535), (Status::SUCCESS, 15 << 16 | 15));
    assert_eq!(ask(65_536).0, Status::INVALID_FIELD);
    let mut queues: Vec<_> = (1..=16).map(|number| server.connect_io(&host, controller, number)).collect();
    for number in (17..=65_535).step_by(1023).chain([65_535]) {
        let request = RequestData::new(number as u16, 32, controller);
        match host.dial(server.handle.address, Dial::new(request.as_bytes(), 32)) {
            Err(Error::Rejected(data)) => assert!(data.starts_with(Reject::Queue.data().as_bytes())),
            other => panic!("queue {number}: {other:?}"),
        }
    }
    is_served(&mut queues[15]);
    queues.into_iter().for_each(Connection::close);
    admin.close();
    server.is_clean();
}

/// A stream of random capsules gets statuses, or ends its queue; another host notices nothing.
fn random_capsules() {
    let server = Server::new();
    let host = server.host();
    let (good_admin, mut good) = server.connect(&host);
    let seconds = std::env::var("NVMF_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(2);
    let seed = std::env::var("NVMF_FUZZ_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1u64);
    println!("NVMF_FUZZ_SEED={seed}");
    let mut state = seed | 1;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let begin = std::time::Instant::now();
    let (mut sent, mut ended) = (0, 0);
    while begin.elapsed().as_secs() < seconds {
        let (admin, controller) = server.connect_admin(&host, NQN, 0);
        let mut queues = [server.connect_io(&host, controller, 1), admin];
        for _ in 0..200 {
            let which = (random() % 2) as usize;
            let queue = &mut queues[which];
            let mut capsule: Vec<u8> = (0..8).flat_map(|_| random().to_le_bytes()).collect();
            // Mostly something that means something.
            const OPCODES: [u8; 14] = [0, 1, 2, 5, 6, 8, 9, 10, 0x18, 0x7f, 1, 2, 9, 1];
            if random() % 8 > 0 {
                capsule[..2].copy_from_slice(&[OPCODES[random() as usize % OPCODES.len()], 0x40]);
                capsule[4..8].copy_from_slice(&(random() as u32 % 4).to_le_bytes());
                capsule[40..48].copy_from_slice(&(random() % 4096).to_le_bytes());
                capsule[48..52].copy_from_slice(&(random() as u32 % 70).to_le_bytes());
            }
            let mut sqe: Sqe = zerocopy::FromBytes::read_from_bytes(&capsule[..]).unwrap();
            match random() % 8 {
                0 => {}
                1 => sqe.data[15] = 1,
                2 => point(&mut sqe, 0, 0, 0, 0x40),
                3 => queue.keyed(&mut sqe, 0, random() as u32 % (1 << 20)),
                // The length that the command needs, if it is a transfer.
                _ => queue.keyed(&mut sqe, 0, ((u32::from(capsule[48]) + 1) << 12).min(1 << 20)),
            }
            let mut bytes = sqe.as_bytes().to_vec();
            bytes.resize(64 + random() as usize % 2 * (random() as usize % 4096), 0x5a);
            // Parked events have no response, and two in four are enough.
            let is_event = which == 1 && bytes[0] == admin::ASYNC_EVENT;
            if is_event {
                continue;
            }
            sent += 1;
            if queue.send(&bytes).and_then(|()| queue.response()).is_err() {
                ended += 1;
                break;
            }
        }
        drop(queues);
        is_served(&mut good);
    }
    println!("{sent} capsules, {ended} queues ended");
    assert!(sent > 100);
    good.close();
    good_admin.close();
    server.is_clean();
}
