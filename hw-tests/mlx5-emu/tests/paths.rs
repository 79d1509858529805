//! Programs that look for the device in `/dev` and `/sys` by themselves.
#![expect(unsafe_code, reason = "calls of the C library")]
#![allow(missing_docs)]

use std::ffi::{CStr, CString};
use std::fs;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};

const SLOT: &str = "/sys/devices/pci0000:00/0000:00:1c.0/0000:03:00.0";

fn c(path: &str) -> CString {
    CString::new(path).unwrap()
}

fn errno(result: i32) -> i32 {
    if result == 0 { 0 } else { std::io::Error::last_os_error().raw_os_error().unwrap() }
}

fn names(path: &str) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn device_nodes_may_be_asked_for_before_they_are_opened() {
    mlx5_emu::init();
    assert_eq!(names("/dev/infiniband"), ["rdma_cm", "uverbs0"]);
    for name in names("/dev/infiniband") {
        let path = format!("/dev/infiniband/{name}");
        let path_c = c(&path);
        // SAFETY: NUL-terminated paths.
        unsafe {
            assert_eq!(errno(libc::access(path_c.as_ptr(), libc::R_OK | libc::W_OK)), 0, "{path}");
            assert_eq!(errno(libc::access(path_c.as_ptr(), libc::X_OK)), libc::EACCES, "{path}");
            let both = libc::R_OK | libc::W_OK;
            assert_eq!(errno(libc::faccessat(libc::AT_FDCWD, path_c.as_ptr(), both, 0)), 0, "{path}");
            assert_eq!(errno(libc::euidaccess(path_c.as_ptr(), both)), 0, "{path}");
        }
        // statx, and lstat with it.
        for meta in [fs::metadata(&path).unwrap(), fs::symlink_metadata(&path).unwrap()] {
            assert!(meta.file_type().is_char_device(), "{path}");
            assert_ne!(meta.rdev(), 0, "{path}");
        }
        assert_eq!(fs::canonicalize(&path).unwrap().to_str(), Some(path.as_str()));
        assert!(fs::OpenOptions::new().read(true).write(true).open(&path).is_ok());
        let folder = fs::File::open("/dev/infiniband").unwrap();
        let name = c(&name);
        // SAFETY: a NUL-terminated name, valid memory for the answer, a descriptor that is closed
        // once.
        unsafe {
            let mut out = std::mem::zeroed();
            assert_eq!(errno(libc::fstatat(folder.as_raw_fd(), name.as_ptr(), &raw mut out, 0)), 0);
            assert_eq!(out.st_mode & libc::S_IFMT, libc::S_IFCHR);
            let fd = libc::openat(folder.as_raw_fd(), name.as_ptr(), libc::O_RDWR);
            assert!(fd >= 0, "{}", std::io::Error::last_os_error());
            assert_eq!(libc::close(fd), 0);
        }
    }
    assert!(!fs::exists("/dev/infiniband/uverbs1").unwrap());
}

#[test]
fn sysfs_is_found_by_its_usual_path() {
    mlx5_emu::init();
    assert_eq!(names("/sys/class/infiniband"), ["mlx5_0"]);
    assert!(names("/sys/class/infiniband_verbs").contains(&"uverbs0".to_owned()));
    assert_eq!(fs::read_to_string("/sys/class/infiniband_verbs/uverbs0/ibdev").unwrap(), "mlx5_0\n");
    let port = "/sys/class/infiniband/mlx5_0/ports/1";
    assert_eq!(fs::read_to_string(format!("{port}/gid_attrs/ndevs/0")).unwrap(), "lo\n");
    assert_eq!(fs::read_to_string(format!("{port}//gid_attrs/types/0")).unwrap(), "RoCE v2\n");
    assert_eq!(names(port), names(&format!("{SLOT}/infiniband/mlx5_0/ports/1")));
    assert!(names("/sys/class/infiniband/mlx5_0/device/net").contains(&"lo".to_owned()));
    // fopen.
    // SAFETY: NUL-terminated strings, room as said, a stream that is closed once.
    unsafe {
        let state = c(&format!("{port}/state"));
        let stream = libc::fopen(state.as_ptr(), c"r".as_ptr());
        assert!(!stream.is_null());
        let mut line = [0; 64];
        assert!(!libc::fgets(line.as_mut_ptr(), 64, stream).is_null());
        assert_eq!(CStr::from_ptr(line.as_ptr()), c"4: ACTIVE\n");
        libc::fclose(stream);
        assert_eq!(errno(libc::access(state.as_ptr(), libc::R_OK)), 0);
    }
    assert!(!fs::exists("/sys/class/infiniband/mlx5_1").unwrap());
}

#[test]
fn device_has_a_place_on_the_pci_bus() {
    mlx5_emu::init();
    let tree = std::env::var("SYSFS_PATH").unwrap();
    let device = format!("{SLOT}/infiniband/mlx5_0");
    for class in ["/sys/class/infiniband/mlx5_0", &format!("{tree}/class/infiniband/mlx5_0"), &device] {
        assert_eq!(fs::canonicalize(class).unwrap().to_str(), Some(device.as_str()), "{class}");
        assert_eq!(fs::canonicalize(format!("{class}/device")).unwrap().to_str(), Some(SLOT), "{class}");
    }
    let link = fs::read_link("/sys/class/infiniband/mlx5_0").unwrap();
    assert_eq!(link.to_str().unwrap(), format!("../..{}/infiniband/mlx5_0", &SLOT[4..]));
    assert_eq!(
        fs::canonicalize("/sys/class/infiniband_verbs/uverbs0/device").unwrap().to_str(),
        Some(SLOT),
        "the command device has the same parent"
    );
    // Into a buffer of the program.
    let mut out = [0; libc::PATH_MAX as usize];
    // SAFETY: NUL-terminated path, room for PATH_MAX bytes.
    let found = unsafe {
        libc::realpath(c"/sys/bus/pci/devices/0000:03:00.0".as_ptr(), out.as_mut_ptr());
        CStr::from_ptr(out.as_ptr())
    };
    assert_eq!(found.to_str(), Ok(SLOT));
    let read = |name: &str| fs::read_to_string(format!("{SLOT}/{name}")).unwrap().trim().to_owned();
    assert_eq!((read("vendor"), read("device")), ("0x15b3".to_owned(), "0x101d".to_owned()));
    assert_eq!((read("class"), read("numa_node")), ("0x020000".to_owned(), "-1".to_owned()));
    assert_eq!(read("resource").lines().count(), 13);
    assert!(read("local_cpus").bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b','));
    assert!(read("local_cpulist").starts_with('0'));
    assert!(read("uevent").contains("PCI_SLOT_NAME=0000:03:00.0"));
}
