//! The sysfs tree of the device, as files in a temporary folder. SYSFS_PATH names the folder to
//! libibverbs and librdmacm. For programs that name `/sys/class/infiniband/...` directly,
//! [`rewrite`] finds the corresponding file.
//!
//! The layout is the kernel's: the device is a folder below its PCI slot, and the folders of the
//! class are links to it.
//!
//! Every process that uses the folder (a process and its children) holds a shared lock on it. The
//! last process to exit removes the folder. A folder that killed processes left behind has a free
//! lock; the next start finds and removes it.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError, RwLock};

use crate::host::{devices, gids, sys};

const PREFIX: &str = "mlx5-emu-sysfs-";

/// PCI identity of a ConnectX-6 Dx, for libmlx5's match table.
const MODALIAS: &str = "pci:v000015B3d0000101Dsv000015B3sd00000000bc02sc00i00";

/// Board ID in the output of `ibv_devinfo`. It identifies the software device.
const BOARD_ID: &str = "SOFTWARE-MLX5-EMU";

/// PCI slot of the device.
const SLOT: &str = "0000:03:00.0";
/// Folder of the PCI function in the tree.
const PCI: &str = "devices/pci0000:00/0000:00:1c.0/0000:03:00.0";
/// Folder of the tree that stands for `/dev/infiniband`.
const NODES: &str = "dev/infiniband";

/// Paths that lead into the tree, with all that is below them.
const SERVED: [&str; 6] = [
    "/sys/class/infiniband",
    "/sys/class/infiniband_verbs",
    "/sys/class/misc/rdma_cm",
    "/sys/bus/pci/devices/0000:03:00.0",
    "/sys/devices/pci0000:00/0000:00:1c.0/0000:03:00.0",
    "/dev/infiniband",
];

/// Parent folders, for programs that follow links step by step. Folders that exist on the machine
/// are used directly.
const ABOVE: [&str; 5] = [
    "/sys/class",
    "/sys/bus/pci",
    "/sys/bus/pci/devices",
    "/sys/devices/pci0000:00",
    "/sys/devices/pci0000:00/0000:00:1c.0",
];

struct Tree {
    path: PathBuf,
    pid: u32,
    lock: File,
}

static TREE: Mutex<Option<Tree>> = Mutex::new(None);

/// The locks of the tree and of its root, for a thread that forks.
pub(crate) fn hold() -> impl Sized + 'static {
    (
        TREE.lock().unwrap_or_else(PoisonError::into_inner),
        ROOT.write().unwrap_or_else(PoisonError::into_inner),
    )
}

/// The data of the tree that [`rewrite`] and [`literal`] need.
struct Root {
    /// Without links.
    path: Vec<u8>,
    /// Device and inode number of the folder that stands for `/dev/infiniband`.
    nodes: Option<crate::host::sys::FileId>,
}

static ROOT: RwLock<Option<Root>> = RwLock::new(None);

fn set_root(path: &Path) {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let nodes = fs::metadata(path.join(NODES)).ok().map(|meta| (meta.dev(), meta.ino()));
    let root = Root { path: path.as_os_str().as_bytes().to_vec(), nodes };
    *ROOT.write().unwrap_or_else(PoisonError::into_inner) = Some(root);
}

fn is_served(path: &[u8]) -> bool {
    SERVED.iter().any(|served| {
        path.strip_prefix(served.as_bytes()).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
    })
}

/// Returns the file in the tree for an absolute path. `None` if the path is not the device's or the
/// device is not present.
pub(crate) fn rewrite(path: &[u8]) -> Option<CString> {
    if !devices::present() {
        return None;
    }
    let mut plain = Vec::with_capacity(path.len());
    for &byte in path {
        if byte != b'/' || plain.last() != Some(&b'/') {
            plain.push(byte);
        }
    }
    let above = ABOVE.iter().any(|above| above.as_bytes() == plain);
    let missing = above && !sys::is_there(&plain);
    if !missing && !is_served(&plain) {
        return None;
    }
    let inside = plain.strip_prefix(b"/sys").unwrap_or(&plain);
    let root = ROOT.read().unwrap_or_else(PoisonError::into_inner);
    CString::new([&root.as_ref()?.path, inside].concat()).ok()
}

/// The path below `/sys` of a file of the tree, both without links.
pub(crate) fn literal(path: &[u8]) -> Option<CString> {
    let root = ROOT.read().unwrap_or_else(PoisonError::into_inner);
    let inside = path.strip_prefix(root.as_ref()?.path.as_slice())?;
    let outside = if inside.starts_with(b"/dev/") { inside.to_vec() } else { [b"/sys", inside].concat() };
    is_served(&outside).then(|| CString::new(outside).ok()).flatten()
}

