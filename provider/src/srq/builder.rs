//! Creating SRQs.

use super::{Srq, SrqInner};
use crate::device::{Class, QueueLmrs};
use crate::memory::headroom;
use crate::shared_recv::SharedRecv;
use crate::sync::Mutex;
use crate::types::{MAX_IOV, SrqId, next_id};
use crate::{Error, Ia, IaCounter, Pz, Result, Subtype};
use rxe_fallback::SrqInit;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

/// The options of a new SRQ: see [`Srq::builder`].
#[derive(Clone, Copy, Debug)]
#[must_use = "nothing is created before `build`"]
pub struct SrqBuilder<'a> {
    ia: &'a Ia,
    pz: &'a Pz,
    depth: u32,
    segments: u32,
    low_watermark: u32,
}

impl Srq {
    /// A builder of SRQs. It begins with a depth of 256, one segment in each buffer, and no low
    /// watermark.
    ///
    /// ```no_run
    /// # use doorbell::{Ia, Pz, Srq};
    /// # fn main() -> doorbell::Result<()> {
    /// let ia = Ia::open("mlx5_0")?;
    /// let pz = Pz::new(&ia)?;
    /// let srq = Srq::builder(&ia, &pz).depth(1024).low_watermark(64).build()?;
    /// assert_eq!(srq.query()?.outstanding, 0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder<'a>(ia: &'a Ia, pz: &'a Pz) -> SrqBuilder<'a> {
        SrqBuilder { ia, pz, depth: 256, segments: 1, low_watermark: 0 }
    }
}

impl SrqBuilder<'_> {
    /// The number of buffers that the SRQ holds: the sum of those posted, taken, and completed but
    /// not reaped (R37).
    pub fn depth(mut self, buffers: u32) -> Self {
        self.depth = buffers;
        self
    }

    /// The smallest number of segments of a buffer that the SRQ must support.
    pub fn segments(mut self, segments: u32) -> Self {
        self.segments = segments;
        self
    }

    /// As [`Srq::set_low_watermark`], for the new SRQ. A new SRQ has no buffers, so the event is
    /// queued at once; 0 arms no event.
    pub fn low_watermark(mut self, buffers: u32) -> Self {
        self.low_watermark = buffers;
        self
    }

    /// Creates the SRQ.
    ///
    /// # Errors
    /// INVALID_PARAMETER (ARG3) for a depth or a number of segments that is 0 or over the IA's
    /// limits (R13-R15), or (ARG2) for a low watermark over the depth. INVALID_HANDLE for a closed
    /// IA, or for a PZ that is freed or belongs to another IA (R18, R19). INSUFFICIENT_RESOURCES
    /// from the device (R20).
    ///
    /// # References
    /// dat_srq_create(3DAT).
    pub fn build(self) -> Result<Srq> {
        let mut srq = self.make()?;
        if self.low_watermark > 0 {
            srq.set_low_watermark(self.low_watermark)?;
        }
        Ok(srq)
    }

    fn make(&self) -> Result<Srq> {
        let (ia, pz, depth) = (self.ia, self.pz, self.depth);
        let device = &ia.device;
        device.check()?;
        pz.inner.check(device)?;
        headroom()?;
        let most = device.attr.max_srq_depth;
        if depth < 1 || depth > most {
            return Err(Error::arg(3, format!("the depth of an SRQ is 1 to {most} here, not {depth}")));
        }
        let most_segments = device.attr.max_segments;
        if self.segments < 1 || self.segments > most_segments {
            let text = format!("a buffer has 1 to {most_segments} segments here, not {}", self.segments);
            return Err(Error::arg(3, text));
        }
        let resizable = device.context.attributes().srq_resize;
        let room = if resizable {
            depth
        } else if device.path.is_direct() {
            most
        } else {
            verbs_room(depth, most)
        };
        let id = next_id();
        let init = SrqInit { max_wr: room, max_sge: self.segments, token: id };
        let create =
            if device.attr.datagrams { rxe_fallback::Srq::create_for_any } else { rxe_fallback::Srq::create };
        let srq = create(&pz.inner.pd, init).map_err(|e| Error::verb(Subtype::ResourceSrq, e))?;
        let max_iov = srq.max_sge().min(MAX_IOV as u32).min(most_segments);
        let (path, poster) = device.path.srq(srq, id as u32, depth, room, resizable)?;
        let inner = Arc::new(SrqInner {
            id: SrqId(id),
            device: device.clone(),
            defaults: ia.defaults.clone(),
            pz: pz.inner.clone(),
            recv: Arc::new(SharedRecv { number: id as u32, path }),
            context: AtomicU64::new(0),
            max_iov,
            live: AtomicBool::new(true),
            failed: AtomicBool::new(false),
            eps: Mutex::default(),
            low: Mutex::default(),
        });
        // If the next line fails, dropping `inner` leaves the PZ.
        pz.inner.enter();
        device.register(Class::Srq, id, &inner, &[IaCounter::SrqCreate])?;
        let mut lmrs = QueueLmrs::closed(inner.device.lmrs, inner.pz.number);
        lmrs.open(u32::MAX);
        Ok(Srq { inner, poster, lmrs })
    }
}

/// The room of an SRQ of this depth that the device cannot resize, by verbs. The device library
/// uses all places of the SRQ in turn, so with room for `most` buffers hardly a post would find its
/// place in a cache.
fn verbs_room(depth: u32, most: u32) -> u32 {
    depth.saturating_mul(4).max(4095).min(most)
}
