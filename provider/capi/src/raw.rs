//! Values that C passes: pointers to read from, pointers to write to, segment lists, addresses,
//! variable arguments.
//!
//! Only C creates values of [`In`], [`Out`] and [`VaList`], as arguments of the entry points. All
//! `unsafe` of the entry points is here. A consumer of DAT promises that a pointer is NULL or
//! points to memory of the type that dat.h and udat.h give, for the time of the call.

#![expect(unsafe_code, reason = "pointers that C programs pass")]

use super::code::Code;
use provider::inside::MAX_IOV;
use provider::inside::Uncancelled;
use provider::inside::likely;
use provider::inside::sync::{Door, rank};
use provider::inside::{EvdInner, Queue};
use provider::inside::{QueuePair, Receives, Requests};
use provider::{LmrTriplet, Subtype};
use std::ffi::{CStr, CString, c_char};
use std::mem::offset_of;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use zerocopy::IntoBytes;

/// A pointer to an argument that is read, or NULL.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct In<T>(*const T);

/// A pointer to a result, or NULL. The memory may be uninitialised.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Out<T>(*mut T);

impl<T: Copy> In<T> {
    /// A copy of the value; `None` for NULL.
    pub(super) fn get(self) -> Option<T> {
        // SAFETY: not NULL, so C points to a T that is initialised and lives during the call. It is
        // read by copy.
        (!self.0.is_null()).then(|| unsafe { self.0.read_unaligned() })
    }

    /// A copy of the value. INVALID_PARAMETER for argument `arg` if the pointer is NULL.
    pub(super) fn need(self, arg: u16) -> Result<T, Code> {
        self.get().ok_or_else(|| Code::null(arg))
    }

    pub(super) fn address(self) -> usize {
        self.0 as usize
    }

    /// A pointer that C keeps in a structure.
    pub(super) fn at(address: usize) -> Self {
        Self(address as *const T)
    }

    /// Element `n` of the array; INVALID_PARAMETER for this argument if the pointer is NULL.
    pub(super) fn nth(self, n: u64, arg: u16) -> Result<T, Code> {
        if self.0.is_null() {
            return Err(Code::null(arg));
        }
        // Within the array: callers ask for as many elements as C has announced.
        In(self.0.wrapping_add(n as usize)).need(arg)
    }

    /// A NULL pointer, for a result that is not needed.
    pub(super) fn nowhere() -> Out<T> {
        Out(std::ptr::null_mut())
    }
}

impl In<c_char> {
    /// The string.
    pub(super) fn text(self) -> Option<String> {
        // SAFETY: not NULL, so C points to a string with a NUL that lives during the call.
        (!self.0.is_null()).then(|| unsafe { CStr::from_ptr(self.0) }.to_string_lossy().into_owned())
    }
}

impl In<u8> {
    /// A copy of `count` bytes. The call itself may free the memory.
    pub(super) fn bytes(self, count: i32, count_arg: u16, arg: u16) -> Result<Vec<u8>, Code> {
        // More than any private data has. The core refuses what is too long.
        const MOST: usize = 4096;
        let count = usize::try_from(count).map_err(|_| Code::arg(count_arg))?;
        if count == 0 {
            return Ok(Vec::new());
        }
        if self.0.is_null() {
            return Err(Code::null(arg));
        }
        if count > MOST {
            return Err(Code::arg(count_arg));
        }
        // SAFETY: not NULL, so C points to `count` bytes that live during the call. Rust has no
        // reference to them.
        Ok(unsafe { std::slice::from_raw_parts(self.0, count) }.to_vec())
    }
}

impl In<LmrTriplet> {
    /// As [`In::segments`], for 1 to [`MAX_IOV`] segments; `None` for any other count and for NULL
    /// and misaligned pointers. Each condition is a plain branch, for posts that may be fast.
    #[inline(always)]
    pub(super) fn few<'a>(self, count: i32) -> Option<&'a [LmrTriplet]> {
        let segments = self.0;
        if !likely(segments.is_aligned())
            || !likely(!segments.is_null())
            || !likely((1..=MAX_IOV as i32).contains(&count))
        {
            return None;
        }
        // SAFETY: as in `segments`.
        Some(unsafe { std::slice::from_raw_parts(segments, count as usize) })
    }

