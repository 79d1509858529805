//! The cases of mlx5-direct under criterion, to compare one build with the next.

use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use doorbell_benches::{
    build,
    case::measured,
    plan::{Subject, plan},
};

fn all(c: &mut Criterion) {
    let specs = plan(true).into_iter().filter(|spec| Subject::Mlx5Direct.does(spec));
    for spec in specs {
        let mut case = build(Subject::Mlx5Direct, &spec).expect("a software device");
        let mut group = c.benchmark_group(spec.case.name());
        group.throughput(Throughput::Elements(case.operations().into()));
        group.bench_function(format!("{}x{}sge/{}", spec.batch, spec.segments, spec.depth), |b| {
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
