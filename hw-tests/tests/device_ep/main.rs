//! EPs: what the C tests of sections J and K of the rules (`c/rules_ep*.c`) do not show.

mod calls;
mod free;
mod inline;
mod requests;
mod retry;

use doorbell::{CompletionFlags, Ep, Evd};

fn main() {
    doorbell_hw_tests::run(
        &[calls::TESTS, requests::TESTS, retry::TESTS, inline::TESTS, free::TESTS].concat(),
    )
    .exit();
}

const NONE: CompletionFlags = CompletionFlags::empty();
