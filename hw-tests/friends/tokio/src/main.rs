//! An echo server and its clients as tasks of one thread. Nobody polls in a loop: a task that has
//! nothing to do awaits its EVD, and the thread sleeps while all do.

use doorbell::{
    AsyncCno, AsyncEvd, Cno, ConnectOptions, Ep, EpId, Evd, EvdFlags, Event, Ia, Psp, Pz, RecvPool, SendPool,
    Srq,
};
use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const CLIENTS: usize = 8;
const MESSAGES: usize = 100;

/// Processor time of this thread.
fn processor_time() -> Duration {
    // SAFETY: a `timespec` is plain data, which the call writes.
    let time = unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time);
        time
    };
    let (Ok(seconds), Ok(rest)) = (time.tv_sec.try_into(), time.tv_nsec.try_into()) else {
        panic!("a time before 0");
    };
    Duration::new(seconds, rest)
}

/// One end: buffers, and EVDs whose events its task awaits.
struct End {
    messages: AsyncEvd,
    sends: AsyncEvd,
    connections: AsyncEvd,
    srq: Srq,
    recv_pool: RecvPool,
    send_pool: SendPool,
    pz: Pz,
    ia: Ia,
}

impl End {
    fn open() -> Outcome<Self> {
        let ia = Ia::open("mlx5_0")?;
        let pz = Pz::new(&ia)?;
        let mut srq = Srq::builder(&ia, &pz).depth(64).build()?;
        let mut recv_pool = RecvPool::new(&ia, &pz, 64, 1024)?;
        recv_pool.refill(&mut srq)?;
        let evd = |flags| AsyncEvd::new(&Evd::new(&ia, 256, flags)?);
        Ok(Self {
            messages: evd(EvdFlags::DTO)?,
            sends: evd(EvdFlags::DTO)?,
            connections: evd(EvdFlags::CONNECTION)?,
            srq,
            recv_pool,
            send_pool: SendPool::new(&ia, &pz, 4, 1024)?,
            pz,
            ia,
        })
    }

    fn endpoint(&self) -> Outcome<Ep> {
        let ep = Ep::builder(&self.ia, &self.pz)
            .srq(&self.srq)
            .recv_evd(self.messages.evd())
            .request_evd(self.sends.evd())
            .connect_evd(self.connections.evd())
            .build()?;
        Ok(ep)
    }

    /// The next message, with the EP that received it.
    async fn receive(&mut self) -> Outcome<(EpId, Vec<u8>)> {
        self.recv_pool.refill(&mut self.srq)?;
        let Event::Received(dto) = self.messages.next().await? else { return Err("a receive failed".into()) };
        let message = self.recv_pool.take(&dto).ok_or("a buffer of another pool")?;
        Ok((message.ep(), message.to_vec()))
    }

    /// Sends a message, once a buffer is free.
    async fn send(&mut self, ep: &mut Ep, message: &[u8]) -> Outcome<()> {
        let mut buffer = loop {
            if let Some(buffer) = self.send_pool.take() {
                break buffer;
            }
            let Event::Done(dto) = self.sends.next().await? else { return Err("a send failed".into()) };
            self.send_pool.completed(&dto);
        };
        buffer[..message.len()].copy_from_slice(message);
        self.send_pool.send(buffer).len(message.len()).post(ep)?;
        Ok(())
    }
}

/// Sends messages and compares the answers.
async fn client(server: SocketAddr, number: usize) -> Outcome<()> {
    let mut end = End::open()?;
    let mut ep = end.endpoint()?;
    ep.connect_with(server, ConnectOptions::new().timeout(Duration::from_secs(20)))?;
    match end.connections.next().await? {
        Event::Connected(_) => {}
        other => return Err(format!("{other:?}").into()),
    }
    for message in 0..MESSAGES {
        let text: Vec<u8> = (0..1 + message * 10).map(|k| (k + message + number).to_le_bytes()[0]).collect();
        end.send(&mut ep, &text).await?;
        if end.receive().await?.1 != text {
            return Err(format!("answer {message} to client {number} has other bytes").into());
        }
    }
    Ok(())
}

/// Answers each message on the EP that has received it, until it is dropped.
async fn answer(end: &mut End, eps: &RefCell<HashMap<EpId, Ep>>) -> Outcome<()> {
    loop {
        let (from, message) = end.receive().await?;
        let mut ep = eps.borrow_mut().remove(&from).ok_or("a message of no EP")?;
        end.send(&mut ep, &message).await?;
        eps.borrow_mut().insert(from, ep);
    }
}

async fn serve() -> Outcome<()> {
    let mut end = End::open()?;
    let requests = Evd::new(&end.ia, 16, EvdFlags::CR)?;
    let psp = Psp::builder(&end.ia, &requests).build()?;
    let mut requests = AsyncEvd::new(&requests)?;
    let server = psp.address();

    let clients: Vec<_> = (0..CLIENTS)
        .map(|n| tokio::task::spawn_local(async move { client(server, n).await.map_err(|e| e.to_string()) }))
        .collect();
    let eps = RefCell::new(HashMap::new());
    for _ in 0..CLIENTS {
        let Event::ConnectionRequest(request) = requests.next().await? else {
            return Err("not a connection request".into());
        };
        let ep = end.endpoint()?;
        request.cr.accept(&ep, &[])?;
        eps.borrow_mut().insert(ep.id(), ep);
    }
    let all = async {
        for client in clients {
            client.await??;
        }
        Ok(())
    };
    tokio::select! {
        outcome = answer(&mut end, &eps) => outcome?,
        outcome = all => { let outcome: Outcome<()> = outcome; outcome? }
    }
    println!("{} answers by tasks of one thread", CLIENTS * MESSAGES);

    // Nothing comes any more: the task sleeps until the time is over. A future that is dropped
    // leaves the EVD as it was.
    let before = processor_time();
    let idle = Duration::from_millis(500);
    if tokio::time::timeout(idle, end.messages.next()).await.is_ok() {
        return Err("a message out of nowhere".into());
    }
    let busy = processor_time() - before;
    if busy > idle / 5 {
        return Err(format!("{busy:?} of processor time in {idle:?} of waiting").into());
    }
    if end.messages.evd().dequeue()?.is_some() {
        return Err("a message out of nowhere".into());
    }
    println!("waiting costs no processor time");

    // One CNO for many EVDs.
    let cno = Cno::with_fd(&end.ia)?;
    let evd = Evd::new(&end.ia, 8, EvdFlags::SOFTWARE)?;
    evd.set_cno(Some(&cno))?;
    let triggered = AsyncCno::new(&cno)?;
    let other = evd.clone();
    let poster = std::thread::spawn(move || other.post_software_event(7));
    if triggered.wait().await? != evd.id() {
        return Err("another EVD has triggered the CNO".into());
    }
    poster.join().map_err(|_| "the poster panicked")??;
    println!("the CNO names its EVD");
    Ok(())
}

fn main() -> Outcome<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let tasks = tokio::task::LocalSet::new();
    runtime
        .block_on(tasks.run_until(async { tokio::time::timeout(Duration::from_secs(100), serve()).await? }))
}
