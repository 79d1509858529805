//! A hint to the compiler.

/// Tells the compiler that the condition is true nearly always, so that the check stays a plain
/// branch instead of becoming part of a computed condition.
#[inline(always)]
pub fn likely(condition: bool) -> bool {
    if !condition {
        unlikely();
    }
    condition
}

#[cold]
#[inline]
fn unlikely() {}
