//! Prints the attributes and limits of this machine's RDMA devices as IAs.

#[path = "../output.rs"]
mod output;

use self::output::{complain, parse, print};
use clap::Parser;
use comfy_table::{Table, presets};
use doorbell::Ia;
use std::process::ExitCode;

/// Opens RDMA devices as IAs and prints the data path that was chosen for each and why, limits and
/// attributes.
#[derive(Parser)]
#[command(version)]
struct Cli {
    /// Devices (`mlx5_0`, `"mlx5_0 1"`), network interfaces or addresses; without any, all RDMA
    /// devices
    devices: Vec<String>,
}

fn main() -> ExitCode {
    doorbell::log_to_stderr();
    let mut devices = parse::<Cli>().devices;
    if devices.is_empty() {
        match rxe_fallback::devices() {
            Ok(found) if !found.is_empty() => devices = found.into_iter().map(|device| device.name).collect(),
            Ok(_) => return complain("there is no RDMA device on this machine (see ibv_devices)"),
            Err(error) => return complain(error),
        }
    }
    let mut status = ExitCode::SUCCESS;
    for device in devices {
        match Ia::open(&device) {
            Ok(ia) => {
                if !print(format_args!("{device}\n{}\n\n", table(&ia))) {
                    return ExitCode::FAILURE;
                }
            }
            Err(error) => status = complain(format_args!("{device}: {error}")),
        }
    }
    status
}

fn table(ia: &Ia) -> Table {
    let (a, p) = (ia.attributes(), ia.provider_attributes());
    let yes = |on: bool| if on { "yes" } else { "no" }.to_owned();
    let rows = [
        ("device", a.device_name.clone()),
        ("vendor", a.vendor_name.clone()),
        ("firmware", a.firmware_version.clone()),
        ("address", a.address.to_string()),
        ("data path", format!("{} ({})", p.datapath, p.datapath_reason)),
        ("MTU, bytes", a.mtu.to_string()),
        ("longest message, bytes", a.max_message_size.to_string()),
        ("segments of a DTO", a.max_segments.to_string()),
        ("EPs", a.max_eps.to_string()),
        ("DTOs of an EP", a.max_ep_depth.to_string()),
        ("EVDs", a.max_evds.to_string()),
        ("events of an EVD", a.max_evd_depth.to_string()),
        ("PZs", a.max_pzs.to_string()),
        ("LMRs", a.max_lmrs.to_string()),
        ("longest LMR, bytes", a.max_lmr_size.to_string()),
        ("SRQs", a.max_srqs.to_string()),
        ("EPs of an SRQ", a.max_eps_per_srq.to_string()),
        ("buffers of an SRQ", a.max_srq_depth.to_string()),
        ("EP and SRQ in different PZs", yes(p.srq_ep_pz_difference_supported)),
        ("RDMA Reads of an EP, in and out", format!("{}, {}", a.max_rdma_reads_in, a.max_rdma_reads_out)),
        ("atomics", yes(a.atomics)),
        ("datagrams (UD)", yes(a.datagrams)),
        ("private data, bytes", p.max_private_data_size.to_string()),
    ];
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    for (what, value) in rows {
        table.add_row([what, &value]);
    }
    table
}