    /// `count` segments. More segments than any queue takes are not read; the post fails because of
    /// their number.
    pub(super) fn segments<'a>(self, count: i32) -> Result<&'a [LmrTriplet], Code> {
        const TOO_MANY: &[LmrTriplet] =
            &[LmrTriplet { virtual_address: 0, segment_length: 0, lmr_context: 0 }; MAX_IOV + 1];
        let count = usize::try_from(count).map_err(|_| Code::arg(2))?;
        if count == 0 {
            return Ok(&[]);
        }
        if count > MAX_IOV {
            return Ok(TOO_MANY);
        }
        if self.0.is_null() || !self.0.is_aligned() {
            return Err(Code::null(3));
        }
        // SAFETY: not NULL and aligned, so C points to `count` triplets that it does not change
        // during the call; all bit patterns are triplets. The entry points choose the lifetime, and
        // they end with the call.
        Ok(unsafe { std::slice::from_raw_parts(self.0, count) })
    }
}

/// The first bytes of a `struct sockaddr`. C passes longer structures in its place.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct SockAddrHead {
    family: u16,
}

impl In<SockAddrHead> {
    /// The IP address with its port.
    pub(super) fn socket(self, arg: u16) -> Result<SocketAddr, Code> {
        let ip = self.ip(arg)?;
        // SAFETY: `ip` accepted the family, so C points to a sockaddr_in or sockaddr_in6. The port
        // is in bytes 2 and 3.
        let port = unsafe { self.0.cast::<u8>().add(2).cast::<[u8; 2]>().read_unaligned() };
        Ok(SocketAddr::new(ip, u16::from_be_bytes(port)))
    }

    /// The IP address; INVALID_ADDRESS for another address family.
    pub(super) fn ip(self, arg: u16) -> Result<IpAddr, Code> {
        let head = self.need(arg)?;
        let at = self.0.cast::<u8>();
        match i32::from(head.family) {
            libc::AF_INET => {
                // SAFETY: by its family this is a sockaddr_in: 16 bytes, the address in bytes 4 to
                // 7.
                let octets = unsafe { at.add(4).cast::<[u8; 4]>().read_unaligned() };
                Ok(Ipv4Addr::from(octets).into())
            }
            libc::AF_INET6 => {
                // SAFETY: by its family this is a sockaddr_in6: 28 bytes, the address in bytes 8 to
                // 23.
                let octets = unsafe { at.add(8).cast::<[u8; 16]>().read_unaligned() };
                Ok(Ipv6Addr::from(octets).into())
            }
            _ => Err(Code::new(provider::ReturnType::InvalidAddress, Subtype::InvalidAddressUnsupported)),
        }
    }
}

impl<T: IntoBytes> Out<T> {
    /// Writes the value unless the pointer is NULL. All bytes are written; the type has no padding.
    #[inline(always)]
    pub(super) fn set(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: not NULL, so C points to room for a T, initialised or not, that nobody else
            // uses during the call.
            unsafe { self.0.write_unaligned(value) };
        }
    }

    /// As [`Out::set`], for element `n` of an array. Callers write as many elements as the array
    /// has.
    pub(super) fn set_nth(self, n: usize, value: T) {
        if !self.0.is_null() {
            Out(self.0.wrapping_add(n)).set(value);
        }
    }
}

impl<T> Out<T> {
    pub(super) fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// INVALID_PARAMETER for argument `arg` if the pointer is NULL.
    pub(super) fn need(self, arg: u16) -> Result<(), Code> {
        if self.0.is_null() { Err(Code::null(arg)) } else { Ok(()) }
    }
}

impl Out<super::abi::Event> {
    /// Writes the fields of a DTO's event, without a copy of the event. `data` returns each of the
    /// four words when it is written, so that few values are in registers at a time. A program
    /// reads no other bytes of the event: those of larger events, and those of the extension, stay
    /// as they are.
    #[inline(always)]
    pub(super) fn set_dto(self, number: u32, evd: usize, data: impl Fn(usize) -> u64) {
        let to = self.0;
        if !to.is_null() {
            // SAFETY: as in `set`; these are fields of the event.
            unsafe {
                (&raw mut (*to).number).write_unaligned(number);
                (&raw mut (*to).pad).write_unaligned(0);
                (&raw mut (*to).evd).write_unaligned(evd);
                let words = (&raw mut (*to).data).cast::<u64>();
                words.write_unaligned(data(0));
                words.add(1).write_unaligned(data(1));
                words.add(2).write_unaligned(data(2));
                words.add(3).write_unaligned(data(3));
            }
        }
    }

    /// Zeroes the bytes of the event that [`Out::set_dto`] leaves.
    #[inline]
    pub(super) fn clear_behind_dto(self) {
        const DTO: usize = offset_of!(super::abi::Event, data) + 4 * size_of::<u64>();
        if !self.0.is_null() {
            // SAFETY: as in `set`; these are the last bytes of the event.
            unsafe {
                self.0.cast::<u8>().add(DTO).write_bytes(0, size_of::<super::abi::Event>() - DTO);
            }
        }
    }
}

