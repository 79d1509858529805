//! The connection manager of the process: its lock, its thread, and how both behave around fork(2).
//!
//! Commands run on the program's threads. Messages and timeouts run on one thread of this module.
//! All of them hold the same lock. A file's descriptor is readable exactly while events wait: its
//! socket then holds one byte, which is added and removed under the same lock.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::links::{Arrival, Links, WAKE};
use super::sock;
use super::state::{Cm, Cx, Device, FileId, Timing};
use crate::host::{sys, threads};

/// Time an unanswered message may take, in milliseconds, from the environment.
const TIMEOUT_VARIABLE: &str = "MLX5_EMU_CM_TIMEOUT_MS";

/// IBV_MTU_4096: the active MTU of the port.
const PATH_MTU: u8 = 5;
/// IBV_RATE_100_GBPS.
const PATH_RATE: u8 = 16;

/// Index in the port's table of the GID; 127.0.0.1's for the other addresses of that network.
fn gid_index(gid: &[u8; 16]) -> u8 {
    let found = crate::host::gids::index_of(IpAddr::from(*gid));
    found.and_then(|index| u8::try_from(index).ok()).unwrap_or(0)
}

struct Bell {
    /// The device's end of the file's socket pair. The file keeps this end open. A call that is
    /// blocked when the file is closed therefore stays blocked, as in the kernel.
    end: Arc<OwnedFd>,
    rung: bool,
}

struct Engine {
    cm: Cm,
    links: Links,
    bells: HashMap<FileId, Bell>,
    wake: OwnedFd,
    start: Instant,
    /// When the thread wakes by itself; `None` while it is awake.
    sleeping: Option<Duration>,
}

/// `None` until the first open, and again in a child process.
static ENGINE: Mutex<Option<Engine>> = Mutex::new(None);
static NEXT_FILE: AtomicU64 = AtomicU64::new(1);

fn lock() -> MutexGuard<'static, Option<Engine>> {
    ENGINE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn timing() -> Timing {
    let mut timing = Timing::default();
    if let Some(ms) = std::env::var(TIMEOUT_VARIABLE).ok().and_then(|text| text.parse().ok()) {
        timing.answer = Duration::from_millis(ms);
        timing.decision = timing.answer * 7;
    }
    timing
}

impl Engine {
    fn new() -> io::Result<Self> {
        let links = Links::new(crate::host::config::session())?;
        let wake = sys::eventfd(libc::EFD_NONBLOCK)?;
        links.poll().add(wake.as_raw_fd(), WAKE)?;
        let device = Device {
            node_guid: crate::host::gids::NODE_GUID,
            port: 1,
            mtu: PATH_MTU,
            rate: PATH_RATE,
            gid_index,
        };
        let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let seed =
            u64::from(clock.subsec_nanos()) << 32 ^ clock.as_secs() ^ u64::from(std::process::id()) << 17;
        Ok(Self {
            cm: Cm::new(device, timing(), seed),
            links,
            bells: HashMap::new(),
            wake,
            start: Instant::now(),
            sleeping: None,
        })
    }

