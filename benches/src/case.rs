//! One case to measure, and how it is run.

/// Calls in a sample of a case whose calls are too short to time one by one.
pub const GROUP: u32 = 32;

/// Runs of a case under the instruction counter: with single calls, one lap of the queue.
pub const COUNTED_RUNS: u32 = 32;

/// A case to measure, on queues of its own.
pub trait Case {
    /// Operations in one sample.
    fn operations(&self) -> u32;

    /// Brings the queues into the state in which a sample starts. Not timed.
    fn prepare(&mut self);

    /// One sample. Timed, and counted.
    fn run(&mut self);

    /// Calls in a sample, if [`run_call`](Self::run_call) can make them one by one; otherwise 0.
    fn calls(&self) -> u32 {
        0
    }

    /// The `n`-th call of a sample. Timed alone, when lines are cold.
    fn run_call(&mut self, _n: u32) {}

    /// The data path that the subject chose, if it had a choice.
    fn data_path(&self) -> Option<&'static str> {
        None
    }
}

/// The only way to run a case, so that an instruction counter has one function to switch on.
#[inline(never)]
pub fn measured(case: &mut dyn Case) {
    case.run();
}

/// The only way to run a call of a case alone.
#[inline(never)]
pub fn measured_call(case: &mut dyn Case, n: u32) {
    case.run_call(n);
}

/// Runs a case for an instruction counter, which writes its count out when this function ends.
#[inline(never)]
pub fn counted(case: &mut dyn Case, runs: u32) {
    for _ in 0..runs {
        case.prepare();
        measured(case);
    }
}

/// As [`counted`], for a program that counts by single steps between breakpoint traps. Only for a
/// process that such a program started.
#[expect(unsafe_code, reason = "breakpoint traps")]
pub fn trapped(case: &mut dyn Case, runs: u32) {
    let trap = || {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the instruction changes nothing; the program that traces this process goes on
        // behind it.
        unsafe {
            core::arch::asm!("int3");
        }
    };
    for _ in 0..runs {
        case.prepare();
        trap();
        measured(case);
        trap();
    }
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
