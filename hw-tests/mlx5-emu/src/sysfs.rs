//! The sysfs tree that libibverbs and librdmacm read, as files in a temporary folder.
//!
//! The folder carries a lock that every process using it shares: one and its children. The last one to exit removes it; what
//! killed processes left behind is found by its free lock and swept at the next start.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::{gids, sys};

const PREFIX: &str = "mlx5-emu-sysfs-";

/// PCI identity of a ConnectX-6 Dx, for libmlx5's match table.
const MODALIAS: &str = "pci:v000015B3d0000101Dsv000015B3sd00000000bc02sc00i00";

/// What `ibv_devinfo` prints as board id: says what this is.
const BOARD_ID: &str = "SOFTWARE-MLX5-EMU";

struct Tree {
    path: PathBuf,
    pid: u32,
    lock: File,
}

static TREE: Mutex<Option<Tree>> = Mutex::new(None);
static COUNTER: AtomicU32 = AtomicU32::new(0);

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

fn fill(root: &Path) -> io::Result<()> {
    put(root, "class/infiniband_verbs/abi_version", "6")?;
    put(root, "class/infiniband_verbs/uverbs0/ibdev", "mlx5_0")?;
    put(root, "class/infiniband_verbs/uverbs0/dev", "231:192")?;
    put(root, "class/infiniband_verbs/uverbs0/abi_version", "1")?;
    put(root, "class/infiniband_verbs/uverbs0/device/modalias", MODALIAS)?;
    put(root, "class/misc/rdma_cm/abi_version", "4")?;
    put(root, "class/misc/rdma_cm/dev", "10:58")?;
    let dev = root.join("class/infiniband/mlx5_0");
    let guid = guid_text(&gids::NODE_GUID.to_be_bytes());
    put(&dev, "node_type", "1: CA")?;
    put(&dev, "node_guid", &guid)?;
    put(&dev, "sys_image_guid", &guid)?;
    put(&dev, "node_desc", "software device, no hardware")?;
    put(&dev, "fw_ver", "0.0.0000")?;
    put(&dev, "hca_type", "MT4125")?;
    put(&dev, "hw_rev", "0")?;
    put(&dev, "board_id", BOARD_ID)?;
    put(&dev, "device/modalias", MODALIAS)?;
    put(&dev, "device/vendor", "0x15b3")?;
    put(&dev, "device/device", "0x101d")?;
    put(&dev, "device/numa_node", "-1")?;
    put(&dev, "ports/1/state", "4: ACTIVE")?;
    put(&dev, "ports/1/phys_state", "5: LinkUp")?;
    put(&dev, "ports/1/link_layer", "Ethernet")?;
    put(&dev, "ports/1/rate", "100 Gb/sec (4X EDR)")?;
    put(&dev, "ports/1/lid", "0x0")?;
    put(&dev, "ports/1/sm_lid", "0x0")?;
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

fn base() -> PathBuf {
    std::env::temp_dir()
}

/// Removes trees whose process is gone: nobody holds their lock.
fn sweep(base: &Path) {
    let Ok(entries) = fs::read_dir(base) else { return };
    for entry in entries.flatten() {
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        let path = entry.path();
        let stale = match File::open(path.join("lock")) {
            Ok(lock) => sys::flock(&lock, libc::LOCK_EX | libc::LOCK_NB),
            // Being made or being removed by somebody else right now, unless it is old.
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

/// Joins the tree that the parent process uses, if it named one and that is still there.
fn join() -> Option<Tree> {
    let path = PathBuf::from(std::env::var_os("SYSFS_PATH")?);
    if !path.file_name()?.to_string_lossy().starts_with(PREFIX) {
        return None;
    }
    let lock = File::open(path.join("lock")).ok()?;
    if !sys::flock(&lock, libc::LOCK_SH | libc::LOCK_NB) {
        return None;
    }
    // Complete, and not removed between the two lines above.
    path.join("complete").exists().then(|| Tree { path, pid: std::process::id(), lock })
}

fn make() -> io::Result<Tree> {
    let base = base();
    sweep(&base);
    let pid = std::process::id();
    let path = base.join(format!("{PREFIX}{pid}-{}", COUNTER.fetch_add(1, Ordering::Relaxed)));
    let _ = fs::remove_dir_all(&path);
    fs::create_dir(&path)?;
    let lock = File::create(path.join("lock"))?;
    if !sys::flock(&lock, libc::LOCK_SH) {
        return Err(io::Error::last_os_error());
    }
    fill(&path)?;
    put(&path, "complete", "")?;
    Ok(Tree { path, pid, lock })
}

/// Makes or joins the tree of this process and returns its path for SYSFS_PATH.
///
/// # Errors
/// When the temporary folder cannot be written.
pub(crate) fn create() -> io::Result<PathBuf> {
    let mut tree = TREE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some(tree) = tree.as_ref().filter(|tree| tree.pid == std::process::id()) {
        return Ok(tree.path.clone());
    }
    let fresh = match join() {
        Some(tree) => tree,
        None => make()?,
    };
    let path = fresh.path.clone();
    *tree = Some(fresh);
    Ok(path)
}

/// Leaves the tree, not for a parent after fork(2); the last process to leave removes it.
pub(crate) fn remove() {
    let mut tree = TREE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if tree.as_ref().is_some_and(|tree| tree.pid == std::process::id())
        && let Some(Tree { path, lock, .. }) = tree.take()
    {
        // An exclusive lock is only to be had when nobody else holds a shared one.
        let last = sys::flock(&lock, libc::LOCK_UN) && sys::flock(&lock, libc::LOCK_EX | libc::LOCK_NB);
        if last {
            let _ = fs::remove_dir_all(path);
        }
    }
}
