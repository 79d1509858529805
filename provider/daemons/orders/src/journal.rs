//! The journal: all inputs of the market, in a file that a second thread writes.
//!
//! The engine puts a record into a queue for each input before the market sees it. The thread writes
//! what is in the queue with one write(2), and then says how far the file goes. The messages that come
//! of an input are sent when its record is in the file: what a client has been told outlives the
//! process. (What outlives the machine is what was synchronised: [`Options::sync`].)
//!
//! The file is a header and records of 64 bytes. The check of a record covers its number, so records
//! cannot be in a wrong place. A record that is not whole, or whose check is wrong, is cut off if it is
//! the last one; before others it is an error.

use crate::market::Market;
use crate::ouch::{Inbound, LONGEST_IN};
use crate::session::User;
use crossbeam_queue::ArrayQueue;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

const MAGIC: [u8; 8] = *b"DBORDER1";

/// The first bytes of a file.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    magic: [u8; 8],
    /// Of what the market depends on beside its inputs.
    fingerprint: U64,
    unused: [u8; 48],
}

/// An input of the market.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Record {
    check: U32,
    session: U32,
    time: U64,
    kind: u8,
    bytes: [u8; LONGEST_IN],
}

const _: () = assert!(size_of::<Header>() == 64 && size_of::<Record>() == 64);

mod kind {
    pub(super) const MESSAGE: u8 = 0;
    pub(super) const LOGIN: u8 = 1;
    pub(super) const GONE: u8 = 2;
    pub(super) const END: u8 = 3;
}

impl Record {
    fn new(kind: u8, session: u32, time: u64, bytes: &[u8]) -> Self {
        let mut record = Self {
            check: 0.into(),
            session: session.into(),
            time: time.into(),
            kind,
            bytes: [0; LONGEST_IN],
        };
        // A message that may be followed by an empty appendage is shorter than the longest one.
        record.bytes[..bytes.len()].copy_from_slice(bytes);
        record
    }

    /// A message that [`Inbound::parse`] accepts.
    #[inline]
    pub fn message(session: u32, time: u64, bytes: &[u8]) -> Self {
        Self::new(kind::MESSAGE, session, time, bytes)
    }

    /// A session connects.
    pub fn login(session: u32, time: u64, user: User, cancel_at_end: bool) -> Self {
        let mut bytes = [0; 7];
        bytes[..6].copy_from_slice(&user);
        bytes[6] = cancel_at_end.into();
        Self::new(kind::LOGIN, session, time, &bytes)
    }

    /// A connection has ended.
    pub fn gone(session: u32, time: u64) -> Self {
        Self::new(kind::GONE, session, time, &[])
    }

    /// The day ends.
    pub fn end(time: u64) -> Self {
        Self::new(kind::END, 0, time, &[])
    }

    /// FNV-1a over everything but the check, and the number of the record.
    fn compute(&self, number: u64) -> u32 {
        let hash = fnv(&self.as_bytes()[4..], fnv(&number.to_be_bytes(), FNV_START));
        (hash ^ hash >> 32) as u32
    }

    /// Gives the input to the market. Returns false for what no gateway writes.
    fn apply(&self, market: &mut Market, connected: &mut BTreeSet<u32>) -> bool {
        let session = self.session.get();
        let is_known = (session as usize) < market.sessions.all().len();
        if market.advance(self.time.get()) != self.time.get() {
            return false;
        }
        match self.kind {
            kind::MESSAGE if is_known => {
                let length = match self.bytes[0] {
                    b'O' => 47,
                    b'U' => 40,
                    b'X' => 9,
                    _ => 1,
                };
                let Some(message) = Inbound::parse(&self.bytes[..length]) else { return false };
                market.handle(session, message);
            }
            kind::LOGIN => {
                let mut user = User::default();
                user.copy_from_slice(&self.bytes[..6]);
                if market.login(user, self.bytes[6] == 1) != Some(session) {
                    return false;
                }
                connected.insert(session);
            }
            kind::GONE if is_known => {
                market.gone(session);
                connected.remove(&session);
            }
            kind::END => market.end(),
            _ => return false,
        }
        while market.sessions.take_dirty().is_some() {}
        true
    }
}

const FNV_START: u64 = 0xcbf2_9ce4_8422_2325;

fn fnv(bytes: &[u8], start: u64) -> u64 {
    bytes.iter().fold(start, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// How a journal is kept.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// The file.
    pub path: PathBuf,
    /// Whether each write is followed by fdatasync(2).
    #[serde(default)]
    pub sync: bool,
}

/// Why a journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file.
    #[error("{}: {error}", path.display())]
    File {
        /// Its name.
        path: PathBuf,
        /// The reason.
        #[source]
        error: io::Error,
    },
    /// Not a journal.
    #[error("{}: not a journal of this version: name another file", .0.display())]
    NoJournal(PathBuf),
    /// A journal of a market with other rules, sizes or symbols.
    #[error("{}: written with other limits, sizes or symbols: restore those, or name another file", .0.display())]
    OtherMarket(PathBuf),
    /// A wrong record before others.
    #[error("{}: record {record} is damaged, and others follow it: restore the file from a copy", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The number of the record, from 0 on.
        record: u64,
    },
}

/// What a journal held.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Records.
    pub records: u64,
    /// Bytes of a torn record that were cut off.
    pub cut: u64,
    /// Sessions that were connected at the end.
    pub connected: BTreeSet<u32>,
}

