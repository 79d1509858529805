//! Keys: finding them, and translating addresses in their memory.

use super::card::Card;
use crate::host::complaints::{Kind, complain};
use crate::host::mem;
use crate::objects::syndrome::Protection;
use crate::objects::{KeyKind, Seg, access};

impl Card {
    /// The index of a key, if it exists.
    #[inline(always)]
    pub(crate) fn find_key(&self, key: u32) -> Option<usize> {
        let index = (key >> 8 ^ self.key_mask) as usize;
        self.keys.get(index).filter(|found| found.key == key).map(|_| index)
    }

    /// The key's entry, whatever its low byte: how work requests name the key that they change.
    pub(super) fn find_key_index(&self, key: u32) -> Option<usize> {
        let index = (key >> 8 ^ self.key_mask) as usize;
        self.keys.get(index).map(|_| index)
    }

    /// Why [`Card::local_address`] has refused this key.
    #[cold]
    pub(super) fn refusal(&self, key: u32, pd: usize) -> Protection {
        let known = self.find_key(key).is_some_and(|index| self.keys[index].pd == pd);
        if known { Protection::Access } else { Protection::Key }
    }

    /// Checks a local key and translates an address; `None` is a protection error.
    #[inline(always)]
    pub(super) fn local_address(&self, key: u32, pd: usize, addr: u64, len: u32, need: u32) -> Option<u64> {
        let Some(index) = self.find_key(key) else {
            if key == mem::NULL_KEY {
                return mem::null_region(len, need & access::LOCAL_WRITE != 0);
            }
            complain(
                Kind::UnknownKey,
                format!("a data segment names the local key {key:#x}, which does not exist"),
            );
            return None;
        };
        let region = &self.keys[index];
        if region.pd != pd || region.access & need != need || !matches!(region.kind, KeyKind::Region) {
            return None;
        }
        let at = region.translate(addr, u64::from(len))?;
        if region.access & access::ON_DEMAND != 0
            && !mem::fault_in(at, u64::from(len), need & access::LOCAL_WRITE != 0)
        {
            return None;
        }
        Some(at)
    }

    /// Translates a data segment with an indirect key into the segments of its layout. Returns
    /// false on a protection error.
    #[cold]
    pub(super) fn indirect_list(
        &self,
        key: u32,
        pd: usize,
        addr: u64,
        len: u32,
        need: u32,
        out: &mut Vec<Seg>,
    ) -> bool {
        let Some(index) = self.find_key(key) else { return false };
        let (entry, Some(layout)) = (&self.keys[index], self.layouts.get(&index)) else { return false };
        let usable = matches!(entry.kind, KeyKind::Indirect { free: false, .. });
        let end = addr.checked_add(u64::from(len));
        if !usable || entry.pd != pd || entry.access & need != need || end.is_none_or(|end| end > entry.len) {
            return false;
        }
        let (mut skip, mut left) = (addr, len);
        for turn in 0..layout.repeat {
            for piece in &layout.pieces {
                if left == 0 {
                    return true;
                }
                if skip >= u64::from(piece.len) {
                    skip -= u64::from(piece.len);
                    continue;
                }
                let take = (piece.len - skip as u32).min(left);
                let at = piece.addr.wrapping_add(u64::from(turn) * u64::from(piece.stride) + skip);
                let Some(at) = self.local_address(piece.key, pd, at, take, need) else { return false };
                out.push(Seg { addr: at, len: take });
                (skip, left) = (0, left - take);
            }
        }
        left == 0
    }

    /// Invalidates a window.
    pub(super) fn invalidate(&mut self, key: u32) {
        if let Some(index) = self.find_key(key) {
            self.invalidate_entry(index);
        }
    }

    pub(super) fn invalidate_entry(&mut self, index: usize) {
        let entry = &mut self.keys[index];
        if let KeyKind::Indirect { free, .. } = &mut entry.kind {
            *free = true;
            self.layouts.remove(&index);
            return;
        }
        if let KeyKind::Window { type2, bound, region, .. } = entry.kind {
            entry.kind = KeyKind::Window { type2, bound: false, region: 0, qpn: 0 };
            (entry.len, entry.access) = (0, 0);
            if bound {
                self.unbind_from(region);
            }
        }
    }

    /// One window less is bound to a region.
    pub(crate) fn unbind_from(&mut self, region: u32) {
        if let Some(index) = self.find_key(region) {
            let region = &mut self.keys[index];
            region.windows = region.windows.saturating_sub(1);
        }
    }
}
