#![expect(unsafe_code, reason = "memory barriers are inline assembly")]
//! Memory barriers between the processor and a DMA device, named by their purpose.
//!
//! Each function says which accesses may not pass which. On x86-64 ordinary memory already has the
//! order needed, so most barriers only stop the compiler. On aarch64 the barriers use the *outer
//! shareable* domain: a language fence orders processors among themselves (inner shareable) and
//! does not order accesses of a device.
//!
//! | barrier | order kept | x86-64 | aarch64 |
//! |---|---|---|---|
//! | [`to_device`] | stores before it, then stores after it | compiler | `dmb oshst` |
//! | [`from_device`] | loads before it, then loads after it | compiler | `dmb oshld` |
//! | [`release_to_device`] | loads before it, then stores after it | compiler | `dmb oshld` |
//! | [`flush_write_combining`] | any stores before, then stores after | `sfence` | `dsb st` |
//! | [`end_write_combining`] | none: stores before and after are not merged | compiler | `dgh` |
//!
//! # References
//!
//! rdma-core `util/udma_barrier.h` has barriers for the same purposes. Its x86-64 load barrier is
//! `lfence`. UCX, DPDK and libxlio read the same queues with a compiler barrier, since x86-64 does
//! not reorder loads from write-back memory.

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64", miri)))]
compile_error!("mlx5-direct has barriers for x86-64 and aarch64: add this architecture's to barrier.rs");

macro_rules! barrier {
    ($(#[$doc:meta])* $name:ident, x86_64: $x86:literal, aarch64: $arm:literal) => {
        $(#[$doc])*
        #[inline(always)]
        pub fn $name() {
            #[cfg(miri)]
            core::sync::atomic::fence(core::sync::atomic::Ordering::SeqCst);
            // SAFETY: the instruction touches no register and no memory operand. The option `nomem`
            // is not given, so that the compiler assumes that the instruction reads and writes all
            // memory.
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            unsafe { core::arch::asm!($x86, options(nostack, preserves_flags)) };
            // SAFETY: as above.
            #[cfg(all(target_arch = "aarch64", not(miri)))]
            unsafe { core::arch::asm!($arm, options(nostack, preserves_flags)) };
        }
    };
}

barrier!(
    /// Between writing WQEs and publishing their count: a device that sees the count sees the WQEs.
    to_device, x86_64: "", aarch64: "dmb oshst"
);
barrier!(
    /// Between the ownership test of a CQE and reading its other fields or the payload.
    from_device, x86_64: "", aarch64: "dmb oshld"
);
barrier!(
    /// Between reading CQEs and giving their room back through the consumer index.
    release_to_device, x86_64: "", aarch64: "dmb oshld"
);
barrier!(
    /// Before and after a store to a device register. Before the store, it makes the doorbell
    /// record visible first. After the store, it pushes the store out of a write-combining buffer.
    flush_write_combining, x86_64: "sfence", aarch64: "dsb st"
);
barrier!(
    /// After a BlueFlame copy by a thread that posts alone. The processor sends the copy out by
    /// itself, and the next post to the register executes a [`flush_write_combining`] first.
    end_write_combining, x86_64: "", aarch64: "hint #6"
);
