//! Many connections that share one receive queue (SRQ) with fewer buffers than connections.
//!
//! ```sh
//! cargo run -p doorbell --example many_clients server mlx5_0 40                 # 40 connections
//! cargo run -p doorbell --example many_clients client mlx5_0 ADDRESS PORT 40    # second terminal
//! ```
//!
//! Without RDMA hardware, run both commands on the software device:
//! `hw-tests/with-emu 'bash'` opens a shell in which `mlx5_0` exists.
//!
//! Without an SRQ, a server posts receive buffers to each connection, most of which wait for
//! messages that do not come. Here 16 buffers serve all connections:
//!
//! - All endpoints are created on the same [`Srq`]. A message takes
//!   the next buffer of the SRQ, whichever connection it arrives on. The completion names the
//!   endpoint ([`doorbell::RecvBuf::ep`]).
//! - One event queue ([`Evd`]) takes the connection requests, the connection events and the
//!   receive completions of all endpoints, so that one thread serves them all. Events of one
//!   endpoint keep their order: its Disconnected event follows its last message.
//! - When the SRQ is empty, a sender's device waits and tries again (RNR retry). The server's
//!   job is to post buffers fast enough; [`RecvPool::next`] posts those that came back.
//! - [`Srq::query`] gives exact counts: `available` buffers can be taken by a message,
//!   `outstanding` adds those that a message has taken and whose completion was not dequeued.
//!
//! This server ends with an error when a client does not do what it expects; that of `storage.rs`
//! goes on.

use doorbell::{
    CloseFlags, ConnectOptions, ConnectionEventKind, Ep, EpId, Evd, EvdFlags, Event, Ia, Psp, Pz, Received,
    RecvPool, SendPool, Srq,
};
use std::collections::HashMap;
use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

/// Receive buffers for all connections together, and the bytes of each.
const BUFFERS: u32 = 16;
const BUFFER_SIZE: usize = 256;

/// Messages that the client sends on each connection.
const MESSAGES: u32 = 25;

/// How long the client waits for any one event.
const PATIENCE: Duration = Duration::from_secs(20);

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["server", device, clients] => serve(device, clients.parse()?),
        ["client", device, address, port, clients] => {
            send(device, SocketAddr::new(address.parse()?, port.parse()?), clients.parse()?)
        }
        _ => Err("usage: many_clients server DEVICE N | client DEVICE ADDRESS PORT N".into()),
    }
}

fn serve(device: &str, clients: usize) -> Result<()> {
    let ia = Ia::open(device)?;
    let pz = Pz::new(&ia)?;
    let streams = EvdFlags::CR | EvdFlags::CONNECTION | EvdFlags::DTO;
    let events = Evd::new(&ia, 1024, streams)?;
    let mut srq = Srq::builder(&ia, &pz).depth(BUFFERS).build()?;
    let mut pool = RecvPool::new(&ia, &pz, BUFFERS, BUFFER_SIZE)?;
    pool.refill(&mut srq)?;
    let service = Psp::builder(&ia, &events).build()?;
    println!("listening at {} {}", ia.address(), service.port());

    // Connected endpoints, and how many messages came on each.
    let mut connected: HashMap<EpId, (Ep, u32)> = HashMap::new();
    let (mut ended, mut messages) = (0, 0);
    while ended < clients {
        match pool.next(&mut srq, &events)? {
            Received::Message(message) => {
                let (_ep, count) = connected.get_mut(&message.ep()).ok_or("an unknown endpoint")?;
                let expected = count.to_le_bytes();
                if message[..] != expected {
                    return Err(format!("got {:?}, expected {expected:?}", &message[..]).into());
                }
                *count += 1;
                messages += 1;
            }
            Received::Failed(dto) => return Err(format!("a receive failed: {dto:?}").into()),
            Received::Other(Event::ConnectionRequest(request)) => {
                let ep = Ep::builder(&ia, &pz).srq(&srq).recv_evd(&events).connect_evd(&events).build()?;
                request.cr.accept(&ep, &[])?;
                connected.insert(ep.id(), (ep, 0));
            }
            Received::Other(Event::Connected(_)) => {}
            Received::Other(Event::Disconnected(end)) => {
                let (_ep, count) = connected.remove(&end.ep).ok_or("an unknown endpoint")?;
                if count != MESSAGES {
                    return Err(format!("{count} of {MESSAGES} messages came").into());
                }
                ended += 1;
            }
            Received::Other(other) => return Err(format!("unexpected: {other:?}").into()),
        }
    }
    pool.refill(&mut srq)?;
    let counts = srq.query()?;
    println!(
        "{messages} messages from {ended} clients through {BUFFERS} buffers; {} available, {} outstanding",
        counts.available, counts.outstanding
    );
    Ok(())
}

fn send(device: &str, server: SocketAddr, clients: u32) -> Result<()> {
    let ia = Ia::open(device)?;
    let pz = Pz::new(&ia)?;
    let sends = Evd::new(&ia, 1024, EvdFlags::DTO)?;
    let connections = Evd::new(&ia, 1024, EvdFlags::CONNECTION)?;
    let mut pool = SendPool::new(&ia, &pz, clients, BUFFER_SIZE)?;

    let new_ep = Ep::builder(&ia, &pz).request_evd(&sends).connect_evd(&connections);
    let mut eps = Vec::new();
    for _ in 0..clients {
        let ep = new_ep.clone().connect_with(server, ConnectOptions::new().timeout(PATIENCE))?;
        expect(&connections, ConnectionEventKind::Established)?;
        eps.push(ep);
    }
    // One message on each connection, then the next on each.
    for number in 0..MESSAGES {
        for ep in &mut eps {
            let mut buffer = pool.take().ok_or("no send buffer is free")?;
            let message = number.to_le_bytes();
            buffer[..message.len()].copy_from_slice(&message);
            pool.send(buffer).len(message.len()).post(ep)?;
        }
        for _ in &eps {
            match sends.wait_for(PATIENCE)? {
                Some(Event::Done(sent)) if pool.completed(&sent) => {}
                other => return Err(format!("a send failed: {other:?}").into()),
            }
        }
    }
    for ep in &eps {
        ep.disconnect(CloseFlags::Graceful)?;
        expect(&connections, ConnectionEventKind::Disconnected)?;
    }
    println!("sent {MESSAGES} messages on each of {clients} connections");
    Ok(())
}

/// Waits for a connection event of this kind, of any endpoint.
fn expect(connections: &Evd, expected: ConnectionEventKind) -> Result<()> {
    let event = connections.wait_for(PATIENCE)?.ok_or("no event of a connection")?;
    match event.connection() {
        Some(change) if change.kind == expected => Ok(()),
        _ => Err(format!("expected {expected:?}, got {event:?}").into()),
    }
}
