//! `doorbell-nvmf`: the daemon.

#![forbid(unsafe_code)]

use anyhow::{Context, anyhow};
use clap::Parser;
use doorbell_nvmf::config::Config;
use doorbell_nvmf::metrics::{Counters, PREFIX};
use doorbell_nvmf::rdma::Engine;
use doorbell_nvmf::target::Target;
use doorbell_nvmf::top::tables;
use doorbell_service::daemon::{self, Command, Threads};
use doorbell_service::metrics;
use doorbell_service::signals::Signals;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

/// A target for NVMe over Fabrics (RDMA): hosts use files, block devices or memory of this machine
/// as their disks.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

/// Where the page of counters is by default.
const COUNTERS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9977);

fn main() -> ExitCode {
    daemon::main("doorbell-nvmf", || match Arguments::parse().command {
        Command::Serve { file } => serve(&file),
        Command::Check { file } => {
            let Config { ports, subsystems, .. } = Config::read(&file)?;
            println!("{}: {} ports, {} subsystems", file.display(), ports.len(), subsystems.len());
            Ok(())
        }
        Command::Top { address, count, interval } => {
            metrics::watch(address.unwrap_or(COUNTERS), count, interval, tables)
        }
    })
}

fn serve(file: &Path) -> anyhow::Result<()> {
    doorbell_service::log::start("info");
    let mut config = Config::read(file)?;
    let signals = Signals::block().context("blocking signals")?;
    let target = Arc::new(Target::new(config.limits));
    config.apply(&target, None).map_err(|text| anyhow!(text))?;
    let (mut threads, mut engines) = (Threads::default(), Vec::new());
    for options in &config.ports {
        let device = &options.device;
        let what = format!("device {device}");
        let of_device = Engine::open(&target, options).with_context(|| what.clone())?;
        let handles: Vec<_> = of_device.iter().map(Engine::handle).collect();
        tracing::info!(device, address = %handles[0].address, threads = handles.len(), "listening");
        for (engine, handle) in of_device.into_iter().zip(&handles) {
            let name = format!("nvmf-{device}");
            threads.start(name, what.clone(), handle.clone(), move || Ok(engine.run()?))?;
        }
        engines.push((device.clone(), handles));
    }
    if let Some(address) = config.metrics {
        metrics::publish(address, PREFIX, Counters { target: target.clone(), engines })?;
    }
    threads.serve(&signals, || reload(file, &target, &mut config))
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