/// Device and inode number of the folder that stands for `/dev/infiniband`.
pub(crate) fn nodes_inode() -> Option<crate::host::sys::FileId> {
    ROOT.read().unwrap_or_else(PoisonError::into_inner).as_ref()?.nodes
}

fn put(root: &Path, name: &str, text: &str) -> io::Result<()> {
    let path = root.join(name);
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    let mut file = File::create(path)?;
    writeln!(file, "{text}")
}

fn guid_text(bytes: &[u8]) -> String {
    bytes.chunks(2).map(|pair| format!("{:02x}{:02x}", pair[0], pair[1])).collect::<Vec<_>>().join(":")
}

/// A link to another file of the tree, relative as the kernel makes them.
fn link(root: &Path, name: &str, target: &str) -> io::Result<()> {
    let up = "../".repeat(name.split('/').count() - 1);
    let path = root.join(name);
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    symlink(format!("{up}{target}"), path)
}

/// The processors of this machine, as a list (`0-3`) and as a mask (`f`).
fn processors() -> (String, String) {
    let list = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let list = if list.trim().is_empty() { "0".to_owned() } else { list.trim().to_owned() };
    let mut words = vec![0u32];
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>()) else { continue };
        for cpu in first..=last.min(1 << 16) {
            if words.len() <= cpu / 32 {
                words.resize(cpu / 32 + 1, 0);
            }
            words[cpu / 32] |= 1 << (cpu % 32);
        }
    }
    let (top, rest) = words.split_last().map_or((0, &[][..]), |(&top, rest)| (top, rest));
    let mask = rest.iter().rev().fold(format!("{top:x}"), |text, word| format!("{text},{word:08x}"));
    (list, mask)
}

/// The PCI function: files from which programs read the device's location and model.
fn fill_pci(root: &Path) -> io::Result<()> {
    let dev = root.join(PCI);
    let (list, mask) = processors();
    put(&dev, "vendor", "0x15b3")?;
    put(&dev, "device", "0x101d")?;
    put(&dev, "subsystem_vendor", "0x15b3")?;
    put(&dev, "subsystem_device", "0x0000")?;
    put(&dev, "class", "0x020000")?;
    put(&dev, "revision", "0x00")?;
    put(&dev, "irq", "0")?;
    put(&dev, "enable", "1")?;
    put(&dev, "numa_node", "-1")?;
    put(&dev, "local_cpus", &mask)?;
    put(&dev, "local_cpulist", &list)?;
    put(&dev, "modalias", MODALIAS)?;
    put(&dev, "current_link_speed", "16.0 GT/s PCIe")?;
    put(&dev, "max_link_speed", "16.0 GT/s PCIe")?;
    put(&dev, "current_link_width", "16")?;
    put(&dev, "max_link_width", "16")?;
    let uevent = [
        "DRIVER=mlx5_core",
        "PCI_CLASS=20000",
        "PCI_ID=15B3:101D",
        "PCI_SUBSYS_ID=15B3:0000",
        &format!("PCI_SLOT_NAME={SLOT}"),
        &format!("MODALIAS={MODALIAS}"),
    ];
    put(&dev, "uevent", &uevent.join("\n"))?;
    // No memory of its own: all bases and sizes are zero.
    put(&dev, "resource", &["0x0000000000000000 0x0000000000000000 0x0000000000000000"; 13].join("\n"))?;
    let mut config = [0u8; 256];
    config[..4].copy_from_slice(&[0xb3, 0x15, 0x1d, 0x10]);
    config[10..12].copy_from_slice(&[0x00, 0x02]);
    config[0x2c..0x2e].copy_from_slice(&[0xb3, 0x15]);
    fs::write(dev.join("config"), config)?;
    link(root, &format!("{PCI}/subsystem"), "bus/pci")?;
    link(root, &format!("{PCI}/driver"), "bus/pci/drivers/mlx5_core")?;
    link(root, &format!("bus/pci/devices/{SLOT}"), PCI)?;
    fs::create_dir_all(root.join("bus/pci/drivers/mlx5_core"))?;
    // The interfaces themselves are the host's own.
    fs::create_dir_all(dev.join("net"))?;
    let mut known = Vec::new();
    for gid in gids::table() {
        if !known.contains(&&gid.ndev) {
            symlink(format!("/sys/class/net/{}", gid.ndev), dev.join("net").join(&gid.ndev))?;
            known.push(&gid.ndev);
        }
    }
    Ok(())
}

