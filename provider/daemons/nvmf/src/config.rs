//! The configuration file.

use crate::backend::Backend;
use crate::limits::{Limits, NAMESPACES, PAGE};
use crate::proto::DISCOVERY_NQN;
use crate::rdma::{Counts, Options};
use crate::subsystem::{Namespace, Subsystem, derived_uuid};
use crate::target::Target;
use doorbell_service::config::{Bytes, Error, File};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use toml::Spanned;

/// What the file may say.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Content {
    #[serde(default)]
    limits: LimitsContent,
    port: Vec<Spanned<PortContent>>,
    #[serde(default)]
    subsystem: Vec<SubsystemContent>,
    metrics: Option<MetricsContent>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct MetricsContent {
    listen: SocketAddr,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
struct LimitsContent {
    depth: Spanned<u16>,
    queues: Spanned<u16>,
    transfer: Spanned<Bytes>,
    in_capsule: Spanned<Bytes>,
}

fn unspanned<T>(value: T) -> Spanned<T> {
    Spanned::new(0..0, value)
}

impl Default for LimitsContent {
    fn default() -> Self {
        let Limits { depth, queues, transfer, in_capsule } = Limits::default();
        Self {
            depth: unspanned(depth),
            queues: unspanned(queues),
            transfer: unspanned(Bytes(transfer.into())),
            in_capsule: unspanned(Bytes(in_capsule.into())),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct PortContent {
    device: String,
    #[serde(default = "default_port")]
    port: u16,
    threads: Option<Spanned<u16>>,
    credits: Option<usize>,
    small_buffers: Option<usize>,
    large_buffers: Option<usize>,
    poll_microseconds: Option<u32>,
}

/// The most threads of a device.
const MOST_THREADS: u16 = 64;

fn default_port() -> u16 {
    4420
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct SubsystemContent {
    nqn: Spanned<String>,
    serial: Option<Spanned<String>>,
    model: Option<String>,
    hosts: Option<Vec<Spanned<String>>>,
    #[serde(default)]
    namespace: Vec<NamespaceContent>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct NamespaceContent {
    number: Option<Spanned<u32>>,
    block: Option<Spanned<u32>>,
    uuid: Option<Spanned<String>>,
    backend: Spanned<BackendConfig>,
}

/// Where the blocks of a namespace are.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub enum BackendConfig {
    /// Nowhere.
    Null(Bytes),
    /// In memory.
    Ram(Bytes),
    /// In a file or block device.
    File(PathBuf),
}

impl BackendConfig {
    fn open(&self) -> Result<Backend, String> {
        match self {
            Self::Null(bytes) => Ok(Backend::null(bytes.0)),
            Self::Ram(bytes) => Ok(Backend::ram(bytes.0)),
            Self::File(path) => Backend::file(path).map_err(|error| {
                format!(
                    "{}: {error}: name a file or block device that this service may write",
                    path.display()
                )
            }),
        }
    }
}

/// A namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceConfig {
    number: u32,
    shift: u8,
    uuid: [u8; 16],
    backend: BackendConfig,
}

/// A subsystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubsystemConfig {
    nqn: String,
    serial: String,
    model: String,
    hosts: Option<BTreeSet<String>>,
    namespaces: Vec<NamespaceConfig>,
}

/// A configuration that is valid.
#[derive(Clone, Debug)]
pub struct Config {
    /// What the target takes at most.
    pub limits: Limits,
    /// One engine each.
    pub ports: Vec<Options>,
    /// The subsystems.
    pub subsystems: Vec<SubsystemConfig>,
    /// Where the page of counters is.
    pub metrics: Option<SocketAddr>,
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// What is wrong with the file, where, and what to do.
    pub fn read(path: &Path) -> Result<Self, Error> {
        Self::of(&File::read(path)?)
    }

    fn of(file: &File<Content>) -> Result<Self, Error> {
        let content = &file.value;
        let limits = limits(file, &content.limits)?;
        if content.port.is_empty() {
            return Err(file.error(0..0, "no port: add [[port]] with device = \"NAME\""));
        }
        let mut used = BTreeSet::new();
        let mut ports = Vec::new();
        for port in &content.port {
            let PortContent {
                device,
                port: number,
                threads,
                credits,
                small_buffers,
                large_buffers,
                poll_microseconds,
            } = port.get_ref();
            if !used.insert((device, number)) {
                let text = format!("port {number} of {device} is there twice: remove one");
                return Err(file.error(port.span(), text));
            }
            let default = Options::default();
            let counts = Counts {
                small: small_buffers.unwrap_or(default.buffers.small),
                large: large_buffers.unwrap_or(default.buffers.large),
                ..default.buffers
            };
            if counts.small == 0 || counts.large == 0 {
                return Err(file.error(port.span(), "commands need data buffers: at least 1 of each size"));
            }
            let threads = match threads {
                None => default.threads,
                Some(threads) if (1..=MOST_THREADS).contains(threads.get_ref()) => *threads.get_ref(),
                Some(threads) => {
                    let text = format!("a device has 1 to {MOST_THREADS} threads");
                    return Err(file.error(threads.span(), text));
                }
            };
            ports.push(Options {
                device: device.clone(),
                port: *number,
                threads,
                credits: credits.unwrap_or(default.credits),
                buffers: counts,
                poll_time: poll_microseconds.map_or(default.poll_time, |n| Duration::from_micros(n.into())),
                ..default
            });
        }
        let mut names = BTreeSet::new();
        let mut subsystems = Vec::new();
        for subsystem in &content.subsystem {
            let nqn = &subsystem.nqn;
            check_nqn(file, nqn)?;
            if nqn.get_ref() == DISCOVERY_NQN {
                return Err(
                    file.error(nqn.span(), "this is the name of the discovery subsystem: choose another")
                );
            }
            if !names.insert(nqn.get_ref()) {
                return Err(file.error(nqn.span(), "a subsystem of this name is above: choose another"));
            }
            subsystems.push(subsystem_of(file, subsystem)?);
        }
        Ok(Self {
            limits,
            ports,
            subsystems,
            metrics: content.metrics.as_ref().map(|metrics| metrics.listen),
        })
    }

    /// Has the target serve these subsystems and no others. Namespaces that are as in the
    /// configuration before stay with their contents and, if they have grown, their new sizes.
    ///
    /// # Errors
    /// A backend that could be opened when the configuration was read cannot be opened now. The
    /// subsystems before it are changed already.
    pub fn apply(&self, target: &Target, before: Option<&Self>) -> Result<(), String> {
        let old = |nqn: &str| before?.subsystems.iter().find(|subsystem| subsystem.nqn == nqn);
        for subsystem in &self.subsystems {
            let SubsystemConfig { nqn, serial, model, hosts, namespaces } = subsystem;
            let present = target.subsystem(nqn);
            let kept = |namespace: &NamespaceConfig| {
                old(nqn)?
                    .namespaces
                    .contains(namespace)
                    .then(|| present.as_ref()?.namespace(namespace.number))?
            };
            let open = |namespace: &NamespaceConfig| {
                let NamespaceConfig { number, shift, uuid, backend } = namespace;
                kept(namespace).map_or_else(
                    || Ok(Arc::new(Namespace::new(*number, *shift, *uuid, backend.open()?))),
                    Ok::<_, String>,
                )
            };
            let namespaces = namespaces.iter().map(open).collect::<Result<Vec<_>, _>>()?;
            target.put(Subsystem::new(nqn, serial, model, hosts.clone(), namespaces));
        }
        for subsystem in before.map_or(&[][..], |before| &before.subsystems) {
            if !self.subsystems.iter().any(|new| new.nqn == subsystem.nqn) {
                target.remove(&subsystem.nqn);
            }
        }
        target.update_sizes();
        Ok(())
    }

    /// What a running service cannot change: the ports and the limits.
    pub fn needs_restart(&self, before: &Self) -> bool {
        let device = |options: &Options| (options.device.clone(), options.port, options.threads);
        self.limits != before.limits
            || self.metrics != before.metrics
            || !self.ports.iter().map(device).eq(before.ports.iter().map(device))
    }
}

/// Checks the name of a subsystem or host.
fn check_nqn(file: &File<Content>, nqn: &Spanned<String>) -> Result<(), Error> {
    let text = nqn.get_ref();
    if !text.starts_with("nqn.") || text.len() > 223 || text.contains('\0') {
        let text = "not an NVMe name: write \"nqn.YEAR-MONTH.REVERSE.DOMAIN:NAME\", 223 bytes at most";
        return Err(file.error(nqn.span(), text));
    }
    Ok(())
}

fn limits(file: &File<Content>, content: &LimitsContent) -> Result<Limits, Error> {
    let LimitsContent { depth, queues, transfer, in_capsule } = content;
    if !(2..=1024).contains(depth.get_ref()) {
        return Err(file.error(depth.span(), "a queue has 2 to 1024 commands"));
    }
    if !(1..=1024).contains(queues.get_ref()) {
        return Err(file.error(queues.span(), "a controller has 1 to 1024 I/O queues"));
    }
    let bytes = transfer.get_ref().0;
    let pages = bytes / u64::from(PAGE);
    if !bytes.is_multiple_of(PAGE.into()) || !pages.is_power_of_two() || !(2..=2048).contains(&pages) {
        return Err(file.error(transfer.span(), "a power of two from 8 KiB to 8 MiB is needed"));
    }
    let inside = in_capsule.get_ref().0;
    if !inside.is_multiple_of(512) || inside > 64 << 10 {
        return Err(file.error(in_capsule.span(), "a multiple of 512 bytes up to 64 KiB is needed"));
    }
    Ok(Limits {
        depth: *depth.get_ref(),
        queues: *queues.get_ref(),
        transfer: bytes as u32,
        in_capsule: inside as u32,
    })
}

fn subsystem_of(file: &File<Content>, content: &SubsystemContent) -> Result<SubsystemConfig, Error> {
    let nqn = content.nqn.get_ref();
    let hosts = content.hosts.as_ref().map(|hosts| -> Result<BTreeSet<_>, Error> {
        hosts.iter().try_for_each(|host| check_nqn(file, host))?;
        Ok(hosts.iter().map(|host| host.get_ref().clone()).collect())
    });
    let serial = match &content.serial {
        Some(serial) if serial.get_ref().len() <= 20 && serial.get_ref().is_ascii() => {
            serial.get_ref().clone()
        }
        Some(serial) => {
            return Err(file.error(serial.span(), "a serial number has up to 20 ASCII characters"));
        }
        None => {
            let uuid = derived_uuid(nqn, 0);
            uuid[..10].iter().map(|byte| format!("{byte:02x}")).collect()
        }
    };
    let mut numbers = BTreeSet::new();
    let mut namespaces = Vec::new();
    for (default, namespace) in (1..).zip(&content.namespace) {
        let (number, span) = match &namespace.number {
            Some(number) => (*number.get_ref(), number.span()),
            None => (default, namespace.backend.span()),
        };
        if !(1..=NAMESPACES).contains(&number) {
            return Err(file.error(span, format!("namespaces have numbers from 1 to {NAMESPACES}")));
        }
        if !numbers.insert(number) {
            return Err(file.error(span, format!("namespace {number} is there twice: number it")));
        }
        namespaces.push(namespace_of(file, nqn, number, namespace)?);
    }
    let model = content.model.clone().unwrap_or_else(|| "Doorbell".to_owned());
    Ok(SubsystemConfig { nqn: nqn.clone(), serial, model, hosts: hosts.transpose()?, namespaces })
}

fn namespace_of(
    file: &File<Content>,
    nqn: &str,
    number: u32,
    content: &NamespaceContent,
) -> Result<NamespaceConfig, Error> {
    let shift = match content.block.as_ref().map(|block| (*block.get_ref(), block.span())) {
        None | Some((4096, _)) => 12,
        Some((512, _)) => 9,
        Some((_, span)) => return Err(file.error(span, "blocks have 512 or 4096 bytes")),
    };
    let uuid = match &content.uuid {
        None => derived_uuid(nqn, number),
        Some(text) => parse_uuid(text.get_ref()).ok_or_else(|| {
            file.error(text.span(), "not a UUID: write 32 hexadecimal digits, with or without hyphens")
        })?,
    };
    let config = content.backend.get_ref();
    let backend = config.open().map_err(|text| file.error(content.backend.span(), text))?;
    if backend.bytes() >> shift == 0 {
        return Err(file.error(content.backend.span(), "smaller than one block: give it a larger size"));
    }
    Ok(NamespaceConfig { number, shift, uuid, backend: config.clone() })
}

fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let digits: String = text.chars().filter(|&c| c != '-').collect();
    if digits.len() != 32 || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    u128::from_str_radix(&digits, 16).ok().map(u128::to_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        let file = File::parse(Path::new("n.toml"), text.to_owned()).map_err(|error| error.to_string())?;
        Config::of(&file).map_err(|error| error.to_string())
    }

    const SAMPLE: &str = r#"
[[port]]
device = "rxeA"

[[subsystem]]
nqn = "nqn.2026-11.example:disk"

[[subsystem.namespace]]
backend = { ram = "1 MiB" }
"#;

    #[test]
    fn a_short_file_is_enough() {
        let config = parse(SAMPLE).unwrap();
        assert_eq!(config.limits, Limits::default());
        assert_eq!((config.ports[0].device.as_str(), config.ports[0].port), ("rxeA", 4420));
        let target = Target::new(config.limits);
        config.apply(&target, None).unwrap();
        let subsystem = target.subsystem("nqn.2026-11.example:disk").unwrap();
        let namespaces = subsystem.namespaces();
        assert_eq!((namespaces[0].number, namespaces[0].shift, namespaces[0].blocks()), (1, 12, 256));
        assert!(subsystem.admits("nqn.any"));
        assert_eq!(subsystem.serial.len(), 20);
    }

    #[test]
    fn a_new_configuration_keeps_what_has_not_changed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let second = format!("[[subsystem.namespace]]\nbackend = {{ file = {:?} }}\n", file.path());
        let first = parse(&format!("{SAMPLE}{second}")).unwrap();
        let target = Target::new(first.limits);
        first.apply(&target, None).unwrap();
        let subsystem = target.subsystem("nqn.2026-11.example:disk").unwrap();
        let [ram, disk] = &subsystem.namespaces()[..] else { panic!("two namespaces") };

        file.as_file().set_len(2 << 20).unwrap();
        let more = "[[subsystem.namespace]]\nbackend = { null = \"1 GiB\" }\n";
        let text = format!("{SAMPLE}{second}{more}").replacen("nqn = ", "hosts = [\"nqn.a\"]\nnqn = ", 1);
        let new = parse(&text).unwrap();
        assert!(!new.needs_restart(&first));
        new.apply(&target, Some(&first)).unwrap();
        let namespaces = subsystem.namespaces();
        assert!(Arc::ptr_eq(&namespaces[0], ram) && Arc::ptr_eq(&namespaces[1], disk));
        assert_eq!((namespaces.len(), disk.blocks()), (3, 512));
        assert!(subsystem.admits("nqn.a") && !subsystem.admits("nqn.b"));

        let smaller =
            parse(&text.replace("1 MiB", "2 MiB").replace("[[port]]", "[[port]]\nport = 1")).unwrap();
        assert!(smaller.needs_restart(&new));
        smaller.apply(&target, Some(&new)).unwrap();
        assert!(!Arc::ptr_eq(&subsystem.namespaces()[0], ram));
        let other = parse(&SAMPLE.replace(":disk", ":other")).unwrap();
        other.apply(&target, Some(&smaller)).unwrap();
        assert!(target.subsystem("nqn.2026-11.example:disk").is_none());
        assert!(target.subsystem("nqn.2026-11.example:other").is_some());
    }

    #[test]
    fn errors_name_line_and_cure() {
        for (from, to, expected) in [
            ("[[port]]\n", "[[port]]\nspeed = 1\n", "n.toml:3:1: unknown field `speed`"),
            ("\"nqn.2026-11.example:disk\"", "\"disk\"", "n.toml:6:7: not an NVMe name: write"),
            (
                "\"nqn.2026-11.example:disk\"",
                "\"nqn.2014-08.org.nvmexpress.discovery\"",
                "n.toml:6:7: this is",
            ),
            ("1 MiB", "1 KiB", "n.toml:9:11: smaller than one block"),
            ("1 MiB", "1 MB", "n.toml:9:19: \"1 MB\" is not a size"),
            ("backend", "block = 1024\nbackend", "n.toml:9:9: blocks have 512 or 4096"),
            ("backend", "number = 0\nbackend", "n.toml:9:10: namespaces have numbers from 1"),
            ("backend", "uuid = \"1-2\"\nbackend", "n.toml:9:8: not a UUID"),
            ("[[port]]", "[limits]\ndepth = 1\n[[port]]", "n.toml:3:9: a queue has 2 to 1024"),
            ("[[port]]", "[limits]\ntransfer = \"12 KiB\"\n[[port]]", "n.toml:3:12: a power of two"),
            ("[[port]]", "[limits]\nin-capsule = 100\n[[port]]", "n.toml:3:14: a multiple of 512"),
            ("[[port]]\n", "[[port]]\nthreads = 0\n", "n.toml:3:11: a device has 1 to 64 threads"),
            ("ram = \"1 MiB\"", "file = \"/nonexistent\"", "n.toml:9:11: /nonexistent: No such file"),
            ("ram = \"1 MiB\"", "file = \"/dev\"", "n.toml:9:11: /dev: Is a directory"),
            ("ram = \"1 MiB\"", "file = \"/dev/null\"", "n.toml:9:11: /dev/null: neither a file"),
            ("[[port]]\ndevice = \"rxeA\"", "port = []", "n.toml:1:1: no port: add"),
        ] {
            let text = SAMPLE.replacen(from, to, 1);
            let error = parse(&text).unwrap_err();
            assert!(error.starts_with(expected), "{error}, not {expected}");
        }
    }

    #[test]
    fn doubles_are_refused() {
        let text = format!("{SAMPLE}[[subsystem]]\nnqn = \"nqn.2026-11.example:disk\"\n");
        assert!(parse(&text).unwrap_err().contains("a subsystem of this name is above"));
        let text = format!("{SAMPLE}[[subsystem.namespace]]\nnumber = 1\nbackend = {{ null = \"1 GiB\" }}\n");
        assert!(parse(&text).unwrap_err().contains("namespace 1 is there twice"));
        let text = format!("{SAMPLE}[[port]]\ndevice = \"rxeA\"\n");
        assert!(parse(&text).unwrap_err().contains("port 4420 of rxeA is there twice"));
    }

    #[test]
    fn uuids() {
        assert_eq!(parse_uuid("00112233-4455-6677-8899-aabbccddeeff").unwrap()[..3], [0, 0x11, 0x22]);
        assert_eq!(parse_uuid("0011223344556677-8899aabbccddeef"), None);
        assert_eq!(parse_uuid("+0112233445566778899aabbccddeeff"), None);
    }
}
