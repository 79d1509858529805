//! A page fault of a receive: the card completes the request of an SRQ with an error, and brings
//! the message again. The driver posts the request again, and the program does not learn of it. The
//! program here makes such a fault of an entry that waits in its CQ, at a place that it chooses.
#![allow(missing_docs)]
#![expect(unsafe_code, reason = "calls of verbs, and an entry of a CQ")]

use std::{
    ffi::{c_char, c_void},
    mem::zeroed,
    process::ExitCode,
    ptr::null_mut,
};

use doorbell_sys::*;
use libtest_mimic::{Arguments, Trial};
use mlx5_direct::dv::abi::{DvCq, DvObj, DvPair, OBJ_CQ};

#[path = "common/both.rs"]
mod both;
use both::{
    Taken,
    rig::Rig,
    same,
    sessions::{self, Fields, Rng},
};

fn main() -> ExitCode {
    if let [_, mode, name] = &std::env::args().collect::<Vec<_>>()[..]
        && mode == "program"
    {
        let file = std::env::temp_dir().join(format!("doorbell-faulted-{}", std::process::id()));
        // SAFETY: the only thread; libmlx5 reads the variable when a device is opened.
        unsafe { std::env::set_var("MLX5_DEBUG_FILE", &file) };
        faults(&Rig::open().expect("a device"), name == "extended");
        // Faults are not failures.
        println!("debug file: {} bytes", std::fs::read(&file).unwrap_or_default().len());
        let _ = std::fs::remove_file(&file);
        return ExitCode::SUCCESS;
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads = arguments.test_threads.or(Some(1));
    let trials = vec![
        Trial::test("a_faulted_receive_of_an_srq_is_posted_again", || same("plain", Taken::All)),
        Trial::test("a_faulted_receive_is_posted_again_in_sessions", || same("extended", Taken::All)),
    ];
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// The entries of a CQ, which libmlx5 knows.
fn entries(cq: *mut ibv_cq) -> *mut [u8; 64] {
    type InitObj = unsafe extern "C" fn(*mut DvObj, u64) -> i32;
    type Next = unsafe extern "C" fn(*const c_char) -> *mut c_void;
    let name = c"mlx5dv_init_obj".as_ptr();
    // SAFETY: C strings and functions with these prototypes; integers and pointers only; a live CQ.
    unsafe {
        let next = libc::dlsym(libc::RTLD_DEFAULT, c"doorbell_verbs_next".as_ptr());
        let init = match next.is_null() {
            true => libc::dlsym(libc::dlopen(c"libmlx5.so.1".as_ptr(), libc::RTLD_NOW), name),
            false => std::mem::transmute::<*mut c_void, Next>(next)(name),
        };
        let (mut object, mut out): (DvObj, DvCq) = (zeroed(), zeroed());
        object.cq = DvPair { object: cq.cast(), out: (&raw mut out).cast() };
        assert_eq!(std::mem::transmute::<*mut c_void, InitObj>(init)(&mut object, OBJ_CQ), 0);
        assert_eq!(out.cqe_size, 64);
        out.buf.cast()
    }
}

/// Messages to an SRQ, some of which find a fault.
fn faults(rig: &Rig, is_extended: bool) {
    let sends = rig.cq(63, false);
    let cq: *mut ibv_cq = match is_extended {
        true => sessions::create(rig, 63, Fields::all(), 0).cast(),
        false => rig.cq(63, false),
    };
    let srq = rig.srq(15, 2);
    let (sender, receiver) = (rig.qp(sends, sends, null_mut()), rig.qp(cq, cq, srq));
    rig.connect(sender, receiver);
    let entries = entries(cq);
    let post = |wr_id: u64| {
        let half = |offset: usize| ibv_sge {
            addr: rig.addr(4096 + 256 * wr_id as usize + offset),
            length: 100,
            lkey: rig.lkey(),
        };
        let mut segments = [half(0), half(128)];
        let mut wr = ibv_recv_wr { wr_id, next: null_mut(), sg_list: segments.as_mut_ptr(), num_sge: 2 };
        // SAFETY: a live SRQ; the request lives through the call.
        unsafe { ibv_post_srq_recv(srq, &mut wr, &mut null_mut()) }
    };
    // Full, so that a request that is posted again has to find its own place.
    let posted = (0..).take_while(|n| post(*n) == 0).count();
    println!("{posted} receives");
    let mut received = 0;
    for n in 0..100_usize {
        rig.send(sender, 0, 150, Some(n as u32), false);
        assert_eq!(rig.verbs_poll(sends, 1)[0].status, 0);
        if n % 3 == 1 {
            let entry = entries.wrapping_add(n % 64);
            // SAFETY: an entry of the CQ, which the device has written: the request is finished.
            unsafe {
                (&mut *entry)[54..56].copy_from_slice(&[0x93, 0x22]);
                (&raw mut (*entry)[63]).write_volatile(0xe0 | (*entry)[63] & 1);
            }
            continue;
        }
        received += 1;
        let mut line = match is_extended {
            true => sessions::take(cq.cast(), Fields::all(), &[receiver], 1, &mut Rng::new(1)),
            false => {
                let polled = rig.verbs_poll(cq, 1);
                polled.iter().map(|wc| format!("{}: {} {}", wc.wr_id, wc.status, wc.byte_len)).collect()
            }
        };
        // Whose turn it is depends on the driver: each has its own order of the ring.
        let (wr_id, rest) = line
            .remove(0)
            .split_once(": ")
            .map(|(id, rest)| (id.to_owned(), rest.to_owned()))
            .expect("a number");
        println!("{n}: {rest}");
        assert_eq!(post(wr_id.parse().expect("a number")), 0);
    }
    // All receives are there again: as many messages arrive, each in a buffer of its own.
    println!("{received} received, one more: {}", post(99) == 0);
    let mut all: Vec<_> = (0..posted)
        .map(|_| {
            rig.send(sender, 0, 150, None, false);
            assert_eq!(rig.verbs_poll(sends, 1)[0].status, 0);
            match is_extended {
                true => sessions::take(cq.cast(), Fields::all(), &[receiver], 1, &mut Rng::new(1))[0]
                    .split(':')
                    .next()
                    .map(str::to_owned),
                false => Some(rig.verbs_poll(cq, 1)[0].wr_id.to_string()),
            }
        })
        .collect();
    all.sort();
    println!("{all:?}");
    rig.destroy(&[sender, receiver], &[srq], &[sends, cq]);
}
