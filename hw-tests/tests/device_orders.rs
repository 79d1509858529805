//! The order gateway, `doorbell-orders`: its answers are those of a market that is obviously right,
//! also while other clients do what they must not do, and when it is killed and started again.

use doorbell_hw_tests::rig::{LONG, until};
use doorbell_hw_tests::{devices, on_rxe, run_unless, tests};
use doorbell_orders::client::{Client, News};
use doorbell_orders::gateway::{Control, Gateway, Handle, Options, Stats};
use doorbell_orders::journal::{self, Journal, Replayed};
use doorbell_orders::load::run::{Load, Step, Target};
use doorbell_orders::load::verify::Verified;
use doorbell_orders::login::{Login, Refusal, padded};
use doorbell_orders::market::{Listing, Market, Sizes};
use doorbell_orders::ouch::{Cancel, Enter};
use doorbell_orders::rules::Rules;
use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use zerocopy::IntoBytes;

/// Set in a process that is a gateway with this journal.
const JOURNAL: &str = "DOORBELL_ORDERS_TEST_JOURNAL";

/// Orders of the long form, in place of thousands.
const ORDERS: &str = "DOORBELL_ORDERS_MESSAGES";

fn main() {
    if let Some(path) = std::env::var_os(JOURNAL) {
        return serve(Path::new(&path));
    }
    let tests = tests![
        orders_of_many_sessions,
        an_order_and_its_answers,
        no_order_allocates,
        no_order_calls_the_system,
        a_session_gets_what_it_has_missed,
        orders_are_canceled_when_a_session_dies,
        logins_that_are_refused,
        a_session_that_stops_reading_is_cut_off,
        a_session_that_floods_is_cut_off,
        garbage_is_cut_off,
        a_silent_session_is_cut_off,
        an_idle_session_gets_heartbeats,
        the_day_ends,
        killed_and_started_again,
    ];
    let by_verbs = on_rxe() || std::env::var("DOORBELL_DATAPATH").is_ok_and(|path| path == "verbs");
    run_unless(tests, 4, |name| match name {
        "no_order_calls_the_system" if by_verbs => Some("by verbs, the device library calls the system"),
        _ => None,
    })
    .exit();
}

const SIZES: Sizes = Sizes { sessions: 1024, window: 1024, orders: 1 << 16, levels: 256 };

fn rules() -> Rules {
    Rules { rate: 0, ..Rules::default() }
}

fn listings() -> Vec<Listing> {
    // Few, so that many orders execute.
    [*b"AAA     ", *b"BBB     ", *b"CCC     "].map(|name| Listing { name, price: 1_000_000 }).to_vec()
}

fn options() -> Options {
    // Tests share processors.
    let idle = Duration::from_millis(1);
    Options { device: devices().expect("a device").0, port: 0, receives: 512, idle, ..Options::default() }
}

/// A gateway with its thread.
struct Server {
    handle: Handle,
    thread: Option<JoinHandle<Result<Market, doorbell_orders::gateway::Error>>>,
}

impl Server {
    fn new() -> Self {
        Self::with(options(), rules())
    }

    fn with(options: Options, rules: Rules) -> Self {
        let market = Market::new(rules, SIZES, &listings());
        let gateway = Gateway::open(market, None, &Replayed::default().connected, options).unwrap();
        let handle = gateway.handle();
        Self { handle, thread: Some(std::thread::spawn(move || gateway.run())) }
    }

    fn load(&self, sessions: usize) -> Load {
        load(self.handle.address, sessions, rules())
    }

    fn get(&self, of: fn(&Stats) -> &AtomicU64) -> u64 {
        of(self.handle.stats()).load(Ordering::Relaxed)
    }

