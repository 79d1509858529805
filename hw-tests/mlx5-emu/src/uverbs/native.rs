//! The ioctl interface: attribute lists. Most calls carry legacy commands ("invoke write"). This
//! module, [`super::dm`] and [`super::import`] serve the methods that have no legacy form. All
//! other methods return EPROTONOSUPPORT, so that libibverbs falls back to a legacy command.

use std::io;
use std::os::fd::RawFd;

use super::attr::{Attr, DRIVER, find, need};
use super::command::{Command, Reader, Room};
use super::file::Uverbs;
use super::{devx, dm, flow, import};
use crate::host::{gids, mem, sys};
use crate::objects::ObjectKind;
use crate::objects::commands;

const OBJECT_DEVICE: u16 = 0;
const METHOD_INVOKE_WRITE: u16 = 0;
const METHOD_QUERY_GID_TABLE: u16 = 5;
const METHOD_QUERY_GID_ENTRY: u16 = 6;
const METHOD_QUERY_CONTEXT: u16 = 4;
const OBJECT_PD: u16 = 1;
const OBJECT_CQ: u16 = 3;
const OBJECT_QP: u16 = 4;
const OBJECT_SRQ: u16 = 5;
const OBJECT_MR: u16 = 7;
const OBJECT_FLOW: u16 = 9;
const OBJECT_DM: u16 = 14;
const OBJECT_ASYNC_EVENT: u16 = 16;
/// `MLX5_IB_OBJECT_UAR`.
const OBJECT_UAR: u16 = DRIVER + 8;
const UAR_ALLOC: u16 = DRIVER;
const UAR_DESTROY: u16 = DRIVER + 1;
/// `MLX5_IB_OBJECT_VAR`: doorbell pages of virtio queues. Here they have the same form as UAR
/// pages.
const OBJECT_VAR: u16 = DRIVER + 6;
const VAR_ALLOC: u16 = DRIVER;
const VAR_DESTROY: u16 = DRIVER + 1;
/// `MLX5_IB_METHOD_QUERY_PORT`, of the device.
const QUERY_PORT: u16 = DRIVER;
/// `MLX5_IB_OBJECT_DEVX`.
const OBJECT_DEVX: u16 = DRIVER;
const DEVX_MODIFY: u16 = DRIVER + 2;
/// `MLX5_IB_OBJECT_DEVX_OBJ`.
const OBJECT_DEVX_OBJ: u16 = DRIVER + 1;
const DEVX_DESTROY: u16 = DRIVER + 1;
/// `MLX5_IB_OBJECT_FLOW_MATCHER`.
const OBJECT_MATCHER: u16 = DRIVER + 3;
const MATCHER_DESTROY: u16 = DRIVER + 1;
/// `MLX5_IB_METHOD_DM_QUERY`.
const METHOD_DM_QUERY: u16 = DRIVER + 1;
const RDMA_DRIVER_MLX5: u32 = 1;

