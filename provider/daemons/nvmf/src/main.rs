//! `doorbell-nvmf`: the daemon.

#![forbid(unsafe_code)]

use anyhow::{Context, anyhow, bail};
use clap::{Parser, Subcommand};
use doorbell_nvmf::config::Config;
use doorbell_nvmf::metrics::{Counters, PREFIX};
use doorbell_nvmf::rdma::{Engine, Handle};
use doorbell_nvmf::target::Target;
use doorbell_nvmf::top::tables;
use doorbell_service::signals::{Order, Signals};
use doorbell_service::{metrics, notify};
use prometheus_client::registry::Registry;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A target for NVMe over Fabrics (RDMA): hosts use files, block devices or memory of this machine
/// as their disks.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serves what the file describes until SIGTERM. SIGHUP: reads the file again.
    Serve {
        /// The configuration.
        file: PathBuf,
    },
    /// Checks a configuration and says what is wrong with it.
    Check {
        /// The configuration.
        file: PathBuf,
    },
    /// Shows what the hosts of a running service do, once a second.
    Top {
        /// The address of the page of counters: `listen` in [metrics] of its configuration.
        #[arg(default_value = "127.0.0.1:9977")]
        address: SocketAddr,
        /// Show this many tables; 0: until the end.
        #[arg(long, short = 'n', default_value_t = 0)]
        count: u32,
        /// Seconds between two tables.
        #[arg(long, short, default_value_t = 1.0)]
        interval: f64,
    },
}

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("doorbell-nvmf: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Serve { file } => serve(&file),
        Command::Check { file } => {
            let config = Config::read(&file)?;
            println!(
                "{}: {} ports, {} subsystems",
                file.display(),
                config.ports.len(),
                config.subsystems.len()
            );
            Ok(())
        }
        Command::Top { address, count, interval } => metrics::watch(address, count, interval, tables),
    }
}

/// A device that is served.
struct Served {
    device: String,
    handle: Handle,
    thread: JoinHandle<doorbell::Result<()>>,
}

fn serve(file: &Path) -> anyhow::Result<()> {
    doorbell_service::log::start("info");
    let mut config = Config::read(file)?;
    let signals = Signals::block().context("blocking signals")?;
    let target = Arc::new(Target::new(config.limits));
    config.apply(&target, None).map_err(|text| anyhow!(text))?;
    let mut served = Vec::new();
    let (ended, ends) = mpsc::channel();
    for options in config.ports.clone() {
        let device = options.device.clone();
        let engine = Engine::open(target.clone(), options).with_context(|| format!("device {device}"))?;
        let handle = engine.handle();
        tracing::info!(device, address = %handle.address, "listening");
        let (ended, own) = (ended.clone(), handle.clone());
        let thread = std::thread::Builder::new().name(format!("nvmf-{device}"));
        let thread = thread.spawn(move || {
            let outcome = engine.run();
            // An engine that nobody has ended ends the service.
            if !own.is_ending() {
                doorbell_service::signals::raise_end();
            }
            // Nobody listens before the end.
            let _ = ended.send(());
            outcome
        });
        served.push(Served { device, handle, thread: thread.context("starting a thread")? });
    }
    if let Some(address) = config.metrics {
        let engines = served.iter().map(|served| (served.device.clone(), served.handle.clone())).collect();
        let mut registry = Registry::with_prefix(PREFIX);
        registry.register_collector(Box::new(Counters { target: target.clone(), engines }));
        let address = metrics::serve(address, registry).with_context(|| format!("listening at {address}"))?;
        tracing::info!(%address, "the counters are at /metrics");
    }
    println!("ready");
    notify::ready();
    while let Order::Reload = signals.wait().context("waiting for signals")? {
        notify::reloading();
        reload(file, &target, &mut config);
        notify::ready();
    }
    notify::stopping();
    tracing::info!("ending");
    end(served, &ends)
}

/// Reads the configuration again. What is wrong with it is logged, and changes nothing.
fn reload(file: &Path, target: &Target, config: &mut Config) {
    let new = match Config::read(file) {
        Ok(new) => new,
        Err(error) => return tracing::error!(%error, "the configuration stays as it was"),
    };
    if new.needs_restart(config) {
        tracing::warn!("new ports, limits and the page of counters need a restart");
    }
    if let Err(error) = new.apply(target, Some(config)) {
        tracing::error!(error, "part of the new configuration is not in effect");
    }
    *config = new;
    tracing::info!(subsystems = config.subsystems.len(), "configuration read");
}

/// How long commands may take that are under way when the service is to end.
const DRAIN: Duration = Duration::from_secs(5);

fn end(served: Vec<Served>, ends: &mpsc::Receiver<()>) -> anyhow::Result<()> {
    served.iter().for_each(|served| served.handle.drain());
    let until = Instant::now() + DRAIN;
    for _ in &served {
        if ends.recv_timeout(until.saturating_duration_since(Instant::now())).is_err() {
            tracing::warn!("commands are still under way");
            break;
        }
    }
    served.iter().for_each(|served| served.handle.stop());
    for Served { device, thread, .. } in served {
        match thread.join() {
            Ok(outcome) => outcome.with_context(|| format!("device {device}"))?,
            Err(_) => bail!("the thread of device {device} has panicked"),
        }
    }
    Ok(())
}
