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

/// The server's memory is an array of records of this many bytes.
const RECORD: usize = 64;
const RECORDS: usize = 32;

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
fn record(n: usize) -> [u8; RECORD] {
    [n as u8 + 1; RECORD]
}

fn serve(device: &str) -> Result<()> {
    let ia = Ia::open(device)?;
    let pz = Pz::new(&ia)?;
    let requests = Evd::new(&ia, 16, EvdFlags::CR)?;
    let connections = Evd::new(&ia, 16, EvdFlags::CONNECTION)?;
    let notifications = Evd::new(&ia, 256, EvdFlags::DTO)?;

    let privileges = MemPriv::LOCAL_READ | MemPriv::LOCAL_WRITE | MemPriv::REMOTE_WRITE;
    let memory = Lmr::builder(&ia, &pz).privileges(privileges).allocate(RECORDS * RECORD)?;
    let mut srq = Srq::builder(&ia, &pz).depth(RECORDS as u32).build()?;
    for cookie in 0..RECORDS {
        srq.post_recv(&[], cookie as u64)?;
    }

    let service = Psp::builder(&ia, &requests).build()?;
    println!("listening at {} {}", ia.address(), service.port());
    let Event::ConnectionRequest(request) = requests.wait()? else {
        return Err("not a connection request".into());
    };
    let ep = Ep::builder(&ia, &pz).srq(&srq).recv_evd(&notifications).connect_evd(&connections).build()?;
    let target = RmrTriplet {
        virtual_address: memory.address(),
        segment_length: memory.len() as u32,
        rmr_context: memory.rmr_context(),
    };
    request.cr.accept(&ep, &encode(target))?;
    expect(&connections, ConnectionEventKind::Established)?;

    for _ in 0..RECORDS {
        let Some(Event::Received(notification)) = notifications.wait_for(PATIENCE)? else {
            return Err("no notification".into());
        };
        let n = notification.immediate.ok_or("a message without immediate value")? as usize;
        if n >= RECORDS {
            return Err(format!("there is no record {n}").into());
        }
        let mut bytes = [0; RECORD];
        memory.read(n * RECORD, &mut bytes)?;
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
    let memory = Lmr::builder(&ia, &pz).allocate(RECORD)?;

    let mut ep = Ep::builder(&ia, &pz)
        .request_evd(&writes)
        .connect_evd(&connections)
        .connect_with(server, ConnectOptions::new().timeout(PATIENCE))?;
    let target = decode(&expect(&connections, ConnectionEventKind::Established)?)?;

    // From the last record to the first: the server learns from the immediate value which it is.
    for n in (0..RECORDS).rev() {
        memory.write(0, &record(n))?;
        let to = RmrTriplet {
            virtual_address: target.virtual_address + (n * RECORD) as u64,
            segment_length: RECORD as u32,
            ..target
        };
        let from = [memory.triplet(0, RECORD)];
        ep.write(&from).to(to).with_immediate(n as u32).cookie(n as u64).post()?;
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

/// Address, length and RMR context, little-endian.
fn encode(target: RmrTriplet) -> Vec<u8> {
    [
        &target.virtual_address.to_le_bytes()[..],
        &target.segment_length.to_le_bytes(),
        &target.rmr_context.to_le_bytes(),
    ]
    .concat()
}

/// The transport pads private data with zeros, so there may be more bytes.
fn decode(data: &[u8]) -> Result<RmrTriplet> {
    let data = data.get(..16).ok_or("the server's answer is too short")?;
    Ok(RmrTriplet {
        virtual_address: u64::from_le_bytes(data[..8].try_into()?),
        segment_length: u32::from_le_bytes(data[8..12].try_into()?),
        rmr_context: u32::from_le_bytes(data[12..].try_into()?),
    })
}
