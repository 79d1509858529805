#![expect(unsafe_code, reason = "memory barriers are inline assembly")]
//! Memory barriers between the processor and a DMA device, named by what they are for.
//!
//! Each says which accesses may not pass which. On x86-64 ordinary memory is already ordered as needed, so most of them
//! only stop the compiler. On aarch64 they use the *outer shareable* domain: a language fence orders processors among
//! themselves (inner shareable) and says nothing about a device.
//!
//! | barrier | order kept | x86-64 | aarch64 |
//! |---|---|---|---|
//! | [`to_device`] | stores before it, then stores after it | compiler | `dmb oshst` |
//! | [`from_device`] | loads before it, then loads after it | compiler | `dmb oshld` |
//! | [`release_to_device`] | loads before it, then stores after it | compiler | `dmb oshld` |
//! | [`flush_write_combining`] | stores of any memory type before it, then stores after it | `sfence` | `dsb st` |
//! | [`end_write_combining`] | none: the stores before it are not merged with those after it | compiler | `dgh` |
//!
//! # References
//!
//! rdma-core `util/udma_barrier.h` names the same purposes. Its x86-64 load barrier is `lfence`; UCX, DPDK and libxlio,
//! which read the same queues, use a compiler barrier, since x86-64 does not reorder loads from write-back memory.

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64", miri)))]
compile_error!("mlx5-direct has barriers for x86-64 and aarch64: add this architecture's to barrier.rs");

macro_rules! barrier {
    ($(#[$doc:meta])* $name:ident, x86_64: $x86:literal, aarch64: $arm:literal) => {
        $(#[$doc])*
        #[inline(always)]
        pub fn $name() {
            #[cfg(miri)]
            core::sync::atomic::fence(core::sync::atomic::Ordering::SeqCst);
            // SAFETY: the instruction touches no register and no memory operand. `nomem` is left out on purpose: the
            // compiler must assume that all memory is read and written here.
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            unsafe { core::arch::asm!($x86, options(nostack, preserves_flags)) };
            // SAFETY: as above.
            #[cfg(all(target_arch = "aarch64", not(miri)))]
            unsafe { core::arch::asm!($arm, options(nostack, preserves_flags)) };
        }
    };
}

barrier!(
    /// Between writing WQEs and publishing their count: whoever sees the count sees the WQEs.
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
    /// Before a store to a device register (the record it refers to is visible first), and after it, to push it out of a
    /// write-combining buffer.
    flush_write_combining, x86_64: "sfence", aarch64: "dsb st"
);
barrier!(
    /// After a BlueFlame copy by a thread that posts alone: the copy leaves the processor by itself, and the next post to the
    /// register has a [`flush_write_combining`] before it.
    end_write_combining, x86_64: "", aarch64: "hint #6"
);
