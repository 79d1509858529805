//! `doorbell-orders`: the gateway, and the load generator.

#![forbid(unsafe_code)]

use anyhow::{Context, bail};
use clap::{Args, Parser, Subcommand};
use doorbell_orders::config::Config;
use doorbell_orders::gateway::Gateway;
use doorbell_orders::journal::{Journal, Replayed};
use doorbell_orders::load::report;
use doorbell_orders::load::run::{Load, Step, Target};
use doorbell_orders::market::Market;
use doorbell_orders::metrics::{Counters, PREFIX, table};
use doorbell_service::daemon::{self, Threads};
use doorbell_service::metrics;
use doorbell_service::signals::Signals;
use indicatif::{ProgressBar, ProgressStyle};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

/// An order gateway on one shared receive queue, and a load generator that measures and verifies it.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    #[command(flatten)]
    Common(daemon::Command),
    /// Sends orders to a gateway that has had none, measures latencies from the intended times, and
    /// verifies every answer.
    Load(LoadArguments),
}

#[derive(Args)]
struct LoadArguments {
    /// The configuration of the gateway: its symbols, limits, password and port.
    file: PathBuf,
    /// The gateway; by default the configured port at the address of the device.
    #[arg(long)]
    address: Option<SocketAddr>,
    /// The device of the clients; by default the configured one.
    #[arg(long)]
    device: Option<String>,
    /// Sessions. Several numbers: measured with --at messages a second each.
    #[arg(long, value_delimiter = ',', default_value = "1,10,100")]
    sessions: Vec<usize>,
    /// Messages a second, of all sessions together. Several numbers: measured with the last number of
    /// sessions each.
    #[arg(long, value_delimiter = ',', default_value = "1000,2000,5000,10000")]
    rates: Vec<u64>,
    /// Messages a second for the comparison by sessions; by default the first of the rates.
    #[arg(long)]
    at: Option<u64>,
    /// Seconds of load in all.
    #[arg(long, default_value_t = 30.0)]
    seconds: f64,
    /// Messages of each measurement, in place of a time.
    #[arg(long)]
    messages: Option<u64>,
    /// Equal numbers give equal orders.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write the chart there (SVG).
    #[arg(long)]
    chart: Option<PathBuf>,
}

/// Where the page of counters is by default.
const COUNTERS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9978);

fn main() -> ExitCode {
    daemon::main("doorbell-orders", || match Arguments::parse().command {
        Command::Common(daemon::Command::Serve { file }) => serve(&file),
        Command::Common(daemon::Command::Check { file }) => {
            let Config { listings, sizes, .. } = Config::read(&file)?;
            println!("{}: {} symbols, {} sessions", file.display(), listings.len(), sizes.sessions);
            Ok(())
        }
        Command::Common(daemon::Command::Top { address, count, interval }) => {
            metrics::watch(address.unwrap_or(COUNTERS), count, interval, table)
        }
        Command::Load(arguments) => load(&arguments),
    })
}

fn serve(file: &Path) -> anyhow::Result<()> {
    doorbell_service::log::start("info");
    let config = Config::read(file)?;
    let signals = Signals::block().context("blocking signals")?;
    let mut market = Market::new(config.rules, config.sizes, &config.listings);
    let (journal, replayed) = match &config.journal {
        None => (None, Replayed::default()),
        Some(options) => {
            let (journal, replayed) = Journal::open(options, &config.fingerprint(), &mut market)?;
            let Replayed { records, cut, .. } = replayed;
            if cut > 0 {
                tracing::warn!(bytes = cut, "the last record of the journal was torn, and was cut off");
            }
            tracing::info!(records, orders = market.open_orders(), "journal replayed");
            (Some(journal), replayed)
        }
    };
    let device = format!("device {}", config.gateway.device);
    let gateway = Gateway::open(market, journal, &replayed.connected, config.gateway)
        .with_context(|| device.clone())?;
    let handle = gateway.handle();
    tracing::info!(device, address = %handle.address, "listening");
    let mut threads = Threads::default();
    threads.start("orders".into(), device, handle.clone(), move || {
        config.processor.map_or(Ok(()), daemon::pin)?;
        gateway.run()?;
        Ok(())
    })?;
    if let Some(address) = config.metrics {
        metrics::publish(address, PREFIX, Counters(handle))?;
    }
    threads.serve(&signals, || tracing::warn!("a new configuration needs a restart"))
}

