//! Costs of the data paths, measured on queues that unmodified libmlx5 created on the software
//! device or on a real device.
//!
//! METHOD.md says how the numbers are measured and what they leave out.

pub mod aims;
pub mod case;
pub mod cases;
pub mod chart;
pub mod cold;
pub mod count;
pub mod dat;
pub mod device;
pub mod direct;
pub mod dtest;
pub mod host;
pub mod libmlx5;
pub mod nothing;
pub mod page;
pub mod path;
pub mod plan;
pub mod pool;
pub mod provider;
pub mod queues;
pub mod report;
pub mod sample;
pub mod sends;
pub mod storage;
pub mod uct;

use case::Case;
use plan::{CaseName, Spec, Subject};

/// The case with a data path that does nothing.
pub fn build_empty(spec: &Spec) -> Box<dyn Case> {
    if spec.case.sends() { sends::empty(spec) } else { cases::on(*spec, nothing::Nothing::new(spec)) }
}

/// The case of a subject that runs in this process.
///
/// # Errors
///
/// The errors of the provider.
pub fn build(subject: Subject, spec: &Spec) -> anyhow::Result<Box<dyn Case>> {
    Ok(match subject {
        _ if spec.case.sends() => sends::path(subject, spec),
        Subject::Libmlx5Lock | Subject::Libmlx5Nolock | Subject::Verbs => {
            cases::on(*spec, libmlx5::Libmlx5::new(spec))
        }
        Subject::Mlx5Direct => direct::path(spec),
        Subject::Provider | Subject::ProviderVerbs if spec.case == CaseName::PoolMessage => {
            Box::new(pool::Echo::new(spec)?)
        }
        Subject::Provider | Subject::ProviderVerbs => Box::new(provider::Provider::new(spec)?),
        Subject::Libdaplofa | Subject::Ucx => {
            anyhow::bail!("{} is measured by a C program", subject.name())
        }
    })
}
