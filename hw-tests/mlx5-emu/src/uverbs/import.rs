//! Commands for a second user of a context: the answer of GET_CONTEXT again, the numbers of
//! existing objects, advice about regions, and the pages through which a program reads the device's
//! clock.

use std::io;
use std::os::fd::RawFd;

use super::attr::{Attr, DRIVER, find, need};
use super::command::{Answer, Command, Reader, Room};
use super::file::Uverbs;
use crate::device::Device;
use crate::host::{clock, mem, sys};
use crate::objects::commands::{CREATE_CQ, CREATE_QP, EX};
use crate::objects::{ObjectKind, access};

/// The page of the device's clock in the context's memory (`MLX5_IB_MMAP_CORE_CLOCK`).
const CLOCK: usize = (5 << 8) * 4096;
/// The page with the conversion of the clock's cycles (`MLX5_IB_MMAP_CLOCK_INFO`).
const CLOCK_INFO: usize = (7 << 8) * 4096;

/// CQ_CREATE and QP_CREATE: another form of the legacy commands. An imported context uses only this
/// form, because these commands name their own channel for asynchronous events. Here all events of
/// a context still go to the channel of GET_CONTEXT.
fn create(
    file: &Uverbs,
    fd: RawFd,
    attrs: &[Attr],
    number: u32,
    core: Vec<u8>,
) -> io::Result<(u32, Vec<u32>)> {
    const UHW_IN: u16 = DRIVER;
    const UHW_OUT: u16 = DRIVER + 1;
    let answer = vec![0u32; 16];
    let driver_out = find(attrs, UHW_OUT);
    let command = Command {
        number: EX | number,
        core,
        uhw: find(attrs, UHW_IN).map_or(Ok(Vec::new()), Attr::input)?,
        core_out: Room { address: answer.as_ptr().expose_provenance() as u64, len: answer.len() * 4 },
        uhw_out: driver_out.map_or(Room::default(), Attr::room),
        fd,
    };
    file.run(fd, command)?;
    if let Some(attr) = driver_out {
        attr.mark_valid()?;
    }
    Ok((answer[0], answer))
}

pub(super) fn create_cq(file: &Uverbs, fd: RawFd, attrs: &[Attr]) -> io::Result<()> {
    let word = |id| find(attrs, id).map_or(0, |attr| attr.data as u32);
    let channel = find(attrs, 3).map_or(u32::MAX, |attr| attr.data as u32);
    let mut core = Answer::default();
    core.u64(need(attrs, 2)?.data).u32(word(1)).u32(word(4)).u32(channel).u32(0).u32(word(5)).u32(0);
    let (handle, answer) = create(file, fd, attrs, CREATE_CQ, core.0)?;
    need(attrs, 6)?.answer(&answer[1].to_ne_bytes())?;
    need(attrs, 0)?.answer_handle(handle)
}

pub(super) fn create_qp(file: &Uverbs, fd: RawFd, attrs: &[Attr]) -> io::Result<()> {
    const SQ_SIG_ALL: u32 = 1 << 12;
    // `IBV_QP_CREATE_BLOCK_SELF_MCAST_LB`, as in the legacy command.
    const BLOCK_MULTICAST_LOOPBACK: u32 = 1 << 1;
    let word = |id| find(attrs, id).map_or(0, |attr| attr.data as u32);
    let domain = find(attrs, 2).or_else(|| find(attrs, 1)).map_or(0, |attr| attr.data as u32);
    let flags = word(10);
    let table = find(attrs, 6);
    if flags & !(SQ_SIG_ALL | BLOCK_MULTICAST_LOOPBACK) != 0 {
        return Err(sys::errno(libc::EOPNOTSUPP));
    }
    let mut core = Answer::default();
    core.u64(need(attrs, 7)?.data).u32(domain).u32(word(4)).u32(word(5)).u32(word(3));
    core.bytes(&need(attrs, 8)?.input()?);
    core.u8(u8::from(flags & SQ_SIG_ALL != 0)).u8(word(9) as u8).u8(u8::from(find(attrs, 3).is_some()));
    core.u8(0).u32(u32::from(table.is_some())).u32(flags & BLOCK_MULTICAST_LOOPBACK);
    core.u32(table.map_or(0, |table| table.data as u32)).u32(0);
    let (handle, answer) = create(file, fd, attrs, CREATE_QP, core.0)?;
    let caps: Vec<u8> = answer[2..7].iter().flat_map(|cap| cap.to_ne_bytes()).collect();
    need(attrs, 13)?.answer(&caps)?;
    need(attrs, 14)?.answer(&answer[1].to_ne_bytes())?;
    need(attrs, 0)?.answer_handle(handle)
}

