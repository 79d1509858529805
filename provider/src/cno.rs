//! CNOs: one place to wait for many EVDs. `ia/create.rs` makes them.

use crate::descriptor::Descriptor;
use crate::device::{Class, Device, Member};
use crate::memory::headroom;
use crate::sync::{Condvar, Mutex, check_none_held, rank};
use crate::types::{EvdId, next_id};
use crate::{Error, Refused, Result, ReturnType, Subtype};
use nix::sys::eventfd::EventFd;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A consumer notification object (`DAT_CNO_HANDLE`). Clones are the same CNO.
#[derive(Clone, Debug)]
pub struct Cno {
    #[doc(hidden)]
    pub inner: Arc<CnoInner>,
}

/// A function that runs on the thread that triggers the CNO. Its argument is the EVD that
/// triggered.
pub type Upcall = Arc<dyn Fn(EvdId) + Send + Sync>;

/// The object behind a [`Cno`].
pub struct CnoInner {
    id: u64,
    device: Arc<Device>,
    state: Mutex<{ rank::TABLE }, State>,
    changed: Condvar,
    upcall: Mutex<{ rank::TABLE }, Option<Upcall>>,
    /// An eventfd that is readable while a trigger is kept.
    fd: Option<Descriptor<EventFd>>,
    users: AtomicU32,
    live: AtomicBool,
}

impl std::fmt::Debug for CnoInner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cno").field("id", &self.id).field("fd", &self.fd).finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct State {
    /// The EVD that triggered it last. One trigger is kept until a thread waits.
    triggered: Option<EvdId>,
    waiters: u32,
}

impl Cno {
    /// The descriptor, if the CNO was created with one.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.fd()
    }

    /// Returns the EVD that has triggered the CNO, without waiting.
    ///
    /// # Errors
    /// QUEUE_EMPTY if no EVD has; INVALID_STATE (CNO_DEAD) after the CNO was freed.
    ///
    /// # References
    /// udat.h, `dat_cno_trigger`.
    pub fn take(&self) -> Result<EvdId> {
        match self.wait(Some(Duration::ZERO)) {
            Err(error) if error.return_type() == ReturnType::TimeoutExpired => {
                Err(Error::new(ReturnType::QueueEmpty, Subtype::None, "no EVD has triggered the CNO"))
            }
            outcome => outcome,
        }
    }

    /// Waits until an EVD triggers the CNO, and returns that EVD. It has events to dequeue; other
    /// EVDs of the CNO may have events, too.
    ///
    /// # Errors
    /// TIMEOUT_EXPIRED; INVALID_STATE (CNO_DEAD) if the CNO is freed meanwhile.
    ///
    /// # References
    /// dat_cno_wait(3DAT).
    pub fn wait(&self, timeout: Option<Duration>) -> Result<EvdId> {
        if self.inner.device.is_inherited() {
            return Err(Error::state(Subtype::InvalidStateCnoDead, "the CNO belongs to the parent process"));
        }
        let deadline = timeout.and_then(|t| Instant::now().checked_add(t));
        let mut state = self.inner.state.lock().unwrap();
        state.waiters += 1;
        let outcome = loop {
            if !self.inner.live.load(Ordering::Acquire) {
                break Err(Error::state(Subtype::InvalidStateCnoDead, "the CNO was freed"));
            }
            if let Some(evd) = state.triggered.take() {
                if let Some(fd) = &self.inner.fd {
                    // EAGAIN: the eventfd was empty.
                    let _ = fd.read();
                }
                break Ok(evd);
            }
            let Some(deadline) = deadline else {
                state = self.inner.changed.wait(state).unwrap();
                continue;
            };
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break Err(Error::new(ReturnType::TimeoutExpired, Subtype::None, "the time-out has expired"));
            }
            state = self.inner.changed.wait_timeout(state, left).unwrap();
        };
        state.waiters -= 1;
        outcome
    }

    /// Frees the CNO.
    ///
    /// # Errors
    /// INVALID_STATE (CNO_IN_USE) while EVDs use the CNO. The error returns the CNO.
    ///
    /// # References
    /// dat_cno_free(3DAT).
    pub fn close(self) -> Result<(), Refused<Self>> {
        let users = self.inner.users.load(Ordering::Acquire);
        let error = if !self.inner.live.load(Ordering::Acquire) {
            Error::handle(Subtype::InvalidHandleCno, "CNO")
        } else if users > 0 {
            Error::state(Subtype::InvalidStateCnoInUse, format!("{users} EVDs still trigger this CNO"))
        } else {
            self.inner.close();
            return Ok(());
        };
        Err(Refused { object: self, error })
    }
}

impl CnoInner {
    /// Creates a CNO, with a descriptor if one is given.
    pub(crate) fn new(device: &Arc<Device>, fd: Option<EventFd>) -> Result<Arc<Self>> {
        device.check()?;
        headroom()?;
        let inner = Arc::new(Self {
            id: next_id(),
            device: device.clone(),
            state: Mutex::default(),
            changed: Condvar::new(),
            upcall: Mutex::default(),
            fd: fd.map(Descriptor::new),
            users: AtomicU32::new(0),
            live: AtomicBool::new(true),
        });
        device.register(Class::Cno, inner.id, &inner, &[])?;
        Ok(inner)
    }

    pub(crate) fn check(&self, device: &Arc<Device>) -> Result<()> {
        if self.live.load(Ordering::Acquire) && Arc::ptr_eq(&self.device, device) {
            Ok(())
        } else {
            Err(Error::handle(Subtype::InvalidHandleCno, "CNO"))
        }
    }

    /// Triggers the CNO. The caller may hold locks, and calls [`CnoInner::call_agent`] once it holds
    /// none.
    pub(crate) fn trigger(&self, evd: EvdId) {
        let mut state = self.state.lock().unwrap();
        state.triggered = Some(evd);
        if let Some(fd) = &self.fd {
            // Fails with EAGAIN only if the eventfd is full, and then it is readable.
            let _ = fd.write(1);
        }
        drop(state);
        self.changed.notify_one();
    }

    /// Calls the agent, which may make any call: the caller holds no lock.
    pub(crate) fn call_agent(&self, evd: EvdId) {
        let upcall = self.upcall.lock().unwrap().clone();
        // No upcalls while the IA closes, because the program has given up all objects.
        if let Some(upcall) = upcall
            && self.device.check().is_ok()
        {
            check_none_held();
            upcall(evd);
        }
    }

    /// The descriptor that becomes readable, if the CNO has one.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(|fd| fd.as_fd())
    }

    /// Sets the function that is called at every trigger from now on.
    pub fn set_upcall(&self, upcall: Option<Upcall>) {
        *self.upcall.lock().unwrap() = upcall;
    }

    pub(crate) fn enter(&self) {
        self.users.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn leave(&self) {
        self.users.fetch_sub(1, Ordering::AcqRel);
    }

    pub(crate) fn close(&self) {
        if self.live.swap(false, Ordering::AcqRel) {
            self.device.registry.remove(Class::Cno, self.id);
            drop(self.state.lock().unwrap());
            self.changed.notify_all();
            if let Some(fd) = &self.fd {
                // Whoever polls the descriptor looks and finds that the CNO is dead.
                let _ = fd.write(1);
            }
        }
    }
}

impl crate::fork::Inherit for CnoInner {
    fn disown(&self) {
        self.live.store(false, Ordering::Release);
    }
}

impl Member for CnoInner {
    fn ia_closed(self: Arc<Self>) {
        self.close();
    }
}

impl Drop for CnoInner {
    fn drop(&mut self) {
        self.close();
    }
}
