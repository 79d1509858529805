//! Faults on demand, by API or by `MLX5_EMU_FAULTS`.
//!
//! The variable holds rules separated by `;`. A rule has the form `what[=value][*count][@skip]`.
//! The meaning of `value` depends on the rule. `count` is the number of times that the rule applies
//! (default 1, `*0` for ever). `@skip` is the number of occasions to let pass first. Rules:
//!
//! | rule | effect |
//! |---|---|
//! | `drop` | a request gets lost: retransmitted on reliable transports, gone on others |
//! | `delay=MICROSECONDS` | a request waits |
//! | `rnr` | a request is answered "receiver not ready" |
//! | `abort` | a receive of an SRQ completes with a page fault, and the sender tries again |
//! | `error=SYNDROME` | a request fails: 1 length, 2 QP, 4 protection, 0x12..0x16 remote, ... |
//! | `hold` | a send completion is held back until completions of another QP passed it |
//! | `repeat` | a send completion is written twice |
//! | `stale` | a completion lacks its owner bit until the next explicit step |
//! | `forge=NUMBER` | a receive completion has a wrong byte: its place times 256, and the byte |
//! | `late` | a receive completion and each LAST_WQE_REACHED wait for the order `release` |
//! | `post=ERRNO` | libmlx5 refuses a send that a program posts |
//! | `deaf` | the host of an address does not answer when the address is resolved |
//! | `event=NUMBER` | an event of rdma_cm comes as another: its number times 256, and the other |
//! | `cmd.NAME=ERRNO` | a command fails (`cmd.create_srq=12`); names: `commands.rs` |

use crate::host::mem::Area;
use crate::objects::commands;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether there ever was a rule [`Fault::Post`]. Posts ask for the device only then.
pub(crate) static REFUSES_POSTS: AtomicBool = AtomicBool::new(false);

/// The kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// A request gets lost.
    Drop,
    /// A request waits this many microseconds.
    Delay(u64),
    /// A request is answered "receiver not ready".
    NotReady,
    /// The memory of an SRQ's receive is not there (on-demand paging): the receive completes with
    /// an error that breaks no QP, and the request is answered "receiver not ready".
    Abort,
    /// A request completes with this syndrome.
    Error(u8),
    /// A send completion is written only after one of another QP (or at the next explicit step).
    Hold,
    /// A send completion is written twice.
    Repeat,
    /// A completion is written without its owner bit. The owner bit follows at the next explicit
    /// step.
    StaleOwner,
    /// A receive completion has this byte at this place.
    Forge {
        /// From the first byte of the completion on.
        at: u8,
        /// At place 63, the owner bit stays as it is.
        byte: u8,
    },
    /// A receive completion is written without its owner bit. The owner bit and every later
    /// LAST_WQE_REACHED follow at [`release_late`](crate::control::release_late).
    LateReceive,
    /// libmlx5 refuses a send that a program posts, with this errno.
    Post(i32),
    /// No host answers when an address is resolved.
    Deaf,
    /// An event of the connection manager with the first number (`RDMA_CM_EVENT_*`) comes with the
    /// second.
    Event {
        /// Its number.
        from: u8,
        /// The number that the program sees.
        to: u8,
    },
    /// The command with this name fails with this errno.
    Command(&'static str, i32),
}

/// A fault and when it strikes.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// The fault.
    pub fault: Fault,
    /// Occasions that pass unharmed first.
    pub skip: u32,
    /// How often it happens; 0 for ever.
    pub count: u32,
    /// Only at this QP (number); `None` for any. Commands have no QP.
    pub qpn: Option<u32>,
}

impl Rule {
    /// The fault once, at the next occasion.
    pub fn once(fault: Fault) -> Self {
        Self { fault, skip: 0, count: 1, qpn: None }
    }

    /// Sets how often the rule applies.
    #[must_use]
    pub fn times(mut self, count: u32) -> Self {
        self.count = count;
        self
    }

    /// Sets how many occasions pass before the rule applies.
    #[must_use]
    pub fn after(mut self, skip: u32) -> Self {
        self.skip = skip;
        self
    }

