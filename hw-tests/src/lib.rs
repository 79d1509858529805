//! doorbell-hw-tests
