//! A program of somebody who depends on `doorbell` and on nothing else.

use doorbell::{Evd, EvdFlags, Ia, Pz, RecvPool, Srq};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let ia = Ia::open("mlx5_0")?;
    let pz = Pz::new(&ia)?;
    let _events = Evd::new(&ia, 64, EvdFlags::CR | EvdFlags::DTO)?;
    let mut srq = Srq::builder(&ia, &pz).depth(64).build()?;
    let mut pool = RecvPool::new(&ia, &pz, 64, 4096)?;
    let posted = pool.refill(&mut srq)?;
    assert_eq!((posted, pool.posted()), (64, 64));
    println!("posted {posted} buffers");
    Ok(())
}
