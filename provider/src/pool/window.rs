//! Buffers that peers use: memory windows over the memory of pools.
//!
//! From the bind on, a [`WindowBuf`] has the buffer, and nobody has a reference to its bytes. The
//! buffer comes back when no peer can use the window any more: [`RmrInner::is_over`] says so.
//!
//! [`RmrInner::is_over`]: crate::inside::RmrInner::is_over

use super::post::SendBuf;
use super::{Buffer, PoolMemory};
use crate::ep::NoPool;
use crate::rmr::Target;
use crate::types::{LmrTriplet, MemPriv, RmrTriplet, VaType};
use crate::{CompletionFlags, Ep, EpId, Error, Refused, Request, Result, Rmr, RmrId, Subtype, op};
use std::ops::Range;
use std::sync::Arc;

/// An RMR, and the buffer that it is about to open, as the local memory of a [`Request`].
#[derive(Debug)]
pub struct Opening {
    rmr: Rmr,
    buf: SendBuf,
    bytes: Range<usize>,
}

/// A buffer that peers use through a memory window: [`Rmr::open`]. The program can copy bytes in and
/// out, but has no reference to them, because peers may change them at any time.
///
/// The window ends, and the buffer comes back, in one of three ways:
///
/// * The peer sends a message that invalidates the window ([`Request::with_invalidate`]; only
///   [`RmrScope::Ep`](crate::RmrScope::Ep)). Once the program has its event, [`WindowBuf::finish`]
///   returns the buffer and the RMR.
/// * The program unbinds the window ([`WindowBuf::unbind`]). Once it has the event of this request,
///   [`WindowBuf::finish`] returns both.
/// * [`WindowBuf::close`] frees the RMR at once, by a system call. A peer that uses the window
///   afterwards breaks its connection.
///
/// Dropping a `WindowBuf` closes it, and the buffer returns to its pool. If the device has not
/// executed the bind yet, or refuses to free the window, the pool never gets the buffer back.
#[derive(Debug)]
pub struct WindowBuf {
    /// Always there, except while the value ends.
    parts: Option<Parts>,
    region: Arc<PoolMemory>,
    remote: RmrTriplet,
    ep: EpId,
}

#[derive(Debug)]
struct Parts {
    rmr: Rmr,
    buffer: Buffer,
}

impl NoPool for Opening {}
impl NoPool for &mut WindowBuf {}

impl Rmr {
    /// A bind of this RMR to a buffer of a pool, which peers can use from then on until the window
    /// ends: see [`WindowBuf`]. Unless the request says otherwise, they can read all of the buffer.
    ///
    /// ```no_run
    /// # use doorbell::*;
    /// # fn lend(pool: &mut SendPool, pz: &Pz, ep: &mut Ep, evd: &Evd) -> std::result::Result<(), Box<dyn std::error::Error>> {
    /// let buf = pool.take().ok_or("all buffers are under way")?;
    /// let rmr = Rmr::new(pz, RmrScope::Ep)?;
    /// let window = rmr.open(buf).privileges(MemPriv::REMOTE_WRITE).suppress().post(ep)?;
    /// let place: RmrTriplet = window.remote(); // for the peer: in a Send behind the bind
    /// // ... The peer writes, and sends a message that invalidates the window.
    /// if let Event::Received(message) = evd.wait()? {
    ///     assert_eq!(message.invalidated, Some(place.rmr_context));
    ///     let (buf, _rmr) = window.finish()?;
    ///     println!("{:?}", &buf[..8]);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn open(self, buf: SendBuf) -> Request<Opening, op::Open> {
        let bytes = 0..buf.len();
        Request::new((), Opening { rmr: self, buf, bytes }, op::Open(MemPriv::REMOTE_READ))
    }
}

impl Request<Opening, op::Open> {
    /// Opens these bytes of the buffer. No reference to the others exists meanwhile, either: rxe
    /// gives peers the whole buffer.
    pub fn bytes(mut self, bytes: Range<usize>) -> Self {
        self.local.bytes = bytes;
        self
    }

