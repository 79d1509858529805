//! Measurements of the data paths: the cases, how a case is sampled, and the report.
//!
//! `METHOD.md` beside this crate says how the numbers come about and what they leave out.

pub mod case;
pub mod direct;
pub mod libmlx5;
pub mod report;
pub mod sample;