    /// No connection is left, and the SRQ is as at the start.
    fn is_clean(&self) {
        let before = self.get(|stats| &stats.updates);
        until("the gauges are new", || self.get(|stats| &stats.updates) > before + 1);
        until("no session is connected", || self.get(|stats| &stats.connected) == 0);
        until("all receives are posted", || {
            self.get(|stats| &stats.receives_posted) == self.get(|stats| &stats.receives)
        });
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.handle.stop();
        let Some(thread) = self.thread.take() else { return };
        let ended = thread.join();
        if !std::thread::panicking() {
            ended.expect("the gateway did not panic").expect("the gateway served to the end");
        }
    }
}

fn load(address: SocketAddr, sessions: usize, rules: Rules) -> Load {
    let device = devices().expect("a device").1;
    let target = Target { device, address, password: [b' '; 10], rules, listings: listings() };
    Load::open(target, sessions, 7).unwrap()
}

/// As fast as the gateway takes them.
fn burst(sessions: usize, messages: u64) -> Step {
    Step { sessions, rate: 1_000_000, messages }
}

fn is_verified(load: &mut Load, step: Step) -> Verified {
    let measured = load.run(step, &AtomicU64::new(0)).unwrap();
    let Verified { answered, ignored, .. } = measured.verified;
    // Each session asks twice at the end.
    assert_eq!(answered + ignored, step.messages + 2 * step.sessions as u64);
    measured.verified
}

fn orders_of_many_sessions() {
    let long = std::env::var(ORDERS).ok().map(|text| text.parse::<u64>().expect("a number"));
    let (sessions, messages) = long.map_or((40, 4000), |messages| (1000, messages));
    // The load is silent while it verifies the answers of a part.
    let patience = Duration::from_secs(600);
    let server = Server::with(Options { receives: 4096, patience, ..options() }, rules());
    let mut load = server.load(sessions);
    let mut left = messages;
    let mut executions = 0;
    while left > 0 {
        // The answers of a part are in memory until they are verified.
        let part = left.min(200_000);
        executions += is_verified(&mut load, burst(sessions, part)).executions;
        left -= part;
    }
    assert!(executions > messages / 20, "{executions} executions");
    assert!(load.open_orders() > 0);
    load.hang_up().unwrap();
    server.is_clean();
}

fn enter(urn: u32, side: u8, quantity: u32) -> Enter {
    Enter {
        kind: b'O',
        urn: urn.into(),
        side,
        quantity: quantity.into(),
        symbol: *b"AAA     ",
        price: 1_000_000.into(),
        time_in_force: b'0',
        display: b'Y',
        capacity: b'P',
        intermarket_sweep: b'N',
        cross: b'N',
        order_id: *b"id            ",
        appendage: 0.into(),
    }
}

/// An order that is rejected: it changes nothing for others.
fn bad(urn: u32) -> Enter {
    Enter { symbol: *b"?       ", ..enter(urn, b'B', 1) }
}

/// One session.
struct Single {
    client: Client,
    address: SocketAddr,
    /// Types of messages; `!` for the end of the connection.
    got: Vec<u8>,
    answer: Option<Result<u64, (Refusal, u64)>>,
}

impl Single {
    fn new(address: SocketAddr, receives: u32) -> Self {
        let client = Client::open(&devices().expect("a device").1, 1, receives).unwrap();
        Self { client, address, got: Vec::new(), answer: None }
    }

    fn poll(&mut self) {
        let (got, answer) = (&mut self.got, &mut self.answer);
        self.client
            .poll(|_, news| match news {
                News::Message(message) => got.push(message[0]),
                News::Welcome(welcome) => *answer = Some(Ok(welcome.next.get())),
                News::Refused(reason, oldest) => *answer = Some(Err((reason, oldest))),
                News::Ended => got.push(b'!'),
                News::Unreachable => panic!("no gateway"),
            })
            .unwrap();
    }

    fn login(&mut self, login: &Login) -> Result<u64, (Refusal, u64)> {
        self.answer = None;
        self.client.connect(0, self.address, login).unwrap();
        let until = Instant::now() + LONG;
        while self.answer.is_none() {
            self.poll();
            assert!(Instant::now() < until, "no answer to a login");
        }
        self.answer.unwrap()
    }

