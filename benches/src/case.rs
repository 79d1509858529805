//! What is measured.

/// What a row of the report stands for. The names are the report's keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// Operation, for instance `post_new` or `poll`.
    pub case: &'static str,
    /// Who carries it out, for instance `direct`.
    pub subject: &'static str,
    /// WQEs or CQEs a call handles.
    pub batch: u32,
    /// Data segments that a WQE has room for.
    pub segments: u32,
    /// Receives that can be posted at a time.
    pub depth: u32,
}

/// One thing to measure, on queues of its own.
pub trait Case {
    /// What its row is called.
    fn key(&self) -> Key;

    /// Calls in one timed sample: 1 where a call is long enough to time by itself.
    fn calls(&self) -> u32;

    /// Brings the queues into the state in which a sample starts. Not timed.
    fn prepare(&mut self);

    /// [`calls`](Self::calls) calls of [`Key::batch`] operations each. Timed, and counted.
    fn run(&mut self);

    /// Operations in one sample.
    fn operations(&self) -> u32 {
        self.calls() * self.key().batch
    }
}

/// The only way a case is run, so that an instruction counter has one function to switch on.
#[inline(never)]
pub fn measured(case: &mut dyn Case) {
    case.run();
}

/// A small deterministic random source (xorshift64*): every run completes in the same order.
#[derive(Debug)]
pub struct Rng(u64);

impl Rng {
    /// A source that starts from `seed`, which is not 0.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        ((u128::from(self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)) * n as u128) >> 64) as usize
    }
}