impl<T: Copy> Out<T> {
    /// The present value, for a parameter that is read and written.
    pub(super) fn get(self) -> Option<T> {
        In(self.0.cast_const()).get()
    }
}

/// A C `va_list` whose arguments are all integers or pointers.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct VaList(*mut VaRecord);

/// x86-64, System V ABI section 3.5.7.
#[cfg(target_arch = "x86_64")]
#[repr(C)]
struct VaRecord {
    gp_offset: u32,
    fp_offset: u32,
    overflow: *mut u64,
    registers: *mut u8,
}

/// AArch64, AAPCS64 appendix B.
#[cfg(target_arch = "aarch64")]
#[repr(C)]
struct VaRecord {
    stack: *mut u64,
    gr_top: *mut u8,
    vr_top: *mut u8,
    gr_offset: i32,
    vr_offset: i32,
}

impl VaList {
    /// The next argument, of 8 bytes or less.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn next(self) -> u64 {
        // SAFETY: the record belongs to the calling C function, lives during the call, and nobody
        // else uses it. The caller of this function asks for no more arguments than the operation
        // has. So the next argument is in the six saved registers (48 bytes) or behind them on the
        // stack.
        unsafe {
            let record = &mut *self.0;
            if record.gp_offset < 48 {
                let at = record.registers.add(record.gp_offset as usize);
                record.gp_offset += 8;
                at.cast::<u64>().read_unaligned()
            } else {
                let at = record.overflow;
                record.overflow = at.add(1);
                at.read_unaligned()
            }
        }
    }

    /// The next argument, of 8 bytes or less.
    #[cfg(target_arch = "aarch64")]
    pub(super) fn next(self) -> u64 {
        // SAFETY: as on x86-64; a negative offset counts from the end of the saved registers.
        unsafe {
            let record = &mut *self.0;
            if record.gr_offset < 0 {
                let at = record.gr_top.offset(record.gr_offset as isize);
                record.gr_offset += 8;
                at.cast::<u64>().read_unaligned()
            } else {
                let at = record.stack;
                record.stack = at.add(1);
                at.read_unaligned()
            }
        }
    }

    /// The next argument, a pointer to read from.
    pub(super) fn next_in<T>(self) -> In<T> {
        In(self.next() as usize as *const T)
    }

    /// The next argument, a pointer to write to.
    pub(super) fn next_out<T>(self) -> Out<T> {
        Out(self.next() as usize as *mut T)
    }
}

/// Writes lines to the C library's standard output, in order with the program's own output.
pub(super) fn say(lines: &str) {
    let text = CString::new(lines.trim_end_matches('\n')).unwrap_or_default();
    // SAFETY: a string with a NUL that lives during the call. A failed write is ignored, as with
    // printf(3).
    unsafe { libc::puts(text.as_ptr()) };
}

/// Calls an agent, a function of the program.
pub(super) fn call_agent(agent: super::abi::Agent, evd: usize) {
    if let Some(function) = agent.function {
        // SAFETY: the program has passed this function to be called with its instance data and an
        // EVD handle, from any thread.
        let returned = unsafe { agent_call::call(function, agent.instance_data, evd) };
        // The agent may have allowed cancellation.
        std::mem::forget(Uncancelled::begin());
        if !returned {
            tracing::error!("an agent has called pthread_exit: that ends the agent only");
        }
    }
}

/// A call of an agent that pthread_exit(3) ends, or a cancellation. Both unwind the stack, which
/// must not reach functions of Rust.
///
/// libc stops unwinding where a function has registered a buffer of setjmp, and jumps there. C
/// programs do so by `pthread_cleanup_push`. A function of Rust cannot call setjmp.
#[cfg(all(target_env = "gnu", target_arch = "x86_64"))]
mod agent_call {
    use std::ffi::{c_int, c_void};

    unsafe extern "C" {
        fn __sigsetjmp(buffer: *mut c_void, save_mask: c_int) -> c_int;
        fn __pthread_register_cancel(buffer: *mut c_void);
        fn __pthread_unregister_cancel(buffer: *mut c_void);
    }

    /// Calls `function(instance, evd)`. False if the function did not return.
    ///
    /// # Safety
    /// The function may be called with these arguments.
    pub(super) unsafe fn call(
        function: unsafe extern "C" fn(usize, usize),
        instance: usize,
        evd: usize,
    ) -> bool {
        // SAFETY: as the caller says.
        unsafe { catch(function, instance, evd) == 0 }
    }

