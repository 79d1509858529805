//! A program of somebody who depends on `doorbell` and on nothing else.

use doorbell::{Evd, EvdFlags, Ia, Pz, RecvPool, Srq, SrqAttr};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let ia = Ia::open("mlx5_0")?;
    let pz = Pz::create(&ia)?;
    let _events = Evd::create(&ia, 64, None, EvdFlags::CR | EvdFlags::DTO)?;
    let mut srq = Srq::create(&ia, &pz, SrqAttr::depth(64))?;
    let mut pool = RecvPool::new(&ia, &pz, 64, 4096)?;
    let posted = pool.refill(&mut srq)?;
    assert_eq!((posted, pool.posted()), (64, 64));
    println!("posted {posted} buffers");
    Ok(())
}
