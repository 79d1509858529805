//! Registering memory.

#![expect(unsafe_code, reason = "memory of the caller: the caller vouches for it")]

use super::{Lmr, access_of, is_shared};
use crate::pz::PzInner;
use crate::types::{MemPriv, VaType};
use crate::{Error, Ia, Pz, Result, Subtype};
use rxe_fallback::{Access, Mr};

/// A region with zero-based addresses has to start at a page boundary (ib_uverbs_reg_mr).
const PAGE: usize = 4096;

/// The options of a new LMR: see [`Lmr::builder`].
#[derive(Clone, Copy, Debug)]
#[must_use = "nothing is registered before `allocate`"]
pub struct LmrBuilder<'a> {
    ia: &'a Ia,
    pz: &'a Pz,
    privileges: MemPriv,
    va_type: VaType,
    huge_pages: bool,
}

impl Lmr {
    /// A builder of LMRs. It begins with memory in ordinary pages at virtual addresses, with the
    /// privileges [`MemPriv::LOCAL_READ`] and [`MemPriv::LOCAL_WRITE`]: requests and receives of
    /// this side can use it, and peers cannot.
    ///
    /// ```no_run
    /// # use doorbell::{Ia, Lmr, MemPriv, Pz};
    /// # fn main() -> doorbell::Result<()> {
    /// # let ia = Ia::open("mlx5_0")?;
    /// # let pz = Pz::new(&ia)?;
    /// // A table that peers read. Records that change need a checksum: see `Lmr::write`.
    /// let privileges = MemPriv::LOCAL_READ | MemPriv::REMOTE_READ;
    /// let table = Lmr::builder(&ia, &pz).privileges(privileges).allocate(1 << 20)?;
    /// table.write(0, b"the first record")?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder<'a>(ia: &'a Ia, pz: &'a Pz) -> LmrBuilder<'a> {
        let privileges = MemPriv::LOCAL_READ | MemPriv::LOCAL_WRITE;
        LmrBuilder { ia, pz, privileges, va_type: VaType::Virtual, huge_pages: false }
    }
}