    /// What peers may do: remote read, write, atomics. Local privileges are ignored.
    pub fn privileges(mut self, privileges: MemPriv) -> Self {
        self.op = op::Open(privileges);
        self
    }

    /// Posts the bind to this EP. Its event is [`Event::Bound`](crate::Event::Bound); later requests
    /// wait for it, so the message that tells the peer of the window can follow at once.
    ///
    /// The first window over a buffer registers the buffer once more, by a system call.
    ///
    /// # Errors
    /// The error returns the RMR and the buffer. As [`Rmr::bind`], and INVALID_PARAMETER (ARG3) for
    /// bytes that are none or not all inside the buffer, INSUFFICIENT_RESOURCES if the buffer cannot
    /// be registered.
    pub fn post(self, ep: &mut Ep) -> Result<WindowBuf, Refused<(Rmr, SendBuf)>> {
        let Self { local: Opening { rmr, buf, bytes }, op: op::Open(privileges), cookie, flags, .. } = self;
        match bind(&rmr, &buf.buffer, bytes, privileges, ep, (cookie, flags)) {
            Ok((region, remote)) => {
                let parts = Some(Parts { rmr, buffer: buf.buffer });
                Ok(WindowBuf { parts, region, remote, ep: ep.id() })
            }
            Err(error) => Err(Refused { object: (rmr, buf), error }),
        }
    }
}

/// Posts a bind to these bytes of the buffer.
fn bind(
    rmr: &Rmr,
    buffer: &Buffer,
    bytes: Range<usize>,
    privileges: MemPriv,
    ep: &Ep,
    (cookie, flags): (u64, CompletionFlags),
) -> Result<(Arc<PoolMemory>, RmrTriplet)> {
    let len = bytes.len();
    if len == 0 || bytes.end > buffer.len {
        let text = format!("a window over the bytes {bytes:?} of a buffer of {}", buffer.len);
        return Err(Error::arg(3, text));
    }
    let region = buffer.arena.region(buffer.index)?;
    // An invalidation that has come so far is not about this bind.
    ep.inner.recv_evd.harvest_now()?;
    let lmr = region.lmr();
    let segment: LmrTriplet = lmr.triplet(bytes.start, len);
    let target = Target { lmr: Some(&lmr.inner), segment, privileges, va_type: VaType::Virtual };
    let rmr_context = rmr.inner.bind(&ep.inner, target, cookie, flags)?;
    let LmrTriplet { virtual_address, segment_length, .. } = segment;
    Ok((region, RmrTriplet { virtual_address, segment_length, rmr_context }))
}

impl Request<&mut WindowBuf, op::Unbind> {
    /// Posts the unbind to this EP, through which the window was bound. Its event is
    /// [`Event::Bound`](crate::Event::Bound).
    ///
    /// # Errors
    /// As [`Rmr::bind`]; INVALID_PARAMETER (ARG2) for another EP; INVALID_PARAMETER (ARG8) for
    /// SUPPRESS, because the event ends the window.
    pub fn post(self, ep: &mut Ep) -> Result<()> {
        let Self { local: window, cookie, flags, .. } = self;
        // Through another EP, the unbind could be executed before the bind.
        if window.ep != ep.id() {
            return Err(Error::arg(2, "the window was bound through another EP"));
        }
        if flags.contains(CompletionFlags::SUPPRESS) {
            return Err(Error::arg(8, "only the event of an unbind ends the window"));
        }
        let nothing = Target {
            lmr: None,
            segment: LmrTriplet::default(),
            privileges: MemPriv::empty(),
            va_type: VaType::Virtual,
        };
        window.parts().rmr.inner.bind(&ep.inner, nothing, cookie, flags).map(drop)
    }
}

impl WindowBuf {
    fn parts(&self) -> &Parts {
        self.parts.as_ref().unwrap_or_else(|| unreachable!("taken at the end only"))
    }

