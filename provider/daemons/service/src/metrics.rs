//! The page of counters that Prometheus reads, and a client for it.

use anyhow::Context;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a reader of the page may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// The type of the page.
const TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Serves the page of these counters at this address from now on, and logs where it is. The names
/// begin with `prefix`.
///
/// # Errors
/// As [`serve`].
pub fn publish(address: SocketAddr, prefix: &str, counters: impl Collector) -> anyhow::Result<()> {
    let mut registry = Registry::with_prefix(prefix);
    registry.register_collector(Box::new(counters));
    let address = serve(address, registry).with_context(|| format!("listening at {address}"))?;
    tracing::info!(%address, "the counters are at /metrics");
    Ok(())
}

/// Serves the page at this address from now on. Returns the address, whose port may have been 0.
///
/// # Errors
/// Those of bind(2), or no thread can be started.
pub fn serve(address: SocketAddr, registry: Registry) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind(address)?;
    let address = listener.local_addr()?;
    let registry = Arc::new(registry);
    std::thread::Builder::new().name("metrics".into()).spawn(move || {
        // One reader at a time: there are few, and each has little time.
        for stream in listener.incoming() {
            if let Err(error) = stream.and_then(|stream| answer(stream, &registry)) {
                tracing::debug!(%error, "the page of counters was not read");
            }
        }
    })?;
    Ok(address)
}

fn answer(mut stream: TcpStream, registry: &Registry) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut request = BufReader::new(stream.try_clone()?.take(8192)).lines();
    let first = request.next().transpose()?.unwrap_or_default();
    // The rest of the request has to be read before the connection is closed.
    for line in request {
        if line?.is_empty() {
            break;
        }
    }
    let (status, page) = match first.split(' ').collect::<Vec<_>>()[..] {
        ["GET", "/metrics", ..] => {
            let mut page = String::new();
            encode(&mut page, registry).map_err(io::Error::other)?;
            ("200 OK", page)
        }
        _ => ("404 Not Found", "the counters are at /metrics\n".to_owned()),
    };
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: {TYPE}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{page}",
        page.len()
    )
}

/// The value of a label as it stands on the page. prometheus-client writes values as they are, and
/// peers choose some of them.
pub fn label(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// A value of the page.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The name of the metric.
    pub name: String,
    /// Its labels.
    pub labels: Vec<(String, String)>,
    /// Its value.
    pub value: f64,
}

impl Sample {
    /// The value of this label.
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(label, _)| label == name).map(|(_, value)| value.as_str())
    }
}

/// Reads the page of a service.
///
/// # Errors
/// The service cannot be reached, or answers something else.
pub fn read(address: impl ToSocketAddrs) -> io::Result<Vec<Sample>> {
    let address = address.to_socket_addrs()?.next().ok_or_else(|| io::Error::other("no address"))?;
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, page) = answer.split_once("\r\n\r\n").ok_or_else(|| io::Error::other("not a page"))?;
    if !head.starts_with("HTTP/1.1 200") {
        return Err(io::Error::other(head.lines().next().unwrap_or_default().to_owned()));
    }
    Ok(page.lines().filter_map(parse).collect())
}

/// Prints a table of what has happened between two readings of a page, `count` times or, if it is 0,
/// until the end. `table` gets both readings and the seconds between them.
///
/// # Errors
/// The service cannot be reached, or the interval is not valid.
pub fn watch(
    address: SocketAddr,
    count: u32,
    interval: f64,
    table: impl Fn(&[Sample], &[Sample], f64) -> String,
) -> anyhow::Result<()> {
    let read = || {
        read(address).with_context(|| {
            format!("no counters at {address}: is the service running, with [metrics] in its configuration?")
        })
    };
    let interval = Duration::try_from_secs_f64(interval).context("--interval")?;
    let (mut before, mut then) = (read()?, Instant::now());
    for n in 1.. {
        std::thread::sleep(interval);
        let (now, at) = (read()?, Instant::now());
        // Clears the terminal.
        let clear = if count == 0 { "\x1b[2J\x1b[H" } else { "" };
        println!("{clear}{}", table(&before, &now, at.duration_since(then).as_secs_f64()));
        if n == count {
            break;
        }
        (before, then) = (now, at);
    }
    Ok(())
}

/// The value in a line; `None` for comments.
fn parse(line: &str) -> Option<Sample> {
    if line.starts_with('#') {
        return None;
    }
    let (name, rest) = line.split_at(line.find(['{', ' '])?);
    let mut labels = Vec::new();
    let mut rest = rest;
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        while let Some((label, value)) = rest.split_once("=\"") {
            let (value, behind) = unquote(value)?;
            labels.push((label.to_owned(), value));
            rest = behind.strip_prefix(',').unwrap_or(behind);
            if let Some(behind) = rest.strip_prefix('}') {
                rest = behind;
                break;
            }
        }
    }
    let value = rest.trim().split(' ').next()?.parse().ok()?;
    Some(Sample { name: name.to_owned(), labels, value })
}

/// The text up to the closing quotation mark, and what is behind it.
fn unquote(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => match chars.next()?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::metrics::family::Family;

    #[test]
    fn what_is_served_is_read() {
        let mut registry = Registry::default();
        let family = Family::<Vec<(String, String)>, Counter>::default();
        registry.register("commands", "Commands", family.clone());
        let of_host = |host: &str| vec![("host".to_owned(), label(host))];
        family.get_or_create(&of_host("a \"b\" \\ {c},=\n")).inc_by(7);
        family.get_or_create(&of_host("d")).inc();
        let address = serve("127.0.0.1:0".parse().unwrap(), registry).unwrap();
        let samples = read(address).unwrap();
        let value =
            |host: &str| samples.iter().find(|sample| sample.label("host") == Some(host)).unwrap().value;
        assert_eq!((value("a \"b\" \\ {c},=\n"), value("d")), (7.0, 1.0));
        assert!(samples.iter().all(|sample| sample.name == "commands_total"));
    }

    #[test]
    fn other_requests_are_answered_as_well() {
        let address = serve("127.0.0.1:0".parse().unwrap(), Registry::default()).unwrap();
        for request in ["GET / HTTP/1.1\r\n\r\n", "POST /metrics HTTP/1.1\r\n\r\n", "\r\n\r\n"] {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(request.as_bytes()).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");
        }
        assert!(read(address).unwrap().is_empty());
    }
}