    fn connect(address: SocketAddr, user: &str, next: u64) -> Self {
        let mut single = Self::new(address, 64);
        single.login(&login(user, next)).unwrap();
        single
    }

    fn send(&mut self, message: &[u8]) {
        let until = Instant::now() + LONG;
        while !self.client.send(0, message).unwrap() {
            self.poll();
            assert!(Instant::now() < until, "no room");
        }
    }

    /// Waits until messages of exactly these types have come. Heartbeats do not count.
    fn gets(&mut self, expected: &[u8]) {
        let until = Instant::now() + LONG;
        loop {
            self.poll();
            self.got.retain(|&kind| kind != b'H');
            if self.got == expected {
                return self.got.clear();
            }
            let text = |kinds: &[u8]| kinds.escape_ascii().to_string();
            assert!(expected.starts_with(&self.got), "{} for {}", text(&self.got), text(expected));
            assert!(Instant::now() < until, "only {} of {}", text(&self.got), text(expected));
        }
    }

    /// Sends until the gateway cuts the connection off.
    fn send_until_the_end(&mut self, mut next: impl FnMut() -> Vec<u8>) {
        let until = Instant::now() + LONG;
        while self.client.is_connected(0) {
            // Room comes with completions.
            let _ = self.client.send(0, &next()).unwrap();
            self.poll();
            assert!(Instant::now() < until, "not cut off");
        }
    }
}

fn login(user: &str, next: u64) -> Login {
    Login::new(padded(user).unwrap(), [b' '; 10], next, true)
}

fn an_order_and_its_answers() {
    let server = Server::new();
    let mut one = Single::connect(server.handle.address, "one", 1);
    let mut two = Single::connect(server.handle.address, "two", 1);
    one.gets(b"S");
    two.gets(b"S");
    one.send(enter(1, b'B', 100).as_bytes());
    one.gets(b"A");
    two.send(enter(1, b'S', 40).as_bytes());
    two.gets(b"AE");
    one.gets(b"E");
    one.send(Cancel { kind: b'X', urn: 1.into(), quantity: 0.into() }.as_bytes());
    one.gets(b"C");
    one.send(bad(2).as_bytes());
    one.gets(b"J");
    one.send(b"Q");
    one.gets(b"Q");
    drop((one, two));
    server.is_clean();
}

/// Calls `measure` with a function that takes what is there and says whether all of `messages` of four
/// sessions were handled, after others: the first posts of a connection and of a pool may be slower ones.
fn while_loaded(messages: u64, measure: impl FnOnce(&mut dyn FnMut() -> bool)) {
    let market = Market::new(rules(), SIZES, &listings());
    let mut gateway = Gateway::open(market, None, &Replayed::default().connected, options()).unwrap();
    let handle = gateway.handle();
    let (connected, measuring, done) =
        (AtomicBool::new(false), AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let mut load = load(handle.address, 4, rules());
            load.connect(4).unwrap();
            is_verified(&mut load, burst(4, 500));
            connected.store(true, Ordering::Release);
            until("the orders are counted", || measuring.load(Ordering::Acquire));
            is_verified(&mut load, burst(4, messages));
            done.store(true, Ordering::Release);
            load
        });
        let mut serve_until = |flag: &AtomicBool| {
            gateway.pass().unwrap();
            flag.load(Ordering::Acquire) || load.is_finished()
        };
        while !serve_until(&connected) {}
        let before = handle.stats().messages_in.load(Ordering::Relaxed);
        measure(&mut || {
            measuring.store(true, Ordering::Release);
            serve_until(&done)
        });
        let load = load.join().unwrap();
        assert!(handle.stats().messages_in.load(Ordering::Relaxed) >= before + messages);
        drop(load);
    });
}

/// From a receive to the answers and back to the SRQ, nothing allocates memory.
fn no_order_allocates() {
    while_loaded(5000, |serve| {
        let allocated = allocation_counter::measure(|| while !serve() {});
        assert_eq!(allocated.count_total, 0, "{allocated:?}");
    });
}

