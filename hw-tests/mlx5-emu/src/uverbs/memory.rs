//! Memory regions and windows.

use std::io;

use super::command::{Answer, Command};
use crate::device::Device;
use crate::host::{mem, pin, sys};
use crate::objects::{KeyKind, Mkey, ObjectKind, access};

const KNOWN_ACCESS: u32 = access::LOCAL_WRITE
    | access::REMOTE_WRITE
    | access::REMOTE_READ
    | access::REMOTE_ATOMIC
    | access::MW_BIND
    | access::ZERO_BASED
    | access::ON_DEMAND
    | access::HUGETLB
    | access::RELAXED_ORDERING;
/// Bits that a kernel may ignore when it does not know them.
const OPTIONAL_ACCESS: u32 = 0x3ff0_0000;

pub(super) fn check_access(flags: u32) -> io::Result<()> {
    if flags & !(KNOWN_ACCESS | OPTIONAL_ACCESS) != 0 {
        return Err(sys::errno(libc::EINVAL));
    }
    if flags & (access::REMOTE_WRITE | access::REMOTE_ATOMIC) != 0 && flags & access::LOCAL_WRITE == 0 {
        return Err(sys::errno(libc::EINVAL));
    }
    Ok(())
}

/// Whether a registration covers all addresses there are; it has to be on demand then.
fn is_implicit(start: u64, len: u64, flags: u32) -> bool {
    flags & access::ON_DEMAND != 0 && start == 0 && len == u64::MAX
}

fn check_memory(start: u64, len: u64, flags: u32) -> io::Result<()> {
    if is_implicit(start, len, flags) {
        return Ok(());
    }
    if len == 0 || start.checked_add(len).is_none() {
        return Err(sys::errno(libc::EINVAL));
    }
    let writable =
        flags & (access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_ATOMIC | access::MW_BIND) != 0;
    // On-demand memory may be mapped later; each use checks the mapping.
    if flags & access::ON_DEMAND != 0 { Ok(()) } else { mem::check_range(start, len, writable) }
}

/// Pins a region's memory; the number of pages.
fn pin_memory(start: u64, len: u64, flags: u32) -> io::Result<u64> {
    if len == 0 {
        return Err(sys::errno(libc::EINVAL));
    }
    if flags & access::ON_DEMAND != 0 {
        return check_memory(start, len, flags).map(|()| 0);
    }
    let pinned = pin::take(start, len)?;
    check_memory(start, len, flags).inspect_err(|_| pin::release(pinned))?;
    Ok(pinned)
}

impl Device {
    pub(super) fn new_key(&mut self, mut key: Mkey) -> io::Result<usize> {
        key.key = 0;
        let index = self.card.keys.insert(key).ok_or_else(|| sys::errno(libc::ENOMEM))?;
        // The variant byte changes with every use of an index, so that an old key of the index is
        // invalid.
        self.key_variant = self.key_variant.wrapping_add(1);
        self.card.keys[index].key = (index as u32 ^ self.card.key_mask) << 8 | u32::from(self.key_variant);
        Ok(index)
    }

    pub(super) fn remove_key(&mut self, index: usize) {
        let Some(key) = self.card.keys.remove(index) else { return };
        pin::release(key.pinned);
        if matches!(key.kind, KeyKind::Indirect { .. }) {
            self.card.layouts.remove(&index);
        }
        if let Some(dm) = key.dm.and_then(|dm| self.dms.get_mut(dm)) {
            dm.users = dm.users.saturating_sub(1);
        }
        if let Some(pd) = self.pds.get_mut(key.pd) {
            pd.users = pd.users.saturating_sub(1);
        }
        if let KeyKind::Window { bound: true, region, .. } = key.kind {
            self.card.unbind_from(region);
        }
    }