const HEADER: usize = 24;
const ATTR: usize = 16;
const F_MANDATORY: u16 = 1;
pub(super) fn ioctl(file: &Uverbs, fd: RawFd, arg: u64) -> io::Result<()> {
    let mut header = [0; HEADER];
    mem::copy_from_user(arg, &mut header)?;
    let header = Reader(&header);
    let (length, object, method, count) = (header.u16(0), header.u16(2), header.u16(4), header.u16(6));
    if usize::from(length) != HEADER + usize::from(count) * ATTR || header.u64(8) != 0 || header.u32(20) != 0
    {
        return Err(sys::errno(libc::EINVAL));
    }
    if object & DRIVER != 0 && header.u32(16) != RDMA_DRIVER_MLX5 {
        return Err(sys::errno(libc::EPROTONOSUPPORT));
    }
    let mut raw = vec![0; usize::from(count) * ATTR];
    mem::copy_from_user(arg + HEADER as u64, &mut raw)?;
    let attrs: Vec<Attr> = raw
        .chunks(ATTR)
        .enumerate()
        .map(|(i, bytes)| {
            let bytes = Reader(bytes);
            Attr {
                id: bytes.u16(0),
                len: bytes.u16(2),
                flags: bytes.u16(4),
                data: bytes.u64(8),
                address: arg + (HEADER + i * ATTR) as u64,
            }
        })
        .collect();
    match (object, method) {
        (OBJECT_DEVICE, METHOD_INVOKE_WRITE) => invoke_write(file, fd, &attrs),
        (OBJECT_DEVICE, QUERY_PORT) => query_port(&attrs),
        (OBJECT_DEVICE, METHOD_QUERY_GID_TABLE) => query_gid_table(&attrs),
        (OBJECT_DEVICE, METHOD_QUERY_GID_ENTRY) => query_gid_entry(&attrs),
        (OBJECT_DEVICE, METHOD_QUERY_CONTEXT) => import::query_context(file, fd, &attrs),
        (OBJECT_ASYNC_EVENT, 0) => import::async_channel(file, fd, &attrs),
        (OBJECT_CQ, 0) => import::create_cq(file, fd, &attrs),
        (OBJECT_QP, 0) => import::create_qp(file, fd, &attrs),
        (OBJECT_PD, DRIVER) => import::query_pd(file, fd, &attrs),
        (OBJECT_MR, 0) => dm::register(file, fd, &attrs),
        (OBJECT_MR, 2) => import::advise_region(file, fd, &attrs),
        (OBJECT_MR, 3) => import::query_region(file, fd, &attrs),
        (OBJECT_FLOW, DRIVER) => flow::create_flow(file, fd, &attrs),
        (OBJECT_PD, 0) => destroy(file, fd, &attrs, commands::DEALLOC_PD),
        (OBJECT_MR, 1) => destroy(file, fd, &attrs, commands::DEREG_MR),
        (OBJECT_CQ, 1) => destroy(file, fd, &attrs, commands::DESTROY_CQ),
        (OBJECT_QP, 1) => destroy(file, fd, &attrs, commands::DESTROY_QP),
        (OBJECT_SRQ, 1) => destroy(file, fd, &attrs, commands::DESTROY_SRQ),
        (OBJECT_MATCHER, DRIVER) => flow::create_matcher(file, fd, &attrs),
        (OBJECT_MATCHER, MATCHER_DESTROY) => flow::destroy_matcher(file, fd, &attrs),
        (OBJECT_DEVX, DRIVER) => devx::general_command(&attrs),
        (OBJECT_DEVX_OBJ, DEVX_MODIFY) => devx::modify_object(file, fd, &attrs),
        (OBJECT_DEVX_OBJ, DRIVER) => devx::create_object(file, fd, &attrs),
        (OBJECT_DEVX_OBJ, DEVX_DESTROY) => devx::destroy_object(file, fd, &attrs),
        (OBJECT_DM, 0) => dm::allocate(file, fd, &attrs),
        (OBJECT_DM, 1) => dm::free(file, fd, &attrs),
        (OBJECT_DM, METHOD_DM_QUERY) => dm::query(file, fd, &attrs),
        (OBJECT_UAR, UAR_ALLOC) => uar_alloc(file, fd, &attrs),
        (OBJECT_VAR, VAR_ALLOC) => {
            page_alloc(file, fd, need(&attrs, DRIVER)?, [DRIVER + 1, DRIVER + 2, DRIVER + 3], &attrs)
        }
        (OBJECT_UAR, UAR_DESTROY) | (OBJECT_VAR, VAR_DESTROY) => uar_destroy(file, fd, &attrs),
        _ => Err(sys::errno(libc::EPROTONOSUPPORT)),
    }
}

fn invoke_write(file: &Uverbs, fd: RawFd, attrs: &[Attr]) -> io::Result<()> {
    const CORE_IN: u16 = 0;
    const CORE_OUT: u16 = 1;
    const WRITE_CMD: u16 = 2;
    const UHW_IN: u16 = DRIVER;
    const UHW_OUT: u16 = DRIVER + 1;
    for attr in attrs {
        if !matches!(attr.id, CORE_IN | CORE_OUT | WRITE_CMD | UHW_IN | UHW_OUT)
            && attr.flags & F_MANDATORY != 0
        {
            return Err(sys::errno(libc::EPROTONOSUPPORT));
        }
    }
    let input = |id| find(attrs, id).map_or(Ok(Vec::new()), Attr::input);
    let room = |id| find(attrs, id).map_or(Room::default(), Attr::room);
    let command = Command {
        number: need(attrs, WRITE_CMD)?.data as u32,
        core: input(CORE_IN)?,
        uhw: input(UHW_IN)?,
        core_out: room(CORE_OUT),
        uhw_out: room(UHW_OUT),
        fd,
    };
    file.run(fd, command)?;
    for id in [CORE_OUT, UHW_OUT] {
        if let Some(attr) = find(attrs, id) {
            attr.mark_valid()?;
        }
    }
    Ok(())
}

/// Destroys an object as the legacy command of this number does. The attributes are the object's
/// handle and, if the command has an answer, where the answer goes.
fn destroy(file: &Uverbs, fd: RawFd, attrs: &[Attr], number: u32) -> io::Result<()> {
    let handle = (need(attrs, 0)?.data as u32).to_ne_bytes();
    let core = match number {
        commands::DEALLOC_PD | commands::DEREG_MR => handle.to_vec(),
        _ => [[0; 8].as_slice(), &handle, &[0; 4]].concat(),
    };
    let answer = find(attrs, 1);
    let room = Room::default();
    file.run(
        fd,
        Command {
            number,
            core,
            uhw: Vec::new(),
            core_out: answer.map_or(room, Attr::room),
            uhw_out: room,
            fd,
        },
    )?;
    answer.map_or(Ok(()), Attr::mark_valid)
}

