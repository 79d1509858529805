//! Other kinds of memory: on-demand regions, device memory, null regions.
#![expect(unsafe_code, reason = "raw verbs calls")]

mod common;

use std::mem::zeroed;
use std::ptr::null_mut;

use common::*;

const LOCAL_WRITE: u32 = 1;
const ON_DEMAND: u32 = 64;
const PAGE: usize = 4096;

/// Fresh pages.
fn map(len: usize) -> *mut u8 {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping anywhere.
    let at = unsafe { libc::mmap(null_mut(), len, protection, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    at.cast()
}

fn sge(addr: u64, length: u32, lkey: u32) -> ibv_sge {
    ibv_sge { addr, length, lkey }
}

fn register(rig: &mut Rig, at: *mut u8, len: usize, access: u32) -> *mut ibv_mr {
    // SAFETY: live PD.
    let mr = unsafe { ___reg(rig.pd, at.cast(), len, access as i32) };
    assert!(!mr.is_null(), "reg_mr: {}", std::io::Error::last_os_error());
    // SAFETY: deregistered once.
    rig.later(move || unsafe { assert_eq!(ibv_dereg_mr(mr), 0) });
    mr
}

#[test]
fn an_on_demand_region_may_be_mapped_later() {
    let mut rig = Rig::new();
    let cq = rig.cq(16);
    let (a, b) = rig.pair(cq, null_mut());
    let source = rig.memory(4096);
    source.put(0, &[9; 100]);
    let at = map(PAGE);
    // SAFETY: pages of our own.
    unsafe { libc::munmap(at.cast(), PAGE) };
    let mr = register(&mut rig, at, PAGE, LOCAL_WRITE | ON_DEMAND);
    // SAFETY: the address is free, as this test alone maps here between the two calls.
    let again = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        libc::mmap(at.cast(), PAGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
    };
    assert_eq!(again.cast(), at);
    // SAFETY: live MR.
    let lkey = unsafe { (*mr).lkey };
    assert_eq!(post_recv(b, 1, &[sge(at as u64, 200, lkey)]), 0);
    send(a, 2, SIGNALED, &[source.sge(0, 100)]);
    assert!(poll(cq, 2).iter().all(|wc| wc.status == 0));
    // SAFETY: mapped above.
    assert_eq!(unsafe { std::slice::from_raw_parts(at, 100) }, [9; 100]);
    // Gone again: the receiver has a protection error.
    // SAFETY: pages of our own.
    unsafe { libc::munmap(at.cast(), PAGE) };
    assert_eq!(post_recv(b, 3, &[sge(at as u64, 200, lkey)]), 0);
    send(a, 4, SIGNALED, &[source.sge(0, 100)]);
    let failed = poll(cq, 2).into_iter().find(|wc| wc.wr_id == 3).unwrap();
    assert_eq!(failed.status, ibv_wc_status::IBV_WC_LOC_PROT_ERR);
    let _ = async_events(rig.ctx);
}

#[test]
fn a_null_region_drops_writes_and_reads_as_zero() {
    let mut rig = Rig::new();
    let cq = rig.cq(16);
    let (a, b) = rig.pair(cq, null_mut());
    let memory = rig.memory(8192);
    memory.put(0, &[5; 300]);
    // SAFETY: live PD; all checked.
    let null = unsafe { (*extended(rig.ctx)).alloc_null_mr.unwrap()(rig.pd) };
    assert!(!null.is_null());
    // SAFETY: live MR.
    let lkey = unsafe { (*null).lkey };
    // The middle of the message is dropped.
    let list = [memory.sge(1024, 100), sge(0, 100, lkey), memory.sge(2048, 100)];
    assert_eq!(post_recv(b, 1, &list), 0);
    send(a, 2, SIGNALED, &[memory.sge(0, 300)]);
    assert!(poll(cq, 2).iter().all(|wc| wc.status == 0));
    assert_eq!(
        (memory.get(1024, 101), memory.get(2048, 101)),
        ([[5; 100].as_slice(), &[0]].concat(), [[5; 100].as_slice(), &[0]].concat())
    );
    // Reads return zeros, whatever was written before.
    assert_eq!(post_recv(b, 3, &[memory.sge(0, 300)]), 0);
    send(a, 4, SIGNALED, &[sge(0x1234, 200, lkey)]);
    assert!(poll(cq, 2).iter().all(|wc| wc.status == 0));
    assert_eq!(memory.get(0, 300), [[0; 200].as_slice(), &[5; 100]].concat());
    // SAFETY: deregistered once.
    unsafe { assert_eq!(ibv_dereg_mr(null), 0) };
}

fn allocate(rig: &Rig, length: usize) -> *mut ibv_dm {
    // SAFETY: live context; all-zero is a valid attribute structure.
    unsafe {
        let mut attr: ibv_alloc_dm_attr = zeroed();
        attr.length = length;
        (*extended(rig.ctx)).alloc_dm.unwrap()(rig.ctx, &raw mut attr)
    }
}

#[test]
fn device_memory_runs_out_and_comes_back() {
    const LARGEST: usize = 128 << 10;
    let rig = Rig::new();
    // SAFETY: live context.
    let free = unsafe { (*extended(rig.ctx)).free_dm.unwrap() };
    assert!(allocate(&rig, LARGEST + 1).is_null());
    for _ in 0..3 {
        let pieces = [allocate(&rig, LARGEST), allocate(&rig, LARGEST)];
        assert!(pieces.iter().all(|piece| !piece.is_null()));
        assert!(allocate(&rig, 4).is_null(), "all pages are taken");
        // SAFETY: freed once.
        pieces.iter().for_each(|&piece| unsafe { assert_eq!(free(piece), 0) });
    }
}