    /// Returns 0 if the function has returned, otherwise 1.
    #[unsafe(naked)]
    unsafe extern "C" fn catch(
        function: unsafe extern "C" fn(usize, usize),
        instance: usize,
        evd: usize,
    ) -> c_int {
        // The stack has a `__pthread_unwind_buf_t` of 104 bytes. The registers that setjmp keeps
        // have the arguments. Each call finds the stack aligned to 16 bytes.
        core::arch::naked_asm!(
            ".cfi_startproc",
            "push rbp",
            ".cfi_def_cfa_offset 16",
            ".cfi_offset rbp, -16",
            "mov rbp, rsp",
            ".cfi_def_cfa_register rbp",
            "push rbx",
            ".cfi_offset rbx, -24",
            "push r12",
            ".cfi_offset r12, -32",
            "push r13",
            ".cfi_offset r13, -40",
            "sub rsp, 120",
            "mov rbx, rdi",
            "mov r12, rsi",
            "mov r13, rdx",
            "mov rdi, rsp",
            "xor esi, esi",
            "call {setjmp}@PLT",
            "test eax, eax",
            "jne 2f",
            "mov rdi, rsp",
            "call {register}@PLT",
            "mov rdi, r12",
            "mov rsi, r13",
            "call rbx",
            "xor ebx, ebx",
            "jmp 3f",
            "2:",
            "mov ebx, 1",
            "3:",
            "mov rdi, rsp",
            "call {unregister}@PLT",
            "mov eax, ebx",
            "add rsp, 120",
            "pop r13",
            "pop r12",
            "pop rbx",
            "pop rbp",
            ".cfi_def_cfa rsp, 8",
            "ret",
            ".cfi_endproc",
            setjmp = sym __sigsetjmp,
            register = sym __pthread_register_cancel,
            unregister = sym __pthread_unregister_cancel,
        )
    }
}

#[cfg(not(all(target_env = "gnu", target_arch = "x86_64")))]
mod agent_call {
    /// Calls `function(instance, evd)`, which has to return.
    ///
    /// # Safety
    /// The function may be called with these arguments.
    pub(super) unsafe fn call(
        function: unsafe extern "C" fn(usize, usize),
        instance: usize,
        evd: usize,
    ) -> bool {
        // SAFETY: as the caller says.
        unsafe { function(instance, evd) };
        true
    }
}

/// Opens a door to the queue of this EVD.
pub(super) fn open_door_of_evd(evd: &Arc<EvdInner>, door: &'static Door<{ rank::QUEUE }, Queue>) {
    // SAFETY: the EVD is in an `Arc`, out of which this crate moves nothing. So the mutex stays in
    // its place until the EVD is dropped, and the mutex with it.
    unsafe { evd.queue.inner().open_door(door.inner()) }
}

/// Opens a door to the requests of this queue pair.
pub(super) fn open_door_of_requests(
    pair: &Arc<QueuePair>,
    door: &'static Door<{ rank::REQUESTS }, Requests>,
) {
    // SAFETY: as in `open_door_of_evd`.
    unsafe { pair.requests.inner().open_door(door.inner()) }
}

/// Opens a door to the receives of this queue pair.
pub(super) fn open_door_of_receives(
    pair: &Arc<QueuePair>,
    door: &'static Door<{ rank::RECEIVES }, Receives>,
) {
    // SAFETY: as in `open_door_of_evd`.
    unsafe { pair.receives.inner().open_door(door.inner()) }
}

/// The kind of memory of an LMR.
#[derive(Clone, Copy)]
pub(super) enum Memory {
    /// Memory of this process.
    Private,
    /// Memory that other processes share.
    Shared,
}

/// Registers memory of the program.
pub(super) fn register(
    ia: &provider::Ia,
    pz: &provider::Pz,
    (start, len): (u64, usize),
    privileges: provider::MemPriv,
    va_type: provider::VaType,
    memory: Memory,
) -> provider::Result<provider::Lmr> {
    let start = start as usize as *mut u8;
    let builder = provider::Lmr::builder(ia, pz).privileges(privileges).va_type(va_type);
    // SAFETY: dat_lmr_create obliges the consumer to what LmrBuilder::over asks: memory that stays
    // mapped until the LMR is freed, and that the device may read and write where it is posted.
    // Rust has no references to it.
    unsafe {
        match memory {
            Memory::Private => builder.over(start, len),
            Memory::Shared => builder.over_shared(start, len),
        }
    }
}
