//! What the host of a virtual machine does to measurements.

use std::time::{Duration, Instant};

const PAGE: usize = 4096;

/// Reading a page takes less than a tenth of that; if the host has taken the page away, some 0.1 ms.
const SLOW: Duration = Duration::from_micros(5);

/// How many pages of a process were taken away after a time without use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The pages used.
    pub pages: usize,
    /// The pages whose next use took longer than 5 µs.
    pub taken: usize,
    /// The time of these uses.
    pub time: Duration,
}

/// Writes 16 MiB, waits, and reads each page.
#[must_use]
pub fn pages_taken(after: Duration) -> Taken {
    let memory = vec![1u8; 4096 * PAGE];
    let touch = |page: &[u8]| {
        let start = Instant::now();
        std::hint::black_box(page.first().copied());
        start.elapsed()
    };
    std::thread::sleep(after);
    summary(&memory.chunks(PAGE).map(touch).collect::<Vec<_>>())
}

/// Uses so many bytes of free memory. If the host had taken these away, they are back when the next
/// process gets them.
pub fn bring_back(bytes: usize) {
    std::hint::black_box(vec![1u8; bytes]);
}

fn summary(touches: &[Duration]) -> Taken {
    let slow = touches.iter().filter(|touch| **touch > SLOW);
    Taken { pages: touches.len(), taken: slow.clone().count(), time: slow.sum() }
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
                ": probably the host of this virtual machine takes idle pages back, and figures of single \
                 calls (dtest) contain that; see METHOD.md, \"dtest\""
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
        summary(&(0..all).map(us).collect::<Vec<_>>())
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
