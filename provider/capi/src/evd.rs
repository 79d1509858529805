//! EVDs.

use super::abi::{EvdParam, Event};
use super::code::{Code, SUCCESS, guard, guard_panics};
use super::convert::{ia_of, timeout, to_count};
use super::event::{event, write_completion, write_request, write_success};
use super::handle::Handle;
use super::objects::{CnoObject, EvdObject, IaObject};
use super::raw::{In, Out};
use super::slots::Hot;
use provider::inside::sync::DoorGuard;
use provider::inside::{Feed, Path, Polled, Queue, QueuePair, Request, Success, Take, Uncancelled};
use provider::{CompletionFlags, DtoCompletion, Evd, EvdFlags, ReturnType, Subtype};
use std::sync::atomic::{Ordering, compiler_fence};

/// `DAT_EVD_EXTENSION_BASE`: has no effect, because extension events arrive on the EVD of their
/// operation.
const EXTENSION_FLAG: u32 = 0x200;
/// `DAT_SOFTWARE_EVENT`.
const SOFTWARE_EVENT: u32 = 0x1_0001;

fn get(handle: Handle) -> Result<Evd, Code> {
    Ok(handle.get::<EvdObject>()?.evd.clone())
}

/// The depth of an EVD, argument 2.
fn depth(qlen: i32) -> Result<u32, Code> {
    u32::try_from(qlen).map_err(|_| Code::arg(2))
}

pub(super) extern "C" fn evd_create(ia: Handle, qlen: i32, cno: Handle, flags: u32, out: Out<Handle>) -> u32 {
    guard("dat_evd_create", || {
        let object = ia.get::<IaObject>()?;
        let cno_object = cno.given().map(|cno| cno.get::<CnoObject>()).transpose()?;
        out.need(5)?;
        let flags = EvdFlags::from_bits(flags & !EXTENSION_FLAG).ok_or_else(|| Code::arg(4))?;
        let evd = Evd::new(&object.ia, depth(qlen)?, flags)?;
        if let Some(cno) = &cno_object {
            evd.set_cno(Some(&cno.cno))?;
        }
        let handle = ia.sibling_known_as(EvdObject { evd: evd.clone(), cno }, evd.id().0)?;
        evd.set_context(handle.0 as u64);
        // Dequeues of other events always need all checks.
        if flags.contains(EvdFlags::DTO) {
            handle.put_hot(Hot::Evd(evd.inner.clone()));
        }
        out.set(handle);
        Ok(())
    })
}

pub(super) extern "C" fn evd_query(evd: Handle, mask: u32, param: Out<EvdParam>) -> u32 {
    guard("dat_evd_query", || {
        let object = evd.get::<EvdObject>()?;
        if mask & !0x1f != 0 {
            return Err(Code::arg(2));
        }
        param.need(3)?;
        let is = object.evd.query()?;
        let config = if is.modes.contains(CompletionFlags::EVD_THRESHOLD) {
            0x30
        } else if is.modes.contains(CompletionFlags::SOLICITED_WAIT) {
            0x20
        } else {
            0x10
        };
        let state = if is.enabled { 1 } else { 2 } | if is.waitable { 4 } else { 8 } | config;
        param.set(EvdParam {
            ia_handle: ia_of(evd),
            evd_qlen: to_count(is.depth),
            evd_state: state,
            cno_handle: object.cno.0,
            evd_flags: is.flags.bits(),
            pad: 0,
        });
        Ok(())
    })
}

pub(super) extern "C" fn evd_modify_cno(evd: Handle, cno: Handle) -> u32 {
    guard("dat_evd_modify_cno", || {
        evd.get::<EvdObject>()?;
        // Looked up before the EVD is write-locked, because C may pass the EVD's handle here as
        // well.
        let to = cno.given().map(|cno| cno.get::<CnoObject>()).transpose()?;
        let mut object = evd.get_mut::<EvdObject>()?;
        object.evd.set_cno(to.as_ref().map(|cno| &cno.cno))?;
        object.cno = cno;
        Ok(())
    })
}

