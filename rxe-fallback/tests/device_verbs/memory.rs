//! Memory regions and windows.
#![expect(unsafe_code, reason = "registers borrowed memory")]

use std::process::{Command, Stdio};

use memmap2::MmapOptions;
use nix::sys::resource::{Resource, setrlimit};
use rxe_fallback::{
    Access, BindMw, Context, Mr, Mw, MwKind, Pd, SendFlags, SendOp, SendWr, WcOpcode, WcStatus,
};

use crate::support::{ALL, Endpoint, Ends, TestResult, all_good, ensure, is_root, same};
use crate::{Suite, suite};

pub(crate) fn suite(names: &[String]) -> Suite {
    let mut suite = suite![
        owned_memory_is_zeroed_and_copied_in_and_out,
        ranges_outside_a_region_are_refused,
        deregistering_waits_for_the_last_handle,
        remote_write_needs_local_write,
        region_is_alive_although_its_pd_handle_is_gone,
        huge_pages_are_used_or_their_lack_is_explained,
    ];
    let attr =
        names.first().and_then(|name| Context::open(name).ok()).map(|context| context.attributes().clone());
    let attr = attr.unwrap_or_default();
    suite.0.push((
        "type_1_window_opens_and_closes_its_range",
        type_1_window_opens_and_closes_its_range,
        (!attr.memory_windows).then_some("no memory windows of type 1"),
    ));
    suite.0.push((
        "type_2_window_opens_and_closes_its_range",
        type_2_window_opens_and_closes_its_range,
        (!attr.memory_windows_type2).then_some("no memory windows of type 2"),
    ));
    suite.0.push((
        "send_with_invalidate_closes_the_window_of_the_peer",
        send_with_invalidate_closes_the_window_of_the_peer,
        (!attr.memory_windows_type2).then_some("no memory windows of type 2"),
    ));
    // Set by the software mlx5 device, which registers memory without the kernel's help.
    let unseen = std::env::var_os("MLX5_EMU_SESSION").map(|_| "the software device sees no page protection");
    let read_only = read_only_memory_is_refused_for_writing;
    suite.0.push(("read_only_memory_is_refused_for_writing", read_only, unseen));
    suite.0.push(("memlock_limit_is_named", memlock_limit_is_named, None));
    suite
}

fn owned_memory_is_zeroed_and_copied_in_and_out(ends: &Ends) -> TestResult {
    let pd = Pd::alloc(&ends.a.context)?;
    let mr = Mr::register_owned(&pd, 10_000, ALL, false)?;
    same("length", mr.len(), 10_000)?;
    let mut all = vec![1; 10_000];
    mr.read_at(0, &mut all)?;
    ensure(all.iter().all(|&b| b == 0), || "not zeroed".to_owned())?;
    mr.write_at(9_995, b"hello")?;
    let mut end = [0; 5];
    mr.read_at(9_995, &mut end)?;
    same("bytes", &end, b"hello")?;
    let sge = mr.sge(9_995, 5)?;
    same("segment", (sge.addr, sge.len, sge.lkey), (mr.addr() + 9_995, 5, mr.lkey()))?;
    mr.deregister()?;
    Ok(())
}

fn ranges_outside_a_region_are_refused(ends: &Ends) -> TestResult {
    let mr = Mr::register_owned(&Pd::alloc(&ends.a.context)?, 100, Access::LOCAL_WRITE, false)?;
    for (offset, len) in [(0, 101), (100, 1), (101, 0), (usize::MAX, 2)] {
        let mut bytes = vec![0; len];
        same("read", mr.read_at(offset, &mut bytes).map_err(|e| e.errno()), Err(libc::EINVAL))?;
        same("write", mr.write_at(offset, &bytes).map_err(|e| e.errno()), Err(libc::EINVAL))?;
        same("segment", mr.sge(offset, len).map_err(|e| e.errno()), Err(libc::EINVAL))?;
    }
    mr.read_at(100, &mut [])?;
    Ok(())
}

fn deregistering_waits_for_the_last_handle(ends: &Ends) -> TestResult {
    let mr = Mr::register_owned(&Pd::alloc(&ends.a.context)?, 100, Access::LOCAL_WRITE, false)?;
    let other = mr.clone();
    let failed = mr.deregister().err().ok_or("deregistered under another handle")?;
    same("errno", failed.error.errno(), libc::EBUSY)?;
    drop(other);
    failed.mr.deregister()?;
    Ok(())
}

