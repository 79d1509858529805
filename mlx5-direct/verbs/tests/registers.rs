//! Send registers that QPs of the library share with QPs of libmlx5, on the software device. The
//! program writes a pattern behind the doorbell words of a register, and looks after a post whether
//! a BlueFlame copy is there instead.
#![allow(missing_docs)]
#![expect(unsafe_code, reason = "calls of verbs, and loads from registers")]

use std::{
    ffi::{c_char, c_void},
    mem::zeroed,
    process::ExitCode,
    ptr::null_mut,
};

use doorbell_sys::*;
use libtest_mimic::{Arguments, Failed, Trial};
use mlx5_direct::dv::abi::{DvObj, DvPair, DvQp, OBJ_QP};

#[path = "../../../hw-tests/mlx5-emu/tests/common/pairs.rs"]
#[allow(dead_code, reason = "pairs of programs are tested elsewhere")]
mod pairs;
#[path = "../../../hw-tests/mlx5-emu/tests/common/programs.rs"]
#[allow(dead_code, reason = "pairs of programs are tested elsewhere")]
mod programs;
#[path = "../../tests/common/rig.rs"]
mod rig;
use rig::Rig;

/// From this package's folder.
const WITH_EMU: &str = "../../hw-tests/with-emu";
const RUN: &str = env!("CARGO_BIN_EXE_doorbell-run");

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some("program") {
        program(&Rig::open().expect("a device"));
        println!("finished");
        return ExitCode::SUCCESS;
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads = arguments.test_threads.or(Some(1));
    let trials = vec![Trial::test("no_blueflame_on_a_register_of_a_qp_of_libmlx5", || {
        let program = std::env::current_exe()?;
        let output = pairs::with_emu(&format!("{RUN} timeout 120 {} program", program.display()))?;
        if output.lines().any(|line| line == "finished") { Ok(()) } else { Err(Failed::from(output)) }
    })];
    libtest_mimic::run(&arguments, trials).exit_code()
}

type InitObj = unsafe extern "C" fn(*mut DvObj, u64) -> i32;

/// `mlx5dv_init_obj` of the preloaded library, which gives QPs back to libmlx5; or that of libmlx5
/// itself, which changes nothing.
fn init_obj(of_libmlx5: bool) -> InitObj {
    let name = c"mlx5dv_init_obj".as_ptr();
    // SAFETY: C strings; functions with these prototypes.
    unsafe {
        let found = if of_libmlx5 {
            let next = libc::dlsym(libc::RTLD_DEFAULT, c"doorbell_verbs_next".as_ptr());
            assert!(!next.is_null(), "run under doorbell-run");
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const c_char) -> *mut c_void>(next)(name)
        } else {
            libc::dlsym(libc::RTLD_DEFAULT, name)
        };
        assert!(!found.is_null(), "run under doorbell-run");
        std::mem::transmute::<*mut c_void, InitObj>(found)
    }
}

fn describe(init: InitObj, qp: *mut ibv_qp) -> DvQp {
    // SAFETY: integers and pointers only; a live QP, and structs that are large enough.
    unsafe {
        let (mut object, mut out): (DvObj, DvQp) = (zeroed(), zeroed());
        object.qp = DvPair { object: qp.cast(), out: (&raw mut out).cast() };
        assert_eq!(init(&mut object, OBJ_QP), 0);
        out
    }
}

/// The address of a QP's register.
fn register(qp: *mut ibv_qp) -> usize {
    describe(init_obj(true), qp).bf.reg.addr()
}

/// A QP in RTS that is connected to itself.
fn qp(rig: &Rig, cq: *mut ibv_cq) -> *mut ibv_qp {
    let qp = rig.qp(cq, cq, null_mut());
    // SAFETY: a live QP.
    unsafe { rig.to_rts(qp, rig.qpn(qp)) };
    qp
}

/// Posts a Write, waits for its completion, and returns whether BlueFlame was used.
fn blueflame(rig: &Rig, cq: *mut ibv_cq, qp: *mut ibv_qp) -> bool {
    const PATTERN: u64 = 0x5a5a_5a5a_5a5a_5a5a;
    let bf = describe(init_obj(true), qp).bf;
    assert_eq!(bf.size, 256, "the register has two halves");
    let words = || {
        [0, 256].into_iter().flat_map(|half| (1..8).map(move |word| half + word * 8)).map(|offset| {
            // SAFETY: inside the register of a live QP, and aligned.
            bf.reg.wrapping_byte_add(offset).cast::<u64>()
        })
    };
    // SAFETY: as above. The software device reads these words only in its manual modes.
    words().for_each(|word| unsafe { word.write_volatile(PATTERN) });
    let mut sge = ibv_sge { addr: rig.addr(0), length: 8, lkey: rig.lkey() };
    // SAFETY: integers and pointers only; a live QP; the request lives through the call.
    unsafe {
        let mut wr: ibv_send_wr = zeroed();
        (wr.sg_list, wr.num_sge, wr.opcode) = (&mut sge, 1, ibv_wr_opcode::IBV_WR_RDMA_WRITE);
        wr.send_flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
        wr.wr.rdma = rdma_t { remote_addr: rig.addr(8192), rkey: rig.rkey() };
        assert_eq!(ibv_post_send(qp, &mut wr, &mut null_mut()), 0);
    }
    let completions = rig.verbs_poll(cq, 1);
    assert_eq!(completions.iter().map(|wc| wc.status).collect::<Vec<_>>(), [0]);
    // SAFETY: as above.
    words().any(|word| unsafe { word.read_volatile() } != PATTERN)
}

/// Creates QPs until one has this register, which is the last one.
fn until_on(rig: &Rig, cq: *mut ibv_cq, wanted: usize) -> Vec<*mut ibv_qp> {
    let mut qps = vec![qp(rig, cq)];
    while register(qps[qps.len() - 1]) != wanted {
        assert!(qps.len() < 64, "no QP shares the register");
        qps.push(qp(rig, cq));
    }
    qps
}

fn program(rig: &Rig) {
    let (cq, left_cq) = (rig.cq(255, false), rig.cq(255, false));
    // More than the four that have a register of their own in any case.
    let mut ours: Vec<_> = (0..6).map(|_| qp(rig, cq)).collect();
    let first = ours[5];
    assert!(blueflame(rig, cq, first), "the register is the QP's own");

    // A QP that the program drives itself, and then more QPs on its CQ: all of them libmlx5's.
    let driven = rig.qp(left_cq, left_cq, null_mut());
    describe(init_obj(false), driven);
    let driven_register = register(driven);
    assert!(ours.iter().all(|&qp| register(qp) != driven_register));
    assert!(blueflame(rig, cq, first), "another register");
    let left = until_on(rig, left_cq, register(first));
    assert!(!blueflame(rig, cq, first), "the register is that of a later QP of libmlx5");

    // The first QP of ours on the register of the QP that the program drives.
    let later = until_on(rig, cq, driven_register);
    let shares = later[later.len() - 1];
    assert!(left.iter().all(|&qp| register(qp) != driven_register));
    assert!(!blueflame(rig, cq, shares), "the register is that of an earlier QP of libmlx5");
    ours.extend(&later);

    // When both are gone, the next QP has the register for itself.
    rig.destroy(&[driven, shares], &[], &[]);
    ours.pop();
    let again = until_on(rig, cq, driven_register);
    assert!(blueflame(rig, cq, again[again.len() - 1]), "the register is the QP's own again");
    ours.extend(&again);
    rig.destroy(&[ours, left].concat(), &[], &[cq, left_cq]);
}
