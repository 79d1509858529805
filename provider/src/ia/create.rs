//! Constructors of the objects that an IA itself uses: EVDs, CNOs and PZs. They are not in the
//! modules of those types, because those modules must not depend on [`Ia`].

use crate::cno::CnoInner;
use crate::device::Class;
use crate::evd::{EvdInner, check_depth};
use crate::memory::small_headroom;
use crate::pz::PzInner;
use crate::types::EvdFlags;
use crate::{Cno, Error, Evd, Ia, IaCounter, Pz, Result, Subtype};
use nix::sys::eventfd::{EfdFlags, EventFd};

impl Evd {
    /// Creates an EVD for at least `depth` events of these streams. [`Evd::set_cno`] gives it a CNO.
    ///
    /// An EVD has to hold all events that can wait in it at a time: the depth of each SRQ whose
    /// messages it gets ([`SrqBuilder::depth`](crate::SrqBuilder::depth)), the request depth of each
    /// EP whose requests complete there (and the receive depth of an EP without an SRQ), a few
    /// connection events for each connection, and all connection requests that can come at a time.
    /// [`Evd::resize`] makes an EVD longer. What finds no room is lost, and
    /// [`AsyncKind::EvdOverflow`](crate::AsyncKind::EvdOverflow) says so:
    ///
    /// * A completion, also of a message that has arrived: its sender sees a success, and the
    ///   connection stays up. The buffer is free again.
    /// * A connection request: the peer gets
    ///   [`PeerRejected`](crate::ConnectionEventKind::PeerRejected), as if the program had rejected
    ///   it, because rdma_cm knows no other reason.
    /// * An asynchronous event, when the depth and the number of EPs are reached: the oldest. Nothing
    ///   says so.
    ///
    /// Any number of EPs, SRQs and service points may share an EVD that was created for their kinds
    /// of streams. Streams with flags of their own ([`EpBuilder::recv_completion_flags`]) share it with
    /// their like only: if one is unsignalled, or one receive stream solicited, all have to be, and
    /// nothing but completions may come there.
    ///
    /// A dequeue is fast from an EVD whose completions are all messages of SRQs, all requests, or all
    /// of EPs without an SRQ; from a mixture it takes a lock and a queue. So give the messages of SRQs
    /// an EVD of their own, requests another, and connections and requests for them a third.
    ///
    /// [`EpBuilder::recv_completion_flags`]: crate::EpBuilder::recv_completion_flags
    ///
    /// ```no_run
    /// # use doorbell::{Evd, EvdFlags, Ia};
    /// # fn main() -> doorbell::Result<()> {
    /// let ia = Ia::open("mlx5_0")?;
    /// let messages = Evd::new(&ia, 256, EvdFlags::DTO)?;
    /// let rest = Evd::new(&ia, 64, EvdFlags::CR | EvdFlags::CONNECTION)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// INVALID_PARAMETER for a depth of 0 or over the IA's limit or for no or unknown flags,
    /// INVALID_HANDLE after the IA was closed, INSUFFICIENT_RESOURCES from the device.
    ///
    /// # References
    /// dat_evd_query(3DAT); udat.h, `dat_evd_create`.
    pub fn new(ia: &Ia, depth: u32, flags: EvdFlags) -> Result<Self> {
        ia.device.check()?;
        let depth = check_depth(&ia.device, depth)?;
        if flags.is_empty() || EvdFlags::from_bits(flags.bits()).is_none() {
            return Err(Error::arg(4, format!("no or unknown stream flags: {:#x}", flags.bits())));
        }
        Ok(Self { inner: EvdInner::new(&ia.device, depth, flags, false)? })
    }
}

impl Cno {
    /// Creates a CNO.
    ///
    /// # Errors
    /// INVALID_HANDLE after the IA was closed.
    ///
    /// # References
    /// dat_cno_create(3DAT).
    pub fn new(ia: &Ia) -> Result<Self> {
        Ok(Self { inner: CnoInner::new(&ia.device, None)? })
    }

    /// Creates a CNO with a descriptor for poll(2) and similar calls. The descriptor is readable
    /// once an EVD has triggered the CNO. [`Cno::take`] returns that EVD and makes the descriptor
    /// unreadable.
    ///
    /// # Errors
    /// As [`Cno::new`]; INSUFFICIENT_RESOURCES where the process has no more descriptors.
    ///
    /// # References
    /// udat.h, `dat_cno_fd_create`.
    pub fn with_fd(ia: &Ia) -> Result<Self> {
        let fd = EventFd::from_value_and_flags(0, EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)
            .map_err(|e| Error::resources(Subtype::ResourceMemory, format!("eventfd: {e}")))?;
        Ok(Self { inner: CnoInner::new(&ia.device, Some(fd))? })
    }
}

impl Pz {
    /// Creates a protection zone. Most programs need one: for all their memory, and for the EPs and
    /// SRQs that use it.
    ///
    /// ```no_run
    /// # use doorbell::{Ia, Lmr, Pz};
    /// # fn main() -> doorbell::Result<()> {
    /// let ia = Ia::open("mlx5_0")?;
    /// let pz = Pz::new(&ia)?;
    /// let memory = Lmr::builder(&ia, &pz).allocate(4096)?;
    /// // The zone stays while memory is registered in it, and comes back.
    /// let pz = pz.close().unwrap_err().object;
    /// memory.close()?;
    /// pz.close()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// INVALID_HANDLE after the IA was closed, INSUFFICIENT_RESOURCES from the device.
    ///
    /// # References
    /// dat_pz_create(3DAT).
    pub fn new(ia: &Ia) -> Result<Self> {
        ia.device.check()?;
        small_headroom()?;
        let inner = PzInner::new(&ia.device)?;
        if let Err(error) = ia.device.register(Class::Pz, inner.number.into(), &inner, &[IaCounter::PzCreate])
        {
            // A call that fails keeps nothing: with a clone, the domain does not stay for the next PZ.
            let _domain = inner.pd.clone();
            drop(inner);
            return Err(error);
        }
        Ok(Self { inner })
    }
}