fn fill(root: &Path) -> io::Result<()> {
    fill_pci(root)?;
    let verbs = format!("{PCI}/infiniband_verbs/uverbs0");
    put(root, "class/infiniband_verbs/abi_version", "6")?;
    put(root, &format!("{verbs}/ibdev"), "mlx5_0")?;
    put(root, &format!("{verbs}/dev"), "231:192")?;
    put(root, &format!("{verbs}/abi_version"), "1")?;
    put(root, &format!("{verbs}/uevent"), "MAJOR=231\nMINOR=192\nDEVNAME=infiniband/uverbs0")?;
    link(root, &format!("{verbs}/device"), PCI)?;
    link(root, &format!("{verbs}/subsystem"), "class/infiniband_verbs")?;
    link(root, "class/infiniband_verbs/uverbs0", &verbs)?;
    put(root, "class/misc/rdma_cm/abi_version", "4")?;
    put(root, "class/misc/rdma_cm/dev", "10:58")?;
    fs::create_dir_all(root.join(NODES))?;
    for name in devices::NAMES {
        symlink(format!("/dev/infiniband/{name}"), root.join(NODES).join(name))?;
    }
    let infiniband = format!("{PCI}/infiniband/mlx5_0");
    link(root, &format!("{infiniband}/device"), PCI)?;
    link(root, &format!("{infiniband}/subsystem"), "class/infiniband")?;
    link(root, "class/infiniband/mlx5_0", &infiniband)?;
    let dev = root.join(infiniband);
    let guid = guid_text(&gids::NODE_GUID.to_be_bytes());
    put(&dev, "node_type", "1: CA")?;
    put(&dev, "node_guid", &guid)?;
    put(&dev, "sys_image_guid", &guid)?;
    put(&dev, "node_desc", "software device, no hardware")?;
    put(&dev, "fw_ver", "0.0.0000")?;
    put(&dev, "hca_type", "MT4125")?;
    put(&dev, "hw_rev", "0")?;
    put(&dev, "board_id", BOARD_ID)?;
    put(&dev, "uevent", "NAME=mlx5_0")?;
    put(&dev, "ports/1/state", "4: ACTIVE")?;
    put(&dev, "ports/1/phys_state", "5: LinkUp")?;
    put(&dev, "ports/1/link_layer", "Ethernet")?;
    put(&dev, "ports/1/rate", "100 Gb/sec (4X EDR)")?;
    put(&dev, "ports/1/lid", "0x0")?;
    put(&dev, "ports/1/lid_mask_count", "0")?;
    put(&dev, "ports/1/sm_lid", "0x0")?;
    put(&dev, "ports/1/sm_sl", "0")?;
    put(&dev, "ports/1/cap_mask", "0x04010000")?;
    put(&dev, "ports/1/pkeys/0", "0xffff")?;
    let valid = gids::table();
    for index in 0..gids::GID_TABLE_LEN {
        let bytes = gids::bytes_at(index).unwrap_or([0; 16]);
        put(&dev, &format!("ports/1/gids/{index}"), &guid_text(&bytes))?;
        if let Some(gid) = valid.get(index) {
            put(&dev, &format!("ports/1/gid_attrs/types/{index}"), "RoCE v2")?;
            put(&dev, &format!("ports/1/gid_attrs/ndevs/{index}"), &gid.ndev)?;
        }
    }
    Ok(())
}

/// Whether this is a folder of this process's user, and not a link to one.
fn is_own(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|meta| meta.is_dir() && meta.uid() == sys::effective_uid())
}

/// Opens the lock of a tree. In its place there may be a link, or a pipe, on which the opening
/// would wait.
fn open_lock(tree: &Path) -> io::Result<File> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    OpenOptions::new().read(true).custom_flags(flags).open(tree.join("lock"))
}

fn base() -> PathBuf {
    std::env::temp_dir()
}

/// Removes the trees of processes that are gone. Their locks are free.
fn sweep(base: &Path) {
    let Ok(entries) = fs::read_dir(base) else { return };
    for entry in entries.flatten() {
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        let path = entry.path();
        if !is_own(&path) {
            continue;
        }
        let lock = open_lock(&path);
        let stale = match &lock {
            // Held until the tree is gone, so that nobody joins the tree meanwhile.
            Ok(lock) => sys::flock(lock, libc::LOCK_EX | libc::LOCK_NB),
            // Another process creates or removes this tree right now, unless the tree is old.
            Err(_) => entry
                .metadata()
                .and_then(|meta| meta.modified())
                .ok()
                .and_then(|time| time.elapsed().ok())
                .is_some_and(|age| age.as_secs() > 60),
        };
        if stale {
            let _ = fs::remove_dir_all(path);
        }
    }
}