/// Nor does it call the system, on the direct path: strace(1) sees none between two calls that mark
/// the measurement.
fn no_order_calls_the_system() {
    let folder = tempfile::tempdir().unwrap();
    let calls = folder.path().join("calls");
    while_loaded(5000, |serve| {
        let thread = nix::unistd::gettid().to_string();
        let mut strace = Command::new("strace")
            .args(["-p", &thread, "-o"])
            .arg(&calls)
            .stderr(Stdio::piped())
            .spawn()
            .expect("strace");
        let mut said = BufReader::new(strace.stderr.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        assert!(line.contains("attached"), "{line}");
        // What is between these two calls counts.
        nix::unistd::getppid();
        while !serve() {}
        nix::unistd::getppid();
        signal::kill(Pid::from_raw(strace.id() as i32), Signal::SIGINT).unwrap();
        strace.wait().unwrap();
    });
    let calls = std::fs::read_to_string(calls).unwrap();
    let between: Vec<_> = calls
        .lines()
        .skip_while(|line| !line.starts_with("getppid"))
        .skip(1)
        .take_while(|line| !line.starts_with("getppid"))
        .collect();
    assert!(calls.matches("getppid").count() == 2, "{calls}");
    assert!(between.is_empty(), "{} calls: {:?}", between.len(), &between[..between.len().min(20)]);
}

fn a_session_gets_what_it_has_missed() {
    let server = Server::new();
    let mut one = Single::connect(server.handle.address, "one", 1);
    one.gets(b"S");
    for urn in 1..=20 {
        one.send(bad(urn).as_bytes());
    }
    one.gets(&[b'J'; 20]);
    one.client.hang_up(0);
    one.gets(b"!");
    until("the gateway has noticed it", || server.get(|stats| &stats.connected) == 0);
    // From the 19th on.
    assert_eq!(one.login(&login("one", 19)), Ok(19));
    one.gets(b"JJJ");
    one.client.hang_up(0);
    one.gets(b"!");
    until("the gateway has noticed it", || server.get(|stats| &stats.connected) == 0);
    // Only new ones.
    assert_eq!(one.login(&login("one", 0)), Ok(22));
    one.send(b"Q");
    one.gets(b"Q");
    // More than the window has.
    for urn in 21..=20 + SIZES.window as u32 {
        one.send(bad(urn).as_bytes());
    }
    one.gets(&[b'J'; SIZES.window]);
    one.client.hang_up(0);
    one.gets(b"!");
    until("the gateway has noticed it", || server.get(|stats| &stats.connected) == 0);
    assert_eq!(one.login(&login("one", 22)), Err((Refusal::Forgotten, 23)));
    assert_eq!(one.login(&login("one", 23)), Ok(23));
    one.gets(&[b'J'; SIZES.window]);
    drop(one);
    server.is_clean();
}

fn orders_are_canceled_when_a_session_dies() {
    let server = Server::new();
    let mut one = Single::connect(server.handle.address, "one", 1);
    let mut two = Single::connect(server.handle.address, "two", 1);
    for urn in 1..=3 {
        one.send(enter(urn, b'B', 10).as_bytes());
    }
    one.gets(b"SAAA");
    // Its end of the connection and its device are gone at once.
    drop(one);
    until("the gateway has noticed it", || server.get(|stats| &stats.connected) == 1);
    two.send(enter(1, b'S', 10).as_bytes());
    two.gets(b"SA");
    let mut one = Single::connect(server.handle.address, "one", 5);
    one.gets(b"CCC");
    drop((one, two));
    server.is_clean();
}

fn logins_that_are_refused() {
    let server = Server::with(Options { password: padded("secret").unwrap(), ..options() }, rules());
    let good = |user, next| Login::new(padded(user).unwrap(), padded("secret").unwrap(), next, false);
    let mut one = Single::new(server.handle.address, 64);
    let mut other = Single::new(server.handle.address, 64);
    assert_eq!(one.login(&good("one", 1)), Ok(1));
    for (login, refusal) in [
        // Logged in twice.
        (good("one", 1), (Refusal::Connected, 0)),
        (login("two", 1), (Refusal::Password, 0)),
        (good("two", 2), (Refusal::Ahead, 1)),
    ] {
        assert_eq!(other.login(&login), Err(refusal));
    }
    // Neither connection nor session is harmed.
    one.send(bad(1).as_bytes());
    one.gets(b"SJ");
    one.client.hang_up(0);
    one.gets(b"!");
    until("the gateway has noticed it", || server.get(|stats| &stats.connected) == 0);
    assert_eq!(other.login(&good("one", 4)), Err((Refusal::Ahead, 1)));
    assert_eq!(other.login(&good("one", 3)), Ok(3));
    assert_eq!(server.get(|stats| &stats.refused_logins), 4);
    drop((one, other));
    server.is_clean();
}

/// Others trade at this rate and are verified while `bad` misbehaves.
fn while_others_trade(server: &Server, rate: u64, bad: impl FnOnce() + Send) {
    let mut load = server.load(8);
    load.connect(8).unwrap();
    std::thread::scope(|scope| {
        let bad = scope.spawn(bad);
        for round in 0.. {
            is_verified(&mut load, Step { sessions: 8, rate, messages: rate / 4 });
            if bad.is_finished() && round > 0 {
                break;
            }
        }
        bad.join().unwrap();
    });
    load.hang_up().unwrap();
    server.is_clean();
}

fn a_session_that_stops_reading_is_cut_off() {
    let server = Server::with(Options { queue: 200, ..options() }, rules());
    while_others_trade(&server, 2000, || {
        let mut slow = Single::new(server.handle.address, 16);
        slow.login(&login("slow", 1)).unwrap();
        slow.client.stop_reading();
        let mut urn = 0;
        slow.send_until_the_end(|| {
            urn += 1;
            bad(urn).as_bytes().to_vec()
        });
        until("it is counted", || server.get(|stats| &stats.cut_off_slow) == 1);
    });
}

fn a_session_that_floods_is_cut_off() {
    // Others send 10 a second each. 3 messages in the 25 ms of one are a flood, which the slowest
    // device can carry.
    let server = Server::with(options(), Rules { rate: 40, flood: 3, ..rules() });
    while_others_trade(&server, 80, || {
        let mut flood = Single::connect(server.handle.address, "flood", 1);
        let mut urn = 0;
        flood.send_until_the_end(|| {
            urn += 1;
            bad(urn).as_bytes().to_vec()
        });
        until("it is counted", || server.get(|stats| &stats.cut_off_flood) == 1);
        // Heartbeats as well.
        let mut flood = Single::connect(server.handle.address, "beats", 1);
        flood.send_until_the_end(|| b"R".to_vec());
        until("it is counted", || server.get(|stats| &stats.cut_off_flood) == 2);
    });
}

fn garbage_is_cut_off() {
    let server = Server::new();
    while_others_trade(&server, 2000, || {
        let lengths = [1, 2, 8, 10, 39, 46, 47];
        for (n, length) in (1..).zip(lengths) {
            let mut one = Single::connect(server.handle.address, "junk", 0);
            one.send_until_the_end(|| vec![b'Z'; length]);
            until("it is counted", || server.get(|stats| &stats.cut_off_garbage) == n);
            until("it is gone", || {
                let before = server.get(|stats| &stats.updates);
                until("the gauges are new", || server.get(|stats| &stats.updates) > before + 1);
                server.get(|stats| &stats.connected) <= 8
            });
        }
        // The appendage of an order that says it has one.
        let mut one = Single::connect(server.handle.address, "junk", 0);
        let order = Enter { appendage: 3.into(), ..enter(1, b'B', 1) };
        one.send_until_the_end(|| order.as_bytes().to_vec());
    });
}

fn a_silent_session_is_cut_off() {
    let options =
        Options { heartbeat: Duration::from_millis(50), patience: Duration::from_millis(300), ..options() };
    let server = Server::with(options, rules());
    let mut silent = Single::connect(server.handle.address, "silent", 1);
    let mut alive = Single::connect(server.handle.address, "alive", 1);
    let until = Instant::now() + LONG;
    while silent.client.is_connected(0) {
        let _ = alive.client.send(0, b"R").unwrap();
        silent.poll();
        alive.poll();
        assert!(Instant::now() < until, "not cut off");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(alive.client.is_connected(0));
    assert_eq!(server.get(|stats| &stats.cut_off_silent), 1);
    drop((silent, alive));
    server.is_clean();
}

fn an_idle_session_gets_heartbeats() {
    let server = Server::with(Options { heartbeat: Duration::from_millis(20), ..options() }, rules());
    let mut one = Single::connect(server.handle.address, "one", 1);
    // More than the send queue has: their completions are noticed.
    let until = Instant::now() + LONG;
    while one.got.iter().filter(|&&kind| kind == b'H').count() < 150 {
        one.poll();
        assert!(Instant::now() < until, "no heartbeats");
    }
    drop(one);
    server.is_clean();
}

fn the_day_ends() {
    let mut server = Server::new();
    let mut one = Single::new(server.handle.address, 64);
    let keeps = |user| Login::new(padded(user).unwrap(), [b' '; 10], 1, false);
    one.login(&keeps("one")).unwrap();
    let mut two = Single::connect(server.handle.address, "two", 1);
    one.send(enter(1, b'B', 10).as_bytes());
    one.gets(b"SA");
    two.send(enter(1, b'B', 10).as_bytes());
    two.gets(b"SA");
    server.handle.drain();
    one.gets(b"S!");
    two.gets(b"S!");
    let market = server.thread.take().unwrap().join().unwrap().unwrap();
    // That of the session which did not ask for a cancel at its end.
    assert_eq!(market.open_orders(), 1);
}

/// In a process of its own: serves with this journal until it is killed.
fn serve(path: &Path) {
    let mut market = Market::new(rules(), SIZES, &listings());
    let options = journal::Options { path: path.into(), sync: false };
    let (journal, replayed) = Journal::open(&options, "test", &mut market).unwrap();
    let gateway = Gateway::open(market, Some(journal), &replayed.connected, self::options()).unwrap();
    println!("{} {}", gateway.handle().address, replayed.records);
    // The test has ended, or will never end it.
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_line(&mut String::new());
        std::process::exit(1);
    });
    gateway.run().unwrap();
}