impl LmrBuilder<'_> {
    /// What this side and peers may do with the memory.
    pub fn privileges(mut self, privileges: MemPriv) -> Self {
        self.privileges = privileges;
        self
    }

    /// The base of the memory's addresses, both in local segments and for peers.
    pub fn va_type(mut self, va_type: VaType) -> Self {
        self.va_type = va_type;
        self
    }

    /// Takes the memory from the machine's huge pages.
    pub fn huge_pages(mut self) -> Self {
        self.huge_pages = true;
        self
    }

    /// Registers `len` bytes of zeroed memory that the LMR owns.
    ///
    /// # Errors
    /// INVALID_PARAMETER for a length of 0 or over the IA's limit, INVALID_HANDLE for a freed PZ or
    /// one of another IA, INSUFFICIENT_RESOURCES without memory, without free huge pages, at the
    /// memlock limit, or when the device's table is full. MODEL_NOT_SUPPORTED if the device has no
    /// zero-based regions.
    ///
    /// # References
    /// dat_lmr_create(3DAT).
    pub fn allocate(self, len: usize) -> Result<Lmr> {
        self.register(len, |pz, access| Mr::register_owned(&pz.pd, len, access, self.huge_pages))
    }

    /// Registers the memory of another LMR once more: with another IA, in another PZ, or with other
    /// privileges. Both LMRs own the memory, which stays until both are gone.
    ///
    /// # Errors
    /// As [`LmrBuilder::allocate`]; INVALID_PARAMETER (ARG3) for an LMR whose memory the caller
    /// owns; INVALID_HANDLE after the IA of the LMR was closed.
    ///
    /// # References
    /// dat_lmr_create(3DAT), `DAT_MEM_TYPE_LMR`.
    pub fn memory_of(self, lmr: &Lmr) -> Result<Lmr> {
        let memory = lmr.inner.mr()?.mapping();
        let memory = memory.ok_or_else(|| Error::arg(3, "the LMR does not own its memory"))?;
        let first = if self.va_type == VaType::ZeroBased { 0 } else { lmr.address() };
        self.register(lmr.len(), |pz, access| Mr::register_mapping(&pz.pd, memory, access, first))
    }

    /// Registers memory that the caller owns.
    ///
    /// # Errors
    /// As [`LmrBuilder::allocate`]; INVALID_PARAMETER (ARG3) for zero-based memory that does not
    /// start at a page.
    ///
    /// # Safety
    /// The `len` bytes at `start` stay mapped until [`Lmr::close`] has succeeded, or the LMR was
    /// dropped with no RMR bound to it. If the device refuses to deregister the memory, it still
    /// uses it.
    ///
    /// While a post of these bytes has not completed, no reference to them is used that a write of
    /// the device would invalidate. The same holds from the time a peer knows the RMR context until
    /// the LMR is freed. It also holds while a post of an earlier LMR of this PZ, which covered one
    /// of these addresses and was freed, has not completed, because devices reuse keys.
    pub unsafe fn over(self, start: *mut u8, len: usize) -> Result<Lmr> {
        if self.va_type == VaType::ZeroBased && !start.addr().is_multiple_of(PAGE) {
            return Err(Error::arg(3, format!("zero-based memory starts at a multiple of {PAGE}")));
        }
        // SAFETY: mapped until the Mr goes, and no conflicting references: both promised by our
        // caller, and the Mr lives no longer than this LMR.
        self.register(len, |pz, access| unsafe { Mr::register_raw(&pz.pd, start, len, access) })
    }

    /// Registers memory that other processes share: every sharer registers its own mapping of it.
    ///
    /// Devices have no registrations that processes share, so each sharer takes an entry of the
    /// device's table.
    ///
    /// # Errors
    /// As [`LmrBuilder::over`]; INVALID_STATE (LMR_FREE) if the memory is not mapped as shared.
    ///
    /// # Safety
    /// As [`LmrBuilder::over`].
    ///
    /// # References
    /// dat_lmr_create(3DAT), `DAT_MEM_TYPE_SHARED_VIRTUAL`.
    pub unsafe fn over_shared(self, start: *mut u8, len: usize) -> Result<Lmr> {
        let first = start.addr() as u64;
        let maps = match std::fs::read_to_string("/proc/self/maps") {
            Err(error) if error.kind() == std::io::ErrorKind::OutOfMemory => {
                let text = "no memory to read /proc/self/maps";
                return Err(Error::resources(Subtype::ResourceMemory, text));
            }
            maps => maps.unwrap_or_default(),
        };
        if !is_shared(&maps, first, first.saturating_add(len as u64)) {
            let text = "this memory is not mapped as shared: see mmap(2), MAP_SHARED, and shmat(2)";
            return Err(Error::state(Subtype::InvalidStateLmrFree, text));
        }
        // SAFETY: promised by our caller.
        unsafe { self.over(start, len) }
    }

    fn register(
        self,
        len: usize,
        register: impl FnOnce(&PzInner, Access) -> Result<Mr, rxe_fallback::Error>,
    ) -> Result<Lmr> {
        let Self { ia, pz, privileges, va_type, .. } = self;
        let mut access = access_of(privileges);
        access.set(Access::MW_BIND, ia.device.attr.max_rmrs > 0);
        access.set(Access::ZERO_BASED, va_type == VaType::ZeroBased);
        ia.device.check()?;
        pz.inner.check(&ia.device)?;
        Lmr::register(
            &pz.inner,
            len,
            privileges,
            va_type,
            |pz| register(pz, access),
            |mr| {
                let base = if va_type == VaType::ZeroBased { 0 } else { mr.addr() };
                ia.device.lmrs.insert(mr, base, pz.inner.number, privileges)
            },
        )
    }
}
