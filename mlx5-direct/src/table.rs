//! Tables of queues, of which memory may be short: their creation fails then, and the process goes on.

use std::collections::TryReserveError;

/// A table of `n` entries, made by their numbers.
pub(crate) fn table<T>(n: usize, entry: impl FnMut(usize) -> T) -> Result<Box<[T]>, TryReserveError> {
    let mut entries = Vec::new();
    entries.try_reserve_exact(n)?;
    entries.extend((0..n).map(entry));
    // As long as its memory, so that nothing is allocated again.
    Ok(entries.into_boxed_slice())
}

/// A table whose length is known when it is compiled.
pub(crate) fn fixed<T: Copy, const N: usize>(entry: T) -> Result<Box<[T; N]>, TryReserveError> {
    let table = table(N, |_| entry)?;
    Ok(table.try_into().unwrap_or_else(|_| unreachable!("the table has N entries")))
}
