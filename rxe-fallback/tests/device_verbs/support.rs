//! Two ends on one or two devices, and waits with a timeout.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use libtest_mimic::Failed;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rxe_fallback::{
    Access, AhAttr, AsyncEvent, CmEvent, CompChannel, Completion, Context, Cq, EventChannel, Gid, Mr, Pd, Qp,
    QpInit, QpKind, RtrAttr, RtsAttr, Sge, Srq,
};

pub(crate) type TestResult = Result<(), Failed>;

/// Longer than any step takes, even on an emulated processor.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

/// `Err` with the text unless `condition` holds.
pub(crate) fn ensure(condition: bool, text: impl FnOnce() -> String) -> TestResult {
    if condition { Ok(()) } else { Err(text().into()) }
}

/// `Err` that shows both unless they are equal.
pub(crate) fn same<T: PartialEq + std::fmt::Debug>(what: &str, left: T, right: T) -> TestResult {
    ensure(left == right, || format!("{what}: {left:?} is not {right:?}"))
}

/// One open device.
pub(crate) struct End {
    pub(crate) context: Context,
    pub(crate) port: u8,
    pub(crate) ip: IpAddr,
    pub(crate) gid_index: u8,
}

/// The two ends of a test.
pub(crate) struct Ends {
    pub(crate) a: End,
    pub(crate) b: End,
}

impl End {
    fn open(name: &str) -> Result<Self, Failed> {
        let (context, port, ip) = Context::open_selected(&name.parse()?)?;
        let ip = ip.ok_or("the device has no address")?;
        let gid_index = context.find_gid(port, ip)?.ok_or("the device has no GID for its address")?;
        Ok(Self { context, port, ip, gid_index })
    }

    pub(crate) fn gid(&self) -> Gid {
        Gid::from_ip(self.ip)
    }

    pub(crate) fn addr(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.ip, port)
    }

    /// The way from here to `peer`.
    pub(crate) fn path_to(&self, peer: &End) -> AhAttr {
        AhAttr::for_gid(self.port, self.gid_index, peer.gid())
    }
}

impl Ends {
    pub(crate) fn open(names: &[String]) -> Result<Self, Failed> {
        let first = names.first().ok_or("no device")?;
        Ok(Self { a: End::open(first)?, b: End::open(names.get(1).unwrap_or(first))? })
    }
}

/// An RC or UD endpoint with CQs of its own for sends and receives, and 64 KiB of memory.
pub(crate) struct Endpoint {
    pub(crate) qp: Qp,
    pub(crate) send_cq: Cq,
    pub(crate) recv_cq: Cq,
    pub(crate) send_events: CompChannel,
    pub(crate) recv_events: CompChannel,
    pub(crate) mr: Mr,
    pub(crate) pd: Pd,
}

/// What an [`Endpoint`] is made with, where that matters.
pub(crate) struct Shape<'a> {
    pub(crate) kind: QpKind,
    pub(crate) srq: Option<&'a Srq>,
    pub(crate) depth: u32,
    pub(crate) max_inline: u32,
    pub(crate) token: u64,
}

impl Default for Shape<'_> {
    fn default() -> Self {
        Self { kind: QpKind::Rc, srq: None, depth: 16, max_inline: 64, token: 0 }
    }
}

pub(crate) const MEMORY: usize = 64 << 10;

impl Endpoint {
    pub(crate) fn new(end: &End, shape: &Shape<'_>) -> Result<Self, Failed> {
        let pd = match shape.srq {
            Some(srq) => srq.pd().clone(),
            None => Pd::alloc(&end.context)?,
        };
        let (send_events, recv_events) =
            (CompChannel::create(&end.context)?, CompChannel::create(&end.context)?);
        let depth = 2 * shape.depth + 64;
        let send_cq = Cq::create(&end.context, depth, Some(&send_events), 0, shape.token)?;
        let recv_cq = Cq::create(&end.context, depth, Some(&recv_events), 0, shape.token + 1)?;
        let qp = Qp::create(
            &pd,
            &QpInit {
                kind: shape.kind,
                send_cq: &send_cq,
                recv_cq: &recv_cq,
                srq: shape.srq,
                max_send_wr: shape.depth,
                max_send_sge: 2,
                max_recv_wr: shape.depth,
                max_recv_sge: 2,
                max_inline: shape.max_inline,
                signal_all: false,
                token: shape.token,
            },
        )?;
        let mr = Mr::register_owned(&pd, MEMORY, end.context.full_remote_access(), false)?;
        Ok(Self { qp, send_cq, recv_cq, send_events, recv_events, mr, pd })
    }

