//! What the protocol takes from the machine: fences, the thread's number, ways to wait, and a place
//! for unused biases.

#![expect(unsafe_code, reason = "system calls, and a load of the thread pointer")]

use std::any::Any;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::fence;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
// The loom model has a module of this name with loom's.
pub(super) use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize};

/// The number of entries in a row that make a thread the owner: after the first revocation, and at
/// most.
pub(super) const FIRST_STREAK: u32 = 4;
pub(super) const LONGEST_STREAK: u32 = 1024;

const MEMBARRIER_PRIVATE_EXPEDITED: libc::c_long = 1 << 3;
const MEMBARRIER_REGISTER_PRIVATE_EXPEDITED: libc::c_long = 1 << 4;

/// Whether the kernel executed the command.
fn membarrier(command: libc::c_long) -> bool {
    // SAFETY: the system call takes three integers and accesses no memory of this process.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Whether [`heavy_fence`] works in this process. Threads that ask at the same time may each
/// register the process, which does no harm; none waits for another, so a child of a fork does not
/// wait either.
pub(super) fn has_heavy_fence() -> bool {
    match REGISTRATION.load(Relaxed) {
        REGISTERED => true,
        REFUSED => false,
        _ => {
            let registered = membarrier(MEMBARRIER_REGISTER_PRIVATE_EXPEDITED);
            REGISTRATION.store(if registered { REGISTERED } else { REFUSED }, Relaxed);
            registered
        }
    }
}

/// 0, [`REGISTERED`] or [`REFUSED`].
static REGISTRATION: AtomicU32 = AtomicU32::new(0);

/// The kernel executes [`heavy_fence`] for this process.
const REGISTERED: u32 = 1;
/// It does not.
const REFUSED: u32 = 2;

/// For a thread that releases a lock: between the store that releases it and the load of the number
/// of parked threads. Pairs with [`parking_fence`].
#[inline(always)]
pub(super) fn release_fence() {
    if REGISTRATION.load(Relaxed) == REGISTERED { light_fence() } else { fence(SeqCst) }
}

/// For a thread that will be parked: between the increment of that number and the load that shows
/// whether the lock is still held.
pub(super) fn parking_fence() {
    if has_heavy_fence() { heavy_fence() } else { fence(SeqCst) }
}

/// Prepares the process for biased locks. Without this call the first lock does it. That takes
/// milliseconds in a process with several threads, because the kernel waits until all processors
/// have switched threads; in a process with one thread it takes one system call.
///
/// Also uses the memory that each lock looks at when it is released, so that no later release has a
/// page fault.
pub fn prepare() {
    has_heavy_fence();
    PARKED.iter().for_each(|count| {
        std::hint::black_box(count.load(Relaxed));
    });
}

thread_local! {
    static VISITS: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Declares that this thread takes locks for short visits between the entries of other threads. It
/// then does not become the owner of a lock by its first entry, and by entries in a row only if
/// there are 1,024. So the thread that uses the lock most need not revoke this one's bias first.
pub fn visit_only() {
    VISITS.set(true);
}

/// Whether this thread has called [`visit_only`].
pub(super) fn visits_only() -> bool {
    VISITS.get()
}

/// Executes a full memory barrier in every running thread of this process. A thread that is not
/// running executed one when it was scheduled out.
pub(super) fn heavy_fence() {
    #[cfg(test)]
    HEAVY_FENCES.set(HEAVY_FENCES.get() + 1);
    if !membarrier(MEMBARRIER_PRIVATE_EXPEDITED) {
        // The call worked when the lock was made, so a sandbox has forbidden it since. A
        // processor's store buffer drains within far less than this time.
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[cfg(test)]
thread_local! {
    /// How often this thread has executed [`heavy_fence`].
    pub(super) static HEAVY_FENCES: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// The owner's side of [`heavy_fence`]: the compiler keeps the order of the accesses around it.
#[inline(always)]
pub(super) fn light_fence() {
    std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
}

/// An even number that no other live thread has; never 0.
#[inline(always)]
pub(super) fn thread_id() -> usize {
    #[cfg(target_arch = "x86_64")]
    {
        let thread: usize;
        // SAFETY: loads the thread pointer from where the ABI stores a copy of it (System V,
        // x86-64, variant II of TLS). It points to a structure, so it is aligned. The word never
        // changes, and no Rust code accesses it: hence `nomem`, which lets a function that enters
        // several locks load it once.
        unsafe {
            std::arch::asm!("mov {}, fs:[0]", out(reg) thread, options(pure, nomem, nostack, preserves_flags));
        }
        thread
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        thread_local!(static HERE: u64 = const { 0 });
        HERE.with(|here| std::ptr::from_ref(here) as usize)
    }
}

/// Compares a word in memory with a value in a register, in one instruction. Compilers make two of
/// an atomic load and a comparison. Evaluates to whether they are equal. `$sized` names the
/// register in the size of the word, `$options` are those of `asm!`, and `$load` is the same in
/// Rust, for other processors and Miri. `$offset` is best the word's offset in a structure whose
/// address the caller has in a register; it has no other effect.
macro_rules! equals_in_memory {
    ($word:expr, $offset:ident, $value:expr, $sized:literal, ($($options:ident),*), $load:expr) => {{
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        'compare: {
            let base = $word.as_ptr().wrapping_byte_sub($offset);
            // SAFETY: a load of an aligned word that lives as long as the reference to it, and a
            // jump. The processor keeps the order of loads. Without `readonly`, the compiler keeps
            // the order of all accesses around the instruction, too.
            unsafe {
                std::arch::asm!(
                    concat!("cmp [{base} + {offset}], ", $sized),
                    "jne {no}",
                    base = in(reg) base,
                    offset = const $offset,
                    value = in(reg) $value,
                    no = label { break 'compare false },
                    options($($options),*),
                );
            }
            true
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        {
            $load == $value
        }
    }};
}

/// Whether the word has this value, as a relaxed load and a comparison say. `OFFSET` is best that
/// of the word in a structure whose address the caller has in a register; it has no other effect.
#[inline(always)]
pub(super) fn is<const OFFSET: usize>(word: &AtomicUsize, value: usize) -> bool {
    equals_in_memory!(
        word,
        OFFSET,
        value,
        "{value}",
        (nostack, readonly),
        word.load(std::sync::atomic::Ordering::Relaxed)
    )
}

/// The same for a word of 32 bits, in structures that contain a lock: whether it has this value, as
/// a relaxed load and a comparison say.
#[inline(always)]
pub fn is_u32<const OFFSET: usize>(word: &AtomicU32, value: u32) -> bool {
    equals_in_memory!(
        word,
        OFFSET,
        value,
        "{value:e}",
        (nostack, readonly),
        word.load(std::sync::atomic::Ordering::Relaxed)
    )
}

/// Whether the pointer has this value, as a load and a comparison say. No later access of memory
/// comes before the load. `OFFSET` as for [`is`].
#[inline(always)]
pub(super) fn is_still<const OFFSET: usize, T>(pointer: &AtomicPtr<T>, value: *mut T) -> bool {
    equals_in_memory!(
        pointer,
        OFFSET,
        value,
        "{value}",
        (nostack),
        pointer.load(std::sync::atomic::Ordering::SeqCst)
    )
}

/// The first part of a wait: some microseconds on the processor, because a thread that uses a lock
/// mostly leaves within nanoseconds. A yield would be short only if no other thread wants the
/// processor; if one does, it may run for its whole turn, a thousand times as long.
pub(super) struct Spin {
    rounds: u32,
}

impl Spin {
    /// The rounds of a wait; together they have 255 pauses of the processor.
    pub(super) const ROUNDS: u32 = 12;
    /// Each round is twice as long as the one before, up to this one.
    const LONGEST: u32 = 5;

    pub(super) fn new() -> Self {
        Self { rounds: 0 }
    }

    pub(super) fn reset(&mut self) {
        self.rounds = 0;
    }

    /// Waits for another round. False at once after the last one.
    pub(super) fn spin(&mut self) -> bool {
        if self.rounds == Self::ROUNDS {
            return false;
        }
        (0..1 << self.rounds.min(Self::LONGEST)).for_each(|_| std::hint::spin_loop());
        self.rounds += 1;
        true
    }
}

/// The rest of a wait for a thread that leaves without waking anybody: yields at first, then sleeps
/// for up to a millisecond, so that the other thread gets the processor. `rounds` says how often
/// the caller has waited.
pub(super) fn pause(rounds: u32) {
    const YIELDS: u32 = 16;
    match rounds.checked_sub(YIELDS) {
        None => std::thread::yield_now(),
        Some(later) => std::thread::sleep(Duration::from_micros(16 << later.min(6))),
    }
}

/// The address of the half of a lock's word that the kernel compares: the low 32 bits.
fn futex(word: usize) -> usize {
    word + if cfg!(target_endian = "big") { size_of::<usize>() - size_of::<u32>() } else { 0 }
}

/// Sleeps until [`unpark_one`] with this word, the ordinary lock of a biased lock, unless the word
/// is 0. No thread is woken between the kernel's look at the word and the sleep. May return early.
///
/// The kernel keeps the list of the threads that sleep (futex(2)). A list in this process would
/// need a lock, and in the child of a fork that lock may be held by a thread that does not exist.
pub(super) fn park(word: &AtomicUsize) {
    let holder = word.load(Relaxed);
    if holder == 0 {
        return;
    }
    let seen = holder as u32;
    if seen == 0 {
        // The ID of a thread whose low half is that of a free lock.
        std::thread::sleep(Duration::from_millis(1));
        return;
    }
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    let no_timeout = std::ptr::null::<libc::timespec>();
    // SAFETY: the kernel reads four bytes of the word, which lives meanwhile, and no timeout.
    unsafe {
        libc::syscall(libc::SYS_futex, futex(word.as_ptr() as usize), operation, seen, no_timeout);
    }
}

/// Wakes one thread that sleeps with the word at this address, if there is one. `extern "C"` so
/// that it does not unwind: functions that release a lock can then end with a tail call.
#[cold]
#[inline(never)]
pub(super) extern "C" fn unpark_one(word: usize) {
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the kernel does not access the word, whose lock may be gone: it looks the address up
    // in the list of sleeping threads. A thread that sleeps at another word with the address of a
    // lock that is gone wakes early, as any user of a futex must expect.
    unsafe {
        libc::syscall(libc::SYS_futex, futex(word), operation, 1);
    }
}

/// See [`parked`].
static PARKED: [AtomicU32; 256] = [const { AtomicU32::new(0) }; 256];

/// The number of threads that are parked, or about to be, for the lock with this key and for all
/// others with the same hash. A lock has no room for a number of its own.
#[inline(always)]
pub(super) fn parked(key: usize) -> &'static AtomicU32 {
    // Most locks are in structures of 128 bytes or more.
    &PARKED[(key >> 7) % PARKED.len()]
}

/// A bias; its type belongs to the protocol.
type AnyBias = &'static (dyn Any + Send + Sync);

/// In the order of the threads. A process has few threads that own locks.
type Unused = Vec<(usize, Vec<AnyBias>)>;

/// Biases that no [`BiasedLock`](super::BiasedLock) uses, by their thread.
static UNUSED: Mutex<Unused> = Mutex::new(Vec::new());

fn unused() -> MutexGuard<'static, Unused> {
    UNUSED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An unused bias of this thread.
pub(super) fn reuse_bias(thread: usize) -> Option<AnyBias> {
    let mut unused = unused();
    let at = unused.binary_search_by_key(&thread, |(thread, _)| *thread).ok()?;
    unused[at].1.pop()
}

/// Keeps biases that their lock no longer uses. A thread that gets the ID of an ended thread gets
/// its biases, too. A bias for which the list has no memory is leaked: a program without memory
/// drops locks to get some.
pub(super) fn keep_biases(biases: &mut dyn Iterator<Item = (usize, AnyBias)>) {
    let mut unused = unused();
    for (thread, bias) in biases {
        let at = match unused.binary_search_by_key(&thread, |(thread, _)| *thread) {
            Ok(at) => at,
            Err(at) if unused.try_reserve(1).is_ok() => {
                unused.insert(at, (thread, Vec::new()));
                at
            }
            Err(_) => continue,
        };
        let list = &mut unused[at].1;
        if list.try_reserve(1).is_ok() {
            list.push(bias);
        }
    }
}

/// For the child of a fork: no thread is parked. Without this call, locks at which threads of the
/// parent were parked try to wake them whenever they are released, which is slow but does no harm.
pub fn forget_parked() {
    PARKED.iter().for_each(|count| count.store(0, Relaxed));
}

/// What [`hold_shared_locks`] has locked.
#[expect(missing_debug_implementations, reason = "nothing to show")]
pub struct SharedLocks {
    _unused: MutexGuard<'static, Unused>,
}

/// Locks what all locks of the process share, so that a fork finds it in order.
#[must_use]
pub fn hold_shared_locks() -> SharedLocks {
    SharedLocks { _unused: unused() }
}
