//! SRQs: creation, counts, posting, resizing, low watermark (sections A to E, H and I of the rules).

use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Rig, tests};

fn main() {
    doorbell_hw_tests::run(tests![r39_srq_query_example_10_after_post,]).exit();
}

/// The worked example of dat_srq_query, all four lines (R39 to R42).
fn r39_srq_query_example_10_after_post() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(10);
    let mut pair = rig.connect_srq(&srq);
    rig.server.post(&mut srq, 3, 64, 0, 100);
    assert_eq!(counts(&srq), (3, 3));
    rig.send(&mut pair, 0, 24);
    until("the message is complete", || counts(&srq) == (2, 3));
    let got = dto(&rig.server.recv);
    assert_eq!((got.cookie, got.length, got.ep), (100, 24, pair.server.id()));
    assert_eq!(counts(&srq), (2, 2));
    rig.server.post(&mut srq, 1, 64, 0, 100);
    assert_eq!(counts(&srq), (3, 3));
}
