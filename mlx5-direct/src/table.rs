//! Tables of queues. If there is no memory for a table, its creation fails and the process
//! continues.

use std::collections::TryReserveError;

/// A table of `n` entries; `entry` makes each from its index.
pub(crate) fn table<T>(n: usize, entry: impl FnMut(usize) -> T) -> Result<Box<[T]>, TryReserveError> {
    let mut entries = Vec::new();
    entries.try_reserve_exact(n)?;
    entries.extend((0..n).map(entry));
    // The length equals the capacity, so this allocates nothing.
    Ok(entries.into_boxed_slice())
}

/// A table whose length is known at compile time.
pub(crate) fn fixed<T: Copy, const N: usize>(entry: T) -> Result<Box<[T; N]>, TryReserveError> {
    let table = table(N, |_| entry)?;
    Ok(table.try_into().unwrap_or_else(|_| unreachable!("the table has N entries")))
}
