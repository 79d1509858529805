//! Device memory: pages of the context's shared memory, which the program maps as it maps the
//! memory of a card, and regions on these pages.
//!
//! The shared memory itself holds the bit mask of allocated pages, because a forked child allocates
//! from the same pages.

use std::io;
use std::os::fd::RawFd;

use super::attr::{Attr, DRIVER, find, need};
use super::file::Uverbs;
use super::limits::MAX_DM_SIZE;
use super::memory::check_access;
use crate::device::Device;
use crate::host::sys;
use crate::objects::{Dm, KeyKind, Mkey, ObjectKind, access};

/// First page of the area in the context's memory: `MLX5_IB_MMAP_DEVICE_MEM` in the command part of
/// an mmap offset.
const AREA: usize = 8 << 8;
/// Pages of the area. The mask of allocated pages has one bit per page.
const AREA_PAGES: u32 = 64;
/// Offset of that word: a page that no mmap command names.
const TAKEN: usize = (9 << 8) * PAGE;
const PAGE: usize = 4096;

fn invalid() -> io::Error {
    sys::errno(libc::EINVAL)
}

/// The bits of `pages` neighbouring pages that are all free in `taken`, and the first of them.
fn find_free(taken: u64, pages: u32) -> Option<(u64, u32)> {
    let ones = u64::MAX >> (AREA_PAGES - pages);
    (0..=AREA_PAGES - pages).map(|first| (ones << first, first)).find(|&(bits, _)| taken & bits == 0)
}

pub(super) fn allocate(file: &Uverbs, fd: RawFd, attrs: &[Attr]) -> io::Result<()> {
    const MEMIC: u64 = 0;
    let handle = need(attrs, 0)?;
    let (len, log_align) = (need(attrs, 1)?.data, need(attrs, 2)?.data as u32);
    if find(attrs, DRIVER + 2).is_some_and(|kind| kind.data & 0xff != MEMIC) || log_align > 12 {
        return Err(sys::errno(libc::EOPNOTSUPP));
    }
    let (offset, page) = (need(attrs, DRIVER)?, need(attrs, DRIVER + 1)?);
    if len == 0 {
        return Err(invalid());
    }
    if len > MAX_DM_SIZE {
        return Err(sys::errno(libc::ENOMEM));
    }
    let pages = len.div_ceil(PAGE as u64) as u32;
    let (mut device, context) = file.locked(fd)?;
    if device.card.dead {
        return Err(sys::errno(libc::EIO));
    }
    let uar = device.card.contexts[context].uar;
    let mut first = None;
    uar.update64(TAKEN, |taken| {
        let (bits, at) = find_free(taken, pages)?;
        first = Some(at);
        Some(taken | bits)
    });
    let first = first.ok_or_else(|| sys::errno(libc::ENOMEM))? as u16;
    let dm = Dm { context, page: first, pages: pages as u16, len, users: 0 };
    let index = device.dms.insert(dm).ok_or_else(|| sys::errno(libc::ENOMEM))?;
    let object = device.add_handle(context, ObjectKind::Dm, index);
    drop(device);
    offset.answer(&0u64.to_ne_bytes())?;
    page.answer(&first.to_ne_bytes())?;
    handle.answer_handle(object)
}

pub(super) fn free(file: &Uverbs, fd: RawFd, attrs: &[Attr]) -> io::Result<()> {
    let handle = need(attrs, 0)?.data as u32;
    let (mut device, context) = file.locked(fd)?;
    let index = device.object(context, handle, ObjectKind::Dm)?;
    if device.dms[index].users > 0 {
        return Err(sys::errno(libc::EBUSY));
    }
    device.remove_dm(index);
    device.drop_handle(context, handle);
    Ok(())
}

/// Where a piece lies, for a context that imports it.
pub(super) fn query(file: &Uverbs, fd: RawFd, attrs: &[Attr]) -> io::Result<()> {
    let (device, context) = file.locked(fd)?;
    let index = device.object(context, need(attrs, DRIVER)?.data as u32, ObjectKind::Dm)?;
    let (page, len) = (device.dms[index].page, device.dms[index].len);
    drop(device);
    need(attrs, DRIVER + 1)?.answer(&0u64.to_ne_bytes())?;
    need(attrs, DRIVER + 2)?.answer(&page.to_ne_bytes())?;
    need(attrs, DRIVER + 3)?.answer(&len.to_ne_bytes())
}

/// Registers a region on a piece of device memory; its addresses count from zero.
pub(super) fn register(file: &Uverbs, fd: RawFd, attrs: &[Attr]) -> io::Result<()> {
    let handle = need(attrs, 0)?;
    let (offset, len) = (need(attrs, 1)?.data, need(attrs, 2)?.data);
    let flags = need(attrs, 4)?.data as u32;
    let (lkey, rkey) = (need(attrs, 6)?, need(attrs, 7)?);
    check_access(flags)?;
    if flags & access::ZERO_BASED == 0 {
        return Err(invalid());
    }
    let (mut device, context) = file.locked(fd)?;
    let pd = device.pd(context, need(attrs, 3)?.data as u32)?;
    let index = device.object(context, need(attrs, 5)?.data as u32, ObjectKind::Dm)?;
    let dm = &mut device.dms[index];
    if offset > dm.len || len > dm.len - offset {
        return Err(invalid());
    }
    let start = (AREA + usize::from(dm.page)) * PAGE;
    let start = device.card.contexts[context].uar.address() + start as u64 + offset;
    let region = Mkey::new(pd, KeyKind::Region);
    let key = device.new_key(Mkey { start, len, access: flags, dm: Some(index), ..region })?;
    device.dms[index].users += 1;
    device.pds[pd].users += 1;
    let object = device.add_handle(context, ObjectKind::Mr, key);
    let key = device.card.keys[key].key;
    drop(device);
    lkey.answer(&key.to_ne_bytes())?;
    rkey.answer(&key.to_ne_bytes())?;
    handle.answer_handle(object)
}

impl Device {
    pub(super) fn remove_dm(&mut self, index: usize) {
        let Some(dm) = self.dms.remove(index) else { return };
        let Some(context) = self.card.contexts.get(dm.context) else { return };
        let (bits, _) = find_free(0, u32::from(dm.pages)).unwrap_or_default();
        context.uar.update64(TAKEN, |taken| Some(taken & !(bits << dm.page)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_found_side_by_side_or_not_at_all() {
        assert_eq!(find_free(0, 64), Some((u64::MAX, 0)));
        assert_eq!(find_free(0b101, 2), Some((0b11000, 3)));
        assert_eq!(find_free(u64::MAX << 1, 1), Some((1, 0)));
        assert_eq!(find_free(u64::MAX << 1, 2), None);
    }
}
