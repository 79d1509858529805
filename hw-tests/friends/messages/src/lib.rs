//! Messages between two queues of mlx5-direct, whoever has made them: the part that the programs
//! with `ibverbs` and with `sideway` share.

use mlx5_direct::{Completion, Cq, DataSeg, Rq, Sq, Srq, Wr};

pub type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// Receive buffers.
pub const BUFFERS: usize = 64;
/// Bytes of each.
pub const BYTES: usize = 2048;
/// Bytes of memory that [`exchange`] needs: the receive buffers, and the message that is sent.
pub const MEMORY: usize = (BUFFERS + 1) * BYTES;

/// Where messages arrive.
pub enum Receives {
    /// In a queue that several QPs share.
    Shared(Srq),
    /// In the queue of one QP.
    Own(Rq),
}

impl Receives {
    fn post(&mut self, buffer: DataSeg, cookie: u64) -> Outcome<()> {
        match self {
            Self::Shared(srq) => srq.post_one(buffer, cookie).map(drop)?,
            Self::Own(rq) => rq.post(&[buffer], cookie)?,
        }
        Ok(())
    }

    fn complete(&mut self, slot: mlx5_direct::WqeIndex) -> Outcome<u64> {
        match self {
            Self::Shared(srq) => Ok(srq.complete(slot)?),
            Self::Own(rq) => Ok(rq.complete(slot.0)?),
        }
    }
}

/// Sends messages of all lengths from `sq` to `receives`, whose completions both come in `cq`, and
/// compares them. Returns how many.
///
/// # Safety
///
/// The queues are those of connected QPs. `memory` has [`MEMORY`] bytes, is registered with `lkey`
/// for local writes, and nobody else uses it.
pub unsafe fn exchange(
    sq: &mut Sq,
    receives: &mut Receives,
    cq: &mut Cq,
    memory: *mut u8,
    lkey: u32,
) -> Outcome<usize> {
    let at = |n: u64| memory.wrapping_add(usize::try_from(n).expect("a buffer") * BYTES);
    let part = |n, len: usize| -> Outcome<DataSeg> {
        Ok(DataSeg::new(at(n).addr().try_into()?, len.try_into()?, lkey))
    };
    let mine = BUFFERS.try_into()?;
    for n in 0..mine {
        receives.post(part(n, BYTES)?, n)?;
    }
    let messages = 1000_usize;
    for message in 0..messages {
        let text: Vec<u8> = (0..1 + message * 2).map(|k| (k * 7 + message).to_le_bytes()[0]).collect();
        // SAFETY: the device has read the message before this one, as its completion said.
        unsafe { at(mine).copy_from(text.as_ptr(), text.len()) };
        sq.post(Wr::send(part(mine, text.len())?).signalled(), 0)?;
        let (mut sent, mut received) = (false, false);
        while !(sent && received) {
            let Some(completion) = cq.poll()? else {
                std::thread::yield_now();
                continue;
            };
            let mut scattered = [0; 64];
            let (slot, len) = match &completion {
                Completion::Send(send) => {
                    sq.complete(send.wqe_counter)?;
                    sent = true;
                    continue;
                }
                Completion::Recv(receive) => (receive.slot, receive.byte_count.try_into()?),
                // Scatter to CQE is on: the device has not written the buffer.
                Completion::RecvScattered(c) => (c.receive.slot, cq.copy_scattered(c, &mut scattered)),
                other => return Err(format!("{other:?}").into()),
            };
            let n = receives.complete(slot)?;
            if matches!(completion, Completion::RecvScattered(_)) {
                // SAFETY: the buffer is the program's until it is posted again.
                unsafe { at(n).copy_from(scattered.as_ptr(), len) };
            }
            // SAFETY: as above; the message is in the buffer.
            let got = unsafe { std::slice::from_raw_parts(at(n), len) };
            if got != text {
                return Err(format!("message {message} has arrived as other bytes").into());
            }
            receives.post(part(n, BYTES)?, n)?;
            received = true;
        }
    }
    Ok(messages)
}
