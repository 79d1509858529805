//! RDMA Write with notification: a client writes into the server's memory, and each write takes
//! one entry of the server's shared receive queue (SRQ) to tell the server about it.
//!
//! ```sh
//! cargo run -p doorbell --example rdma_write_notify server mlx5_0
//! cargo run -p doorbell --example rdma_write_notify client mlx5_0 ADDRESS PORT   # second terminal
//! ```
//!
//! Without RDMA hardware, run both commands on the software device:
//! `hw-tests/with-emu 'bash'` opens a shell in which `mlx5_0` exists.
//!
//! - The server registers memory ([`Lmr`]) that a peer may write. It tells the client address,
//!   length and RMR context (the rkey) in the private data of its accept.
//! - The client writes by [`Ep::write`] with an immediate value. The bytes go to the named address,
//!   and the immediate value, 32 bits, comes with the completion at the server.
//! - The notification takes a receive buffer, but writes nothing into it. So the server posts
//!   buffers without segments ([`Srq::post_recv`] with an empty list).
//! - When the server dequeues the completion, the bytes of that write are in its memory.
//!
//! A plain [`Ep::write`] followed by a Send notifies as well, at the cost of
//! one more request. That is the way for peers without the IB extension of DAT.

use doorbell::{
    CloseFlags, ConnectOptions, ConnectionEventKind, Ep, Evd, EvdFlags, Event, Ia, Lmr, MemPriv, Psp, Pz,
    RmrTriplet, Srq,
};
use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

/// The server's memory is an array of this many records.
const RECORDS: u8 = 32;
/// Bytes of a record.
const RECORD: u8 = 64;

/// How long each end waits for any one event, a client's arrival apart.
const PATIENCE: Duration = Duration::from_secs(20);

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["server", device] => serve(device),
        ["client", device, address, port] => write(device, SocketAddr::new(address.parse()?, port.parse()?)),
        _ => Err("usage: rdma_write_notify server DEVICE | client DEVICE ADDRESS PORT".into()),
    }
}

/// Record `n` as the client writes it.
fn record(n: u8) -> Vec<u8> {
    vec![n + 1; RECORD.into()]
}

/// Where record `n` begins.
fn offset(n: u8) -> usize {
    usize::from(n) * usize::from(RECORD)
}

fn serve(device: &str) -> Result<()> {
    let ia = Ia::open(device)?;
    let pz = Pz::new(&ia)?;
    let requests = Evd::new(&ia, 16, EvdFlags::CR)?;
    let connections = Evd::new(&ia, 16, EvdFlags::CONNECTION)?;
    let notifications = Evd::new(&ia, 256, EvdFlags::DTO)?;

    let privileges = MemPriv::LOCAL_READ | MemPriv::LOCAL_WRITE | MemPriv::REMOTE_WRITE;
    let memory = Lmr::builder(&ia, &pz).privileges(privileges).allocate(offset(RECORDS))?;
    let mut srq = Srq::builder(&ia, &pz).depth(RECORDS.into()).build()?;
    for cookie in 0..RECORDS {
        srq.post_recv(&[], cookie.into())?;
    }

    let service = Psp::builder(&ia, &requests).build()?;
    println!("listening at {} {}", ia.address(), service.port());
    let Event::ConnectionRequest(request) = requests.wait()? else {
        return Err("not a connection request".into());
    };
    let ep = Ep::builder(&ia, &pz).srq(&srq).recv_evd(&notifications).connect_evd(&connections).build()?;
    request.cr.accept(&ep, &memory.remote(0, memory.len()).to_bytes())?;
    expect(&connections, ConnectionEventKind::Established)?;

    for _ in 0..RECORDS {
        let Some(Event::Received(notification)) = notifications.wait_for(PATIENCE)? else {
            return Err("no notification".into());
        };
        let n = u8::try_from(notification.immediate.ok_or("a message without immediate value")?)?;
        if n >= RECORDS {
            return Err(format!("there is no record {n}").into());
        }
        let mut bytes = vec![0; RECORD.into()];
        memory.read(offset(n), &mut bytes)?;
        if bytes != record(n) {
            return Err(format!("record {n} has other bytes than were written").into());
        }
    }
    expect(&connections, ConnectionEventKind::Disconnected)?;
    println!("{RECORDS} records of {RECORD} bytes were written and verified");
    Ok(())
}

fn write(device: &str, server: SocketAddr) -> Result<()> {
    let ia = Ia::open(device)?;
    let pz = Pz::new(&ia)?;
    let writes = Evd::new(&ia, 256, EvdFlags::DTO)?;
    let connections = Evd::new(&ia, 16, EvdFlags::CONNECTION)?;
    let memory = Lmr::builder(&ia, &pz).allocate(RECORD.into())?;

    let mut ep = Ep::builder(&ia, &pz)
        .request_evd(&writes)
        .connect_evd(&connections)
        .connect_with(server, ConnectOptions::new().timeout(PATIENCE))?;
    let answer = expect(&connections, ConnectionEventKind::Established)?;
    let target = RmrTriplet::from_bytes(&answer).ok_or("the server's answer is too short")?;

    // From the last record to the first: the server learns from the immediate value which it is.
    for n in (0..RECORDS).rev() {
        memory.write(0, &record(n))?;
        let from = [memory.triplet(0, memory.len())];
        let to = target.part(usize::from(n) * usize::from(RECORD), RECORD.into());
        let to = to.ok_or("the server's memory is too short")?;
        ep.write(&from).to(to).with_immediate(n.into()).cookie(n.into()).post()?;
        // The memory can be changed once the write has completed.
        match writes.wait_for(PATIENCE)? {
            Some(Event::Done(_)) => {}
            other => return Err(format!("the write failed: {other:?}").into()),
        }
    }
    ep.disconnect(CloseFlags::Graceful)?;
    expect(&connections, ConnectionEventKind::Disconnected)?;
    println!("wrote {RECORDS} records");
    Ok(())
}

/// Waits for a connection event of this kind; gives its private data.
fn expect(connections: &Evd, expected: ConnectionEventKind) -> Result<Vec<u8>> {
    let event = connections.wait_for(PATIENCE)?.ok_or("no event of the connection")?;
    match event.connection() {
        Some(change) if change.kind == expected => Ok(change.private_data.clone()),
        _ => Err(format!("expected {expected:?}, got {event:?}").into()),
    }
}
