//! Programs of UCX: the engine runs in the progress loop of a worker. A small library in C stands
//! for libuct.
#![expect(unsafe_code, reason = "raw verbs calls, functions of a loaded library")]

mod common;
#[path = "common/direct.rs"]
mod direct;

use common::*;
use direct::*;
use std::ffi::{CStr, CString, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::process::Command;
use std::ptr::null_mut;

use mlx5_emu::program::ucx::{uct_worker_create, uct_worker_destroy};

/// The loaded library.
struct Libuct(*mut c_void);

impl Libuct {
    /// Compiles the library and loads it as Open MPI does: outside the global scope.
    fn load() -> Self {
        let folder = std::env::temp_dir().join(format!("mlx5-emu-ucx-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let library = folder.join("libuct.so.0");
        let cc = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
        let status = Command::new(cc)
            .args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-Wl,-soname,libuct.so.0", "-o"])
            .arg(&library)
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ucx.c"))
            .status()
            .unwrap();
        assert!(status.success());
        let path = CString::new(library.as_os_str().as_bytes()).unwrap();
        // SAFETY: a NUL-terminated path; the library has no constructors.
        let loaded = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(!loaded.is_null());
        Self(loaded)
    }

    fn symbol(&self, name: &CStr) -> *mut c_void {
        // SAFETY: the library stays loaded; the name is NUL-terminated.
        let found = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        assert!(!found.is_null(), "{name:?}");
        found
    }

    fn progress(&self, worker: *mut c_void) -> c_uint {
        type Progress = unsafe extern "C" fn(*mut c_void) -> c_uint;
        // SAFETY: the library's function has this type, and the worker is a live one of its own.
        unsafe { std::mem::transmute::<*mut c_void, Progress>(self.symbol(c"progress"))(worker) }
    }

    /// The functions that were registered with the worker destroyed last.
    fn remaining(&self) -> c_int {
        // SAFETY: a variable of this type, which no thread writes now.
        unsafe { self.symbol(c"remaining").cast::<c_int>().read() }
    }
}

#[test]
fn a_workers_progress_runs_the_engine() {
    let libuct = Libuct::load();
    let mut worker = null_mut();
    // SAFETY: a place for the worker; the library ignores the other arguments.
    assert_eq!(unsafe { uct_worker_create(null_mut(), 0, &raw mut worker) }, 0);
    assert!(!worker.is_null());
    // Nothing to do yet: this process has no device.
    assert_eq!(libuct.progress(worker), 0);

    // In this mode no thread of the device runs, and the driver calls no function of libmlx5.
    mlx5_emu::set_mode(mlx5_emu::Mode::Stepped);
    let mut rig = Rig::new();
    let memory = rig.memory(4096);
    let cq = rig.cq(64);
    let mut sq = DirectSq::new(rig.pair(cq, null_mut()).0);
    let mut cq = DirectCq::new(cq);
    for _ in 0..100 {
        let words = sq.write_rdma(&memory.sge(0, 8), memory.at(1024), memory.rkey);
        sq.ring_only(words);
        assert_eq!(cq.consume(), 0, "nobody has run the engine");
        assert_eq!(libuct.progress(worker), 0);
        assert_eq!(cq.consume(), 1);
    }

    // SAFETY: the worker is destroyed once.
    unsafe { uct_worker_destroy(worker) };
    assert_eq!(libuct.remaining(), 0, "the device's function was taken back");
}
