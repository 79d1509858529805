//! DAT: the engine runs when a program's `dat_evd_dequeue` finds nothing, and after a post of an
//! RDMA Read.
//!
//! A DAT provider may ring doorbells and read CQs itself, so no hook on libmlx5 runs the engine. A
//! program that polls by `dat_evd_dequeue` then needs a core of its own for the helper thread. But
//! every provider registers the table of its functions with libdat2, through which libdat2 calls
//! them. This module stands in front of the public function by which providers register, and
//! replaces the entries for these two calls in the mode `auto`. In the other modes the table stays
//! as it is, so that a program's calls cost what they cost without the device.
#![expect(unsafe_code, reason = "C entry points with raw pointers, functions of libdat2")]

use std::sync::atomic::{AtomicUsize, Ordering};

use libc::{c_int, c_void};

use crate::host::config::{Mode, mode};
use crate::host::{mem, sys};

/// Where the functions are in `DAT_PROVIDER`, in words: a name, a pointer, and 79 functions.
const EVD_DEQUEUE: usize = 25;
const EP_POST_RDMA_READ: usize = 35;
/// `DAT_INTERNAL_ERROR`: libdat2 is not in this process.
const INTERNAL_ERROR: u32 = 0x8005_0000;
/// The type `DAT_QUEUE_EMPTY`. The upper two bits of a return value are its class, which providers
/// leave out for an EVD of completions, and the lower half is a subtype.
const QUEUE_EMPTY: u32 = 0x000d_0000;
const TYPE: u32 = 0x3fff_0000;

type Register = unsafe extern "C" fn(*const c_void, *const c_void) -> u32;
type Dequeue = unsafe extern "C" fn(*const c_void, *mut c_void) -> u32;
type PostRead = unsafe extern "C" fn(*const c_void, c_int, *const c_void, u64, *const c_void, u32) -> u32;

/// A hooked table: its address, and its own functions.
struct Hooked {
    table: AtomicUsize,
    dequeue: AtomicUsize,
    post_read: AtomicUsize,
}

/// The most tables: one for each entry of dat.conf that a program opens.
const TABLES: usize = 8;
static HOOKED: [Hooked; TABLES] = [const {
    Hooked { table: AtomicUsize::new(0), dequeue: AtomicUsize::new(0), post_read: AtomicUsize::new(0) }
}; TABLES];

/// The functions that stand in the tables. Each table has its own, because a handle does not tell
/// its table: it may be freed or no handle at all, which is for the provider to see.
static DEQUEUES: [Dequeue; TABLES] = [
    evd_dequeue::<0>,
    evd_dequeue::<1>,
    evd_dequeue::<2>,
    evd_dequeue::<3>,
    evd_dequeue::<4>,
    evd_dequeue::<5>,
    evd_dequeue::<6>,
    evd_dequeue::<7>,
];
static POSTS_OF_READS: [PostRead; TABLES] = [
    ep_post_rdma_read::<0>,
    ep_post_rdma_read::<1>,
    ep_post_rdma_read::<2>,
    ep_post_rdma_read::<3>,
    ep_post_rdma_read::<4>,
    ep_post_rdma_read::<5>,
    ep_post_rdma_read::<6>,
    ep_post_rdma_read::<7>,
];

/// Replaces the entry at this word of a table by `hook`, and stores the table's function in `own`.
/// Leaves the entry if there is no function, or if it is hooked already.
fn replace(table: u64, word: usize, hook: usize, own: &AtomicUsize) {
    let at = table.wrapping_add(8 * word as u64);
    let mut bytes = [0; 8];
    if mem::copy_from_user(at, &mut bytes).is_err() {
        return;
    }
    let function = usize::from_ne_bytes(bytes);
    if function != 0 && function != hook {
        own.store(function, Ordering::Release);
        // A table in read-only memory keeps its function.
        let _ = mem::copy_to_user(at, &hook.to_ne_bytes());
    }
}

