//! The aims of the direct path, compared with the measurements.

use comfy_table::Table;

use crate::{
    plan::{CaseName, Spec, Subject},
    report::{Row, find, table},
};

/// A figure of one row or of two.
#[derive(Clone, Copy, Debug)]
enum Figure {
    /// Instructions per operation, at most.
    Instructions(f64),
    /// Locked instructions per operation, at most.
    Locked(f64),
    /// Nanoseconds per operation, at most.
    Nanoseconds(f64),
    /// 99th percentile of a call with the whole batch, in nanoseconds, at most.
    CallP99(f64),
    /// 99.9th percentile of a call with the whole batch, in nanoseconds, at most.
    CallP999(f64),
    /// How many times faster than a subject, at least.
    Faster(Subject, f64),
}

/// The subjects whose aims a case has: `mlx5-direct`, or the provider if the case goes through
/// libdat2.
fn runners(spec: Spec) -> &'static [Subject] {
    if spec.case.through_libdat() {
        &[Subject::Provider, Subject::ProviderVerbs]
    } else {
        &[Subject::Mlx5Direct]
    }
}

/// Whether a subject has this aim. The provider on standard verbs has one aim only: it is no slower
/// than libdaplofa. With several threads, no subject has another.
fn applies(subject: Subject, spec: Spec, figure: Figure) -> bool {
    match figure {
        _ if spec.case.threads().is_some() => true,
        Figure::Faster(Subject::Libdaplofa, times) => (subject == Subject::ProviderVerbs) == (times == 1.0),
        _ => subject != Subject::ProviderVerbs,
    }
}

/// The aims.
fn aims() -> Vec<(&'static str, Spec, Figure)> {
    use Figure::*;
    let spec = |case, batch, depth| Spec { case, batch, segments: 1, depth };
    let (lock, unlocked) = (Subject::Libmlx5Lock, Subject::Libmlx5Nolock);
    let one = spec(CaseName::Post, 1, 1023);
    let mut aims = vec![
        ("one post", one, Instructions(20.0)),
        ("one post", one, Nanoseconds(2.5)),
        ("one post, against the lock", one, Faster(lock, 4.0)),
        ("one post, against no lock", one, Faster(unlocked, 2.0)),
    ];
    for batch in [16, 32, 64] {
        let post = spec(CaseName::Post, batch, 1023);
        aims.extend([
            ("batch, full segment", post, Instructions(22.0)),
            ("batch, address only", spec(CaseName::PostAddress, batch, 1023), Instructions(16.0)),
            ("batch, post only", post, Faster(lock, 2.5)),
            ("batch, slot freed", spec(CaseName::PostFree, batch, 1023), Faster(lock, 8.0)),
        ]);
    }
    for batch in [16, 32, 64] {
        let repost = spec(CaseName::Repost, batch, 1023);
        aims.extend([
            ("slot-bound repost", repost, Instructions(4.0)),
            ("slot-bound repost", repost, Faster(lock, 10.0)),
        ]);
    }
    let (poll, empty) = (spec(CaseName::Poll, 1, 1023), spec(CaseName::EmptyPoll, 1, 1023));
    aims.extend([
        ("poll", poll, Instructions(40.0)),
        ("poll", poll, Nanoseconds(3.0)),
        ("poll", poll, Faster(lock, 8.0)),
        ("poll, slot freed by both", spec(CaseName::PollFree, 1, 1023), Faster(lock, 8.0)),
        ("empty poll", empty, Nanoseconds(3.0)),
        ("empty poll", empty, Faster(lock, 3.5)),
    ]);
    let send = |case, batch| spec(case, batch, 128);
    for (what, spec, instructions, times) in [
        ("one send, inline", send(CaseName::Send, 1), 45.0, Some(3.0)),
        ("one send, one segment", send(CaseName::SendGather, 1), 40.0, None),
        ("one send, prepared", send(CaseName::SendPrepared, 1), 30.0, None),
        ("batch of sends, inline", send(CaseName::Send, 32), 22.0, Some(5.0)),
        ("poll of a send", send(CaseName::ReapSend, 1), 25.0, Some(8.0)),
        ("a whole message", send(CaseName::Message, 1), 130.0, Some(6.0)),
        ("a whole message, in its buffer", send(CaseName::MessageInBuffer, 1), 130.0, Some(6.0)),
    ] {
        aims.push((what, spec, Instructions(instructions)));
        aims.extend(times.map(|times| (what, spec, Faster(lock, times))));
    }
    aims.extend([
        ("one send, against ibv_wr_*", send(CaseName::SendWr, 1), Faster(lock, 3.0)),
        ("batch of sends, against ibv_wr_*", send(CaseName::SendWr, 32), Faster(lock, 5.0)),
    ]);
    let four = Spec { segments: 4, ..spec(CaseName::DatPost, 1, 1023) };
    aims.push(("dat_srq_post_recv of four segments", four, Faster(Subject::Libdaplofa, 2.0)));
    for (what, case, instructions, times) in [
        ("dat_srq_post_recv", CaseName::DatPost, None, 4.0),
        ("dat_evd_dequeue of a receive", CaseName::DatReap, Some(120.0), 4.0),
        ("dat_ep_post_send", CaseName::DatSend, Some(130.0), 4.0),
        ("dat_evd_dequeue of a send", CaseName::DatReapSend, Some(110.0), 4.0),
        ("dat_evd_dequeue of no receive", CaseName::DatEmpty, None, 4.0),
        ("dat_evd_dequeue of no send", CaseName::DatEmptySends, None, 4.0),
        ("a whole DAT message", CaseName::DatAnswer, None, 4.0),
    ] {
        let spec = spec(case, 1, 1023);
        aims.extend(instructions.map(|most| (what, spec, Instructions(most))));
        aims.extend([
            (what, spec, Locked(0.0)),
            (what, spec, Faster(Subject::Libdaplofa, times)),
            (what, spec, Faster(Subject::Libdaplofa, 1.0)),
        ]);
    }
    for (what, case) in [
        ("one thread posts and sends", CaseName::DatThread),
        ("two threads post and send", CaseName::DatTwoThreads),
        ("four threads post and send", CaseName::DatFourThreads),
    ] {
        aims.push((what, spec(case, 1, 4095), Faster(Subject::Libdaplofa, 1.0)));
    }
    for (depth, times) in [(1023, 2.5), (4095, 8.0), (32_767, 50.0)] {
        let random = spec(CaseName::RandomCompletion, 32, depth);
        aims.extend([
            ("out of order", random, CallP99(350.0)),
            ("out of order", random, CallP999(500.0)),
            ("out of order, libmlx5 48 and later", random, Faster(lock, times)),
        ]);
    }
    aims
}

