//! Whose functions the calls of verbs reach under the library: those of the driver on a device of
//! another driver, the library's on an mlx5 device. On the devices of `DOORBELL_TEST_DEVICES`.
#![allow(missing_docs)]
#![expect(unsafe_code, reason = "calls of verbs")]

use std::{
    ffi::{CStr, c_void},
    mem::zeroed,
    path::Path,
    process::{Command, ExitCode},
    ptr::null_mut,
};

use doorbell_sys::*;
use libtest_mimic::{Arguments, Failed, Trial};

const RUN: &str = env!("CARGO_BIN_EXE_doorbell-run");
const LIBRARY: &str = "libdoorbell_verbs.so";

fn main() -> ExitCode {
    if let [_, mode, device] = &std::env::args().collect::<Vec<_>>()[..]
        && mode == "owners"
    {
        owners(device);
        return ExitCode::SUCCESS;
    }
    let devices = std::env::var("DOORBELL_TEST_DEVICES").unwrap_or_default();
    let devices: Vec<_> = devices.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect();
    let trials = devices.into_iter().map(|device| {
        let name = format!("calls_of_{device}_reach_the_functions_they_should");
        Trial::test(name, move || calls(&device)).with_kind("library")
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}

// --- the program ---

/// The library that this function is in.
fn owner(function: *const c_void) -> String {
    // SAFETY: integers and pointers only, for which zero is a value.
    let mut info: libc::Dl_info = unsafe { zeroed() };
    // SAFETY: any address may be looked up; the name is a string of the loader.
    let path = unsafe {
        if libc::dladdr(function, &mut info) == 0 {
            return "nobody".into();
        }
        CStr::from_ptr(info.dli_fname)
    };
    Path::new(&*path.to_string_lossy()).file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Prints the owner of each function of the data path, once the device has a CQ, an SRQ and a QP;
/// and then what a poll, a post and a query answer.
fn owners(name: &str) {
    let some = |is_null: bool, call: &str| assert!(!is_null, "{call}: {}", std::io::Error::last_os_error());
    // SAFETY: calls of verbs with live objects and whole structs; the functions' addresses are only
    // looked at.
    unsafe {
        let mut count = 0;
        let list = ibv_get_device_list(&mut count);
        let found = (0..count as usize)
            .map(|n| *list.add(n))
            .find(|device| CStr::from_ptr(ibv_get_device_name(*device)).to_string_lossy() == name);
        let context = ibv_open_device(found.expect("no such device"));
        some(context.is_null(), "ibv_open_device");
        let pd = ibv_alloc_pd(context);
        some(pd.is_null(), "ibv_alloc_pd");
        let cq = ibv_create_cq(context, 16, null_mut(), null_mut(), 0);
        some(cq.is_null(), "ibv_create_cq");
        let mut of_srq: ibv_srq_init_attr = zeroed();
        (of_srq.attr.max_wr, of_srq.attr.max_sge) = (16, 1);
        let srq = ibv_create_srq(pd, &mut of_srq);
        some(srq.is_null(), "ibv_create_srq");
        let mut of_qp: ibv_qp_init_attr = zeroed();
        (of_qp.send_cq, of_qp.recv_cq, of_qp.srq) = (cq, cq, srq);
        (of_qp.cap.max_send_wr, of_qp.cap.max_send_sge) = (8, 1);
        of_qp.qp_type = ibv_qp_type::IBV_QPT_RC;
        let qp = ibv_create_qp(pd, &mut of_qp);
        some(qp.is_null(), "ibv_create_qp");

        let ops = &(*context).ops;
        for (call, function) in [
            ("ibv_post_send", ops.post_send.map(|f| f as *const c_void)),
            ("ibv_post_recv", ops.post_recv.map(|f| f as *const c_void)),
            ("ibv_post_srq_recv", ops.post_srq_recv.map(|f| f as *const c_void)),
            ("ibv_poll_cq", ops.poll_cq.map(|f| f as *const c_void)),
            ("ibv_req_notify_cq", ops.req_notify_cq.map(|f| f as *const c_void)),
        ] {
            println!("{call}: {}", owner(function.expect("a function")));
        }
        let mut wc: ibv_wc = zeroed();
        println!("poll: {}", ibv_poll_cq(cq, 1, &mut wc));
        let mut wr: ibv_recv_wr = zeroed();
        let mut bad = null_mut();
        let posted = (0..100).take_while(|_| ibv_post_srq_recv(srq, &mut wr, &mut bad) == 0).count();
        println!("receives until the SRQ is full: {}", posted >= 16);
        println!("notify: {}", ibv_req_notify_cq(cq, 0));
        println!("destroy: {} {}", ibv_destroy_qp(qp), ibv_destroy_srq(srq));
        println!("destroy: {} {}", ibv_destroy_cq(cq), ibv_dealloc_pd(pd));
        println!("close: {}", ibv_close_device(context));
    }
}

// --- the test ---

/// What the program prints about this device, and what the library reports.
fn output(launcher: &[&str], device: &str) -> Result<(String, String), Failed> {
    let program = std::env::current_exe()?;
    let program = program.to_string_lossy();
    let line: Vec<_> = launcher.iter().copied().chain([&*program, "owners", device]).collect();
    let output = Command::new(line[0]).args(&line[1..]).output()?;
    let [printed, reported] =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    if !output.status.success() || printed.lines().count() != 11 {
        return Err(format!("{line:?}: {}\n{printed}{reported}", output.status).into());
    }
    Ok((printed, reported))
}

fn calls(device: &str) -> Result<(), Failed> {
    let (without, _) = output(&[], device)?;
    let (with, report) = output(&[RUN, "--stats"], device)?;
    assert!(!without.contains(LIBRARY), "without the library: {without}");
    if device.starts_with("mlx5_") {
        // The software device is in front of the other calls, in which it looks for doorbells.
        for call in ["ibv_post_recv", "ibv_post_srq_recv"] {
            assert!(with.contains(&format!("{call}: {LIBRARY}\n")), "{with}");
        }
        assert!(report.contains("1 of 1 CQs, 1 of 1 SRQs, 1 of 1 QPs"), "{report}");
    } else {
        assert_eq!(with, without);
        assert!(!report.contains("doorbell-verbs"), "the library has something to report: {report}");
    }
    Ok(())
}
