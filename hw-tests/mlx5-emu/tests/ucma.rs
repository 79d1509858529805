//! The connection manager's device node from outside: real descriptors, two processes, death and
//! fork.
//!
//! Commands are written as bytes at literal offsets, in the layout of librdmacm's structures. The
//! tests use none of the crate's own layouts. The same executable plays the other process
//! (`UCMA_ROLE`).
#![expect(unsafe_code, reason = "fork")]
#![allow(missing_docs)]

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};
use std::time::Duration;

use libtest_mimic::{Arguments, Failed, Trial};
use nix::poll::{PollFd, PollFlags, PollTimeout};

const TCP: u16 = 0x0106;
const ADDR_RESOLVED: u32 = 0;
const ROUTE_RESOLVED: u32 = 2;
const CONNECT_REQUEST: u32 = 4;
const CONNECT_RESPONSE: u32 = 5;
const REJECTED: u32 = 8;
const ESTABLISHED: u32 = 9;
const DISCONNECTED: u32 = 10;

/// Time limit for actions of another process.
const PATIENCE: Duration = Duration::from_secs(20);

struct Event {
    uid: u64,
    id: u32,
    kind: u32,
    status: i32,
    private: Vec<u8>,
}

/// One open of the device.
struct Channel(File);

struct Payload(Vec<u8>);

impl Payload {
    fn new(bytes: usize) -> Self {
        Self(vec![0; bytes])
    }
    fn put(mut self, at: usize, bytes: &[u8]) -> Self {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }
    fn u32(self, at: usize, value: u32) -> Self {
        self.put(at, &value.to_ne_bytes())
    }
    fn pointer(self, at: usize, to: &mut [u8]) -> Self {
        let address = to.as_mut_ptr().expose_provenance() as u64;
        self.put(at, &address.to_ne_bytes())
    }
}

fn sockaddr(ip: [u8; 4], port: u16) -> Vec<u8> {
    let mut out = vec![2, 0];
    out.extend(port.to_be_bytes());
    out.extend(ip);
    out.extend([0; 8]);
    out
}

const LOCALHOST: [u8; 4] = [127, 0, 0, 1];

impl Channel {
    fn open() -> io::Result<Self> {
        mlx5_emu::init();
        OpenOptions::new().read(true).write(true).open("/dev/infiniband/rdma_cm").map(Self)
    }

    fn command(&self, number: u32, room: usize, payload: Payload) -> io::Result<()> {
        let mut bytes = number.to_ne_bytes().to_vec();
        bytes.extend((payload.0.len() as u16).to_ne_bytes());
        bytes.extend((room as u16).to_ne_bytes());
        bytes.extend(payload.0);
        let written = (&self.0).write(&bytes)?;
        assert_eq!(written, bytes.len(), "a command is taken as a whole");
        Ok(())
    }

    fn create(&self, uid: u64) -> io::Result<u32> {
        let mut answer = [0; 4];
        let payload = Payload::new(24)
            .put(0, &uid.to_ne_bytes())
            .pointer(8, &mut answer)
            .put(16, &TCP.to_ne_bytes())
            .put(18, &[2]);
        self.command(0, 4, payload)?;
        Ok(u32::from_ne_bytes(answer))
    }

    fn destroy(&self, id: u32) -> io::Result<u32> {
        let mut answer = [0; 4];
        self.command(1, 4, Payload::new(16).pointer(0, &mut answer).u32(8, id))?;
        Ok(u32::from_ne_bytes(answer))
    }

    fn bind(&self, id: u32, ip: [u8; 4], port: u16) -> io::Result<()> {
        self.command(2, 0, Payload::new(40).put(8, &sockaddr(ip, port)).u32(36, id))
    }

    fn listen(&self, id: u32) -> io::Result<()> {
        self.command(7, 0, Payload::new(8).u32(0, id).u32(4, 16))
    }

    fn port(&self, id: u32) -> io::Result<u16> {
        let mut answer = [0; 280];
        self.command(19, 280, Payload::new(16).pointer(0, &mut answer).u32(8, id))?;
        Ok(u16::from_be_bytes([answer[18], answer[19]]))
    }

