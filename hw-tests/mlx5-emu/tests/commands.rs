//! The command interface: the effect of each command. Invalid commands return an errno and never
//! crash.
#![expect(unsafe_code, reason = "raw verbs calls and raw commands")]

mod common;

use std::mem::zeroed;
use std::ptr::null_mut;

use common::*;

const EX: u32 = 0x8000_0000;
const ALLOC_PD: u32 = 3;
const DEALLOC_PD: u32 = 4;
const REG_MR: u32 = 9;
const DEREG_MR: u32 = 13;
const CREATE_CQ: u32 = 18;
const DESTROY_CQ: u32 = 20;
const MODIFY_QP: u32 = 26;
const CREATE_SRQ: u32 = 32;
const QUERY_SRQ: u32 = 34;

/// Sends one command through the ioctl interface. Returns the core answer or the errno.
fn invoke(fd: i32, number: u32, core: &[u8], uhw: &[u8], room: usize) -> Result<Vec<u8>, i32> {
    let mut answer = vec![0u8; room];
    let mut driver_answer = vec![0u8; 256];
    let result = invoke_at(
        fd,
        number,
        core,
        uhw,
        (answer.as_mut_ptr() as u64, room),
        (driver_answer.as_mut_ptr() as u64, driver_answer.len()),
    );
    result.map(|()| answer)
}

fn invoke_at(
    fd: i32,
    number: u32,
    core: &[u8],
    uhw: &[u8],
    (answer, room): (u64, usize),
    (driver_answer, driver_room): (u64, usize),
) -> Result<(), i32> {
    let inline = |bytes: &[u8]| {
        if bytes.len() > 8 {
            return bytes.as_ptr() as u64;
        }
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        u64::from_ne_bytes(word)
    };
    let mut attrs: Vec<(u16, u16, u64)> = vec![(2, 8, u64::from(number))];
    if !core.is_empty() {
        attrs.push((0, core.len() as u16, inline(core)));
    }
    if room > 0 {
        attrs.push((1, room as u16, answer));
    }
    if !uhw.is_empty() {
        attrs.push((0x1000, uhw.len() as u16, inline(uhw)));
    }
    if driver_room > 0 {
        attrs.push((0x1001, driver_room as u16, driver_answer));
    }
    let mut buffer = vec![0u64; 3 + attrs.len() * 2];
    buffer[0] = (24 + attrs.len() as u64 * 16) | (attrs.len() as u64) << 48;
    buffer[2] = 1;
    for (i, &(id, len, data)) in attrs.iter().enumerate() {
        buffer[3 + i * 2] = u64::from(id) | u64::from(len) << 16 | 1 << 32;
        buffer[4 + i * 2] = data;
    }
    // SAFETY: a well-formed command buffer that lives through the call.
    let rc = unsafe { libc::ioctl(fd, 0xc018_1b01, buffer.as_mut_ptr()) };
    if rc == 0 { Ok(()) } else { Err(std::io::Error::last_os_error().raw_os_error().unwrap()) }
}

