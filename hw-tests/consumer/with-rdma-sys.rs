//! A program of somebody who uses `rdma-sys` beside `doorbell-sys`, and hands a segment over both
//! ways: by the feature `rdma-sys` and by a module of its own.

use doorbell_sys::{from_rdma_sys, ibv_sge, to_rdma_sys};

doorbell_sys::conversions! { mod rdma = rdma_sys }

fn main() {
    let mut segment = ibv_sge { addr: 1, length: 2, lkey: 3 };
    let theirs: *mut rdma_sys::ibv_sge = to_rdma_sys(&raw mut segment);
    assert_eq!(theirs, rdma::to(&raw mut segment));
    // SAFETY: `segment` is alive, and both types declare the same C structure.
    unsafe { (*theirs).length = 64 };
    assert_eq!(from_rdma_sys::<ibv_sge>(theirs), &raw mut segment);
    println!("posted {} bytes", segment.length);
}
