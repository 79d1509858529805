//! A thread that has accepted a request stops before `rdma_accept` returns to the provider. This
//! executable's function of that name is the one that all its crates call.
#![expect(unsafe_code, reason = "a function that stands before the one of librdmacm")]

use crate::steps::{Placed, Steps, elsewhere, outcome};
use doorbell::lock_hook::before_locks;
use doorbell::{ConnectionEventKind, EpAttr};
use doorbell_hw_tests::Rig;
use doorbell_hw_tests::rig::*;
use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::thread::ThreadId;

thread_local! {
    /// What this thread does once the peer has its answer.
    static ACCEPTED: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
}

#[unsafe(no_mangle)]
extern "C" fn rdma_accept(id: *mut c_void, param: *mut c_void) -> c_int {
    type Accept = unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int;
    // SAFETY: the name is a string with a NUL.
    let next = unsafe { libc::dlsym(libc::RTLD_NEXT, c"rdma_accept".as_ptr()) };
    assert!(!next.is_null(), "librdmacm has no rdma_accept");
    // SAFETY: librdmacm's function of this name has this type; the arguments are the caller's.
    let result = unsafe { std::mem::transmute::<*mut c_void, Accept>(next)(id, param) };
    if let Some(then) = ACCEPTED.take() {
        then();
    }
    result
}

/// A thread accepts with a reserved EP. Before its call returns, the peer sends, and another thread
/// takes the message and answers it. The call goes on when the other thread waits for the EP's lock,
/// or has answered.
pub(crate) fn a_message_is_answered_before_its_accept_returns() {
    let rig = Arc::new(Rig::new());
    let mut server = rig.server.ep(&EpAttr::default());
    server.post_recv(&[rig.server.lmr.triplet(0, 64)], 5, Default::default()).unwrap();
    let (_rsp, port) = rig.server.reserve(&server);
    let peer = rig.ask_silent((rig.server.ia.address(), port).into());
    let request = connection_request(&rig.server.cr).cr;
    let steps = Arc::new(Steps::default());
    let accepting: Arc<std::sync::OnceLock<ThreadId>> = Arc::default();
    let placed = {
        let (steps, accepting) = (steps.clone(), accepting.clone());
        before_locks(Some(Arc::new(move |lock| {
            let other = accepting.get() != Some(&std::thread::current().id());
            if other && lock == "EpInner::control" && steps.has_reached("accepted") {
                steps.reach("go");
            }
        })));
        Placed
    };
    let accepted = {
        let steps = steps.clone();
        elsewhere(move || {
            accepting.set(std::thread::current().id()).unwrap();
            ACCEPTED.set(Some(Box::new(move || {
                steps.reach("accepted");
                steps.wait_for("go");
            })));
            request.accept_reserved(&[]).map_err(|refused| refused.error)
        })
    };
    steps.wait_for("accepted");
    peer.answered();
    peer.send(8);
    let message = dto(&rig.server.recv);
    let answered = server.send(&[rig.server.lmr.triplet(0, 8)]).cookie(6).post();
    steps.reach("go");
    outcome(&rig, &accepted).unwrap();
    drop(placed);
    assert_eq!(message.cookie, 5);
    answered.unwrap();
    peer.receive();
    assert!(dto(&rig.server.request).is_success());
    expect_connection(&rig.server.connect, &server, ConnectionEventKind::Established);
}