    pub(super) fn cmd_reg_mr(&mut self, context: usize, command: &Command) -> io::Result<()> {
        command.need(40, 12)?;
        let request = command.core();
        let (start, len, iova) = (request.u64(8), request.u64(16), request.u64(24));
        let (pd, flags) = (request.u32(32), request.u32(36));
        if start & 0xfff != iova & 0xfff {
            return Err(sys::errno(libc::EINVAL));
        }
        check_access(flags)?;
        let pd = self.pd(context, pd)?;
        let pinned = pin_memory(start, len, flags)?;
        let iova = if flags & access::ZERO_BASED != 0 { start & 0xfff } else { iova };
        let region = Mkey::new(pd, KeyKind::Region);
        let index = self.new_key(Mkey { iova, start, len, access: flags, pinned, ..region });
        let index = index.inspect_err(|_| pin::release(pinned))?;
        self.pds[pd].users += 1;
        let handle = self.add_handle(context, ObjectKind::Mr, index);
        let key = self.card.keys[index].key;
        let mut out = Answer::default();
        out.u32(handle).u32(key).u32(key);
        command.answer(&out.0)
    }

    pub(super) fn cmd_rereg_mr(&mut self, context: usize, command: &Command) -> io::Result<()> {
        const TRANSLATION: u32 = 1;
        const PD: u32 = 2;
        const ACCESS: u32 = 4;
        command.need(48, 8)?;
        let request = command.core();
        let index = self.object(context, request.u32(8), ObjectKind::Mr)?;
        let flags = request.u32(12);
        if flags == 0 || flags & !(TRANSLATION | PD | ACCESS) != 0 {
            return Err(sys::errno(libc::EINVAL));
        }
        let mut key = self.card.keys[index];
        if key.dm.is_some() {
            return Err(sys::errno(libc::EOPNOTSUPP));
        }
        if key.windows > 0 {
            return Err(sys::errno(libc::EBUSY));
        }
        if flags & ACCESS != 0 {
            check_access(request.u32(44))?;
            key.access = request.u32(44);
        }
        if flags & TRANSLATION != 0 {
            (key.start, key.len, key.iova) = (request.u64(16), request.u64(24), request.u64(32));
            if key.start & 0xfff != key.iova & 0xfff {
                return Err(sys::errno(libc::EINVAL));
            }
        }
        let pd = if flags & PD != 0 { Some(self.pd(context, request.u32(40))?) } else { None };
        if flags & TRANSLATION != 0 {
            let pinned = pin_memory(key.start, key.len, key.access)?;
            pin::release(key.pinned);
            key.pinned = pinned;
        } else {
            check_memory(key.start, key.len, key.access)?;
        }
        if let Some(pd) = pd {
            self.pds[key.pd].users -= 1;
            self.pds[pd].users += 1;
            key.pd = pd;
        }
        self.card.keys[index] = key;
        let mut out = Answer::default();
        out.u32(key.key).u32(key.key);
        command.answer(&out.0)
    }

    pub(super) fn cmd_dereg_mr(&mut self, context: usize, command: &Command) -> io::Result<()> {
        command.need(4, 0)?;
        let handle = command.core().u32(0);
        let index = self.object(context, handle, ObjectKind::Mr)?;
        if self.card.keys[index].windows > 0 {
            return Err(sys::errno(libc::EBUSY));
        }
        self.remove_key(index);
        self.drop_handle(context, handle);
        Ok(())
    }

    pub(super) fn cmd_alloc_mw(&mut self, context: usize, command: &Command) -> io::Result<()> {
        command.need(16, 8)?;
        let request = command.core();
        let type2 = match request.u8(12) {
            1 => false,
            2 => true,
            _ => return Err(sys::errno(libc::EINVAL)),
        };
        let pd = self.pd(context, request.u32(8))?;
        let kind = KeyKind::Window { type2, bound: false, region: 0, qpn: 0 };
        let index = self.new_key(Mkey::new(pd, kind))?;
        self.pds[pd].users += 1;
        let handle = self.add_handle(context, ObjectKind::Mw, index);
        let mut out = Answer::default();
        out.u32(handle).u32(self.card.keys[index].key);
        command.answer(&out.0)
    }

    pub(super) fn cmd_dealloc_mw(&mut self, context: usize, command: &Command) -> io::Result<()> {
        command.need(4, 0)?;
        let handle = command.core().u32(0);
        let index = self.object(context, handle, ObjectKind::Mw)?;
        self.remove_key(index);
        self.drop_handle(context, handle);
        Ok(())
    }
}
