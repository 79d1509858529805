//! Key changes by work request: binding memory windows and invalidating them.

use super::cqe::syndrome;
use super::requester::{Outcome, done};
use super::swqe::SendWqe;
use crate::complaints::{Kind, complain};
use crate::device::Device;
use crate::objects::{KeyKind, access};

impl Device {
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
            // Where the window's addresses count from is one thing, what lies there another.
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
}
