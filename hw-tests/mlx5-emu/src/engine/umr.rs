//! Work requests that change keys: binding and invalidating memory windows, and setting the layouts
//! of indirect keys.

use super::card::Card;
use super::requester::{Outcome, done};
use super::swqe::SendWqe;
use crate::host::complaints::{Kind, complain};
use crate::objects::{KeyKind, Layout, Piece, access, syndrome};

impl Card {
    /// Key changes by work request: binding and invalidating windows.
    pub(super) fn execute_umr(&mut self, index: usize, wqe: &SendWqe) -> Outcome {
        const FREE: u8 = 1 << 6;
        let qp = &self.qps[index];
        let (qpn, pd) = (qp.qpn, qp.pd);
        let units = usize::from(wqe.control.units);
        let refused = Outcome::Failed(syndrome::MW_BIND);
        if units < 8 {
            complain(Kind::BadSendWqe, format!("QP {qpn:#x}: a key change of {units} units"));
            return Outcome::Failed(syndrome::LOCAL_QP_OP);
        }
        let old_key = u32::from_be_bytes(wqe.control.imm);
        let Some(window) = self.find_key_index(old_key) else { return refused };
        if let KeyKind::Indirect { entries, .. } = self.keys[window].kind {
            return self.change_indirect(index, window, entries, wqe);
        }
        let KeyKind::Window { type2, bound, region, qpn: owner } = self.keys[window].kind else {
            return refused;
        };
        if Some(self.keys[window].pd) != pd {
            return refused;
        }
        let octowords = wqe.be32(1, 4) >> 16;
        let context = wqe.bytes16(4);
        let (qpn_key, addr, len) = (wqe.be32(4, 4), wqe.be64(5, 0), wqe.be64(5, 8));
        if octowords == 0 || len == 0 {
            // Unbind, or invalidate.
            if type2 && bound && owner != qpn {
                return refused;
            }
            if context[0] & FREE == 0 && type2 {
                return refused;
            }
            self.invalidate_entry(window);
        } else {
            if units < 9 || type2 && bound {
                return refused;
            }
            // The window's own start address (`addr`) and the address of the memory behind it
            // (`at`) are separate.
            let (key, at) = (wqe.be32(8, 4), wqe.be64(8, 8));
            let Some(target) = self.find_key(key) else { return refused };
            let parent = self.keys[target];
            let allowed = context[2];
            let mut rights = 0;
            for (bit, right) in [
                (1 << 4, access::REMOTE_READ),
                (1 << 5, access::REMOTE_WRITE),
                (1 << 6, access::REMOTE_ATOMIC),
            ] {
                if allowed & bit != 0 {
                    rights |= right;
                }
            }
            let writes = rights & (access::REMOTE_WRITE | access::REMOTE_ATOMIC) != 0;
            if parent.kind != KeyKind::Region
                || Some(parent.pd) != pd
                || parent.access & access::MW_BIND == 0
                || writes && parent.access & access::LOCAL_WRITE == 0
            {
                return refused;
            }
            let Some(start) = parent.translate(at, len) else { return refused };
            if bound {
                self.unbind_from(region);
            }
            self.keys[target].windows += 1;
            let entry = &mut self.keys[window];
            (entry.iova, entry.start, entry.len, entry.access) = (addr, start, len, rights);
            entry.kind = KeyKind::Window { type2, bound: true, region: key, qpn };
        }
        let entry = &mut self.keys[window];
        entry.key = entry.key & !0xff | qpn_key & 0xff;
        done(0)
    }

    /// Changes an indirect key: its rights, its layout, or both; or takes the layout away.
    fn change_indirect(&mut self, index: usize, key: usize, entries: u32, wqe: &SendWqe) -> Outcome {
        const INLINE: u8 = 1 << 7;
        const CHANGES_RIGHTS: u64 = 0xf << 18;
        const CHANGES_KEY: u64 = 1 << 13;
        const CHANGES_LENGTH: u64 = 1 << 0;
        const FREE: u8 = 1 << 6;
        const DATA: usize = 8;
        let refused = Outcome::Failed(syndrome::MW_BIND);
        let units = usize::from(wqe.control.units);
        let control = wqe.bytes16(1);
        let (octowords, changes) =
            (usize::from(u16::from_be_bytes([control[4], control[5]])), wqe.be64(1, 8));
        let context = wqe.bytes16(4);
        if Some(self.keys[key].pd) != self.qps[index].pd {
            return refused;
        }
        if context[0] & FREE != 0 {
            self.invalidate_entry(key);
            return done(0);
        }
        if octowords > 0 {
            if control[0] & INLINE == 0 || DATA + octowords > units || octowords > entries as usize + 1 {
                return Outcome::Failed(syndrome::LOCAL_QP_OP);
            }
            let layout = read_layout(wqe, DATA, octowords);
            self.layouts.insert(key, layout);
        }
        let qpn_key = wqe.be32(4, 4);
        let entry = &mut self.keys[key];
        if changes & CHANGES_RIGHTS != 0 {
            entry.access = [
                (1 << 3, access::LOCAL_WRITE),
                (1 << 4, access::REMOTE_READ),
                (1 << 5, access::REMOTE_WRITE),
                (1 << 6, access::REMOTE_ATOMIC),
            ]
            .iter()
            .filter(|(bit, _)| context[2] & bit != 0)
            .fold(0, |rights, (_, right)| rights | right);
        }
        if changes & CHANGES_LENGTH != 0 {
            entry.len = wqe.be64(5, 8);
        }
        if changes & CHANGES_KEY != 0 {
            entry.key = entry.key & !0xff | qpn_key & 0xff;
        }
        if let KeyKind::Indirect { free, .. } = &mut entry.kind {
            *free = false;
        }
        done(0)
    }
}

/// The layout in a work request: a list of segments, or a block that repeats.
fn read_layout(wqe: &SendWqe, first: usize, octowords: usize) -> Layout {
    const REPEATS: u32 = 0x400;
    if wqe.be32(first, 4) == REPEATS {
        let count = (wqe.be32(first, 12) & 0xffff) as usize;
        let pieces = (first + 1..first + octowords).take(count).map(|unit| {
            let (stride_len, key) = (wqe.be32(unit, 0), wqe.be32(unit, 4));
            Piece { key, addr: wqe.be64(unit, 8), len: stride_len & 0xffff, stride: stride_len >> 16 }
        });
        return Layout { pieces: pieces.collect(), repeat: wqe.be32(first, 8) };
    }
    let pieces = (first..first + octowords).map(|unit| Piece {
        key: wqe.be32(unit, 4),
        addr: wqe.be64(unit, 8),
        len: wqe.be32(unit, 0),
        stride: 0,
    });
    Layout { pieces: pieces.filter(|piece| piece.len > 0).collect(), repeat: 1 }
}