#[derive(Debug)]
struct Shared {
    queue: ArrayQueue<Record>,
    written: AtomicU64,
    ends: AtomicBool,
    failed: AtomicBool,
}

/// A journal that is being written.
#[derive(Debug)]
pub struct Journal {
    shared: Arc<Shared>,
    appended: u64,
    thread: Option<JoinHandle<()>>,
}

/// Records in the queue.
const QUEUE: usize = 1 << 16;
/// Records in one write.
const BATCH: usize = 4096;
/// How long the thread sleeps when there is nothing to write.
const PAUSE: Duration = Duration::from_micros(50);

impl Journal {
    /// Opens a journal: gives what is in it to the market, and cuts off a torn record.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn open(
        options: &Options,
        fingerprint: &str,
        market: &mut Market,
    ) -> Result<(Self, Replayed), Error> {
        let path = &options.path;
        let failed = |error| Error::File { path: path.clone(), error };
        let mut opening = OpenOptions::new();
        let mut file =
            opening.read(true).write(true).create(true).truncate(false).open(path).map_err(failed)?;
        let fingerprint = fnv(fingerprint.as_bytes(), FNV_START);
        let replayed = replay(path, &mut file, fingerprint, market)?;
        let shared = Arc::new(Shared {
            queue: ArrayQueue::new(QUEUE),
            written: AtomicU64::new(replayed.records),
            ends: AtomicBool::new(false),
            failed: AtomicBool::new(false),
        });
        let (own, sync, name) = (shared.clone(), options.sync, path.clone());
        let thread = std::thread::Builder::new().name("journal".into()).spawn(move || {
            if let Err(error) = write(&own, file, sync) {
                tracing::error!(%error, journal = %name.display(), "the journal cannot be written");
                own.failed.store(true, Ordering::Release);
            }
        });
        let thread = Some(thread.map_err(failed)?);
        Ok((Self { shared, appended: replayed.records, thread }, replayed))
    }

    /// Appends a record. Returns how far the file goes once it is written. Waits while the queue is
    /// full.
    #[inline]
    pub fn append(&mut self, record: Record) -> u64 {
        while self.shared.queue.push(record).is_err() && !self.has_failed() {
            std::hint::spin_loop();
        }
        self.appended += 1;
        self.appended
    }

    /// How far the file goes.
    #[inline]
    pub fn written(&self) -> u64 {
        self.shared.written.load(Ordering::Acquire)
    }

    /// Whether nothing more can be written.
    pub fn has_failed(&self) -> bool {
        self.shared.failed.load(Ordering::Acquire)
    }

    /// Records that are not in the file.
    pub fn behind(&self) -> u64 {
        self.appended - self.written()
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of the journal has panicked");
        }
    }
}

fn replay(path: &Path, file: &mut File, fingerprint: u64, market: &mut Market) -> Result<Replayed, Error> {
    let failed = |error| Error::File { path: path.into(), error };
    let length = file.metadata().map_err(failed)?.len();
    if length < size_of::<Header>() as u64 {
        // New, or torn at once.
        let header = Header { magic: MAGIC, fingerprint: fingerprint.into(), unused: [0; 48] };
        let written =
            file.set_len(0).and_then(|()| file.rewind()).and_then(|()| file.write_all(header.as_bytes()));
        written.map_err(failed)?;
        return Ok(Replayed { cut: length, ..Replayed::default() });
    }
    let mut reader = BufReader::with_capacity(1 << 20, &mut *file);
    let mut header = Header::new_zeroed();
    reader.read_exact(header.as_mut_bytes()).map_err(failed)?;
    if header.magic != MAGIC {
        return Err(Error::NoJournal(path.into()));
    }
    if header.fingerprint != fingerprint {
        return Err(Error::OtherMarket(path.into()));
    }
    let whole = length / 64 - 1;
    let mut replayed = Replayed { cut: length % 64, ..Replayed::default() };
    for number in 0..whole {
        let mut record = Record::new_zeroed();
        reader.read_exact(record.as_mut_bytes()).map_err(failed)?;
        if record.check != record.compute(number) || !record.apply(market, &mut replayed.connected) {
            if number + 1 < whole {
                return Err(Error::Damaged { path: path.into(), record: number });
            }
            replayed.cut += 64;
            break;
        }
        replayed.records += 1;
    }
    drop(reader);
    let end = length - replayed.cut;
    file.set_len(end).and_then(|()| file.seek(SeekFrom::Start(end))).map_err(failed)?;
    Ok(replayed)
}

/// The second thread.
fn write(shared: &Shared, mut file: File, sync: bool) -> io::Result<()> {
    let mut number = shared.written.load(Ordering::Relaxed);
    let mut bytes = Vec::with_capacity(BATCH * size_of::<Record>());
    loop {
        // Read before the queue: what was appended before the end is written.
        let ends = shared.ends.load(Ordering::Acquire);
        bytes.clear();
        while bytes.len() < bytes.capacity()
            && let Some(mut record) = shared.queue.pop()
        {
            record.check = record.compute(number).into();
            bytes.extend_from_slice(record.as_bytes());
            number += 1;
        }
        if !bytes.is_empty() {
            file.write_all(&bytes)?;
            if sync {
                file.sync_data()?;
            }
            shared.written.store(number, Ordering::Release);
        } else if ends {
            return file.sync_data();
        } else {
            std::thread::sleep(PAUSE);
        }
    }
}
