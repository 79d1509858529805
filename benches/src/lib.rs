//! doorbell-benches
