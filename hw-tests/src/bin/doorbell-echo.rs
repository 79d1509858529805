//! Echo server and client over Doorbell: many connections, one SRQ, every byte checked.

use clap::{Parser, Subcommand};
use doorbell_hw_tests::echo::{Failure, Load, client, pair, parse_server, server};
use std::net::SocketAddr;
use std::process::ExitCode;

/// Sends messages of many sizes over many connections, has them echoed through one shared receive
/// queue, and checks every byte.
///
/// Status 0 if every message was verified, 1 if not, 2 if nothing could be begun.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Echoes messages until it is ended
    Server(server::Options),
    /// Sends messages to a server and checks what comes back
    Client {
        /// The RDMA device: a name, a network interface or an address
        #[arg(long)]
        device: String,
        /// The server: ADDRESS or ADDRESS:PORT
        #[arg(long, value_name = "ADDRESS", value_parser = parse_server)]
        server: SocketAddr,
        #[command(flatten)]
        load: Load,
    },
    /// Runs both ends on this machine
    Pair {
        /// The server's RDMA device
        #[arg(long, value_name = "DEVICE")]
        server_device: String,
        /// The client's RDMA device
        #[arg(long, value_name = "DEVICE")]
        client_device: String,
        #[command(flatten)]
        buffers: server::Buffers,
        #[command(flatten)]
        load: Load,
    },
}

fn main() -> ExitCode {
    doorbell_hw_tests::log();
    let outcome = match Cli::parse().command {
        Command::Server(options) => serve(&options),
        Command::Client { device, server, load } => client::run(&device, server, &load),
        Command::Pair { server_device, client_device, buffers, load } => {
            pair::run(&server_device, &client_device, buffers, &load)
        }
    };
    match outcome {
        Ok(outcome) => {
            outcome.print();
            if outcome.is_good() { ExitCode::SUCCESS } else { ExitCode::from(1) }
        }
        Err(failure) => {
            eprintln!("doorbell-echo: {failure}");
            ExitCode::from(if matches!(failure, Failure::Setup(_)) { 2 } else { 1 })
        }
    }
}

fn serve<T>(options: &server::Options) -> Result<T, Failure> {
    if options.with_parent {
        nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL)
            .map_err(|e| Failure::Setup(format!("prctl: {e}")))?;
    }
    match server::serve(options)? {}
}
