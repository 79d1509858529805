//! The same cases under criterion, to compare one build with the next.

use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use doorbell_benches::{case::measured, direct};

fn all(c: &mut Criterion) {
    for mut case in direct::cases() {
        let key = case.key();
        let mut group = c.benchmark_group(key.case);
        group.throughput(Throughput::Elements(case.operations().into()));
        group.bench_function(format!("{}x{}sge/{}", key.batch, key.segments, key.depth), |b| {
            b.iter_custom(|rounds| {
                let mut total = Duration::ZERO;
                for _ in 0..rounds {
                    case.prepare();
                    let before = Instant::now();
                    measured(case.as_mut());
                    total += before.elapsed();
                }
                total
            });
        });
        group.finish();
    }
}

criterion_group!(benches, all);
criterion_main!(benches);