    /// Only at this QP.
    #[must_use]
    pub fn at(mut self, qpn: u32) -> Self {
        self.qpn = Some(qpn);
        self
    }
}

/// The injected fate of a request.
pub(crate) enum Injected {
    Drop,
    Delay(u64),
    NotReady,
    Error(u8),
}

/// A send completion held back.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) cq: usize,
    pub(crate) qp: usize,
    pub(crate) srqn_uidx: u32,
    pub(crate) byte_cnt: u32,
    pub(crate) sop_qpn: u32,
    pub(crate) wqe_counter: u16,
    pub(crate) inline: Option<Vec<u8>>,
}

/// An owner byte of a late receive: CQ, buffer, offset, value.
pub(crate) type LateOwner = (usize, Area, usize, u8);

/// The rules in force.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    rules: Vec<Rule>,
    held: Vec<Held>,
    /// Owner bytes still to be written: buffer, offset, value.
    stale: Vec<(Area, usize, u8)>,
    /// The same of receives.
    late: Vec<LateOwner>,
    /// QPs whose LAST_WQE_REACHED waits for the late receives.
    late_last: Vec<usize>,
    /// True when there is any rule or held completion. The fast path checks only this field.
    pub(crate) active: bool,
}

pub(crate) fn parse(text: &str) -> Result<Rule, String> {
    let mut rest = text.trim();
    let mut rule = Rule::once(Fault::Drop);
    if let Some((head, skip)) = rest.split_once('@') {
        rule.skip = skip.trim().parse().map_err(|_| format!("{text}: @ wants a number"))?;
        rest = head;
    }
    if let Some((head, count)) = rest.split_once('*') {
        rule.count = count.trim().parse().map_err(|_| format!("{text}: * wants a number"))?;
        rest = head;
    }
    let (name, value) = rest.split_once('=').map_or((rest.trim(), None), |(n, v)| (n.trim(), Some(v.trim())));
    let number = || -> Result<u64, String> {
        let value = value.ok_or_else(|| format!("{text}: wants =value"))?;
        let parsed =
            value.strip_prefix("0x").map_or_else(|| value.parse(), |hex| u64::from_str_radix(hex, 16));
        parsed.map_err(|_| format!("{text}: {value} is not a number"))
    };
    rule.fault = match name {
        "drop" => Fault::Drop,
        "rnr" => Fault::NotReady,
        "abort" => Fault::Abort,
        "hold" => Fault::Hold,
        "repeat" => Fault::Repeat,
        "stale" => Fault::StaleOwner,
        "late" => Fault::LateReceive,
        "deaf" => Fault::Deaf,
        "post" => Fault::Post(i32::try_from(number()?).map_err(|_| format!("{text}: not an errno"))?),
        "delay" => Fault::Delay(number()?),
        "forge" => match number()? {
            at_and_byte @ 0..0x4000 => Fault::Forge { at: (at_and_byte >> 8) as u8, byte: at_and_byte as u8 },
            _ => return Err(format!("{text}: a completion has 64 bytes")),
        },
        "event" => match number()? {
            from_and_to @ 0..0x1_0000 => {
                Fault::Event { from: (from_and_to >> 8) as u8, to: from_and_to as u8 }
            }
            _ => return Err(format!("{text}: two numbers of one byte")),
        },
        "error" => {
            Fault::Error(u8::try_from(number()?).map_err(|_| format!("{text}: a syndrome is one byte"))?)
        }
        _ => {
            let command =
                name.strip_prefix("cmd.").and_then(|name| commands::names().find(|known| *known == name));
            let command = command.ok_or_else(|| format!("{text}: no such fault"))?;
            Fault::Command(command, i32::try_from(number()?).map_err(|_| format!("{text}: not an errno"))?)
        }
    };
    Ok(rule)
}

impl Faults {
    pub(crate) fn from_environment() -> Self {
        let mut faults = Self::default();
        let Ok(text) = std::env::var("MLX5_EMU_FAULTS") else { return faults };
        for part in text.split(';').filter(|part| !part.trim().is_empty()) {
            match parse(part) {
                Ok(rule) => faults.add(rule),
                Err(error) => crate::host::sys::say!("mlx5-emu: MLX5_EMU_FAULTS: {error}; rule ignored"),
            }
        }
        faults
    }

