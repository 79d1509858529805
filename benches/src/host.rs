//! What the host of a virtual machine does to measurements.

use std::time::{Duration, Instant};

const PAGE: usize = 4096;

/// A touch of a page in place takes less than a tenth of that, a fault of the host some 0.1 ms.
const SLOW: Duration = Duration::from_micros(5);

/// How many pages of a process the host has taken away after a time without use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The pages used.
    pub pages: usize,
    /// The pages whose next use took longer than 5 µs.
    pub taken: usize,
    /// The time of these uses.
    pub time: Duration,
}

/// Uses 16 MiB, waits, and uses them again.
#[must_use]
pub fn pages_taken(after: Duration) -> Taken {
    let memory = vec![1u8; 4096 * PAGE];
    let touch = |page: &[u8]| {
        let start = Instant::now();
        std::hint::black_box(page.first().copied());
        start.elapsed()
    };
    memory.chunks(PAGE).for_each(|page| _ = touch(page));
    std::thread::sleep(after);
    summary(memory.chunks(PAGE).map(touch))
}

fn summary(touches: impl Iterator<Item = Duration>) -> Taken {
    touches.fold(Taken { pages: 0, taken: 0, time: Duration::ZERO }, |sum, touch| {
        let slow = touch > SLOW;
        Taken {
            pages: sum.pages + 1,
            taken: sum.taken + usize::from(slow),
            time: sum.time + if slow { touch } else { Duration::ZERO },
        }
    })
}

impl Taken {
    /// Whether figures of single calls, such as dtest's, show the host instead of the provider. A
    /// few slow touches are interrupts.
    #[must_use]
    pub fn disturbs(&self) -> bool {
        self.taken * 100 > self.pages
    }
}

impl std::fmt::Display for Taken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { pages, taken, time } = self;
        write!(f, "memory: {taken} of {pages} pages took longer than 5 µs to use again")?;
        if *taken > 0 {
            write!(f, ", {} µs on average", time.as_micros() / *taken as u128)?;
        }
        if self.disturbs() {
            write!(
                f,
                ": the host takes memory back, so figures of single calls (dtest) show the host; see METHOD.md, \
                 \"A host that takes memory back\""
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(slow: usize, all: usize) -> Taken {
        let us = |n| if n < slow { Duration::from_micros(120) } else { Duration::from_nanos(60) };
        summary((0..all).map(us))
    }

    #[test]
    fn a_host_that_takes_pages_is_named() {
        let taken = of(50, 1000);
        assert_eq!(taken, Taken { pages: 1000, taken: 50, time: Duration::from_millis(6) });
        assert!(taken.disturbs());
        let text = taken.to_string();
        assert!(
            text.contains("50 of 1000 pages") && text.contains("120 µs") && text.contains("METHOD.md"),
            "{text}"
        );
    }

    #[test]
    fn a_few_interrupts_are_no_host_that_takes_pages() {
        assert!(!of(10, 1000).disturbs());
        assert_eq!(of(0, 1000).to_string(), "memory: 0 of 1000 pages took longer than 5 µs to use again");
    }
}
