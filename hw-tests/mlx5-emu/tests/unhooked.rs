//! A device that runs only on request. It finds doorbells that programs left in the registers.
#![expect(unsafe_code, reason = "raw verbs calls")]

mod common;

use common::*;

#[test]
fn arm_of_a_queue_that_goes_away_is_no_mistake() {
    mlx5_emu::set_mode(mlx5_emu::Mode::Manual);
    let mut rig = Rig::new();
    let channel = rig.channel();
    // SAFETY: live context and channel; the CQ is destroyed once.
    unsafe {
        let cq = ibv_create_cq(rig.ctx, 8, std::ptr::null_mut(), channel, 0);
        assert!(!cq.is_null());
        assert_eq!(ibv_req_notify_cq(cq, 0), 0);
        assert_eq!(ibv_destroy_cq(cq), 0);
    }
    // The rig fails on complaints.
    mlx5_emu::step();
}
