//! RLIMIT_MEMLOCK on the software device: the memory that counts against the limit, and when it is
//! returned. The test runs in a process of its own, because the limit belongs to the process.
#![expect(unsafe_code, reason = "raw verbs calls and limits")]

mod common;

use std::ptr::null_mut;

use common::*;

const PAGE: usize = 4096;

/// Drops CAP_IPC_LOCK from the calling thread, so that it has the rights of an unprivileged user.
fn drop_lock_capability() {
    const VERSION_3: u32 = 0x2008_0522;
    const IPC_LOCK: u32 = 1 << 14;
    let header = [VERSION_3, 0];
    // Effective, permitted and inheritable sets, for the lower and the upper capabilities.
    let mut sets = [0u32; 6];
    // SAFETY: header and sets have the layout of version 3.
    unsafe {
        assert_eq!(libc::syscall(libc::SYS_capget, header.as_ptr(), sets.as_mut_ptr()), 0);
        sets[0] &= !IPC_LOCK;
        assert_eq!(libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr()), 0);
    }
}

fn limit(pages: usize) {
    let bytes = (pages * PAGE) as u64;
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: a valid limit.
    unsafe {
        let mut old = limit;
        assert_eq!(libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut old), 0);
        let limit = libc::rlimit { rlim_max: old.rlim_max, ..limit };
        assert_eq!(libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit), 0);
    }
}

/// Page-aligned memory.
fn pages(count: usize) -> *mut libc::c_void {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a fresh mapping, leaked.
    unsafe { libc::mmap(null_mut(), count * PAGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) }
}

#[test]
fn pages_count_until_they_are_given_back() {
    mlx5_emu::set_memlock(true);
    drop_lock_capability();
    let mut rig = Rig::new();
    let memory = pages(64);
    // SAFETY: live PD and memory that stays.
    let register = |rig: &Rig, at: usize, len: usize| unsafe {
        let mr = ___reg(rig.pd, memory.byte_add(at), len, 1);
        if mr.is_null() { Err(std::io::Error::last_os_error().raw_os_error().unwrap()) } else { Ok(mr) }
    };
    // SAFETY: deregistered once.
    let give_back = |mr| assert_eq!(unsafe { ibv_dereg_mr(mr) }, 0);
    limit(8);
    assert_eq!(register(&rig, 0, 9 * PAGE), Err(libc::ENOMEM));
    // A region of eight pages in bytes that touches nine pages.
    assert_eq!(register(&rig, 1, 8 * PAGE), Err(libc::ENOMEM));
    let four = register(&rig, 0, 4 * PAGE).unwrap();
    let again = register(&rig, 0, 4 * PAGE).unwrap();
    assert_eq!(register(&rig, 0, 1), Err(libc::ENOMEM), "the same page counts for each region");
    // SAFETY: live context; the call fails.
    let none = unsafe { ibv_create_cq(rig.ctx, 8, null_mut(), null_mut(), 0) };
    assert!(none.is_null(), "queues count");
    assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::ENOMEM));
    give_back(again);
    give_back(four);
    give_back(register(&rig, 0, 8 * PAGE).unwrap());
    limit(0);
    assert_eq!(register(&rig, 0, 1), Err(libc::EPERM), "nothing may be locked");
    // A CQ needs its buffer (one page here) and a page of doorbell records, which a second CQ
    // shares.
    limit(1);
    // SAFETY: live context; the call fails.
    let none = unsafe { ibv_create_cq(rig.ctx, 63, null_mut(), null_mut(), 0) };
    assert!(none.is_null(), "the record has no page");
    limit(2);
    let _first = rig.cq(63);
    limit(3);
    let _second = rig.cq(63);
    assert_eq!(register(&rig, 0, 1), Err(libc::ENOMEM));
    limit(4);
    give_back(register(&rig, 0, PAGE).unwrap());
    limit(64);
}