    pub(crate) fn add(&mut self, rule: Rule) {
        if matches!(rule.fault, Fault::Post(_)) {
            REFUSES_POSTS.store(true, Ordering::Relaxed);
        }
        self.rules.push(rule);
        self.active = true;
    }

    fn update(&mut self) {
        let pending = !self.held.is_empty() || !self.stale.is_empty() || !self.late.is_empty();
        self.active = !self.rules.is_empty() || pending;
    }

    pub(crate) fn clear(&mut self) {
        self.rules.clear();
        self.update();
    }

    /// Finds the rule for an occasion and uses it up.
    fn strike(&mut self, qpn: Option<u32>, applies: impl Fn(Fault) -> bool) -> Option<Fault> {
        let at = self
            .rules
            .iter()
            .position(|rule| applies(rule.fault) && (rule.qpn.is_none() || rule.qpn == qpn))?;
        let rule = &mut self.rules[at];
        if rule.skip > 0 {
            rule.skip -= 1;
            return None;
        }
        let fault = rule.fault;
        if rule.count == 1 {
            self.rules.remove(at);
            self.update();
        } else if rule.count > 1 {
            rule.count -= 1;
        }
        Some(fault)
    }

    pub(crate) fn command_error_named(&mut self, name: &str) -> Option<i32> {
        if !self.active {
            return None;
        }
        match self.strike(None, |fault| matches!(fault, Fault::Command(known, _) if known == name))? {
            Fault::Command(_, errno) => Some(errno),
            _ => None,
        }
    }

    pub(crate) fn command_error(&mut self, number: u32) -> Option<i32> {
        if !self.active {
            return None;
        }
        let name = commands::name(number)?;
        self.command_error_named(name)
    }

    pub(crate) fn on_request(&mut self, qpn: u32) -> Option<Injected> {
        let fault =
            self.strike(Some(qpn), |fault| matches!(fault, Fault::Drop | Fault::Delay(_) | Fault::Error(_)))?;
        Some(match fault {
            Fault::Drop => Injected::Drop,
            Fault::Delay(micros) => Injected::Delay(micros * 1000),
            Fault::Error(code) => Injected::Error(code),
            _ => Injected::NotReady,
        })
    }

    /// The errno with which a send is refused.
    pub(crate) fn refuses_post(&mut self, qpn: u32) -> Option<i32> {
        match self.strike(Some(qpn), |fault| matches!(fault, Fault::Post(_)))? {
            Fault::Post(errno) => Some(errno),
            _ => None,
        }
    }

    /// Whether the host of an address that is to be resolved does not answer.
    pub(crate) fn is_deaf(&mut self) -> bool {
        self.active && self.strike(None, |fault| fault == Fault::Deaf).is_some()
    }

    /// The number with which an event of the connection manager comes.
    pub(crate) fn event(&mut self, number: u32) -> u32 {
        if !self.active {
            return number;
        }
        let applies = |fault| matches!(fault, Fault::Event { from, .. } if u32::from(from) == number);
        match self.strike(None, applies) {
            Some(Fault::Event { to, .. }) => to.into(),
            _ => number,
        }
    }

    /// The place and the wrong byte of a completion that is about to be written.
    #[cold]
    pub(crate) fn forged(&mut self, op: u8) -> Option<(usize, u8)> {
        if !matches!(op, 1..=4) {
            return None;
        }
        match self.strike(None, |fault| matches!(fault, Fault::Forge { .. }))? {
            Fault::Forge { at, byte } => Some((at.into(), byte)),
            _ => None,
        }
    }

    /// A completion is about to get its owner byte. Returns true if a fault delays the owner byte.
    #[cold]
    pub(crate) fn keep_owner_stale(&mut self, cq: usize, buf: Area, offset: usize, value: u8) -> bool {
        let receive = matches!(value >> 4, 1..=4);
        let applies = |fault| fault == Fault::StaleOwner || fault == Fault::LateReceive && receive;
        let Some(fault) = self.strike(None, applies) else { return false };
        // Writes the owner bit of the previous lap. The rest of the completion is already complete.
        buf.publish_byte(offset, value ^ 1);
        if fault == Fault::LateReceive {
            self.late.push((cq, buf, offset, value));
        } else {
            self.stale.push((buf, offset, value));
        }
        self.active = true;
        true
    }