    fn run<R>(&mut self, f: impl FnOnce(&mut Cm, &mut Cx<'_>) -> R) -> R {
        let mut cx = Cx { net: &mut self.links, now: self.start.elapsed() };
        f(&mut self.cm, &mut cx)
    }

    /// Makes every descriptor readable or not readable according to its queue, and wakes the thread
    /// if the next deadline is earlier than its planned wake-up. `known` gives the caller's
    /// descriptor numbers: only a descriptor in `known` can be made unreadable.
    fn settle(&mut self, known: &[(FileId, RawFd)]) {
        for (file, bell) in &mut self.bells {
            let pending = self.cm.pending(*file) > 0;
            if pending && !bell.rung {
                bell.rung = sys::send_packet(bell.end.as_raw_fd(), &[1]).is_ok();
            } else if !pending
                && bell.rung
                && let Some((_, fd)) = known.iter().find(|(known, _)| known == file)
            {
                let _ = sock::receive(*fd, &mut [0; 1], libc::MSG_DONTWAIT);
                bell.rung = false;
            }
        }
        if let (Some(next), Some(sleeping)) = (self.cm.next_deadline(), self.sleeping)
            && next < sleeping
        {
            self.sleeping = None;
            sys::ring(&self.wake);
        }
    }

    /// Milliseconds the thread may sleep, rounded up.
    fn sleep(&mut self) -> i32 {
        let Some(next) = self.cm.next_deadline() else {
            self.sleeping = Some(Duration::MAX);
            return -1;
        };
        self.sleeping = Some(next);
        let left = next.saturating_sub(self.start.elapsed());
        i32::try_from(left.as_micros().div_ceil(1000)).unwrap_or(i32::MAX)
    }
}

/// Runs `f` on the manager. `known` are files whose descriptor numbers the caller has at hand.
///
/// # Errors
/// EBADF when there is no manager: the file was opened by a parent process.
pub(super) fn with<R>(known: &[(FileId, RawFd)], f: impl FnOnce(&mut Cm, &mut Cx<'_>) -> R) -> io::Result<R> {
    let mut guard = lock();
    let engine = guard.as_mut().ok_or_else(|| sys::errno(libc::EBADF))?;
    let result = engine.run(f);
    engine.settle(known);
    Ok(result)
}

/// A new file. Bytes sent to `end` make its descriptor readable.
pub(super) fn open(end: Arc<OwnedFd>) -> io::Result<FileId> {
    let mut guard = lock();
    let engine = match guard.as_mut() {
        Some(engine) => engine,
        None => {
            let engine = Engine::new()?;
            let poll = engine.links.poll().raw();
            threads::start("mlx5-emu-cm", move |ready| serve(poll, ready))?;
            guard.insert(engine)
        }
    };
    let file = NEXT_FILE.fetch_add(1, Ordering::Relaxed);
    engine.cm.open(file);
    engine.bells.insert(file, Bell { end, rung: false });
    Ok(file)
}

/// The last descriptor of `file` was closed.
pub(super) fn close(file: FileId) {
    let mut guard = lock();
    if let Some(engine) = guard.as_mut() {
        engine.bells.remove(&file);
        engine.run(|cm, cx| cm.close(cx, file));
        engine.settle(&[]);
    }
}

/// The thread: messages and timeouts.
fn serve(poll: RawFd, ready: threads::Ready) {
    ready.tell();
    loop {
        let timeout = match lock().as_mut() {
            Some(engine) => engine.sleep(),
            None => return,
        };
        // The epoll set lives as long as the process. Only a forked child drops the engine, and the
        // child does not have this thread.
        let Ok(tokens) = sock::wait(poll, timeout) else { return };
        if tokens.iter().any(|&token| token != WAKE) {
            catch_up();
        }
        let mut guard = lock();
        let Some(engine) = guard.as_mut() else { return };
        engine.sleeping = None;
        let mut arrivals = Vec::new();
        for token in tokens {
            if token == WAKE {
                sys::silence(&engine.wake);
            } else {
                engine.links.ready(token, &mut arrivals);
            }
        }
        engine.run(|cm, cx| {
            for arrival in arrivals {
                match arrival {
                    Arrival::Packet(link, packet) => {
                        cm.receive(cx, link, packet);
                        cm.pump(cx);
                    }
                    Arrival::Lost(link) => cm.link_lost(cx, link),
                }
            }
            cm.tick(cx);
        });
        engine.settle(&[]);
    }
}

/// Lets the data engine take in the frames that peers sent before the messages that are about to be
/// read. On a wire no packet overtakes another, so a disconnect must not flush a send whose
/// acknowledgement has already arrived.
fn catch_up() {
    if crate::device::exists() && crate::host::config::mode() != crate::host::config::Mode::Manual {
        crate::device::lock().card.step();
    }
}

/// The lock of the manager, held by a thread that forks.
pub(super) struct Held(MutexGuard<'static, Option<Engine>>);

/// Takes the lock before a fork.
pub(super) fn hold() -> Held {
    Held(lock())
}

impl Held {
    /// Drops the engine in a forked child, which then starts a new one. The child has no thread,
    /// and its copies of the sockets would hide the parent's death from the peers.
    pub(super) fn forget_in_child(&mut self) {
        *self.0 = None;
    }
}
