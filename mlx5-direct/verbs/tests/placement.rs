//! Where the payload of a completion goes when the device left it in the entry: to the place where
//! the device would have written it, or nowhere. On the software device, with memory regions that
//! are not addressed by the program's addresses.
#![allow(missing_docs)]
#![expect(unsafe_code, reason = "calls of verbs")]

use std::{mem::zeroed, process::ExitCode, ptr::null_mut};

use doorbell_sys::*;
use libtest_mimic::{Arguments, Failed, Trial};

#[path = "common/both.rs"]
mod both;
use both::{
    RUN, Taken, pairs,
    rig::Rig,
    same,
    sessions::{self, Fields, Rng},
};

unsafe extern "C" {
    fn ibv_reg_mr_iova(
        pd: *mut ibv_pd,
        at: *mut libc::c_void,
        bytes: usize,
        iova: u64,
        rights: i32,
    ) -> *mut ibv_mr;
    fn ibv_rereg_mr(
        mr: *mut ibv_mr,
        flags: i32,
        pd: *mut ibv_pd,
        at: *mut libc::c_void,
        bytes: usize,
        rights: i32,
    ) -> i32;
}

fn main() -> ExitCode {
    if let [_, mode, name] = &std::env::args().collect::<Vec<_>>()[..]
        && mode == "program"
    {
        if name.ends_with("wide") {
            // SAFETY: the only thread; libmlx5 reads the variable when a device is opened.
            unsafe { std::env::set_var("MLX5_CQE_SIZE", "128") };
        }
        let rig = Rig::open().expect("a device");
        match name.as_str() {
            "null" => null(&rig, false, true),
            "null-wide" => null(&rig, false, false),
            "null-extended" => null(&rig, true, true),
            "elsewhere" | "elsewhere-wide" => elsewhere(&rig),
            _ => panic!("no such program"),
        }
        return ExitCode::SUCCESS;
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads = arguments.test_threads.or(Some(1));
    let trials = vec![
        Trial::test("what_arrives_in_a_null_mr_is_dropped", || same("null", Taken::All)),
        Trial::test("what_arrives_in_a_null_mr_is_dropped_from_wide_entries", || {
            same("null-wide", Taken::All)
        }),
        Trial::test("what_arrives_in_a_null_mr_is_dropped_in_sessions", || same("null-extended", Taken::All)),
        Trial::test("a_payload_goes_where_its_region_is", || only_with_the_library("elsewhere")),
        Trial::test("a_payload_of_a_wide_entry_goes_where_its_region_is", || {
            only_with_the_library("elsewhere-wide")
        }),
    ];
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// A program that checks itself, and of which libmlx5 crashes.
fn only_with_the_library(name: &str) -> Result<(), Failed> {
    let program = std::env::current_exe()?;
    let output = pairs::with_emu(&format!("timeout 60 {RUN} --stats {} program {name}", program.display()))?;
    match output.contains("1 of 1 CQs, 1 of 1 SRQs, 3 of 3 QPs") {
        true => Ok(()),
        false => Err(output.into()),
    }
}

/// A CQ, and connected QPs on it, whose sends are all signalled.
struct Objects<'a> {
    rig: &'a Rig,
    cq: *mut ibv_cq,
    is_extended: bool,
    srq: *mut ibv_srq,
    sender: *mut ibv_qp,
    receiver: *mut ibv_qp,
}

impl<'a> Objects<'a> {
    fn new(rig: &'a Rig, is_extended: bool, srq: *mut ibv_srq, cq: *mut ibv_cq) -> Self {
        let qp = |srq| {
            let change = |init: &mut ibv_qp_init_attr| {
                (init.cap.max_recv_wr, init.cap.max_recv_sge) = (8, 4);
                init.cap.max_send_sge = 4;
            };
            rig.qp_with(cq, cq, srq, change).0
        };
        let (sender, receiver) = (qp(null_mut()), qp(srq));
        rig.connect(sender, receiver);
        Self { rig, cq, is_extended, srq, sender, receiver }
    }

    /// Sends `bytes` bytes to a receive of these segments; what both completions say, sorted.
    fn message(&self, bytes: u32, to: &mut [ibv_sge]) -> Vec<String> {
        self.rig.write(0, &[0x77; 64]);
        let mut wr =
            ibv_recv_wr { wr_id: 1, next: null_mut(), sg_list: to.as_mut_ptr(), num_sge: to.len() as i32 };
        // SAFETY: live objects; the request lives through the call.
        let result = unsafe {
            if self.srq.is_null() {
                ibv_post_recv(self.receiver, &mut wr, &mut null_mut())
            } else {
                ibv_post_srq_recv(self.srq, &mut wr, &mut null_mut())
            }
        };
        assert_eq!(result, 0);
        self.request(ibv_wr_opcode::IBV_WR_SEND, &mut [self.at(0, bytes)]);
        self.completions(2)
    }

    /// A segment of the rig's buffer.
    fn at(&self, offset: usize, length: u32) -> ibv_sge {
        ibv_sge { addr: self.rig.addr(offset), length, lkey: self.rig.lkey() }
    }

    /// Posts a request to the sender. What it names at the peer is at offset 512.
    fn request(&self, opcode: u32, segments: &mut [ibv_sge]) {
        // SAFETY: integers and pointers only; a live QP; the request lives through the call.
        unsafe {
            let mut wr: ibv_send_wr = zeroed();
            (wr.wr_id, wr.opcode) = (2, opcode);
            (wr.sg_list, wr.num_sge) = (segments.as_mut_ptr(), segments.len() as i32);
            let (remote_addr, rkey) = (self.rig.addr(512), self.rig.rkey());
            if opcode == ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD {
                wr.wr.atomic = atomic_t { remote_addr, compare_add: 0, swap: 0, rkey };
            } else {
                wr.wr.rdma = rdma_t { remote_addr, rkey };
            }
            assert_eq!(ibv_post_send(self.sender, &mut wr, &mut null_mut()), 0);
        }
    }

    fn completions(&self, count: usize) -> Vec<String> {
        let mut lines = if self.is_extended {
            let qps = [self.sender, self.receiver];
            sessions::take(self.cq.cast(), Fields::all(), &qps, count, &mut Rng::new(1))
        } else {
            let completions = self.rig.verbs_poll(self.cq, count);
            let line = |wc: &ibv_wc| format!("{}: {} {} {}", wc.wr_id, wc.status, wc.opcode, wc.byte_len);
            completions.iter().map(line).collect()
        };
        lines.sort();
        lines
    }

    /// Whether a receive of these segments succeeds.
    fn arrives(&self, bytes: u32, to: &mut [ibv_sge]) -> bool {
        self.message(bytes, to)[0].starts_with("1: 0 ")
    }
}

/// A null MR.
fn null_mr(rig: &Rig) -> *mut ibv_mr {
    // SAFETY: a live PD.
    let mr = unsafe { rig.extended().alloc_null_mr.expect("ibv_alloc_null_mr")(rig.pd) };
    assert!(!mr.is_null(), "ibv_alloc_null_mr: {}", std::io::Error::last_os_error());
    mr
}

fn dereg(mr: *mut ibv_mr) {
    // SAFETY: a live region without users.
    assert_eq!(unsafe { ibv_dereg_mr(mr) }, 0);
}

/// Messages, and results of requests, that go to a null MR as a whole or (`parts_of_results`) in
/// part. From an entry of 128 bytes, libmlx5 takes the result of a request one byte too early.
fn null(rig: &Rig, is_extended: bool, parts_of_results: bool) {
    let cq = match is_extended {
        true => sessions::create(rig, 63, Fields::all(), 0).cast(),
        false => rig.cq(63, false),
    };
    let objects = Objects::new(rig, is_extended, null_mut(), cq);
    let mr = null_mr(rig);
    // SAFETY: a live region.
    let lkey = unsafe { (*mr).lkey };
    let memory = || {
        let bytes = rig.read(4096, 1024);
        println!("  {:?}", bytes.iter().enumerate().filter(|(_, b)| **b != 0).collect::<Vec<_>>());
        rig.write(4096, &[0; 1024]);
    };
    let nowhere = |length| ibv_sge { addr: 0, length, lkey };
    // An address that is not looked at, but is one of the program's.
    let ignored = |length| ibv_sge { addr: rig.addr(4096), length, lkey };
    let here = |offset: usize, length| objects.at(4096 + offset, length);
    for bytes in [8, 30, 32, 60] {
        let lists: [&mut [ibv_sge]; 5] = [
            &mut [nowhere(512)],
            &mut [ignored(512)],
            &mut [here(0, 4), nowhere(512)],
            &mut [nowhere(2), here(0, 200)],
            &mut [here(0, 4), ignored(3), here(100, 200)],
        ];
        for list in lists {
            println!("{bytes}: {:?}", objects.message(bytes, list));
            memory();
        }
    }
    rig.write(512, &[0x33; 64]);
    use ibv_wr_opcode::*;
    for (opcode, bytes) in [
        (IBV_WR_RDMA_READ, 8),
        (IBV_WR_RDMA_READ, 30),
        (IBV_WR_RDMA_READ, 60),
        (IBV_WR_ATOMIC_FETCH_AND_ADD, 8),
    ] {
        objects.request(opcode, &mut [nowhere(bytes)]);
        println!("{opcode} {bytes}: {:?}", objects.completions(1));
        objects.request(opcode, &mut [ignored(bytes)]);
        println!("{opcode} {bytes}: {:?}", objects.completions(1));
        memory();
        if bytes != 8 && parts_of_results {
            objects.request(opcode, &mut [here(0, 4), ignored(3), here(100, bytes - 7)]);
            println!("{opcode} {bytes}: {:?}", objects.completions(1));
            memory();
        }
    }
    dereg(mr);
    rig.destroy(&[objects.sender, objects.receiver], &[], &[cq]);
}

/// Payloads for regions with addresses of their own, with and without an SRQ.
fn elsewhere(rig: &Rig) {
    let (cq, srq) = (rig.cq(63, false), rig.srq(16, 4));
    let own = Objects::new(rig, false, null_mut(), cq);
    let shared = rig.qp(cq, cq, srq);
    for srq in [null_mut(), srq] {
        let objects = match srq.is_null() {
            true => Objects { srq, ..own },
            false => {
                rig.to_reset(own.sender);
                rig.connect(own.sender, shared);
                Objects { srq, receiver: shared, ..own }
            }
        };
        let arrived = |at, bytes: usize| {
            let found = rig.read(at, bytes + 1) == [vec![0x77; bytes], vec![0]].concat();
            rig.write(at, &[0; 128]);
            found
        };
        // SAFETY: inside the buffer, on pages of its own.
        let at = rig.buffer.wrapping_add(8192).map_addr(|addr| addr & !0xfff);
        let offset = at.addr() - rig.buffer.addr();
        for iova in [0x10_0000_0000, 0x1000, at.addr() as u64 + 8192] {
            // SAFETY: a live PD, and memory that lives as long as the program.
            let mr = unsafe { ibv_reg_mr_iova(rig.pd, at.cast(), 8192, iova, 1) };
            assert!(!mr.is_null());
            // SAFETY: a live region.
            let lkey = unsafe { (*mr).lkey };
            for bytes in [8, 32, 60] {
                assert!(objects.arrives(bytes, &mut [ibv_sge { addr: iova + 16, length: 200, lkey }]));
                assert!(arrived(offset + 16, bytes as usize), "{bytes} bytes at {iova:#x}");
            }
            rig.write(512, &[0x77; 64]);
            objects.request(
                ibv_wr_opcode::IBV_WR_RDMA_READ,
                &mut [ibv_sge { addr: iova + 16, length: 8, lkey }],
            );
            assert!(objects.completions(1)[0].starts_with("2: 0 "));
            assert!(arrived(offset + 16, 8), "a result at {iova:#x}");
            // A region that got other addresses has those.
            // SAFETY: a live region of the rig's PD, and memory that lives as long as the program.
            assert_eq!(unsafe { ibv_rereg_mr(mr, 1, null_mut(), at.cast(), 8192, 0) }, 0);
            // SAFETY: a live region.
            let lkey = unsafe { (*mr).lkey };
            assert!(objects.arrives(8, &mut [ibv_sge { addr: at as u64, length: 200, lkey }]));
            assert!(arrived(offset, 8), "after ibv_rereg_mr");
            dereg(mr);
        }
        let rights = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE | ibv_access_flags::IBV_ACCESS_ZERO_BASED;
        // SAFETY: a live PD, and memory that lives as long as the program.
        let mr = unsafe { ibv_reg_mr(rig.pd, at.cast(), 8192, rights.0 as i32) };
        assert!(!mr.is_null());
        // SAFETY: a live region.
        let lkey = unsafe { (*mr).lkey };
        assert!(objects.arrives(8, &mut [ibv_sge { addr: 16, length: 200, lkey }]));
        assert!(arrived(offset + 16, 8), "8 bytes in a zero-based region");
        dereg(mr);
        let mr = null_mr(rig);
        // SAFETY: a live region.
        let lkey = unsafe { (*mr).lkey };
        assert!(objects.arrives(8, &mut [ibv_sge { addr: 0, length: 512, lkey }]));
        assert!(objects.arrives(8, &mut [objects.at(offset, 4), ibv_sge { addr: 0, length: 512, lkey }]));
        assert!(arrived(offset, 4));
        let (first, last) = (objects.at(offset, 4), objects.at(offset + 64, 23));
        let mut parts = [first, ibv_sge { addr: 0, length: 3, lkey }, last];
        objects.request(ibv_wr_opcode::IBV_WR_RDMA_READ, &mut parts);
        assert!(objects.completions(1)[0].starts_with("2: 0 "));
        assert_eq!(rig.read(offset, 5), [0x77, 0x77, 0x77, 0x77, 0]);
        rig.write(offset, &[0; 4]);
        assert!(arrived(offset + 64, 23));
        dereg(mr);
        // The device's own memory has no address in the program: such a message fails.
        let mut attr = ibv_alloc_dm_attr { length: 4096, log_align_req: 0, comp_mask: 0 };
        // SAFETY: live objects and whole attributes.
        unsafe {
            let verbs = rig.extended();
            let dm = verbs.alloc_dm.expect("ibv_alloc_dm")(rig.context, &mut attr);
            assert!(!dm.is_null());
            let rights = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE | ibv_access_flags::IBV_ACCESS_ZERO_BASED;
            let mr = verbs.reg_dm_mr.expect("ibv_reg_dm_mr")(rig.pd, dm, 0, 4096, rights.0);
            assert!(!mr.is_null());
            assert!(!objects.arrives(8, &mut [ibv_sge { addr: 16, length: 512, lkey: (*mr).lkey }]));
            dereg(mr);
            assert_eq!(verbs.free_dm.expect("ibv_free_dm")(dm), 0);
        }
    }
    rig.destroy(&[own.sender, own.receiver, shared], &[srq], &[cq]);
}