fn words(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

fn fd(rig: &Rig) -> i32 {
    // SAFETY: live context.
    unsafe { (*rig.ctx).cmd_fd }
}

fn pd_handle(rig: &Rig) -> u32 {
    // SAFETY: live PD.
    unsafe { (*rig.pd).handle }
}

/// An address range that is not mapped.
fn unmapped() -> u64 {
    // SAFETY: maps and unmaps pages of our own.
    unsafe {
        let at =
            libc::mmap(null_mut(), 1 << 20, libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0);
        libc::munmap(at, 1 << 20);
        at as u64
    }
}

/// Page-aligned memory that is never freed.
fn pages(len: usize) -> u64 {
    // SAFETY: a fresh mapping, leaked.
    unsafe {
        libc::mmap(
            null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        ) as u64
    }
}

#[test]
fn dead_and_foreign_handles() {
    let mut rig = Rig::new();
    let cq = rig.cq(8);
    let f = fd(&rig);
    assert_eq!(invoke(f, DEALLOC_PD, &9999u32.to_ne_bytes(), &[], 0), Err(libc::ENOENT));
    // SAFETY: live CQ.
    let cq_handle = unsafe { (*cq).handle };
    assert_eq!(invoke(f, DEALLOC_PD, &cq_handle.to_ne_bytes(), &[], 0), Err(libc::EINVAL), "a CQ is no PD");
    assert_eq!(invoke(f, QUERY_SRQ, &words(&[0, pair(4711, 0)]), &[], 16), Err(libc::ENOENT));
    assert_eq!(invoke(f, MODIFY_QP, &[0; 112], &[], 0), Err(libc::ENOENT));
    assert_eq!(invoke(f, 255, &[], &[], 0), Err(libc::EOPNOTSUPP));
}

#[test]
fn short_commands_and_answers_without_room() {
    let rig = Rig::new();
    let f = fd(&rig);
    assert_eq!(invoke(f, ALLOC_PD, &[0; 4], &[], 8), Err(libc::ENOSPC));
    assert_eq!(invoke(f, ALLOC_PD, &[0; 8], &[], 0), Err(libc::ENOSPC));
    assert_eq!(invoke(f, REG_MR, &[0; 24], &[], 12), Err(libc::ENOSPC));
    assert_eq!(invoke(f, CREATE_CQ, &[0; 32], &[0; 4], 8), Err(libc::EINVAL));
    assert_eq!(invoke_at(f, ALLOC_PD, &[0; 8], &[], (unmapped(), 8), (0, 0)), Err(libc::EFAULT));
    // SAFETY: an unmapped buffer is what is tested.
    let rc = unsafe { libc::ioctl(f, 0xc018_1b01, unmapped()) };
    assert_eq!((rc, std::io::Error::last_os_error().raw_os_error()), (-1, Some(libc::EFAULT)));
    // SAFETY: as above.
    let rc = unsafe { libc::ioctl(f, 0x1234, 0) };
    assert_eq!((rc, std::io::Error::last_os_error().raw_os_error()), (-1, Some(libc::ENOTTY)));
    // SAFETY: a buffer that is no command.
    let rc = unsafe { libc::write(f, [0u8; 3].as_ptr().cast(), 3) };
    assert_eq!((rc, std::io::Error::last_os_error().raw_os_error()), (-1, Some(libc::EINVAL)));
}

#[test]
fn the_write_interface_does_the_same() {
    let rig = Rig::new();
    let mut handle = [0u32; 2];
    let command = words(&[pair(ALLOC_PD, 4 | 2 << 16), handle.as_mut_ptr() as u64]);
    // SAFETY: a well-formed command with room for its answer.
    let rc = unsafe { libc::write(fd(&rig), command.as_ptr().cast(), command.len()) };
    assert_eq!(rc, command.len() as isize);
    assert_ne!(handle[0], 0);
    assert_eq!(invoke(fd(&rig), DEALLOC_PD, &handle[0].to_ne_bytes(), &[], 0), Ok(vec![]));
}

#[test]
fn queues_in_memory_that_is_not_mapped_or_not_aligned() {
    let rig = Rig::new();
    let (f, pd, good, bad) = (fd(&rig), pd_handle(&rig), pages(1 << 20), unmapped());
    let srq = |buf, record, max_wr: u32, max_sge: u32| {
        let core = words(&[0, 0, pair(pd, max_wr), pair(max_sge, 0)]);
        invoke(f, CREATE_SRQ, &core, &words(&[buf, record, 0, 0]), 16).err()
    };
    assert_eq!(srq(bad, good, 15, 1), Some(libc::EFAULT));
    assert_eq!(srq(good, bad, 15, 1), Some(libc::EFAULT));
    assert_eq!(srq(good + 1, good + 4096, 15, 1), Some(libc::EINVAL));
    assert_eq!(srq(0, good, 15, 1), Some(libc::EINVAL));
    assert_eq!(srq(u64::MAX - 63, good, 15, 1), Some(libc::EINVAL));
    assert_eq!(srq(good, good, 40000, 1), Some(libc::EINVAL));
    assert_eq!(srq(good, good, 15, 100), Some(libc::EINVAL));
    let cq = |buf, record, cqe: u32, size: u32, channel: i32| {
        let core = words(&[0, 0, pair(cqe, 0), pair(channel.cast_unsigned(), 0)]);
        invoke(f, CREATE_CQ, &core, &words(&[buf, record, u64::from(size), 0]), 8).err()
    };
    assert_eq!(cq(bad, good, 7, 64, -1), Some(libc::EFAULT));
    assert_eq!(cq(good, bad, 7, 64, -1), Some(libc::EFAULT));
    assert_eq!(cq(good, good, 7, 65, -1), Some(libc::EINVAL));
    assert_eq!(cq(good, good, 0, 64, -1), Some(libc::EINVAL));
    assert_eq!(cq(good, good, u32::MAX, 64, -1), Some(libc::EINVAL));
    assert_eq!(cq(good, good, 7, 64, 0), Some(libc::EBADF), "a descriptor that is no channel");
    assert_eq!(cq(good, good + 4096, 7, 64, -1), None);
}

#[test]
fn an_srq_without_work_requests_takes_none() {
    let mut rig = Rig::new();
    let memory = rig.memory(64);
    let srq = rig.srq(0, 1);
    assert_eq!(post_srq(srq, 1, &[memory.sge(0, 64)]), libc::ENOMEM);
}

#[test]
fn memory_registration_checks_what_a_kernel_checks() {
    let rig = Rig::new();
    let (f, pd, good, bad) = (fd(&rig), pd_handle(&rig), pages(1 << 16), unmapped());
    let reg = |start: u64, len: u64, access: u32, pd: u32| {
        let made = invoke(f, REG_MR, &words(&[0, start, len, start, pair(pd, access)]), &[], 12);
        if let Ok(answer) = &made {
            assert_eq!(invoke(f, DEREG_MR, &answer[..4], &[], 0), Ok(vec![]));
        }
        made.err()
    };
    assert_eq!(reg(good, 1 << 16, 15, pd), None);
    assert_eq!(reg(bad, 4096, 15, pd), Some(libc::EFAULT));
    assert_eq!(reg(good, 0, 15, pd), Some(libc::EINVAL));
    assert_eq!(reg(u64::MAX - 10, 100, 15, pd), Some(libc::EINVAL));
    assert_eq!(reg(good, 100, 2, pd), Some(libc::EINVAL), "remote write without local write");
    assert_eq!(reg(good, 100, 1 << 9, pd), Some(libc::EINVAL), "an unknown right");
    assert_eq!(reg(bad, 4096, 64, pd), None, "on demand: mapped later");
    assert_eq!(reg(bad, 0, 64, pd), Some(libc::EINVAL));
    assert_eq!(reg(good, 100, 15, 999), Some(libc::ENOENT));
    // SAFETY: a page of our own.
    unsafe { libc::mprotect(good as *mut _, 4096, libc::PROT_READ) };
    assert_eq!(reg(good, 100, 1, pd), Some(libc::EFAULT), "read-only memory for writing");
    assert_eq!(reg(good, 100, 4, pd), None, "read-only memory for reading");
}

#[test]
fn objects_in_use_are_busy() {
    let mut rig = Rig::new();
    let (cq, srq) = (rig.cq(8), rig.srq(8, 1));
    let _ = rig.pair(cq, srq);
    // SAFETY: live objects; the calls fail and change nothing.
    unsafe {
        assert_eq!(invoke(fd(&rig), DEALLOC_PD, &pd_handle(&rig).to_ne_bytes(), &[], 0), Err(libc::EBUSY));
        let core = words(&[0, pair((*cq).handle, 0)]);
        assert_eq!(invoke(fd(&rig), DESTROY_CQ, &core, &[], 8), Err(libc::EBUSY));
        assert_eq!(ibv_destroy_srq(srq), libc::EBUSY);
    }
}

#[test]
fn transitions_need_their_attributes() {
    let mut rig = Rig::new();
    let cq = rig.cq(8);
    let qp = rig.qp(ibv_qp_type::IBV_QPT_RC, cq, cq, null_mut());
    let modify = |attr: &mut ibv_qp_attr, mask: i32| {
        // SAFETY: live QP.
        unsafe { ibv_modify_qp(qp, &raw mut *attr, mask) }
    };
    let mut attr = rtr_attr(7);
    assert_eq!(modify(&mut attr, 1 | 128 | 256), libc::EINVAL, "RESET to RTR");
    // SAFETY: all-zero is a valid attribute structure.
    let mut init: ibv_qp_attr = unsafe { zeroed() };
    init.qp_state = ibv_qp_state::IBV_QPS_INIT;
    init.port_num = 2;
    assert_eq!(modify(&mut init, 1 | 16 | 32 | 8), libc::EINVAL, "no such port");
    to_init(qp);
    let full = 1 | 128 | 256 | (1 << 20) | 4096 | (1 << 17) | (1 << 15);
    attr.ah_attr.grh.sgid_index = 200;
    assert_eq!(modify(&mut attr, full), libc::EINVAL, "no such source address");
    attr.ah_attr.grh.sgid_index = 0;
    attr.ah_attr.is_global = 0;
    assert_eq!(modify(&mut attr, full), libc::EINVAL, "RoCE needs a global address");
    attr.ah_attr.is_global = 1;
    assert_eq!(modify(&mut attr, full & !4096), libc::EINVAL, "no RQ PSN");
    assert_eq!(modify(&mut attr, full), 0);
    assert_eq!(state(qp), ibv_qp_state::IBV_QPS_RTR);
    assert_eq!(mlx5_emu::qp_info(qpn(qp)).unwrap().dest_qpn, 7);
}

#[test]
fn random_commands_never_crash() {
    let rig = Rig::new();
    let f = fd(&rig);
    let mut seed = 0x1234_5678_9abc_def1u64;
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    let mut made = 0;
    for _ in 0..20_000 {
        let number = (random() % 60) as u32 | if random().is_multiple_of(4) { EX } else { 0 };
        let word = |r: u64| match r % 8 {
            0..4 => r >> 40 & 7,
            4 => pair((r >> 8) as u32 & 15, (r >> 16) as u32 & 15),
            5 => u64::MAX,
            _ => r,
        };
        let core: Vec<u8> = (0..random() % 16).flat_map(|_| word(random()).to_ne_bytes()).collect();
        let uhw: Vec<u8> = (0..random() % 8).flat_map(|_| word(random()).to_ne_bytes()).collect();
        // A random DEALLOC_PD could free the PD of the rig, so it is skipped. The random handles
        // are small, and the other commands create objects only with mapped memory, which random
        // addresses are not.
        if number == DEALLOC_PD {
            continue;
        }
        made += u32::from(invoke(f, number, &core, &uhw, (random() % 300) as usize).is_ok());
    }
    assert!(made > 0, "some of them are valid");
}
