//! doorbell