/// Hooks a table, unless there are too many.
fn hook(table: u64) {
    let address = table as usize;
    let free = |slot: &&Hooked| {
        slot.table.compare_exchange(0, address, Ordering::AcqRel, Ordering::Acquire).is_ok()
            || slot.table.load(Ordering::Acquire) == address
    };
    let hooks = DEQUEUES.iter().zip(&POSTS_OF_READS);
    if let Some((slot, (dequeue, post_read))) = HOOKED.iter().zip(hooks).find(|(slot, _)| free(slot)) {
        replace(table, EVD_DEQUEUE, *dequeue as usize, &slot.dequeue);
        replace(table, EP_POST_RDMA_READ, *post_read as usize, &slot.post_read);
    }
}

/// A provider's `dat_evd_dequeue`.
unsafe extern "C" fn evd_dequeue<const N: usize>(evd: *const c_void, event: *mut c_void) -> u32 {
    // SAFETY: `replace` has stored the address of a function of this type before this function
    // stood in the table.
    let own: Dequeue = unsafe { std::mem::transmute(HOOKED[N].dequeue.load(Ordering::Acquire)) };
    // SAFETY: arguments are handed on unchanged.
    let result = unsafe { own(evd, event) };
    if result & TYPE == QUEUE_EMPTY {
        // The next call finds what comes.
        crate::program::hooks::driver_polls();
    }
    result
}

/// A provider's `dat_ep_post_rdma_read`. The engine sends the request at once, as it does after a
/// post by libmlx5: a program that reads waits for the peer's answer. The other posts are left to
/// the helper thread, which copies while the program goes on.
unsafe extern "C" fn ep_post_rdma_read<const N: usize>(
    ep: *const c_void,
    count: c_int,
    local: *const c_void,
    cookie: u64,
    remote: *const c_void,
    flags: u32,
) -> u32 {
    // SAFETY: as in `evd_dequeue`.
    let own: PostRead = unsafe { std::mem::transmute(HOOKED[N].post_read.load(Ordering::Acquire)) };
    // SAFETY: arguments are handed on unchanged.
    let result = unsafe { own(ep, count, local, cookie, remote, flags) };
    crate::program::hooks::driver_posted();
    result
}

/// libdat2's function: a provider registers its table.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_registry_add_provider(table: *const c_void, info: *const c_void) -> u32 {
    let register = sys::of_loaded(c"libdat2.so.2", c"dat_registry_add_provider");
    if register.is_null() {
        return INTERNAL_ERROR;
    }
    if mode() == Mode::Auto && crate::host::config::dat_polls() {
        hook(table.expose_provenance() as u64);
    }
    // SAFETY: libdat2's function of this name has this type.
    let register: Register = unsafe { std::mem::transmute(register) };
    // SAFETY: arguments are handed on unchanged.
    unsafe { register(table, info) }
}

#[cfg(test)]
mod tests {
    use super::*;

    static CALLS: AtomicUsize = AtomicUsize::new(0);

    unsafe extern "C" fn empty(_: *const c_void, _: *mut c_void) -> u32 {
        CALLS.fetch_add(1, Ordering::Relaxed);
        1 << 31 | QUEUE_EMPTY | 7
    }

    #[test]
    fn a_hooked_dequeue_gives_the_answer_of_the_provider() {
        let own: Dequeue = empty;
        let mut table = [0_usize; 81];
        table[EVD_DEQUEUE] = own as usize;
        let address = table.as_mut_ptr().expose_provenance() as u64;
        hook(address);
        hook(address);
        // SAFETY: an element that `hook` has changed through its address.
        let entry = unsafe { table.as_ptr().add(EVD_DEQUEUE).read_volatile() };
        assert_ne!(entry, own as usize);
        // SAFETY: the entry is a function of this type.
        let hooked: Dequeue = unsafe { std::mem::transmute(entry) };
        // SAFETY: neither this function nor the hook looks at the arguments.
        let result = unsafe { hooked(std::ptr::null(), std::ptr::null_mut()) };
        assert_eq!((result, CALLS.load(Ordering::Relaxed)), (1 << 31 | QUEUE_EMPTY | 7, 1));
        // SAFETY: as above.
        let absent = unsafe { table.as_ptr().add(EP_POST_RDMA_READ).read_volatile() };
        assert_eq!(absent, 0, "a function that a provider lacks is still missing");
    }
}
