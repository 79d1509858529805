//! An order gateway.
#![forbid(unsafe_code)]
pub mod book;
pub mod client;
pub mod config;
pub mod gateway;
pub mod journal;
pub mod load;
pub mod login;
pub mod market;
pub mod metrics;
pub mod naive;
pub mod ouch;
pub mod outbox;
pub mod rules;
pub mod session;
pub mod table;
