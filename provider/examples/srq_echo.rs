//! An echo server whose receive buffers come from a shared receive queue (SRQ), and its client.
//!
//! ```sh
//! cargo run -p doorbell --example srq_echo server mlx5_0                 # prints ADDRESS and PORT
//! cargo run -p doorbell --example srq_echo client mlx5_0 ADDRESS PORT    # in a second terminal
//! ```
//!
//! Without RDMA hardware, run both commands on the software device:
//! `hw-tests/with-emu 'bash'` opens a shell in which `mlx5_0` exists.
//!
//! The server shows the smallest useful program:
//!
//! 1. An [`Ia`] opens the device. A [`Pz`] groups the memory and the endpoints that may use it.
//! 2. An [`Srq`] holds receive buffers. A [`RecvPool`] owns their memory, posts them, and gives
//!    each received message to the program as a [`doorbell::RecvBuf`]. When the program drops the
//!    message, the pool posts its buffer again.
//! 3. A [`Psp`] listens. Each connection request arrives as an event; the server creates an
//!    endpoint ([`Ep`]) on the SRQ and accepts the request with it.
//! 4. The server sends each message back from a buffer of a [`SendPool`].
//!
//! An empty message ends the session. This is a convention of the example, not of DAT.

use doorbell::{
    CloseFlags, ConnectOptions, ConnectionEventKind, Ep, Evd, EvdFlags, Event, Ia, Psp, Pz, Received,
    RecvPool, SendPool, Srq,
};
use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

/// Receive buffers on the SRQ. Each is large enough for the longest message.
const BUFFERS: u32 = 64;
const LONGEST_MESSAGE: usize = 4096;

/// How long each end waits for any one event.
const PATIENCE: Duration = Duration::from_secs(20);

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["server", device] => serve(device),
        ["client", device, address, port] => echo(device, SocketAddr::new(address.parse()?, port.parse()?)),
        _ => Err("usage: srq_echo server DEVICE | client DEVICE ADDRESS PORT".into()),
    }
}

/// What both ends need: one event queue (EVD) for each kind of event, an SRQ, and buffers.
struct End {
    messages: Evd,
    sends: Evd,
    connections: Evd,
    srq: Srq,
    recv_pool: RecvPool,
    send_pool: SendPool,
    pz: Pz,
    ia: Ia,
}

impl End {
    fn open(device: &str) -> Result<Self> {
        let ia = Ia::open(device)?;
        let pz = Pz::new(&ia)?;
        let mut srq = Srq::builder(&ia, &pz).depth(BUFFERS).build()?;
        let mut recv_pool = RecvPool::new(&ia, &pz, BUFFERS, LONGEST_MESSAGE)?;
        recv_pool.refill(&mut srq)?;
        Ok(Self {
            messages: Evd::new(&ia, 256, EvdFlags::DTO)?,
            sends: Evd::new(&ia, 256, EvdFlags::DTO)?,
            connections: Evd::new(&ia, 16, EvdFlags::CONNECTION)?,
            srq,
            recv_pool,
            send_pool: SendPool::new(&ia, &pz, 4, LONGEST_MESSAGE)?,
            pz,
            ia,
        })
    }

    /// An endpoint that takes its receive buffers from the SRQ.
    fn endpoint(&self) -> Result<Ep> {
        let ep = Ep::builder(&self.ia, &self.pz)
            .srq(&self.srq)
            .recv_evd(&self.messages)
            .request_evd(&self.sends)
            .connect_evd(&self.connections)
            .build()?;
        Ok(ep)
    }

    /// Waits until the connection is up or has ended, as expected.
    fn expect(&self, expected: ConnectionEventKind) -> Result<()> {
        let event = self.connections.wait_for(PATIENCE)?.ok_or("no event of the connection")?;
        match event.connection() {
            Some(change) if change.kind == expected => Ok(()),
            _ => Err(format!("expected {expected:?}, got {event:?}").into()),
        }
    }

    /// Sends one message and waits until the send has completed.
    fn send(&mut self, ep: &mut Ep, message: &[u8]) -> Result<()> {
        let mut buffer = self.send_pool.take().ok_or("no send buffer is free")?;
        buffer[..message.len()].copy_from_slice(message);
        self.send_pool.send(buffer).len(message.len()).post(ep)?;
        match self.sends.wait_for(PATIENCE)? {
            Some(Event::Done(sent)) if self.send_pool.completed(&sent) => Ok(()),
            other => Err(format!("the send failed: {other:?}").into()),
        }
    }

    /// The next message, copied out of its buffer; the buffer goes back to the SRQ.
    fn receive(&mut self) -> Result<Vec<u8>> {
        match self.recv_pool.next_for(&mut self.srq, &self.messages, PATIENCE)? {
            Some(Received::Message(message)) => Ok(message.to_vec()),
            other => Err(format!("the receive failed: {other:?}").into()),
        }
    }
}

fn serve(device: &str) -> Result<()> {
    let mut end = End::open(device)?;
    let requests = Evd::new(&end.ia, 16, EvdFlags::CR)?;
    let service = Psp::builder(&end.ia, &requests).build()?;
    println!("listening at {} {}", end.ia.address(), service.port());

    let Event::ConnectionRequest(request) = requests.wait()? else {
        return Err("not a connection request".into());
    };
    let mut ep = end.endpoint()?;
    request.cr.accept(&ep, &[])?;
    // The first message can arrive before this event. It waits in its buffer meanwhile.
    end.expect(ConnectionEventKind::Established)?;

    let mut echoed = 0;
    loop {
        let message = end.receive()?;
        if message.is_empty() {
            break;
        }
        end.send(&mut ep, &message)?;
        echoed += 1;
    }
    end.expect(ConnectionEventKind::Disconnected)?;
    drop(ep);
    end.recv_pool.refill(&mut end.srq)?;
    let counts = end.srq.query()?;
    println!("echoed {echoed} messages; {} of {BUFFERS} buffers are on the SRQ", counts.available);
    Ok(())
}

fn echo(device: &str, server: SocketAddr) -> Result<()> {
    let mut end = End::open(device)?;
    let mut ep = end.endpoint()?;
    ep.connect_with(server, ConnectOptions::new().timeout(PATIENCE))?;
    end.expect(ConnectionEventKind::Established)?;

    let mut verified = 0;
    for len in [1, 7, 64, 512, LONGEST_MESSAGE] {
        for value in 1..=20_u8 {
            let message = vec![value; len];
            end.send(&mut ep, &message)?;
            if end.receive()? != message {
                return Err(format!("a message of {len} bytes came back changed").into());
            }
            verified += 1;
        }
    }
    end.send(&mut ep, &[])?;
    ep.disconnect(CloseFlags::Graceful)?;
    end.expect(ConnectionEventKind::Disconnected)?;
    println!("verified {verified} messages");
    Ok(())
}
