//! Threads of the program and the progress thread use one EP, in an order that the test sets: a
//! thread stops before it takes a given lock until the other thread has reached its own step. Debug
//! builds only, since release builds have no hook in the locks.

#[cfg(debug_assertions)]
mod accept;
#[cfg(debug_assertions)]
mod freed;
#[cfg(debug_assertions)]
mod late;
#[cfg(debug_assertions)]
mod steps;

fn main() {
    #[cfg(debug_assertions)]
    use {accept::*, freed::*, late::*, steps::*};
    #[cfg(debug_assertions)]
    doorbell_hw_tests::run_unless(
        doorbell_hw_tests::tests![
            a_request_is_rejected_while_its_ep_is_made_anew,
            a_request_is_rejected_before_its_ep_is_made_anew,
            a_request_comes_while_the_reserved_ep_is_made_anew,
            a_request_is_accepted_while_its_ep_is_made_anew,
            an_ep_is_reset_before_its_failure_is_handled,
            an_ep_is_connected_again_before_its_end_is_checked,
            an_ep_is_reset_while_its_end_is_completed,
            an_ep_is_connected_again_before_its_device_event_finds_it,
            an_ep_is_connected_again_before_its_device_event_is_handled,
            a_thread_waits_after_the_progress_thread_took_the_event,
            a_low_watermark_is_set_before_its_event_is_handled,
            a_message_that_shows_before_the_reset_counts,
            a_message_is_answered_before_it_confirms_the_connection,
            a_window_is_bound_twice_before_a_message_confirms_the_connection,
            a_message_is_answered_while_the_progress_thread_stands_still,
            a_message_is_answered_before_its_accept_returns,
            an_ep_is_freed_before_its_refusal_is_queued,
            a_datagram_ep_is_freed_before_its_refusal_is_queued,
            an_ep_is_dropped_before_its_end_is_queued,
            an_srq_is_freed_before_its_low_watermark_is_queued,
            a_psp_is_freed_before_its_request_is_queued,
            an_evd_is_freed_before_its_cno_is_triggered,
            an_ep_is_freed_while_its_refusal_is_queued,
        ],
        1,
        |name| match name {
            "a_message_that_shows_before_the_reset_counts"
                if doorbell_hw_tests::software::order("count mr") < 0
                    || std::env::var("DOORBELL_DATAPATH").as_deref() == Ok("verbs") =>
            {
                Some("needs the software device, and no libmlx5 that forgets completions at a reset")
            }
            "a_message_is_answered_before_it_confirms_the_connection"
            | "a_window_is_bound_twice_before_a_message_confirms_the_connection"
                if doorbell_hw_tests::on_rxe() =>
            {
                Some("needs a device on which only the program takes completions off the CQ")
            }
            _ => None,
        },
    )
    .exit();
}