    fn resolve(&self, id: u32, port: u16) -> io::Result<()> {
        let payload = Payload::new(64).put(28, &sockaddr(LOCALHOST, port)).u32(56, id).u32(60, 2000);
        self.command(3, 0, payload)?;
        self.expect(ADDR_RESOLVED);
        self.command(4, 0, Payload::new(8).u32(0, id).u32(4, 2000))?;
        self.expect(ROUTE_RESOLVED);
        Ok(())
    }

    fn connect(&self, id: u32, qpn: u32, private: &[u8]) -> io::Result<()> {
        let payload = Payload::new(288)
            .u32(0, qpn)
            .put(8, private)
            .put(264, &[private.len() as u8, 0, 1, 1, 0, 7, 7, 1])
            .u32(272, id);
        self.command(6, 0, payload)
    }

    fn accept(&self, id: u32, uid: u64, qpn: u32) -> io::Result<()> {
        let payload = Payload::new(296)
            .put(0, &uid.to_ne_bytes())
            .u32(8, qpn)
            .put(8 + 264, &[0, 0, 1, 1, 0, 7, 7, 1])
            .u32(280, id);
        self.command(8, 0, payload)
    }

    fn rtu(&self, id: u32) -> io::Result<()> {
        self.command(8, 0, Payload::new(296).u32(280, id))
    }

    fn disconnect(&self, id: u32) -> io::Result<()> {
        self.command(10, 0, Payload::new(4).u32(0, id))
    }

    fn event(&self) -> io::Result<Event> {
        let mut answer = [0; 336];
        self.command(12, 336, Payload::new(8).pointer(0, &mut answer))?;
        let u32_at = |at: usize| u32::from_ne_bytes(answer[at..at + 4].try_into().expect("four bytes"));
        Ok(Event {
            uid: u64::from_ne_bytes(answer[0..8].try_into().expect("eight bytes")),
            id: u32_at(8),
            kind: u32_at(12),
            status: u32_at(16).cast_signed(),
            private: answer[28..28 + usize::from(answer[284])].to_vec(),
        })
    }

    fn readable(&self, wait: Duration) -> bool {
        let mut set = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(wait).expect("a short time");
        nix::poll::poll(&mut set, timeout).expect("poll") > 0
    }

    /// The next event, which must have this kind and arrive in time.
    fn expect(&self, kind: u32) -> Event {
        assert!(self.readable(PATIENCE), "event {kind} did not come");
        let event = self.event().expect("an event");
        assert_eq!((event.kind, event.status), (kind, 0));
        event
    }

    fn listener(&self, ip: [u8; 4]) -> io::Result<(u32, u16)> {
        let id = self.create(0x11)?;
        self.bind(id, ip, 0)?;
        self.listen(id)?;
        Ok((id, self.port(id)?))
    }
}

