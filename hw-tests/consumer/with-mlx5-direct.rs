//! A program of somebody who depends on `mlx5-direct` and on nothing else, and declares what it
//! calls of libibverbs itself.

use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};

#[repr(C)]
struct SrqInit {
    context: *const c_void,
    max_wr: u32,
    max_sge: u32,
    limit: u32,
}

unsafe extern "C" {
    fn ibv_get_device_list(count: *mut c_int) -> *mut *mut c_void;
    fn ibv_open_device(device: *mut c_void) -> *mut c_void;
    fn ibv_alloc_pd(context: *mut c_void) -> *mut c_void;
    fn ibv_create_cq(
        context: *mut c_void,
        entries: c_int,
        token: *mut c_void,
        channel: *mut c_void,
        vector: c_int,
    ) -> *mut c_void;
    fn ibv_create_srq(pd: *mut c_void, init: *mut SrqInit) -> *mut c_void;
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut init = SrqInit { context: null(), max_wr: 64, max_sge: 1, limit: 0 };
    // SAFETY: verbs calls with live objects; nobody else uses the queues, which are never
    // destroyed.
    let (mut srq, mut cq) = unsafe {
        let list = ibv_get_device_list(null_mut());
        assert!(!list.is_null() && !(*list).is_null(), "no device");
        let context = ibv_open_device(*list);
        mlx5_direct::dv::supported(context)?;
        let cq = ibv_create_cq(context, 64, null_mut(), null_mut(), 0);
        let srq = ibv_create_srq(ibv_alloc_pd(context), &mut init);
        (mlx5_direct::Srq::from_verbs(srq, Some(64))?, mlx5_direct::Cq::from_verbs(cq)?)
    };
    // Nothing is connected, so that the device writes to no buffer.
    let posted = (0..64).filter(|n| srq.post_one(mlx5_direct::DataSeg::new(0x1000, 64, 0), *n).is_ok()).count();
    assert!(posted == 64 && cq.poll()?.is_none());
    println!("posted {posted} buffers");
    Ok(())
}
