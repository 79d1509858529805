//! Pairs of programs, each pair on a preloaded device of its own. A test that includes this file
//! includes `programs.rs` as well, and has the constant `WITH_EMU`, the path of `with-emu` from the
//! folder of its package.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};

use libtest_mimic::Failed;

use super::{
    WITH_EMU,
    programs::{installed, library},
};

/// A TCP port for a server and its client.
pub(crate) fn port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Below the ports that the kernel gives to clients.
    let base = 20_000 + (std::process::id() % 120) as u16 * 100;
    base + NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Runs a shell command on the device, in a fabric of its own, and returns its output. A complaint
/// of the device is a failure.
pub(crate) fn with_emu(command: &str) -> Result<String, Failed> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join(WITH_EMU);
    let output = Command::new(script)
        .arg(command)
        .env("MLX5_EMU_LIBRARY", library()?)
        .env("MLX5_EMU_STRICT", "1")
        // What two runs print is compared.
        .env("MLX5_EMU_KEY_SEED", "1")
        .output()?;
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if output.status.success() {
        Ok(text)
    } else {
        Err(format!("{command}: {}\n{text}", output.status).into())
    }
}

/// The SRQ ping-pongs count the messages of all QPs together, and exit when they have enough. A
/// message of the peer may still be in flight then, and nobody acknowledges it. Such a run is
/// repeated.
const LEFT_EARLY: &str = "Failed status transport retry counter exceeded (12)";

/// Server and client of one program; the client starts once the server listens. Returns the output
/// of both, or `None` if the program is not installed. `launcher` comes before the program.
pub(crate) fn pair(launcher: &str, command: &str, port_option: &str) -> Result<Option<String>, Failed> {
    let program = command.split(' ').next().unwrap_or(command);
    if !installed(program) {
        return Ok(None);
    }
    let port = port();
    let line = format!("timeout 90 {launcher} {command} {port_option} {port}");
    let script = format!(
        "{line} & server=$!
         until grep -qiE ':{port:04X} [0-9A-F]+:0000 0A ' /proc/net/tcp /proc/net/tcp6; do
             kill -0 $server || exit 3; sleep 0.01
         done
         {line} localhost; client=$?
         wait $server; server=$?
         echo server $server, client $client
         exit $((server | client))"
    );
    let leaves_early = program.ends_with("srq_pingpong");
    for _ in 0..2 {
        match with_emu(&script) {
            Err(failed) if leaves_early && failed.message().is_some_and(|text| text.contains(LEFT_EARLY)) => {
            }
            outcome => return outcome.map(Some),
        }
    }
    with_emu(&script).map(Some)
}