    /// What peers need to use the window.
    pub fn remote(&self) -> RmrTriplet {
        self.remote
    }

    /// The ID that names the RMR in events.
    pub fn rmr(&self) -> RmrId {
        self.parts().rmr.id()
    }

    /// Copies bytes of the buffer out, from `offset` on. Bytes that a peer writes meanwhile are torn.
    ///
    /// # Errors
    /// As [`Lmr::read`](crate::Lmr::read).
    pub fn read(&self, offset: usize, to: &mut [u8]) -> Result<()> {
        self.region.lmr().read(offset, to)
    }

    /// Copies bytes into the buffer, from `offset` on.
    ///
    /// # Errors
    /// As [`WindowBuf::read`].
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<()> {
        self.region.lmr().write(offset, from)
    }

    /// An unbind of the window. [`WindowBuf::finish`] returns the buffer once the request has
    /// succeeded.
    pub fn unbind(&mut self) -> Request<&mut Self, op::Unbind> {
        Request::new((), self, op::Unbind)
    }

    /// The buffer, with what peers have written, and the RMR, which is bound to nothing.
    ///
    /// # Errors
    /// INVALID_STATE while peers may use the window: no event has told that it has ended. The error
    /// returns the window.
    #[expect(clippy::result_large_err, reason = "the error returns the window")]
    pub fn finish(mut self) -> Result<(SendBuf, Rmr), Refused<Self>> {
        if !self.is_over() {
            let text =
                "peers may still use the window: unbind it, or have it invalidated, and take the event";
            return Err(Refused { object: self, error: Error::state(Subtype::None, text) });
        }
        let Parts { rmr, buffer } = self.parts.take().unwrap_or_else(|| unreachable!("taken here only"));
        Ok((SendBuf { buffer }, rmr))
    }

    /// Ends the window now: frees the RMR. Returns the buffer, with what peers have written.
    ///
    /// # Errors
    /// INVALID_STATE while the device has not executed the bind. INSUFFICIENT_RESOURCES if the device
    /// refuses to free the window. The error returns the window.
    #[expect(clippy::result_large_err, reason = "the error returns the window")]
    pub fn close(mut self) -> Result<SendBuf, Refused<Self>> {
        if !self.is_over() && !self.settle() {
            let text = "the bind is under way: wait for its event, or close the EP";
            return Err(Refused { object: self, error: Error::state(Subtype::None, text) });
        }
        match self.end() {
            Some(buf) => Ok(buf),
            None => {
                let error = Error::resources(Subtype::ResourceMemoryRegion, "the window cannot be freed");
                Err(Refused { object: self, error })
            }
        }
    }

    /// Whether no peer can use the window any more. A child of a fork does not know.
    fn is_over(&self) -> bool {
        let Parts { rmr, buffer } = self.parts();
        !buffer.arena.is_inherited() && rmr.inner.is_over()
    }

    /// Whether the device has executed the bind.
    fn settle(&self) -> bool {
        let Parts { rmr, buffer } = self.parts();
        !buffer.arena.is_inherited() && rmr.inner.settle()
    }

    /// Frees the RMR. The buffer, if no peer can use it any more.
    fn end(&mut self) -> Option<SendBuf> {
        self.parts().rmr.inner.close();
        if !self.is_over() {
            return None;
        }
        let Parts { buffer, .. } = self.parts.take()?;
        Some(SendBuf { buffer })
    }
}

impl Drop for WindowBuf {
    fn drop(&mut self) {
        if self.parts.is_none() {
            return;
        }
        if !self.is_over() {
            self.settle();
        }
        if self.end().is_none()
            && let Some(Parts { buffer, rmr }) = self.parts.take()
        {
            tracing::warn!(rmr = rmr.id().0, "peers may still use the buffer of a window: its pool loses it");
            // Nobody gets the buffer, and its memory stays mapped.
            std::mem::forget(buffer);
        }
    }
}
