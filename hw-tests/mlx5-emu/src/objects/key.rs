//! Memory regions, windows, indirect keys, device memory.

/// Access bits of a region (`enum ibv_access_flags`).
pub(crate) mod access {
    pub(crate) const LOCAL_WRITE: u32 = 1;
    pub(crate) const REMOTE_WRITE: u32 = 2;
    pub(crate) const REMOTE_READ: u32 = 4;
    pub(crate) const REMOTE_ATOMIC: u32 = 8;
    pub(crate) const MW_BIND: u32 = 16;
    pub(crate) const ZERO_BASED: u32 = 32;
    pub(crate) const ON_DEMAND: u32 = 64;
    pub(crate) const HUGETLB: u32 = 128;
    pub(crate) const RELAXED_ORDERING: u32 = 1 << 20;
}

/// A piece of program memory after translation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seg {
    pub(crate) addr: u64,
    pub(crate) len: u32,
}

/// The object behind a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyKind {
    /// A memory region.
    Region,
    /// A memory window. It is bound when `len` is not zero. A `type2` window is bound by a work
    /// request and may be invalidated remotely.
    Window { type2: bool, bound: bool, region: u32, qpn: u32 },
    /// Pieces of other regions in a row ([`Layout`]); `free` when no work request has given it any.
    Indirect { entries: u32, free: bool, remote_invalidate: bool },
}

/// A memory region or window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mkey {
    /// The full key: index << 8 | variant.
    pub(crate) key: u32,
    pub(crate) pd: usize,
    /// First address, in the address space of work requests.
    pub(crate) iova: u64,
    /// Where that is in the program's memory.
    pub(crate) start: u64,
    pub(crate) len: u64,
    pub(crate) access: u32,
    pub(crate) kind: KeyKind,
    /// Windows bound to this region.
    pub(crate) windows: u32,
    /// Pages pinned for it.
    pub(crate) pinned: u64,
    /// The device memory that it covers, instead of memory of the program.
    pub(crate) dm: Option<usize>,
}

impl Mkey {
    /// A key without memory; `new_key` assigns its number.
    pub(crate) fn new(pd: usize, kind: KeyKind) -> Self {
        let (iova, start, len) = (0, 0, 0);
        Self { key: 0, pd, iova, start, len, access: 0, kind, windows: 0, pinned: 0, dm: None }
    }

    /// Translates `[addr, addr + len)`; `None` when it leaves the region.
    #[inline(always)]
    pub(crate) fn translate(&self, addr: u64, len: u64) -> Option<u64> {
        let offset = addr.wrapping_sub(self.iova);
        if offset > self.len || self.len - offset < len {
            return None;
        }
        Some(self.start.wrapping_add(offset))
    }
}

/// Memory behind an indirect key: pieces in a row, repeated `repeat` times.
#[derive(Clone, Debug, Default)]
pub(crate) struct Layout {
    pub(crate) pieces: Vec<Piece>,
    pub(crate) repeat: u32,
}

/// A piece of a region. Its address moves by `stride` with each repetition.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) key: u32,
    pub(crate) addr: u64,
    pub(crate) len: u32,
    pub(crate) stride: u32,
}

/// A piece of device memory: pages of its context's shared memory.
#[derive(Debug)]
pub(crate) struct Dm {
    pub(crate) context: usize,
    /// First page, counted from the start of the area for device memory.
    pub(crate) page: u16,
    pub(crate) pages: u16,
    pub(crate) len: u64,
    /// Regions registered on it.
    pub(crate) users: u32,
}