fn load(arguments: &LoadArguments) -> anyhow::Result<()> {
    doorbell_service::log::start("warn");
    let config = Config::read(&arguments.file)?;
    if config.rules.duplicate > 0 {
        bail!("duplicate-microseconds has to be 0 for a load: its orders are random, and some are equal");
    }
    let device = arguments.device.clone().unwrap_or(config.gateway.device);
    let (Some(&most), Some(&last)) = (arguments.sessions.iter().max(), arguments.sessions.last()) else {
        bail!("--sessions: at least one number");
    };
    let address = match arguments.address {
        Some(address) => address,
        None => SocketAddr::new(doorbell::Ia::open(&device)?.address(), config.gateway.port),
    };
    let target = Target {
        device,
        address,
        password: config.gateway.password,
        rules: config.rules,
        listings: config.listings,
    };
    let Some(&first_rate) = arguments.rates.first() else { bail!("--rates: at least one number") };
    let at = arguments.at.unwrap_or(first_rate);
    let mut pairs: Vec<_> = arguments.sessions.iter().map(|&sessions| (sessions, at)).collect();
    pairs.extend(arguments.rates.iter().filter(|&&rate| rate != at).map(|&rate| (last, rate)));
    if pairs.iter().any(|&(sessions, rate)| sessions == 0 || rate == 0) {
        bail!("numbers of sessions and rates are at least 1");
    }
    let seconds = arguments.seconds / pairs.len() as f64;
    let steps: Vec<_> = pairs
        .iter()
        .map(|&(sessions, rate)| {
            let messages = arguments.messages.unwrap_or((seconds * rate as f64) as u64).max(1);
            Step { sessions, rate, messages }
        })
        .collect();
    let title = format!("doorbell-orders, clients on {}", target.device);
    let mut load = Load::open(target, most, arguments.seed)?;
    let done = AtomicU64::new(0);
    let total = steps.iter().map(|step| step.messages).sum();
    let measured = std::thread::scope(|scope| {
        // Drawn by a thread of its own: drawing takes time.
        let (_end, ends) = mpsc::channel();
        scope.spawn({
            let done = &done;
            move || show_progress(total, done, &ends)
        });
        steps.iter().map(|&step| load.run(step, &done)).collect::<anyhow::Result<Vec<_>>>()
    })?;
    println!("{}", report::table(&measured));
    let sum = |of: fn(&doorbell_orders::load::verify::Verified) -> u64| -> u64 {
        measured.iter().map(|measured| of(&measured.verified)).sum()
    };
    println!(
        "verified: {} messages to the gateway ({} of them about orders that were gone), {} answers and executions; \
         none lost, doubled, wrong or out of order; {} orders open",
        sum(|v| v.answered + v.ignored),
        sum(|v| v.ignored),
        sum(|v| v.got),
        load.open_orders()
    );
    if let Some(file) = &arguments.chart {
        report::chart(&measured, &title, file)?;
        println!("chart: {}", file.display());
    }
    load.hang_up()
}

/// Until the other end of the channel is gone.
fn show_progress(total: u64, done: &AtomicU64, ends: &mpsc::Receiver<()>) {
    let bar = ProgressBar::new(total);
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} messages, {eta} left") {
        bar.set_style(style);
    }
    while let Err(mpsc::RecvTimeoutError::Timeout) = ends.recv_timeout(Duration::from_millis(200)) {
        bar.set_position(done.load(Ordering::Relaxed));
    }
    bar.finish_and_clear();
}
