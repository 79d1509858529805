//! Other kinds of memory: on-demand regions, device memory, null regions. Also contexts that a
//! second user imports.
#![expect(unsafe_code, reason = "raw verbs calls")]

mod common;

use std::mem::zeroed;
use std::ptr::null_mut;

use common::*;

const LOCAL_WRITE: u32 = 1;
const REMOTE_WRITE: u32 = 2;
const ZERO_BASED: u32 = 32;
const ON_DEMAND: u32 = 64;
const PAGE: usize = 4096;

unsafe extern "C" {
    fn ibv_import_device(fd: i32) -> *mut ibv_context;
    fn ibv_import_pd(ctx: *mut ibv_context, handle: u32) -> *mut ibv_pd;
    fn ibv_unimport_pd(pd: *mut ibv_pd);
    fn ibv_import_mr(pd: *mut ibv_pd, handle: u32) -> *mut ibv_mr;
    fn ibv_unimport_mr(mr: *mut ibv_mr);
    fn ibv_import_dm(ctx: *mut ibv_context, handle: u32) -> *mut ibv_dm;
    fn ibv_unimport_dm(dm: *mut ibv_dm);
}

fn last_errno() -> Option<i32> {
    std::io::Error::last_os_error().raw_os_error()
}

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
fn an_implicit_region_covers_every_address() {
    let mut rig = Rig::new();
    let cq = rig.cq(16);
    let (a, b) = rig.pair(cq, null_mut());
    let mr = register(&mut rig, null_mut(), usize::MAX, LOCAL_WRITE | ON_DEMAND);
    // SAFETY: live MR.
    let lkey = unsafe { (*mr).lkey };
    let (from, to) = ([3u8; 80], map(PAGE));
    assert_eq!(post_recv(b, 1, &[sge(to as u64, 80, lkey)]), 0);
    send(a, 2, SIGNALED, &[sge(from.as_ptr() as u64, 80, lkey)]);
    assert!(poll(cq, 2).iter().all(|wc| wc.status == 0));
    // SAFETY: mapped above.
    assert_eq!(unsafe { std::slice::from_raw_parts(to, 80) }, from);
    let mut list = [sge(to as u64, 80, lkey)];
    // SAFETY: live PD and list.
    unsafe {
        let ops = extended(rig.ctx);
        let mut advise = |advice| (*ops).advise_mr.unwrap()(rig.pd, advice, 1, list.as_mut_ptr(), 1);
        assert_eq!(advise(1), 0, "prefetch for writing");
        libc::munmap(to.cast(), PAGE);
        assert_eq!(advise(1), libc::EFAULT);
        assert_eq!(advise(2), 0, "without faults nothing is brought in");
    }
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

fn copy_out(dm: *mut ibv_dm, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    // SAFETY: live DM, room for the bytes.
    let rc = unsafe { (*dm).memcpy_from_dm.unwrap()(bytes.as_mut_ptr().cast(), dm, offset, len) };
    assert_eq!(rc, 0);
    bytes
}

#[test]
fn device_memory_is_reached_by_the_processor_and_by_messages() {
    let mut rig = Rig::new();
    let cq = rig.cq(16);
    let (a, b) = rig.pair(cq, null_mut());
    let memory = rig.memory(4096);
    memory.put(0, b"to the device's memory and back, more than a completion carries, and in its middle");
    let dm = allocate(&rig, 5000);
    assert!(!dm.is_null(), "alloc_dm: {}", std::io::Error::last_os_error());
    // SAFETY: live context, PD and DM.
    unsafe {
        let ops = extended(rig.ctx);
        let register = (*ops).reg_dm_mr.unwrap();
        let all = ZERO_BASED | LOCAL_WRITE | REMOTE_WRITE;
        assert!(register(rig.pd, dm, 4096, 1000, all).is_null(), "beyond its end");
        assert_eq!(last_errno(), Some(libc::EINVAL));
        let mr = register(rig.pd, dm, 4000, 1000, all);
        assert!(!mr.is_null(), "reg_dm_mr: {}", std::io::Error::last_os_error());
        let (lkey, rkey) = ((*mr).lkey, (*mr).rkey);
        post_send(a, 1, ibv_wr_opcode::IBV_WR_RDMA_WRITE, SIGNALED, &[memory.sge(0, 80)], |wr| {
            (wr.wr.rdma.remote_addr, wr.wr.rdma.rkey) = (100, rkey);
        });
        assert_eq!(poll(cq, 1)[0].status, 0);
        assert_eq!(copy_out(dm, 4100, 80), memory.get(0, 80));
        assert_eq!(post_recv(b, 2, &[memory.sge(1024, 80)]), 0);
        send(a, 3, SIGNALED, &[sge(100, 80, lkey)]);
        assert!(poll(cq, 2).iter().all(|wc| wc.status == 0));
        assert_eq!(memory.get(1024, 80), memory.get(0, 80));
        assert_eq!((*ops).free_dm.unwrap()(dm), libc::EBUSY, "a region is registered on it");
        assert_eq!(ibv_dereg_mr(mr), 0);
        assert_eq!((*ops).free_dm.unwrap()(dm), 0);
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

/// As in the kernel, memory that a child allocates belongs to the shared descriptor.
#[test]
fn parent_and_forked_child_get_different_device_memory() {
    const LARGEST: usize = 128 << 10;
    let rig = Rig::new();
    // SAFETY: the child makes one call and exits; the parent waits for it.
    let status = unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::_exit(if allocate(&rig, LARGEST).is_null() { 1 } else { 3 });
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        status
    };
    assert_eq!(libc::WEXITSTATUS(status), 3);
    let first = allocate(&rig, LARGEST);
    assert!(!first.is_null());
    assert!(allocate(&rig, LARGEST).is_null(), "the child's stays taken");
    // SAFETY: freed once.
    unsafe { assert_eq!((*extended(rig.ctx)).free_dm.unwrap()(first), 0) };
}

/// Other languages duplicate a descriptor with `fcntl`.
#[test]
fn an_imported_context_shares_pds_regions_and_device_memory() {
    let mut rig = Rig::new();
    let memory = rig.memory(4096);
    let dm = allocate(&rig, 64);
    // SAFETY: live objects; everything imported is given back before the context is closed.
    unsafe {
        let word = 0x0403_0201u32;
        assert_eq!((*dm).memcpy_to_dm.unwrap()(dm, 4, (&raw const word).cast(), 4), 0);
        let fd = libc::fcntl((*rig.ctx).cmd_fd, libc::F_DUPFD_CLOEXEC, 0);
        let ctx = ibv_import_device(fd);
        assert!(!ctx.is_null(), "import: {}", std::io::Error::last_os_error());
        assert!(ibv_import_pd(ctx, 99_999).is_null());
        let pd = ibv_import_pd(ctx, (*rig.pd).handle);
        assert!(!pd.is_null());
        let mr = ibv_import_mr(pd, (*memory.mr).handle);
        assert!(!mr.is_null());
        assert_eq!(((*mr).lkey, (*mr).rkey, (*mr).length), (memory.lkey, memory.rkey, 4096));
        let imported = ibv_import_dm(ctx, (*dm).handle);
        assert!(!imported.is_null());
        assert_eq!(copy_out(imported, 4, 4), [1, 2, 3, 4]);
        // Its CQs and QPs work on the shared PD and region.
        let cq = ibv_create_cq(ctx, 16, null_mut(), null_mut(), 0);
        assert!(!cq.is_null(), "create_cq: {}", std::io::Error::last_os_error());
        let mut attr: ibv_qp_init_attr = zeroed();
        (attr.send_cq, attr.recv_cq, attr.qp_type) = (cq, cq, ibv_qp_type::IBV_QPT_RC);
        (attr.cap.max_send_wr, attr.cap.max_recv_wr) = (4, 4);
        (attr.cap.max_send_sge, attr.cap.max_recv_sge) = (1, 1);
        let qps = [(); 2].map(|()| ibv_create_qp(pd, &raw mut attr));
        assert!(qps.iter().all(|qp| !qp.is_null()), "create_qp: {}", std::io::Error::last_os_error());
        connect(qps[0], qps[1]);
        connect(qps[1], qps[0]);
        memory.put(0, &[8; 100]);
        assert_eq!(post_recv(qps[1], 1, &[sge(memory.at(1024), 100, (*mr).lkey)]), 0);
        send(qps[0], 2, SIGNALED, &[sge(memory.at(0), 100, (*mr).lkey)]);
        assert!(poll(cq, 2).iter().all(|wc| wc.status == 0));
        assert_eq!(memory.get(1024, 100), [8; 100]);
        qps.iter().for_each(|&qp| assert_eq!(ibv_destroy_qp(qp), 0));
        assert_eq!(ibv_destroy_cq(cq), 0);
        ibv_unimport_dm(imported);
        ibv_unimport_mr(mr);
        ibv_unimport_pd(pd);
        assert_eq!(ibv_close_device(ctx), 0);
        assert_eq!((*extended(rig.ctx)).free_dm.unwrap()(dm), 0);
    }
}
