//! EPs on an SRQ: creation and every other call on them (sections J and K of the rules).

mod calls;
mod create;
mod free;
mod inline;
mod requests;
mod retry;

use doorbell::{CompletionFlags, Ep, EpAttr, EpEvds, Evd, Srq};
use doorbell_hw_tests::Side;

fn main() {
    doorbell_hw_tests::run(
        &[create::TESTS, calls::TESTS, requests::TESTS, retry::TESTS, inline::TESTS, free::TESTS].concat(),
    )
    .exit();
}

const NONE: CompletionFlags = CompletionFlags::empty();

fn recv_mode(flags: CompletionFlags) -> EpAttr {
    EpAttr { recv_completion_flags: flags, ..EpAttr::default() }
}

fn modes(recv: CompletionFlags, request: CompletionFlags) -> EpAttr {
    EpAttr { recv_completion_flags: recv, request_completion_flags: request, ..EpAttr::default() }
}

/// An EP on the SRQ with these EVDs for receives and requests.
fn ep_on(
    side: &Side,
    srq: &Srq,
    recv: Option<&Evd>,
    request: Option<&Evd>,
    attr: &EpAttr,
) -> Result<Ep, doorbell::Error> {
    let evds = EpEvds { recv, request, connect: Some(&side.connect) };
    Ep::create_with_srq(&side.ia, &side.pz, evds, srq, attr)
}
