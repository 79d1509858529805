//! What the two processes of a test tell each other to connect.

use crate::common::{Memory, ibv_qp, qpn};

/// One end of a connection, as one process tells the other about it.
pub(crate) struct End {
    pub(crate) qpn: u32,
    pub(crate) rkey: u32,
    pub(crate) addr: u64,
}

impl End {
    /// The line that [`End::read`] takes. The memory is described from its first byte.
    pub(crate) fn line(qp: *mut ibv_qp, memory: &Memory) -> String {
        format!("{} {} {}", qpn(qp), memory.rkey, memory.at(0))
    }

    pub(crate) fn read(line: &str) -> Self {
        let mut numbers = line.split_whitespace().map(|word| word.parse::<u64>().expect("a number"));
        let mut next = || numbers.next().expect("three numbers");
        Self { qpn: next() as u32, rkey: next() as u32, addr: next() }
    }
}
