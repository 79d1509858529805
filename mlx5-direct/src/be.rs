//! Big-endian integers with the alignment of the integer they hold.
//!
//! Queue memory is big-endian. A field of one of these types can only be set from, or read as, a
//! host value, so a forgotten byte swap does not compile.

macro_rules! big_endian {
    ($(#[$doc:meta])* $name:ident, $int:ty) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        #[repr(transparent)]
        pub struct $name($int);

        impl $name {
            /// Stores the host value `v` in big-endian order.
            #[inline(always)]
            pub const fn new(v: $int) -> Self {
                Self(v.to_be())
            }

            /// The host value.
            #[inline(always)]
            pub const fn get(self) -> $int {
                <$int>::from_be(self.0)
            }

            /// The bits in memory order, read as a native integer.
            #[inline(always)]
            pub const fn raw(self) -> $int {
                self.0
            }

            /// Wraps bits that were read from queue memory.
            #[inline(always)]
            pub const fn from_raw(raw: $int) -> Self {
                Self(raw)
            }
        }
    };
}

big_endian!(
    /// A 16-bit big-endian field (`__be16`).
    Be16, u16
);
big_endian!(
    /// A 32-bit big-endian field (`__be32`).
    Be32, u32
);
big_endian!(
    /// A 64-bit big-endian field (`__be64`).
    Be64, u64
);