fn read_only_memory_is_refused_for_writing(ends: &Ends) -> TestResult {
    let pd = Pd::alloc(&ends.a.context)?;
    let memory = MmapOptions::new().len(4096).map_anon()?.make_read_only()?;
    let addr = memory.as_ptr().cast_mut();
    // SAFETY: `memory` lives until the end of the test; nobody writes it.
    let error =
        unsafe { Mr::register_raw(&pd, addr, 4096, Access::LOCAL_WRITE) }.err().ok_or("registered")?;
    same("verb", error.verb(), "ibv_reg_mr")?;
    same("errno", error.errno(), libc::EFAULT)
}

fn remote_write_needs_local_write(ends: &Ends) -> TestResult {
    let pd = Pd::alloc(&ends.a.context)?;
    let error = Mr::register_owned(&pd, 100, Access::REMOTE_WRITE, false).err().ok_or("registered")?;
    same("errno", error.errno(), libc::EINVAL)
}

fn region_is_alive_although_its_pd_handle_is_gone(ends: &Ends) -> TestResult {
    let mr = {
        let context = Context::open(ends.a.context.name())?;
        Mr::register_owned(&Pd::alloc(&context)?, 100, Access::LOCAL_WRITE, false)?
    };
    mr.write_at(0, b"still there")?;
    mr.deregister()?;
    Ok(())
}

fn type_1_window_opens_and_closes_its_range(ends: &Ends) -> TestResult {
    let (a, b) = Endpoint::pair(ends)?;
    let mr = Mr::register_owned(&b.pd, 4096, ALL | Access::MW_BIND, false)?;
    let mw = Mw::alloc(&b.pd, MwKind::Type1)?;
    mr.write_at(100, b"behind the window")?;
    let whole =
        BindMw { mw: &mw, mr: &mr, addr: mr.addr() + 100, len: 17, access: Access::REMOTE_READ, rkey: 0 };
    mw.bind(&b.qp, 1, &whole, SendFlags::SIGNALLED)?;
    let bound = b.sent(1)?;
    all_good(&bound)?;
    same("kind", bound[0].opcode, Some(WcOpcode::BindMw))?;

    let op = SendOp::Read { remote_addr: mr.addr() + 100, rkey: mw.rkey() };
    a.qp.post_send(&SendWr::new(2, op, &[a.sge(0, 17)]))?;
    all_good(&a.sent(1)?)?;
    same("bytes", a.bytes(0, 17), b"behind the window".to_vec())?;
    // Not a byte more is the device's business too, but rxe (6.12) looks at the bounds of the
    // region only.
    let op = SendOp::Write { remote_addr: mr.addr() + 100, rkey: mw.rkey() };
    a.qp.post_send(&SendWr::new(3, op, &[a.sge(0, 17)]))?;
    same("write through a window for reading", a.sent(1)?[0].status, WcStatus::RemoteAccessError)
}

fn type_2_window_opens_and_closes_its_range(ends: &Ends) -> TestResult {
    let (a, b) = Endpoint::pair(ends)?;
    let mr = Mr::register_owned(&b.pd, 4096, ALL | Access::MW_BIND, false)?;
    let mw = Mw::alloc(&b.pd, MwKind::Type2)?;
    let rkey = Mw::next_rkey(mw.rkey());
    let access = Access::REMOTE_WRITE;
    let bind = BindMw { mw: &mw, mr: &mr, addr: mr.addr() + 1024, len: 1024, access, rkey };
    b.qp.post_send(&SendWr::new(1, SendOp::BindMw(bind), &[]))?;
    let bound = b.sent(1)?;
    all_good(&bound)?;
    same("kind", bound[0].opcode, Some(WcOpcode::BindMw))?;

    a.mr.write_at(0, b"through the window")?;
    let write =
        |remote_addr| SendWr { sges: &[], ..SendWr::new(2, SendOp::Write { remote_addr, rkey }, &[]) };
    let sges = [a.sge(0, 18)];
    a.qp.post_send(&SendWr { sges: &sges, ..write(mr.addr() + 1024) })?;
    all_good(&a.sent(1)?)?;
    let mut bytes = [0; 18];
    mr.read_at(1024, &mut bytes)?;
    same("bytes", &bytes, b"through the window")?;

    // While the window is bound its region stays: the error gives it back.
    let failed = mr.deregister().err().ok_or("deregistered under a window")?;
    let mr = failed.mr;

    b.qp.post_send(&SendWr::new(3, SendOp::LocalInv(rkey), &[]))?;
    all_good(&b.sent(1)?)?;
    a.qp.post_send(&SendWr { sges: &sges, ..write(mr.addr() + 1024) })?;
    same("write after invalidating", a.sent(1)?[0].status, WcStatus::RemoteAccessError)?;
    drop(mw);
    mr.deregister()?;
    Ok(())
}