/// Such a process, its address, and the records that were in the journal.
fn start(path: &Path) -> (Child, SocketAddr, u64) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .env(JOURNAL, path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let (address, records) = line.trim().split_once(' ').expect("an address and a number");
    (child, address.parse().unwrap(), records.parse().unwrap())
}

fn killed_and_started_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    let (mut child, address, records) = start(&path);
    assert_eq!(records, 0);
    let mut load = load(address, 8, rules());
    load.resend();
    load.connect(8).unwrap();
    for round in 1..=3 {
        let lost = std::thread::scope(|scope| {
            let killer = scope.spawn(|| {
                let size = || path.metadata().unwrap().len();
                let before = size();
                until("the journal grows", || size() > before + (round << 10));
                child.kill().unwrap();
                child.wait().unwrap();
            });
            // More than it can take before it is killed.
            let lost = load.send_until_lost(Step { sessions: 8, rate: 5000, messages: 500_000 }).unwrap();
            killer.join().unwrap();
            lost
        });
        assert!(lost, "killed in the middle");
        load.hang_up().unwrap();
        let (again, address, records) = start(&path);
        child = again;
        load.go_to(address);
        assert!(records > 8, "{records} records");
        load.connect(8).unwrap();
        let verified = load.settle_and_verify().unwrap();
        assert!(verified.answered > 16, "{verified:?}");
    }
    is_verified(&mut load, burst(8, 2000));
    load.hang_up().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
}
