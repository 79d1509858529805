//! Protection domains, XRC domains, address handles.

#[derive(Debug, Default)]
pub(crate) struct Pd {
    pub(crate) users: u32,
}

#[derive(Debug, Default)]
pub(crate) struct Xrcd {
    /// Device and inode of the file it was opened with.
    pub(crate) inode: Option<crate::host::sys::FileId>,
    /// Handles open on it.
    pub(crate) opens: u32,
    pub(crate) users: u32,
}

#[derive(Debug, Default, Clone)]
pub(crate) struct Ah {
    pub(crate) pd: usize,
}
