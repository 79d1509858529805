//! What both ends have: an IA with one EVD for everything, and a control connection.

use super::Failure;
use super::wire::{NOTE_BYTES, Note};
use doorbell::{
    DtoCompletion, Ep, EpAttr, Error, Evd, EvdFlags, Event, Ia, Pz, RecvPool, ReturnType, SendPool,
};
use std::time::{Duration, Instant};

/// Control messages that may be under way on a control connection.
const NOTES: u32 = 4;

/// Events that the EVD takes at first.
const EVENTS: u32 = 1024;

/// An open device, and one EVD for all its events. Dropped after everything that was made on it.
#[derive(Debug)]
pub(super) struct End {
    pub(super) evd: Evd,
    pub(super) pz: Pz,
    pub(super) ia: Ia,
    promised: u32,
}

impl End {
    pub(super) fn open(device: &str) -> Result<Self, Failure> {
        let ia = Ia::open(device).map_err(|e| Failure::setup(&format!("device {device}"), e))?;
        let made = Pz::new(&ia).and_then(|pz| {
            let flags = EvdFlags::DTO | EvdFlags::CONNECTION | EvdFlags::CR;
            Ok((pz, Evd::new(&ia, EVENTS, flags)?))
        });
        let (pz, evd) = made.map_err(|e| Failure::setup(&format!("device {device}"), e))?;
        Ok(Self { evd, pz, ia, promised: 0 })
    }

    /// Makes room for this many more events.
    pub(super) fn expect(&mut self, events: u32) -> Result<(), Error> {
        let promised = self.promised + events;
        if promised > self.evd.query()?.depth {
            self.evd.resize(promised)?;
        }
        self.promised = promised;
        Ok(())
    }

    /// This many events will not come any more.
    pub(super) fn forget(&mut self, events: u32) {
        self.promised -= events;
    }

    /// The next event, if it comes within this time.
    pub(super) fn next(&self, limit: Option<Duration>) -> Result<Option<Event>, Error> {
        if let Some(event) = self.evd.dequeue()? {
            return Ok(Some(event));
        }
        let start = Instant::now();
        loop {
            let outcome = match limit {
                Some(limit) => self.evd.wait_for(limit.saturating_sub(start.elapsed())),
                None => self.evd.wait().map(Some),
            };
            match outcome {
                Err(error) if error.return_type() == ReturnType::InterruptedCall => {}
                outcome => return outcome,
            }
        }
    }
}

/// A control connection: a plain EP with a few small buffers each way.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) ep: Ep,
    heard: RecvPool,
    said: SendPool,
}

impl Line {
    /// Events that a line makes at most, all at once.
    pub(super) const EVENTS: u32 = 2 * NOTES + 2;

    pub(super) fn new(end: &End) -> Result<Self, Error> {
        let attr = EpAttr {
            recv_depth: NOTES,
            request_depth: NOTES,
            recv_segments: 1,
            request_segments: 1,
            ..EpAttr::default()
        };
        let mut ep = Ep::builder(&end.ia, &end.pz).evd(&end.evd).attributes(&attr).build()?;
        let mut heard = RecvPool::new(&end.ia, &end.pz, NOTES, NOTE_BYTES)?;
        heard.refill(&mut ep)?;
        Ok(Self { ep, heard, said: SendPool::new(&end.ia, &end.pz, NOTES, NOTE_BYTES)? })
    }

    pub(super) fn say(&mut self, note: Note) -> Result<(), Error> {
        let full =
            || Error::new(ReturnType::QueueFull, doorbell::Subtype::None, "too many notes are under way");
        let mut buf = self.said.take().ok_or_else(full)?;
        buf.copy_from_slice(&note.encode());
        self.said.send(buf).len(NOTE_BYTES).post(&mut self.ep).map_err(Into::into)
    }

    /// The control message that this completion of the line brings, if any.
    pub(super) fn on(&mut self, dto: &DtoCompletion) -> Option<Note> {
        if self.said.completed(dto) {
            return None;
        }
        let message = self.heard.take(dto)?;
        let note = Note::decode(&message);
        drop(message);
        // The post fails on a connection that has ended, which an event reports.
        let _ = self.heard.refill(&mut self.ep);
        note
    }
}