/// Joins the tree that the parent process uses, or that this process used before an exec, if it is
/// still there.
fn join(path: PathBuf) -> Option<Tree> {
    if !path.file_name()?.to_string_lossy().starts_with(PREFIX) {
        return None;
    }
    if !is_own(&path) {
        return None;
    }
    let lock = open_lock(&path).ok()?;
    if !sys::flock(&lock, libc::LOCK_SH | libc::LOCK_NB) {
        return None;
    }
    // Complete, and not removed between the two lines above.
    path.join("complete").exists().then(|| Tree { path, pid: std::process::id(), lock })
}

fn make() -> io::Result<Tree> {
    let base = base();
    sweep(&base);
    let tree = begin(&base)?;
    fill(&tree.path)?;
    put(&tree.path, "complete", "")?;
    Ok(tree)
}

/// Makes an empty tree and holds its lock.
fn begin(base: &Path) -> io::Result<Tree> {
    let pid = std::process::id();
    let path = sys::new_folder(base, &format!("{PREFIX}{pid}-"))?;
    // The file gets its name when the lock is held. A sweep would take a free lock for that of a
    // process that is gone.
    let new = path.join("lock.new");
    let lock = File::create(&new)?;
    if !sys::flock(&lock, libc::LOCK_SH) {
        return Err(io::Error::last_os_error());
    }
    fs::rename(new, path.join("lock"))?;
    Ok(Tree { path, pid, lock })
}

/// Makes or joins the tree of this process and returns its path for SYSFS_PATH.
///
/// # Errors
/// When the temporary folder cannot be written.
pub(crate) fn create() -> io::Result<PathBuf> {
    let mut tree = TREE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(tree) = tree.as_ref().filter(|tree| tree.pid == std::process::id()) {
        return Ok(tree.path.clone());
    }
    let named = std::env::var_os("SYSFS_PATH").map(PathBuf::from);
    let fresh = match named.and_then(join) {
        Some(tree) => tree,
        None => make()?,
    };
    let path = fresh.path.clone();
    *tree = Some(fresh);
    set_root(&path);
    Ok(path)
}

/// Leaves the tree, not for a parent after fork(2); the last process to leave removes it.
pub(crate) fn remove() {
    let mut tree = TREE.lock().unwrap_or_else(PoisonError::into_inner);
    if tree.as_ref().is_some_and(|tree| tree.pid == std::process::id())
        && let Some(Tree { path, lock, .. }) = tree.take()
    {
        // An exclusive lock is available only if no other process holds a shared lock.
        let last = sys::flock(&lock, libc::LOCK_UN) && sys::flock(&lock, libc::LOCK_EX | libc::LOCK_NB);
        if last {
            let _ = fs::remove_dir_all(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    /// Other processes sweep the temporary folder while one makes its tree.
    #[test]
    fn a_sweep_leaves_trees_that_are_being_made() {
        let base = base().join(format!("mlx5-emu-sweep-{}", std::process::id()));
        fs::create_dir(&base).unwrap();
        let over = AtomicBool::new(false);
        let kept = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    sweep(&base);
                }
            });
            let kept = (0..1000).all(|_| {
                let kept =
                    |tree: &Tree| put(&tree.path, "file", "").is_ok() && tree.path.join("lock").exists();
                begin(&base).is_ok_and(|tree| kept(&tree) && fs::remove_dir_all(&tree.path).is_ok())
            });
            over.store(true, Ordering::Relaxed);
            kept
        });
        fs::remove_dir_all(&base).unwrap();
        assert!(kept, "a tree was removed while its process made it");
    }

    /// Other processes sweep while one comes back to its tree after an exec, which has released the
    /// lock. Then the tree is not there, or stays.
    #[test]
    fn a_sweep_leaves_trees_that_are_joined() {
        let base = base().join(format!("mlx5-emu-join-{}", std::process::id()));
        fs::create_dir(&base).unwrap();
        let (over, sweeps) = (AtomicBool::new(false), AtomicU64::new(0));
        let kept = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    sweep(&base);
                    sweeps.fetch_add(1, Ordering::Relaxed);
                }
            });
            let kept = (0..200).all(|_| {
                let Tree { path, lock, .. } = begin(&base).unwrap();
                for n in 0..20 {
                    put(&path, &format!("class/{n}"), "").unwrap();
                }
                put(&path, "complete", "").unwrap();
                drop(lock);
                join(path).is_none_or(|tree| {
                    // The sweep that was under way is over.
                    let before = sweeps.load(Ordering::Relaxed);
                    while sweeps.load(Ordering::Relaxed) == before {
                        crate::host::sys::yield_now();
                    }
                    let kept = (0..20).all(|n| tree.path.join(format!("class/{n}")).exists());
                    kept && fs::remove_dir_all(&tree.path).is_ok()
                })
            });
            over.store(true, Ordering::Relaxed);
            kept
        });
        fs::remove_dir_all(&base).unwrap();
        assert!(kept, "a tree was removed after its process joined it");
    }
}
