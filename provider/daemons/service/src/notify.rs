//! The service manager: that the service is ready, reloads or ends (sd_notify(3)).

use nix::time::{ClockId, clock_gettime};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Tells the service manager that the service serves.
pub fn ready() {
    tell("READY=1");
}

/// Tells the service manager that the service reads its configuration again. [`ready`] ends this.
pub fn reloading() {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC)
        .map_or(0, |time| time.tv_sec() * 1_000_000 + time.tv_nsec() / 1000);
    tell(&format!("RELOADING=1\nMONOTONIC_USEC={now}"));
}

/// Tells the service manager that the service ends.
pub fn stopping() {
    tell("STOPPING=1");
}

fn tell(what: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else { return };
    if let Err(error) = send(&socket.to_string_lossy(), what) {
        tracing::warn!(%error, "the service manager was not told: {what:?}");
    }
}

fn send(socket: &str, what: &str) -> io::Result<()> {
    let address = match socket.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?.send_to_addr(what.as_bytes(), &address)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_at_both_kinds_of_sockets() {
        let path = std::env::temp_dir().join(format!("doorbell-notify-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let by_path = UnixDatagram::bind(&path).unwrap();
        let name = format!("doorbell-notify-{}", std::process::id());
        let by_name = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        send(path.to_str().unwrap(), "READY=1").unwrap();
        send(&format!("@{name}"), "STOPPING=1").unwrap();
        let mut bytes = [0; 64];
        let length = by_path.recv(&mut bytes).unwrap();
        assert_eq!(&bytes[..length], b"READY=1");
        let length = by_name.recv(&mut bytes).unwrap();
        assert_eq!(&bytes[..length], b"STOPPING=1");
        std::fs::remove_file(&path).unwrap();
    }
}
