//! Prints entries for dat.conf: one IA for each RDMA device of this machine.

#[path = "../output.rs"]
mod output;

use self::output::{complain, parse, print};
use clap::Parser;
use std::path::PathBuf;
use std::process::ExitCode;

/// Prints dat.conf lines that make RDMA devices available as IAs of Doorbell.
///
/// Add them to /etc/dat.conf, or put them in a file that DAT_OVERRIDE names.
#[derive(Parser)]
#[command(version)]
struct Cli {
    /// The provider's library
    #[arg(long, default_value = "libdoorbell.so.2")]
    library: PathBuf,
    /// The prefix of the IA names
    #[arg(long, default_value = "doorbell-")]
    prefix: String,
    /// Devices (`mlx5_0`, `"mlx5_0 1"`), network interfaces or addresses; without any, all RDMA
    /// devices
    devices: Vec<String>,
}

fn main() -> ExitCode {
    match lines(&parse()) {
        Ok(lines) if lines.iter().all(|line| print(format_args!("{line}\n"))) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => complain(format_args!("{error:#}")),
    }
}

fn lines(cli: &Cli) -> anyhow::Result<Vec<String>> {
    let devices = if cli.devices.is_empty() {
        rxe_fallback::devices()?.into_iter().map(|device| device.name).collect()
    } else {
        cli.devices.clone()
    };
    anyhow::ensure!(!devices.is_empty(), "there is no RDMA device on this machine (see ibv_devices)");
    let library = cli.library.display().to_string();
    anyhow::ensure!(
        !library.contains(char::is_whitespace),
        "dat.conf cannot contain a library path with blanks: {library:?}"
    );
    devices
        .iter()
        .map(|device| {
            let name = format!("{}{}", cli.prefix, device.trim().replace([' ', '\t'], "-"));
            anyhow::ensure!(name.len() < 256, "the IA name {name:?} is longer than 255 bytes");
            anyhow::ensure!(!device.contains(['"', '\\']), "no device is called {device:?}");
            Ok(format!("{name} u2.0 nonthreadsafe default {library} doorbell.0.1 \"{device}\" \"\""))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cli(devices: &[&str]) -> Cli {
        Cli {
            library: "/lib/x.so".into(),
            prefix: "db-".to_owned(),
            devices: devices.iter().map(|&d| d.to_owned()).collect(),
        }
    }

    #[test]
    fn a_line_has_eight_fields_and_a_name_without_blanks() {
        let lines = lines(&cli(&["mlx5_0 1"])).unwrap();
        assert_eq!(
            lines,
            ["db-mlx5_0-1 u2.0 nonthreadsafe default /lib/x.so doorbell.0.1 \"mlx5_0 1\" \"\""]
        );
    }

    #[test]
    fn what_dat_conf_cannot_say_is_refused() {
        assert!(lines(&cli(&["a\"b"])).is_err());
        assert!(lines(&Cli { library: "/a b.so".into(), ..cli(&["x"]) }).is_err());
    }
}
