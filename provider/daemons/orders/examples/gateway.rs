//! The gateway without its timers, to count what it costs: [`Gateway::pass`] again and again, until
//! the end of standard input. Then prints how many passes found nothing, how many messages came, and
//! the microseconds of the longest passes: with logins, and without.
//!
//! usage: gateway CONFIGURATION

use anyhow::Context;
use doorbell_orders::config::Config;
use doorbell_orders::gateway::Gateway;
use doorbell_orders::market::Market;
use std::collections::BTreeSet;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// After a pass that has found nothing.
const PAUSE: Duration = Duration::from_millis(1);

fn main() -> anyhow::Result<()> {
    let file = std::env::args_os().nth(1).context("usage: gateway CONFIGURATION")?;
    let config = Config::read(file.as_ref())?;
    let market = Market::new(config.rules, config.sizes, &config.listings);
    let mut gateway = Gateway::open(market, None, &BTreeSet::new(), config.gateway)?;
    let handle = gateway.handle();
    let ends = Arc::new(AtomicBool::new(false));
    let end = ends.clone();
    std::thread::spawn(move || {
        let read = std::io::stdin().read_to_end(&mut Vec::new());
        end.store(true, Ordering::Relaxed);
        read
    });
    println!("ready");
    let (mut in_vain, mut longest) = (0, [Duration::ZERO; 2]);
    while !ends.load(Ordering::Relaxed) {
        let (before, start) = (gateway.sessions(), Instant::now());
        let count = gateway.pass()?;
        let longest = &mut longest[usize::from(gateway.sessions() == before)];
        *longest = start.elapsed().max(*longest);
        if count == 0 {
            in_vain += 1;
            // Few of these passes, as their number varies from run to run.
            std::thread::sleep(PAUSE);
        }
    }
    let messages = handle.stats().messages_in.load(Ordering::Relaxed);
    println!("{in_vain} {messages} {} {}", longest[0].as_micros(), longest[1].as_micros());
    Ok(())
}