/// One entry of the GID table as `ib_uverbs_gid_entry`; `None` when the index is empty.
fn gid_entry(index: usize) -> Option<Vec<u8>> {
    const ROCE_V2: u32 = 2;
    let gid = gids::table().get(index)?;
    let mut out = gid.bytes().to_vec();
    for word in [index as u32, 1, ROCE_V2, gid.ifindex] {
        out.extend_from_slice(&word.to_ne_bytes());
    }
    Some(out)
}

/// The valid entries of all ports' tables.
fn query_gid_table(attrs: &[Attr]) -> io::Result<()> {
    let invalid = || sys::errno(libc::EINVAL);
    let size = need(attrs, 0)?.data;
    let (flags, entries, count) = (need(attrs, 1)?.data as u32, need(attrs, 2)?, need(attrs, 3)?);
    let room = usize::from(entries.len);
    let size = usize::try_from(size).ok().filter(|&size| size > 0 && size <= 4096).ok_or_else(invalid)?;
    if flags != 0 || gids::table().len() > room / size {
        return Err(invalid());
    }
    let mut out = Vec::new();
    for mut entry in (0..gids::table().len()).filter_map(gid_entry) {
        entry.resize(size, 0);
        out.extend_from_slice(&entry);
    }
    entries.answer(&out)?;
    count.answer(&(gids::table().len() as u64).to_ne_bytes())
}

fn query_gid_entry(attrs: &[Attr]) -> io::Result<()> {
    let (port, index) = (need(attrs, 0)?.data, need(attrs, 1)?.data);
    let (flags, room) = (need(attrs, 2)?.data as u32, need(attrs, 3)?);
    if flags != 0 || port != 1 || index >= gids::GID_TABLE_LEN as u64 {
        return Err(sys::errno(libc::EINVAL));
    }
    let mut entry = gid_entry(index as usize).ok_or_else(|| sys::errno(libc::ENODATA))?;
    entry.resize(usize::from(room.len), 0);
    room.answer(&entry)
}

fn uar_alloc(file: &Uverbs, fd: RawFd, attrs: &[Attr]) -> io::Result<()> {
    let handle = need(attrs, DRIVER)?;
    let kind = need(attrs, DRIVER + 1)?.data;
    if kind > 1 {
        return Err(sys::errno(libc::EOPNOTSUPP));
    }
    page_alloc(file, fd, handle, [DRIVER + 2, DRIVER + 3, DRIVER + 4], attrs)
}

/// Allocates a doorbell page. `answers`: attributes for its offset, its length, its index.
fn page_alloc(file: &Uverbs, fd: RawFd, handle: &Attr, answers: [u16; 3], attrs: &[Attr]) -> io::Result<()> {
    let [offset, length, page_id] = answers;
    let (offset, length, page_id) = (need(attrs, offset)?, need(attrs, length)?, need(attrs, page_id)?);
    let (mut device, context) = file.locked(fd)?;
    if device.card.dead {
        return Err(sys::errno(libc::EIO));
    }
    if let Some(errno) = device.card.faults.command_error_named("uar_alloc") {
        return Err(sys::errno(errno));
    }
    let page = device.alloc_uar_page(context)?;
    let object = device.add_handle(context, ObjectKind::Uar, page as usize);
    drop(device);
    offset.answer(&(u64::from(page) * 4096).to_ne_bytes())?;
    length.answer(&4096u32.to_ne_bytes())?;
    page_id.answer(&page.to_ne_bytes())?;
    handle.answer_handle(object)
}

fn uar_destroy(file: &Uverbs, fd: RawFd, attrs: &[Attr]) -> io::Result<()> {
    let handle = need(attrs, DRIVER)?.data as u32;
    let (mut device, context) = file.locked(fd)?;
    let page = device.object(context, handle, ObjectKind::Uar)?;
    device.drop_handle(context, handle);
    device.free_uar_page(context, page as u32);
    Ok(())
}

/// The eswitch's data of the port: the device has no eswitch.
fn query_port(attrs: &[Attr]) -> io::Result<()> {
    if need(attrs, DRIVER)?.data != 1 {
        return Err(sys::errno(libc::EINVAL));
    }
    // No flags, so that nothing of it is valid.
    need(attrs, DRIVER + 1)?.answer(&[0; 40])
}
