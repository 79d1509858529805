//! A handle as C passes it.

use zerocopy::IntoBytes;

/// The address of a handle slot's word, or any other number that C passes for a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, IntoBytes)]
#[repr(transparent)]
pub(super) struct Handle(pub(super) usize);

impl Handle {
    /// `DAT_HANDLE_NULL`.
    pub(super) const NULL: Self = Self(0);

    pub(super) fn is_null(self) -> bool {
        self.0 == 0
    }

    /// The handle unless it is NULL.
    pub(super) fn given(self) -> Option<Self> {
        (!self.is_null()).then_some(self)
    }
}