    /// Connects two endpoints without rdma_cm.
    pub(crate) fn connect(ends: &Ends, a: &Endpoint, b: &Endpoint) -> TestResult {
        for (end, peer_end, this, peer) in [(&ends.a, &ends.b, a, b), (&ends.b, &ends.a, b, a)] {
            this.qp.to_init(end.port, end.context.full_remote_access())?;
            let path_mtu = end.context.port(end.port)?.active_mtu.min(1024);
            this.qp.to_rtr(&RtrAttr {
                path_mtu,
                dest_qp_num: peer.qp.num(),
                rq_psn: 100,
                path: end.path_to(peer_end),
                ..RtrAttr::default()
            })?;
            this.qp.to_rts(&RtsAttr { sq_psn: 100, ..RtsAttr::default() })?;
        }
        Ok(())
    }

    /// A connected pair of the default shape.
    pub(crate) fn pair(ends: &Ends) -> Result<(Self, Self), Failed> {
        let (a, b) = (Self::new(&ends.a, &Shape::default())?, Self::new(&ends.b, &Shape::default())?);
        Self::connect(ends, &a, &b)?;
        Ok((a, b))
    }

    pub(crate) fn sge(&self, offset: usize, len: usize) -> Sge {
        self.mr.sge(offset, len).expect("inside the region")
    }

    pub(crate) fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.mr.read_at(offset, &mut bytes).expect("inside the region");
        bytes
    }

    pub(crate) fn sent(&self, count: usize) -> Result<Vec<Completion>, Failed> {
        completions(&self.send_cq, &self.send_events, count)
    }

    pub(crate) fn received(&self, count: usize) -> Result<Vec<Completion>, Failed> {
        completions(&self.recv_cq, &self.recv_events, count)
    }
}

/// Exactly `count` completions, in order.
pub(crate) fn completions(cq: &Cq, channel: &CompChannel, count: usize) -> Result<Vec<Completion>, Failed> {
    let mut found = vec![Completion::default(); count];
    let mut have = 0;
    let deadline = Instant::now() + LIMIT;
    loop {
        cq.arm(false)?;
        have += cq.poll(&mut found[have..])?;
        if have == count {
            while channel.next_event()?.is_some() {}
            return Ok(found);
        }
        if !readable(channel.as_fd(), deadline)? {
            return Err(format!("{have} of {count} completions in time: {:?}", &found[..have]).into());
        }
        while channel.next_event()?.is_some() {}
    }
}

/// All of them successful.
pub(crate) fn all_good(completions: &[Completion]) -> TestResult {
    match completions.iter().find(|c| !c.is_success()) {
        Some(bad) => Err(format!("failed: {bad:?}").into()),
        None => Ok(()),
    }
}

/// The next asynchronous event that `wanted` accepts.
pub(crate) fn async_event(
    context: &Context,
    wanted: impl Fn(&AsyncEvent) -> bool,
) -> Result<AsyncEvent, Failed> {
    let deadline = Instant::now() + LIMIT;
    loop {
        while let Some(event) = context.next_async_event()? {
            if wanted(&event) {
                return Ok(event);
            }
        }
        if !readable(context.async_fd(), deadline)? {
            return Err("no such asynchronous event in time".into());
        }
    }
}

/// The next event of the channel.
pub(crate) fn cm_event(channel: &EventChannel) -> Result<CmEvent, Failed> {
    Ok(channel.next_event_timeout(LIMIT)?.ok_or("no rdma_cm event in time")?)
}

/// Waits until `fd` can be read; false when it cannot in time.
pub(crate) fn readable(fd: BorrowedFd<'_>, deadline: Instant) -> Result<bool, Failed> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], timeout) {
            Ok(0) if left.is_zero() => return Ok(false),
            Ok(0) | Err(nix::errno::Errno::EINTR) => {}
            Ok(_) => return Ok(true),
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Descriptors this process has open.
pub(crate) fn open_fds() -> Result<usize, Failed> {
    Ok(std::fs::read_dir("/proc/self/fd")?.count())
}

/// Full access for memory that peers use.
pub(crate) const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ);

/// Whether this process is root's.
pub(crate) fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}
