//! A WQE that is built once and posted often.

use super::{SendError, Sq};
use crate::{
    memory::{Target, inline_at},
    position::{REQUEST, block},
    queue_mem::{Cookie, Extra, Place, Record, WqeImage},
    wqe::{
        DataSeg,
        send::{BLOCK_UNITS, flag, flags_word},
    },
    wr::{Data, Wr},
};

/// The new payload does not fit the prepared WQE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the payload does not fit the prepared request")]
pub struct PayloadError;

/// A request as a finished WQE. The payload, an address or a length can change from post to post.
/// [`Sq::prepare`] makes it.
///
/// ```
/// use mlx5_direct::{Sq, SqLayout, wr::{Inline, Wr}};
///
/// let (layout, _device) = SqLayout::on_heap(64, 16)?;
/// let mut sq = Sq::new(layout);
/// let mut order = sq.prepare(Wr::send(Inline(&[0; 32])).signalled())?;
/// let field = order.field(8)?;
/// for price in 100..110u64 {
///     order.set(field, price.to_be_bytes());
///     sq.post_prepared(&order, price)?;
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Prepared {
    image: WqeImage,
    /// Units before the data.
    head: usize,
    units: usize,
    /// Whether the request has one block.
    extra: Extra,
    fenced: bool,
}

/// The extra of a prepared request of this size.
fn extra(units: usize) -> Extra {
    if units <= BLOCK_UNITS { Extra::NONE } else { Extra::CHECKED }
}

/// A prepared Send of which each post sets the eight bytes of the payload from `AT` on, and nothing
/// else. [`Prepared::template`] makes it; [`Sq::post_template`] posts it.
///
/// This is the way for messages that differ in a number, a price or an address. The bytes go from
/// registers of the processor into the WQE. After [`Prepared::set`], a post has to wait until the
/// processor has stored the new bytes, before it can copy the units that they are in: half the
/// time of a post.
///
/// ```
/// use mlx5_direct::{Sq, SqLayout, wr::{Inline, Wr}};
///
/// let (layout, _device) = SqLayout::on_heap(64, 16)?;
/// let mut sq = Sq::new(layout);
/// let order = sq.prepare(Wr::send(Inline(&[0; 32])).signalled())?.template::<12>()?;
/// for price in 100..110u64 {
///     sq.post_template(&order, price.to_be_bytes(), price)?;
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Template<const AT: usize>(Prepared);

/// Some bytes of the payload of a [`Prepared`] request. [`Prepared::field`] makes it.
#[derive(Clone, Copy, Debug)]
pub struct Field<const N: usize>(Place<N>);

impl<C: Cookie> Sq<C> {
    /// Builds the WQE of a request for this queue, which [`post_prepared`](Self::post_prepared)
    /// posts. The WQE can also be posted to another queue of the same kind; the request then goes
    /// to that queue's peer. The WQE has at most four blocks, and its operation must not change a
    /// memory key.
    ///
    /// # Errors
    ///
    /// [`SendError::TooLong`].
    pub fn prepare<D: Data>(&self, wr: Wr<D>) -> Result<Prepared, SendError> {
        let units = wr.units();
        if units > WqeImage::UNITS || units > self.max_units() || wr.changes_key() {
            return Err(SendError::TooLong);
        }
        let (head, fenced) = (units - wr.data_units(), wr.is_fenced());
        let fence = if fenced { flag::FENCE } else { 0 };
        let [first, second] = wr.ctrl(units).words(0, 0);
        let ctrl = [first, second | flags_word(fence)];
        let (qpn, inline) = (self.qpn(), wr.inline_bytes());
        let mut image = WqeImage::new();
        image.write(units, (head, inline), |out| {
            out.push(ctrl);
            wr.write_body(out, qpn);
        });
        Ok(Prepared { image, head, units, extra: extra(units), fenced })
    }

    /// Posts a prepared request in its present form.
    ///
    /// # Errors
    ///
    /// [`SendError`]; nothing was written.
    #[inline(always)]
    pub fn post_prepared(&mut self, prepared: &Prepared, cookie: C) -> Result<(), SendError> {
        if self.ring_prepared(prepared, cookie) {
            return Ok(());
        }
        self.ring_any_prepared(prepared, cookie)
    }

