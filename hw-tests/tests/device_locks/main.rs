//! Threads of the consumer and the IA's own thread meet at one EP, each step in its place: a thread
//! waits where it is about to take a lock until another has come to its own. Debug builds only,
//! since release builds have no such places.

#[cfg(debug_assertions)]
mod steps;

fn main() {
    #[cfg(debug_assertions)]
    use steps::*;
    #[cfg(debug_assertions)]
    doorbell_hw_tests::run_with_threads(
        doorbell_hw_tests::tests![
            a_request_is_rejected_while_its_ep_is_made_anew,
            a_request_is_rejected_before_its_ep_is_made_anew,
            a_request_comes_while_the_reserved_ep_is_made_anew,
            a_request_is_accepted_while_its_ep_is_made_anew,
        ],
        1,
    )
    .exit();
}