pub(super) extern "C" fn evd_enable(evd: Handle) -> u32 {
    guard("dat_evd_enable", || Ok(get(evd)?.enable()?))
}

pub(super) extern "C" fn evd_disable(evd: Handle) -> u32 {
    guard("dat_evd_disable", || Ok(get(evd)?.disable()?))
}

pub(super) extern "C" fn evd_set_unwaitable(evd: Handle) -> u32 {
    guard("dat_evd_set_unwaitable", || Ok(get(evd)?.set_unwaitable()?))
}

pub(super) extern "C" fn evd_clear_unwaitable(evd: Handle) -> u32 {
    guard("dat_evd_clear_unwaitable", || Ok(get(evd)?.clear_unwaitable()?))
}

pub(super) extern "C" fn evd_wait(
    evd: Handle,
    micros: u32,
    threshold: i32,
    out: Out<Event>,
    more: Out<i32>,
) -> u32 {
    let count = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
    // Taking an event that is there is no cancellation point; all else may have one.
    guard_panics("dat_evd_wait", || {
        // The lock is released before completions are harvested to be counted.
        let at_once = (threshold == 1 && !out.is_null())
            .then(|| evd.queue_of_evd()?.wait_fast(Whole(ToC { evd, out })))
            .flatten();
        if let Some(((), left)) = at_once {
            // Another thread may have freed the EVD meanwhile.
            let left = left.unwrap_or_else(|| {
                let _uncancelled = Uncancelled::begin();
                get(evd).map_or(0, |evd| evd.inner.harvest_and_count())
            });
            more.set(count(left));
            return Ok(());
        }
        let _uncancelled = Uncancelled::begin();
        let waits = get(evd)?;
        out.need(4)?;
        // A threshold below 0 is refused as 0 is.
        match waits.wait_threshold(usize::try_from(threshold).unwrap_or(0), timeout(micros)) {
            Ok(waited) => {
                more.set(count(waited.more));
                out.set(event(evd, waited.event)?);
                Ok(())
            }
            Err(failed) => {
                more.set(count(failed.more));
                Err(failed.into())
            }
        }
    })
}

pub(super) extern "C" fn evd_resize(evd: Handle, qlen: i32) -> u32 {
    guard("dat_evd_resize", || Ok(get(evd)?.resize(depth(qlen)?)?))
}

pub(super) extern "C" fn evd_post_se(evd: Handle, event: In<Event>) -> u32 {
    guard("dat_evd_post_se", || {
        let evd = get(evd)?;
        let event = event.need(2)?;
        if event.number != SOFTWARE_EVENT {
            return Err(Code::arg(2));
        }
        Ok(evd.post_software_event(event.data[0])?)
    })
}

/// Writes completions of this EVD to the program's event.
#[derive(Clone, Copy)]
struct ToC {
    evd: Handle,
    out: Out<Event>,
}

impl Take for ToC {
    type Event = ();
    const POOLS: bool = false;

    #[inline(always)]
    fn success(self, success: Success) {
        write_success(self.evd, &success, self.out);
    }

    #[inline(always)]
    fn request(self, pair: &QueuePair, request: &Request) {
        write_request(self.evd, pair, request, self.out);
    }

    #[inline(always)]
    fn any(self, dto: DtoCompletion) {
        write_completion(self.evd, &dto, self.out);
    }
}

/// As [`ToC`], for waits, which write every byte of an event.
#[derive(Clone, Copy)]
struct Whole(ToC);

impl Take for Whole {
    type Event = ();
    const POOLS: bool = false;

    // What `write_success` and `write_request` leave is cleared before the event is written.
    #[inline(always)]
    fn success(self, success: Success) {
        self.0.out.clear_behind_dto();
        self.0.success(success);
    }

    #[inline(always)]
    fn request(self, pair: &QueuePair, request: &Request) {
        self.0.out.clear_behind_dto();
        self.0.request(pair, request);
    }

    #[inline(always)]
    fn any(self, dto: DtoCompletion) {
        self.0.any(dto);
    }
}

