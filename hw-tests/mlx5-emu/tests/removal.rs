//! Removal of the device from a running program. The test runs in a process of its own, because the
//! device does not come back.
#![expect(unsafe_code, reason = "raw verbs calls")]

mod common;

use std::ptr::null_mut;

use common::*;

#[test]
fn a_removed_device_refuses_all_but_destruction() {
    const DEVICE_FATAL: u32 = 8;
    let mut rig = Rig::new();
    let (cq, srq) = (rig.cq(64), rig.srq(16, 1));
    let (a, _) = rig.pair(cq, srq);
    let memory = rig.memory(4096);
    assert_eq!(post_srq(srq, 7, &[memory.sge(64, 64)]), 0);
    mlx5_emu::remove_device();
    assert_eq!(async_events(rig.ctx), [DEVICE_FATAL]);
    // Stepped by the post and by the polls.
    send(a, 1, SIGNALED, &[memory.sge(0, 64)]);
    assert_eq!(poll_all(cq).len(), 0, "posting does nothing any more");
    // SAFETY: live context; the call fails.
    let none = unsafe { ibv_create_cq(rig.ctx, 8, null_mut(), null_mut(), 0) };
    assert!(none.is_null());
    assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EIO));
    // SAFETY: plain verbs call.
    unsafe {
        let mut count = 0;
        let list = ibv_get_device_list(&raw mut count);
        assert_eq!(count, 0, "it is not found any more");
        ibv_free_device_list(list);
    }
}