/// The aims of the preloaded library, behind the calls of verbs.
fn verbs_aims() -> Vec<(&'static str, Spec, Figure)> {
    use Figure::*;
    let spec = |case, batch, depth| Spec { case, batch, segments: 1, depth };
    let lock = Subject::Libmlx5Lock;
    let (post, list) = (spec(CaseName::Post, 1, 1023), spec(CaseName::Post, 32, 1023));
    let (poll, send) = (spec(CaseName::Poll, 16, 1023), spec(CaseName::Send, 1, 128));
    vec![
        ("ibv_post_srq_recv", post, Instructions(40.0)),
        ("ibv_post_srq_recv", post, Locked(0.0)),
        ("ibv_post_srq_recv", post, Faster(lock, 2.5)),
        ("ibv_post_srq_recv, a list", list, Faster(lock, 2.0)),
        // A quarter of libmlx5's 272 for a single completion.
        ("ibv_poll_cq of receives", poll, Instructions(68.0)),
        ("ibv_poll_cq of receives", poll, Locked(0.0)),
        ("ibv_post_send, inline", send, Instructions(80.0)),
        ("ibv_post_send, inline", send, Locked(0.0)),
        ("ibv_post_send, inline", send, Faster(lock, 2.0)),
    ]
}

/// The aims that these rows can decide, each with `met` or `missed`.
///
/// `searches` says whether libmlx5 is a version that searches to keep the ring's order (48 and
/// later). The aims for out-of-order completions compare with those versions.
pub fn to_table(rows: &[Row], searches: bool) -> Table {
    let mut table = table(&["aim", "subject", "batch", "depth", "measure", "aim", "measured", ""], 2);
    let wanted = aims().into_iter().flat_map(|(what, spec, figure)| {
        let runners = runners(spec).iter().filter(move |subject| applies(**subject, spec, figure));
        runners.map(move |subject| (what, *subject, spec, figure))
    });
    let of_verbs = verbs_aims().into_iter();
    let wanted = wanted.chain(of_verbs.map(|(what, spec, figure)| (what, Subject::Verbs, spec, figure)));
    for (what, subject, spec, figure) in wanted {
        let Some(row) = find(rows, subject, spec) else { continue };
        let call = f64::from(spec.batch);
        let (measure, aim, measured) = match figure {
            Figure::Instructions(most) => ("instr/op", most, row.instructions),
            Figure::Locked(most) => ("locked/op", most, row.locked),
            Figure::Nanoseconds(most) => ("ns/op", most, Some(row.timing.mean)),
            Figure::CallP99(most) => ("p99 ns/call", most, Some(row.timing.p99 * call)),
            Figure::CallP999(most) => ("p99.9 ns/call", most, Some(row.timing.p999 * call)),
            Figure::Faster(other, least) => {
                let other = find(rows, other, spec).map(|o| o.timing.mean / row.timing.mean);
                ("times faster", least, other)
            }
        };
        let faster = matches!(figure, Figure::Faster(..));
        let about_order = faster && spec.case == CaseName::RandomCompletion;
        let verdict = match measured {
            None => "not measured",
            Some(_) if about_order && !searches => "other libmlx5",
            Some(n) if (faster && n >= aim) || (!faster && n <= aim) => "met",
            Some(_) => "missed",
        };
        table.add_row([
            what.to_owned(),
            subject.name().to_owned(),
            spec.batch.to_string(),
            spec.depth.to_string(),
            measure.to_owned(),
            format!("{} {aim}", if faster { ">=" } else { "<=" }),
            measured.map_or("-".to_owned(), |n| format!("{n:.2}")),
            verdict.to_owned(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Timing;

    #[test]
    fn costs_have_upper_and_ratios_lower_limits() {
        let spec = Spec { case: CaseName::EmptyPoll, batch: 1, segments: 1, depth: 1023 };
        let row = |subject, ns| Row {
            spec,
            subject,
            timing: Timing { mean: ns, p50: ns, p99: ns, p999: ns },
            instructions: None,
            locked: None,
        };
        let verdicts = |direct: f64, libmlx5: f64| {
            let rows = [row(Subject::Mlx5Direct, direct), row(Subject::Libmlx5Lock, libmlx5)];
            let text = to_table(&rows, false).to_string();
            (text.matches(" met ").count(), text.matches(" missed ").count())
        };
        assert_eq!(verdicts(2.0, 7.0), (2, 0));
        assert_eq!(verdicts(2.0, 6.0), (1, 1));
        assert_eq!(verdicts(4.0, 6.0), (0, 2));
    }
}