/// An empty EVD for completions answers QUEUE_EMPTY without the class bit, because programs that
/// poll (dtest -p) compare with that value. Other EVDs answer with the bit.
pub(super) extern "C" fn evd_dequeue<P: Path>(evd: Handle, out: Out<Event>) -> u32 {
    // The fast path contains nothing that can panic, so it needs no guard. It writes no trace: with
    // a trace, the EVD has no door.
    if !out.is_null()
        && let Some(queue) = evd.queue_of_evd()
    {
        if queue.is_fed_by::<P>(Feed::Requests) {
            return dequeue_request::<P>(evd, out, queue);
        }
        // The state is read again: otherwise the compiler makes one jump by a table of the two
        // tests, which takes more instructions.
        compiler_fence(Ordering::SeqCst);
        if queue.is_fed_by::<P>(Feed::Messages) {
            return dequeue_message::<P>(evd, out, queue);
        }
        compiler_fence(Ordering::SeqCst);
        if queue.is_fed_by::<P>(Feed::Shared) {
            return dequeue_shared::<P>(evd, out, queue);
        }
    }
    evd_dequeue_slow(evd, out)
}

// A function for each feed, so that each saves only the registers that it uses.

#[inline(never)]
fn dequeue_message<P: Path>(evd: Handle, out: Out<Event>, queue: DoorGuard<Queue>) -> u32 {
    dequeue_from::<P>(Feed::Messages, evd, out, queue)
}

#[inline(never)]
fn dequeue_request<P: Path>(evd: Handle, out: Out<Event>, queue: DoorGuard<Queue>) -> u32 {
    dequeue_from::<P>(Feed::Requests, evd, out, queue)
}

#[inline(never)]
fn dequeue_shared<P: Path>(evd: Handle, out: Out<Event>, mut queue: DoorGuard<Queue>) -> u32 {
    // Each kind by its own code: a test of the kind in between takes more instructions.
    match queue.dequeue_from::<P, _>(Feed::Receives, true, ToC { evd, out }) {
        Polled::Dto(()) => SUCCESS,
        Polled::Empty => ReturnType::QueueEmpty as u32,
        Polled::Slow => dequeue_request::<P>(evd, out, queue),
    }
}

#[inline(always)]
fn dequeue_from<P: Path>(feed: Feed, evd: Handle, out: Out<Event>, mut queue: DoorGuard<Queue>) -> u32 {
    match queue.dequeue_from::<P, _>(feed, true, ToC { evd, out }) {
        Polled::Dto(()) => SUCCESS,
        // The EVD takes completions.
        Polled::Empty => ReturnType::QueueEmpty as u32,
        Polled::Slow => {
            drop(queue);
            evd_dequeue_slow(evd, out)
        }
    }
}

/// All other dequeues.
// An `extern "C"` function does not unwind, so its callers end in a jump.
#[inline(never)]
extern "C" fn evd_dequeue_slow(evd: Handle, out: Out<Event>) -> u32 {
    if !out.is_null()
        && let Some(mut queue) = evd.queue_of_evd()
    {
        match queue.dequeue_slow(ToC { evd, out }) {
            Polled::Dto(()) => return SUCCESS,
            Polled::Empty => return ReturnType::QueueEmpty as u32,
            Polled::Slow => {}
        }
    }
    guard("dat_evd_dequeue", || {
        let takes = get(evd)?;
        out.need(2)?;
        match takes.inner.dequeue_slow() {
            Ok(Some(taken)) => {
                out.set(event(evd, taken.into())?);
                Ok(())
            }
            Ok(None) if takes.inner.flags.contains(EvdFlags::DTO) => Err(Code(ReturnType::QueueEmpty as u32)),
            Ok(None) => Err(Code::new(ReturnType::QueueEmpty, Subtype::None)),
            Err(error) => Err(error.into()),
        }
    })
}

pub(super) extern "C" fn evd_free(evd: Handle) -> u32 {
    guard("dat_evd_free", || {
        evd.end::<EvdObject>(|object| match object.evd.close() {
            Ok(()) => Ok(()),
            Err(refused) => Err((EvdObject { evd: refused.object, ..object }, refused.error.into())),
        })
    })
}