    /// Posts a template with these bytes in its payload. The code is shortest if the bytes are
    /// aligned to 8 in the WQE, as with an `AT` of 4, 12, 20 or 28. An `AT` above 36 does not
    /// compile, since those bytes are not in the first block.
    ///
    /// # Errors
    ///
    /// [`SendError`]; nothing was written.
    #[inline(always)]
    pub fn post_template<const AT: usize>(
        &mut self,
        template: &Template<AT>,
        bytes: [u8; 8],
        cookie: C,
    ) -> Result<(), SendError> {
        let (dbrec, register) = (&mut self.dbrec, &mut self.register);
        let Some(place) = self.wqes.next_block(cookie, register) else {
            return self.ring_template(template, bytes, cookie);
        };
        place.ring_image_with(&template.0.image, inline_at::<AT>(bytes), dbrec, register);
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn ring_template<const AT: usize>(
        &mut self,
        template: &Template<AT>,
        bytes: [u8; 8],
        cookie: C,
    ) -> Result<(), SendError> {
        let mut prepared = template.0.clone();
        prepared.payload()[AT..AT + 8].copy_from_slice(&bytes);
        self.ring_any_prepared(&prepared, cookie)
    }

    /// As [`post_fast`](Self::post_fast), with a prepared request.
    #[inline(always)]
    fn ring_prepared(&mut self, prepared: &Prepared, cookie: C) -> bool {
        let (dbrec, register) = (&mut self.dbrec, &mut self.register);
        let Some(place) = self.wqes.next_block_for(prepared.extra, cookie, register) else { return false };
        place.ring_image(&prepared.image, dbrec, register);
        true
    }

    #[cold]
    #[inline(never)]
    fn ring_any_prepared(&mut self, prepared: &Prepared, cookie: C) -> Result<(), SendError> {
        self.aim();
        if self.ring_prepared(prepared, cookie) {
            return Ok(());
        }
        let blocks = prepared.units.div_ceil(BLOCK_UNITS);
        if prepared.units > self.max_units() {
            return Err(SendError::TooLong);
        }
        if self.free() == 0 {
            return Err(SendError::Full);
        }
        let (first, block) = (self.at(), block(self.at()));
        let fence = if prepared.fenced { 0 } else { self.fence_due };
        self.set_fence_due(0);
        let [start, second] = prepared.image.ctrl_words();
        let number = (self.qpn_word | u64::from(block as u16) << 40).to_be();
        let ctrl = [start | number, second | self.base_flags | flags_word(fence)];
        self.wqes.write(block, prepared.units, |out| {
            out.push(ctrl);
            out.push_all(prepared.image.words(1, prepared.units));
        });
        let after = first.wrapping_add(REQUEST + blocks as u64);
        self.wqes.set_record(block, Record { cookie, after });
        self.wqes.set_position(after);
        self.publish(first, block);
        self.aim();
        Ok(())
    }
}

impl Prepared {
    /// The inline payload, for changes. Empty if the request has segments.
    #[inline(always)]
    pub fn payload(&mut self) -> &mut [u8] {
        self.image.inline_bytes()
    }

    /// The place of `N` payload bytes from `offset` on, for [`set`](Self::set).
    ///
    /// # Errors
    ///
    /// [`PayloadError`] if the inline payload has no such bytes.
    pub fn field<const N: usize>(&self, offset: usize) -> Result<Field<N>, PayloadError> {
        self.image.place(offset).map(Field).ok_or(PayloadError)
    }

    /// Replaces the bytes of a field. This is shorter than a change of [`payload`](Self::payload),
    /// since the place was checked before. A field of another request, or of an earlier payload of
    /// another length, is at the same distance from the start of the WQE.
    #[inline(always)]
    pub fn set<const N: usize>(&mut self, field: Field<N>, bytes: [u8; N]) {
        self.image.set(field.0, bytes);
    }

    /// The request as a [`Template`]: each post sets the eight bytes of the payload from `AT` on.
    ///
    /// # Errors
    ///
    /// [`PayloadError`] unless the request is a Send to a connected peer, of one block, with
    /// inline data that has these bytes.
    pub fn template<const AT: usize>(mut self) -> Result<Template<AT>, PayloadError> {
        let has_them = self.payload().len() >= AT.saturating_add(8);
        if !has_them || self.head != 1 || self.units > BLOCK_UNITS {
            return Err(PayloadError);
        }
        // A post adds the bits of the new bytes.
        self.payload()[AT..AT + 8].fill(0);
        Ok(Template(self))
    }

    /// Replaces the inline payload. The new payload may have any length that fits the blocks of the
    /// first payload.
    ///
    /// # Errors
    ///
    /// [`PayloadError`] if the payload is too long or empty, or the request has segments; nothing
    /// changes.
    #[inline]
    pub fn set_payload(&mut self, bytes: &[u8]) -> Result<(), PayloadError> {
        let room = (self.units.next_multiple_of(BLOCK_UNITS) - self.head) * 16 - 4;
        if !self.image.is_inline() || bytes.is_empty() || bytes.len() > room {
            return Err(PayloadError);
        }
        self.units = self.head + (bytes.len() + 4).div_ceil(16);
        self.extra = extra(self.units);
        self.image.set_inline(self.head, bytes, self.units);
        Ok(())
    }

    /// Replaces the `n`-th segment.
    ///
    /// # Errors
    ///
    /// [`PayloadError`] if the request has no such segment, or the new segment is empty; nothing
    /// changes.
    #[inline]
    pub fn set_segment(&mut self, n: usize, seg: DataSeg) -> Result<(), PayloadError> {
        let unit = self.head.saturating_add(n);
        if self.image.is_inline() || unit >= self.units || seg.byte_count() == 0 {
            return Err(PayloadError);
        }
        self.image.set_unit(unit, seg.to_words());
        Ok(())
    }
}