fn send_with_invalidate_closes_the_window_of_the_peer(ends: &Ends) -> TestResult {
    let (a, b) = Endpoint::pair(ends)?;
    let mr = Mr::register_owned(&b.pd, 4096, ALL | Access::MW_BIND, false)?;
    let mw = Mw::alloc(&b.pd, MwKind::Type2)?;
    let rkey = Mw::next_rkey(mw.rkey());
    let bind = BindMw { mw: &mw, mr: &mr, addr: mr.addr(), len: 4096, access: Access::REMOTE_WRITE, rkey };
    b.qp.post_send(&SendWr::new(1, SendOp::BindMw(bind), &[]))?;
    all_good(&b.sent(1)?)?;
    b.qp.post_recv(2, &[b.sge(0, 64)])?;
    a.qp.post_send(&SendWr::new(3, SendOp::SendInvalidate(rkey), &[a.sge(0, 5)]))?;
    all_good(&a.sent(1)?)?;
    let got = b.received(1)?[0];
    same("receive", (got.status, got.byte_len, got.imm), (WcStatus::Success, 5, None))?;
    same("invalidated key", got.invalidated_rkey, Some(rkey))?;
    let op = SendOp::Write { remote_addr: mr.addr(), rkey };
    a.qp.post_send(&SendWr::new(4, op, &[a.sge(0, 5)]))?;
    same("write afterwards", a.sent(1)?[0].status, WcStatus::RemoteAccessError)
}

fn huge_pages_are_used_or_their_lack_is_explained(ends: &Ends) -> TestResult {
    let free = std::fs::read_to_string("/proc/meminfo")?
        .lines()
        .find_map(|line| line.strip_prefix("HugePages_Free:")?.trim().parse::<usize>().ok())
        .unwrap_or(0);
    let pd = Pd::alloc(&ends.a.context)?;
    match Mr::register_owned(&pd, 5000, Access::LOCAL_WRITE, true) {
        Ok(mr) => {
            ensure(free > 0, || "huge pages from nowhere".to_owned())?;
            same("length", mr.len(), 5000)?;
            mr.write_at(4990, b"at the end")?;
            mr.deregister()?;
            let back = std::fs::read_to_string("/proc/meminfo")?;
            ensure(back.contains(&format!("HugePages_Free:{free:>9}")), || "a huge page was kept".to_owned())
        }
        Err(error) => {
            same("free huge pages", free, 0)?;
            same("verb", error.verb(), "mmap")?;
            ensure(error.to_string().contains("vm.nr_hugepages"), || error.to_string())
        }
    }
}

/// Set in a child process: register more than its limit on this device.
pub(crate) const CHILD: &str = "DOORBELL_TEST_MEMLOCK_CHILD";

/// The child's whole life: no root, 64 KiB to pin, and a region of 1 MiB. Prints the error.
pub(crate) fn child(device: &str) -> ! {
    let result = (|| {
        setrlimit(Resource::RLIMIT_MEMLOCK, 64 << 10, 64 << 10)?;
        let context = Context::open(device)?;
        Mr::register_owned(&Pd::alloc(&context)?, 1 << 20, Access::LOCAL_WRITE, false)?;
        Ok::<_, Box<dyn std::error::Error>>(())
    })();
    match result {
        Ok(()) => println!("registered"),
        Err(error) => println!("{error}"),
    }
    std::process::exit(0)
}

fn memlock_limit_is_named(ends: &Ends) -> TestResult {
    let executable = std::env::current_exe()?;
    let mut command = Command::new(&executable);
    if is_root() {
        // Root may pin anything, but not without this capability.
        command = Command::new("setpriv");
        command.args(["--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock"]).arg(&executable);
    }
    command.env(CHILD, ends.a.context.name()).stdin(Stdio::null());
    let output = command.output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    for part in ["ibv_reg_mr: Cannot allocate memory (ENOMEM)", "64 KiB", "1048576 bytes", "ulimit -l"] {
        ensure(text.contains(part), || format!("no \"{part}\" in {text:?}"))?;
    }
    Ok(())
}