    /// A QP is reset or destroyed: it completes nothing any more.
    pub(crate) fn forget_held(&mut self, qp: usize) {
        self.held.retain(|held| held.qp != qp);
    }

    /// A send completion of a QP is about to be written. Returns the fault that strikes it.
    pub(crate) fn on_send_completion(&mut self, qpn: u32) -> Option<Fault> {
        self.strike(Some(qpn), |fault| matches!(fault, Fault::Hold | Fault::Repeat))
    }

    pub(crate) fn hold(&mut self, completion: Held) {
        self.held.push(completion);
        self.active = true;
    }

    /// The held completions of this CQ that a completion of `qp` releases: those of other QPs.
    pub(crate) fn passed_by(&mut self, cq: usize, qp: usize) -> Vec<Held> {
        let held = std::mem::take(&mut self.held);
        let (kept, passed) = held.into_iter().partition(|held| held.qp == qp || held.cq != cq);
        self.held = kept;
        self.update();
        passed
    }

    pub(crate) fn take_held(&mut self) -> Vec<Held> {
        std::mem::take(&mut self.held)
    }

    /// Writes the owner bytes that [`Fault::StaleOwner`] left out.
    pub(crate) fn publish_stale(&mut self) {
        for (buf, offset, value) in std::mem::take(&mut self.stale) {
            buf.publish_byte(offset, value);
        }
        self.update();
    }

    /// The owner bytes of late receives with their CQs, and the QPs whose LAST_WQE_REACHED waits
    /// for them.
    pub(crate) fn take_late(&mut self) -> (Vec<LateOwner>, Vec<usize>) {
        let late = (std::mem::take(&mut self.late), std::mem::take(&mut self.late_last));
        self.update();
        late
    }

    /// A QP has taken its last receive. Returns true if LAST_WQE_REACHED must wait for late
    /// receives.
    pub(crate) fn keep_last_wqe(&mut self, qp: usize) -> bool {
        let late = !self.late.is_empty();
        if late {
            self.late_last.push(qp);
        }
        late
    }

    /// At the responder: acts as if there were no receive WQE.
    pub(crate) fn force_not_ready(&mut self, qpn: u32) -> bool {
        self.strike(Some(qpn), |fault| fault == Fault::NotReady).is_some()
    }

    /// At the responder: whether the receive WQE just taken from an SRQ meets a page fault.
    pub(crate) fn aborts(&mut self, qpn: u32) -> bool {
        self.strike(Some(qpn), |fault| fault == Fault::Abort).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_parse() {
        let rule = parse("delay=20*3@2").unwrap();
        assert_eq!((rule.fault, rule.count, rule.skip), (Fault::Delay(20), 3, 2));
        assert_eq!(parse("cmd.create_srq=12").unwrap().fault, Fault::Command("create_srq", 12));
        assert_eq!(parse("error=0x13").unwrap().fault, Fault::Error(0x13));
        assert_eq!(parse("forge=0x3f50").unwrap().fault, Fault::Forge { at: 63, byte: 0x50 });
        assert!(parse("forge=0x4000").is_err());
        assert_eq!(parse("cmd.resolve_addr=113").unwrap().fault, Fault::Command("resolve_addr", 113));
        assert!(parse("cmd.nonsense=1").is_err());
        assert_eq!(parse("event=0x0506").unwrap().fault, Fault::Event { from: 5, to: 6 });
        assert!(parse("event=0x10000").is_err());
        assert!(parse("delay").is_err());
    }

    #[test]
    fn skip_and_count_are_used_up() {
        let mut faults = Faults::default();
        faults.add(Rule::once(Fault::NotReady).times(2).after(1));
        let hits: Vec<bool> = (0..4).map(|_| faults.force_not_ready(1)).collect();
        assert_eq!(hits, [false, true, true, false]);
        assert!(!faults.active);
    }
}