/// QUERY_CONTEXT, for `ibv_import_device`.
pub(super) fn query_context(file: &Uverbs, fd: RawFd, attrs: &[Attr]) -> io::Result<()> {
    let (vectors, core_support, driver) = (need(attrs, 0)?, need(attrs, 1)?, need(attrs, DRIVER)?);
    let (device, context) = file.locked(fd)?;
    if device.card.dead {
        return Err(sys::errno(libc::EIO));
    }
    if !device.card.contexts[context].ready {
        return Err(sys::errno(libc::EINVAL));
    }
    let mut answer = device.context_answer(context).0;
    drop(device);
    answer.resize(driver.room().len, 0);
    vectors.answer(&1u32.to_ne_bytes())?;
    core_support.answer(&0u64.to_ne_bytes())?;
    driver.answer(&answer)
}

/// A channel for asynchronous events. It receives no events: see [`create`].
pub(super) fn async_channel(file: &Uverbs, fd: RawFd, attrs: &[Attr]) -> io::Result<()> {
    let handle = need(attrs, 0)?;
    let (mut device, _) = file.locked(fd)?;
    let (_, channel) = device.open_channel()?;
    drop(device);
    handle.answer_handle(channel.cast_unsigned())
}

pub(super) fn query_pd(file: &Uverbs, fd: RawFd, attrs: &[Attr]) -> io::Result<()> {
    let (device, context) = file.locked(fd)?;
    let pd = device.pd(context, need(attrs, DRIVER)?.data as u32)?;
    drop(device);
    need(attrs, DRIVER + 1)?.answer(&(pd as u32 + 1).to_ne_bytes())
}

pub(super) fn query_region(file: &Uverbs, fd: RawFd, attrs: &[Attr]) -> io::Result<()> {
    let (device, context) = file.locked(fd)?;
    let index = device.object(context, need(attrs, 0)?.data as u32, ObjectKind::Mr)?;
    let key = device.card.keys[index];
    drop(device);
    need(attrs, 1)?.answer(&key.key.to_ne_bytes())?;
    need(attrs, 2)?.answer(&key.key.to_ne_bytes())?;
    need(attrs, 3)?.answer(&key.len.to_ne_bytes())?;
    match find(attrs, 4) {
        Some(iova) => iova.answer(&key.iova.to_ne_bytes()),
        None => Ok(()),
    }
}

/// ADVISE_MR: memory of regions that are registered on demand is brought in.
pub(super) fn advise_region(file: &Uverbs, fd: RawFd, attrs: &[Attr]) -> io::Result<()> {
    const PREFETCH_WRITE: u64 = 1;
    const NO_FAULT: u64 = 2;
    const FLUSH: u32 = 1;
    const SGE: usize = 16;
    let (pd, advice, flags) = (need(attrs, 0)?, need(attrs, 1)?.data, need(attrs, 2)?.data as u32);
    let list = need(attrs, 3)?.input()?;
    if flags & !FLUSH != 0 || list.is_empty() || !list.len().is_multiple_of(SGE) {
        return Err(sys::errno(libc::EINVAL));
    }
    if advice > NO_FAULT {
        return Err(sys::errno(libc::EOPNOTSUPP));
    }
    let (device, context) = file.locked(fd)?;
    let pd = device.pd(context, pd.data as u32)?;
    for sge in list.chunks(SGE) {
        let sge = Reader(sge);
        let (addr, len, key) = (sge.u64(0), u64::from(sge.u32(8)), sge.u32(12));
        let region = device.card.find_key(key).map(|index| device.card.keys[index]);
        let region = region.ok_or_else(|| sys::errno(libc::ENOENT))?;
        if region.pd != pd {
            return Err(sys::errno(libc::EPERM));
        }
        if region.access & access::ON_DEMAND == 0 {
            return Err(sys::errno(libc::EINVAL));
        }
        if advice == PREFETCH_WRITE && region.access & access::LOCAL_WRITE == 0 {
            return Err(sys::errno(libc::EPERM));
        }
        let start = region.translate(addr, len).ok_or_else(|| sys::errno(libc::EFAULT))?;
        let result = mem::check_range(start, len, advice == PREFETCH_WRITE);
        // Without FLUSH the memory is brought in later, and the result is not reported.
        if flags & FLUSH != 0 && advice != NO_FAULT {
            result?;
        }
    }
    Ok(())
}

impl Device {
    /// Fills in the clock pages of a new context. A cycle is a nanosecond, and the time is the real
    /// time.
    pub(super) fn start_clock(&mut self, context: usize) {
        let (now, real) = (clock::now_ns(), clock::real_time());
        let nanoseconds = u64::try_from(real.as_nanos()).unwrap_or(u64::MAX);
        let uar = self.card.contexts[context].uar;
        // sign, nsec, cycles, frac, mult and shift, mask, overflow_period of `mlx5_ib_clock_info`.
        for (word, value) in [0, nanoseconds, now, 0, 1, u64::MAX, u64::MAX].into_iter().enumerate() {
            uar.write(CLOCK_INFO + word * 8, &value.to_ne_bytes());
        }
        self.tick(context);
    }

    /// Brings the page of the device's clock up to date.
    pub(crate) fn tick(&mut self, context: usize) {
        let Some(state) = self.card.contexts.get(context) else { return };
        let now = clock::now_ns();
        state.uar.set_be32(CLOCK, (now >> 32) as u32);
        state.uar.set_be32(CLOCK + 4, now as u32);
    }
}