fn errno<T>(result: io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

/// The other process: a server that takes one connection.
struct Server {
    child: Child,
    said: BufReader<ChildStdout>,
    port: u16,
}

impl Server {
    fn start(role: &str, settings: &[(&str, &str)]) -> io::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .env("UCMA_ROLE", role)
            .envs(settings.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let said = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut server = Self { child, said, port: 0 };
        server.port = server.line().parse().expect("a port");
        Ok(server)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.said.read_line(&mut line).expect("the server's words");
        line.trim().to_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The server process: announces the port, accepts, reports the connection, and ends when its input
/// ends.
fn serve(role: &str) -> io::Result<()> {
    let channel = Channel::open()?;
    let (_, port) = channel.listener(LOCALHOST)?;
    println!("{port}");
    let request = channel.event()?;
    assert_eq!(request.kind, CONNECT_REQUEST);
    println!("request {}", String::from_utf8_lossy(&request.private).trim_end_matches('\0'));
    channel.accept(request.id, 0x22, 0x222)?;
    channel.expect(ESTABLISHED);
    println!("established");
    if role == "fork" {
        // SAFETY: the child only reads and leaves without running destructors.
        if unsafe { nix::unistd::fork() }.expect("fork").is_child() {
            // The inherited channel has no engine in the child; a new channel belongs to the child.
            assert_eq!(errno(channel.create(1)), Some(nix::libc::EBADF));
            let own = Channel::open().expect("a channel of its own");
            own.create(2).expect("an identifier of its own");
            println!("child");
            let _ = io::stdin().read_line(&mut String::new());
            // SAFETY: ends the process at once.
            unsafe { nix::libc::_exit(0) };
        }
    }
    let event = channel.event()?;
    println!("event {}", event.kind);
    channel.disconnect(request.id)?;
    let _ = io::stdin().read_line(&mut String::new());
    Ok(())
}

/// A connection to the server: the identifier here.
fn connect(channel: &Channel, server: &mut Server) -> io::Result<u32> {
    let id = channel.create(0x33)?;
    channel.resolve(id, server.port)?;
    channel.connect(id, 0x111, b"hello")?;
    let response = channel.expect(CONNECT_RESPONSE);
    assert_eq!((response.id, response.uid, response.private.len()), (id, 0x33, 196));
    channel.rtu(id)?;
    assert_eq!(server.line(), "request hello");
    assert_eq!(server.line(), "established");
    Ok(id)
}

fn descriptor_is_readable_exactly_while_events_wait() -> io::Result<()> {
    let channel = Channel::open()?;
    let now = Duration::ZERO;
    let id = channel.create(1)?;
    assert!(!channel.readable(now));
    let payload = Payload::new(64).put(28, &sockaddr(LOCALHOST, 9)).u32(56, id).u32(60, 2000);
    channel.command(3, 0, payload)?;
    assert!(channel.readable(now));
    assert_eq!(channel.event()?.kind, ADDR_RESOLVED);
    assert!(!channel.readable(now));
    channel.command(4, 0, Payload::new(8).u32(0, id))?;
    assert!(channel.readable(now));
    assert_eq!(channel.destroy(id)?, 1, "one event was taken");
    assert!(!channel.readable(now), "the other went with the identifier");
    Ok(())
}

fn without_an_event_a_non_blocking_descriptor_says_eagain() -> io::Result<()> {
    mlx5_emu::init();
    let file = OpenOptions::new().read(true).write(true).open("/dev/infiniband/rdma_cm")?;
    let flags = nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK);
    nix::fcntl::fcntl(file.as_fd(), flags)?;
    assert_eq!(errno(Channel(file).event()), Some(nix::libc::EAGAIN));
    Ok(())
}

fn two_processes_connect_and_disconnect() -> io::Result<()> {
    let mut server = Server::start("serve", &[])?;
    let channel = Channel::open()?;
    let id = connect(&channel, &mut server)?;
    channel.disconnect(id)?;
    assert_eq!(server.line(), format!("event {DISCONNECTED}"));
    channel.expect(DISCONNECTED);
    Ok(())
}

fn the_peers_death_is_a_disconnect() -> io::Result<()> {
    let mut server = Server::start("serve", &[])?;
    let channel = Channel::open()?;
    let id = connect(&channel, &mut server)?;
    server.child.kill()?;
    assert_eq!(channel.expect(DISCONNECTED).id, id);
    Ok(())
}

fn a_forked_child_does_not_hide_the_parents_death() -> io::Result<()> {
    let mut server = Server::start("fork", &[])?;
    let channel = Channel::open()?;
    let id = connect(&channel, &mut server)?;
    assert_eq!(server.line(), "child");
    server.child.kill()?;
    assert_eq!(channel.expect(DISCONNECTED).id, id);
    Ok(())
}

fn a_blocked_call_wakes_for_another_process() -> io::Result<()> {
    let channel = Channel::open()?;
    let (_, port) = channel.listener([0; 4])?;
    let caller = std::thread::spawn(move || -> io::Result<()> {
        let channel = Channel::open()?;
        let id = channel.create(5)?;
        channel.resolve(id, port)?;
        channel.connect(id, 1, b"")?;
        let event = channel.event()?;
        assert_eq!((event.kind, event.status), (REJECTED, 28));
        Ok(())
    });
    let request = channel.event()?;
    assert_eq!(request.kind, CONNECT_REQUEST);
    channel.destroy(request.id)?;
    caller.join().expect("the caller's thread")
}

fn another_processs_port_cannot_be_bound() -> io::Result<()> {
    let server = Server::start("serve", &[])?;
    let channel = Channel::open()?;
    let id = channel.create(1)?;
    assert_eq!(errno(channel.bind(id, LOCALHOST, server.port)), Some(nix::libc::EADDRINUSE));
    assert_eq!(errno(channel.bind(id, [0; 4], server.port)), Some(nix::libc::EADDRNOTAVAIL));
    channel.bind(id, [127, 0, 0, 2], server.port)
}

fn namespaces_do_not_see_each_other() -> io::Result<()> {
    let server = Server::start("serve", &[("MLX5_EMU_SESSION", "elsewhere")])?;
    let channel = Channel::open()?;
    let id = channel.create(1)?;
    channel.resolve(id, server.port)?;
    channel.connect(id, 1, b"")?;
    assert!(channel.readable(PATIENCE));
    let event = channel.event()?;
    assert_eq!((event.kind, event.status), (REJECTED, 8));
    Ok(())
}

fn migration_moves_events_to_the_new_descriptor() -> io::Result<()> {
    let [old, new] = [Channel::open()?, Channel::open()?];
    let id = old.create(7)?;
    let payload = Payload::new(64).put(28, &sockaddr(LOCALHOST, 9)).u32(56, id).u32(60, 2000);
    old.command(3, 0, payload)?;
    let mut answer = [0xff; 4];
    let fd = old.0.as_raw_fd().cast_unsigned();
    new.command(18, 4, Payload::new(16).pointer(0, &mut answer).u32(8, id).u32(12, fd))?;
    assert_eq!(answer, [0; 4], "nothing was taken yet");
    assert!(!old.readable(Duration::ZERO));
    assert_eq!(new.expect(ADDR_RESOLVED).id, id);
    assert_eq!(errno(old.destroy(id)), Some(nix::libc::EINVAL));
    new.destroy(id).map(drop)
}

fn a_duplicate_keeps_the_file_open() -> io::Result<()> {
    let channel = Channel::open()?;
    let (_, port) = channel.listener(LOCALHOST)?;
    let copy = Channel(File::from(nix::unistd::dup(channel.0.as_fd())?));
    drop(channel);
    let other = Channel::open()?;
    let id = other.create(1)?;
    assert_eq!(errno(other.bind(id, LOCALHOST, port)), Some(nix::libc::EADDRINUSE));
    drop(copy);
    other.bind(id, LOCALHOST, port)
}

fn a_bad_pointer_is_efault() -> io::Result<()> {
    let channel = Channel::open()?;
    let payload = Payload::new(24).put(8, &8u64.to_ne_bytes()).put(16, &TCP.to_ne_bytes());
    assert_eq!(errno(channel.command(0, 4, payload)), Some(nix::libc::EFAULT));
    Ok(())
}

fn main() -> ExitCode {
    if let Ok(role) = std::env::var("UCMA_ROLE") {
        serve(&role).expect("the server's part");
        return ExitCode::SUCCESS;
    }
    // Before the first thread: sets a session of its own, whatever else runs on this machine.
    let net = format!("ucma-test-{}", std::process::id());
    // SAFETY: no other thread exists yet.
    unsafe { std::env::set_var("MLX5_EMU_SESSION", net) };
    let mut trials = Vec::new();
    macro_rules! trials {
        ($($name:ident),* $(,)?) => {
            $(trials.push(Trial::test(stringify!($name), || $name().map_err(Failed::from)));)*
        };
    }
    trials!(
        descriptor_is_readable_exactly_while_events_wait,
        without_an_event_a_non_blocking_descriptor_says_eagain,
        two_processes_connect_and_disconnect,
        the_peers_death_is_a_disconnect,
        a_forked_child_does_not_hide_the_parents_death,
        a_blocked_call_wakes_for_another_process,
        another_processs_port_cannot_be_bound,
        namespaces_do_not_see_each_other,
        migration_moves_events_to_the_new_descriptor,
        a_duplicate_keeps_the_file_open,
        a_bad_pointer_is_efault,
    );
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
