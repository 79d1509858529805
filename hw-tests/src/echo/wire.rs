//! The messages of client and server besides the echoed ones.
//!
//! Everything is 32-bit words, little-endian. Private data of a connect: magic, version, kind,
//! window. A note on the control connection: its kind and seven words.

const MAGIC: u32 = u32::from_le_bytes(*b"DBEL");
const VERSION: u32 = 1;
const WORDS: usize = 8;

/// Bytes of a note.
pub(super) const NOTE_BYTES: usize = 4 * WORDS;

/// What a connection is for; the private data of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Notes.
    Control,
    /// Messages to echo, this many under way at most.
    Messages { window: u32 },
}

impl Purpose {
    pub(super) fn encode(self) -> Vec<u8> {
        let (kind, window) = match self {
            Self::Control => (0, 0),
            Self::Messages { window } => (1, window),
        };
        bytes(&[MAGIC, VERSION, kind, window])
    }

    /// `None` for a peer with another protocol.
    pub(super) fn decode(data: &[u8]) -> Option<Self> {
        match words(data)?[..4] {
            [MAGIC, VERSION, 0, _] => Some(Self::Control),
            [MAGIC, VERSION, 1, window] if window > 0 => Some(Self::Messages { window }),
            _ => None,
        }
    }
}

/// Available and outstanding.
pub(super) type Counts = (u32, u32);

/// A note on the control connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Note {
    /// What the client requests; with window 0 the server chooses.
    Hello { connections: u32, window: u32, largest: u32 },
    /// Credits for all connections together, window for each; the SRQ's counts, if there is one and
    /// no other client uses it.
    Welcome { credits: u32, window: u32, srq: Option<Counts> },
    /// The server's buffers are this small.
    TooLarge { largest: u32 },
    /// Other clients have all credits.
    Busy,
    /// Every message is back.
    Finish,
    /// The server's final state: the SRQ's counts as above, and RNR events of its device if the
    /// device counts them.
    Summary { srq: Option<Counts>, rnr: Option<u32> },
}

const NONE: u32 = u32::MAX;

impl Note {
    pub(super) fn encode(self) -> Vec<u8> {
        let (have, (available, outstanding)) = match self {
            Self::Welcome { srq, .. } | Self::Summary { srq, .. } => {
                (u32::from(srq.is_some()), srq.unwrap_or_default())
            }
            _ => (0, (0, 0)),
        };
        let counts = [have, available, outstanding];
        let [h, a, o] = counts;
        bytes(&match self {
            Self::Hello { connections, window, largest } => [1, connections, window, largest, 0, 0, 0, 0],
            Self::Welcome { credits, window, .. } => [2, credits, window, h, a, o, 0, 0],
            Self::TooLarge { largest } => [3, largest, 0, 0, 0, 0, 0, 0],
            Self::Busy => [4, 0, 0, 0, 0, 0, 0, 0],
            Self::Finish => [5, 0, 0, 0, 0, 0, 0, 0],
            Self::Summary { rnr, .. } => [6, rnr.unwrap_or(NONE), 0, h, a, o, 0, 0],
        })
    }

    pub(super) fn decode(data: &[u8]) -> Option<Self> {
        let words = words(data)?;
        let [kind, x, y, z, a, o, ..] = words[..] else { return None };
        let srq = (z == 1).then_some((a, o));
        Some(match kind {
            1 => Self::Hello { connections: x, window: y, largest: z },
            2 => Self::Welcome { credits: x, window: y, srq },
            3 => Self::TooLarge { largest: x },
            4 => Self::Busy,
            5 => Self::Finish,
            6 => Self::Summary { srq, rnr: (x != NONE).then_some(x) },
            _ => return None,
        })
    }
}

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// At least four words.
fn words(data: &[u8]) -> Option<Vec<u32>> {
    let (words, _) = data.as_chunks::<4>();
    (words.len() >= 4).then(|| words.iter().map(|word| u32::from_le_bytes(*word)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_and_purposes_survive_the_wire() {
        for note in [
            Note::Hello { connections: 64, window: 0, largest: 1 << 20 },
            Note::Welcome { credits: 256, window: 4, srq: Some((256, 256)) },
            Note::Welcome { credits: 256, window: 4, srq: None },
            Note::TooLarge { largest: 4096 },
            Note::Busy,
            Note::Finish,
            Note::Summary { srq: Some((255, 256)), rnr: Some(7) },
            Note::Summary { srq: None, rnr: None },
        ] {
            assert_eq!(note.encode().len(), NOTE_BYTES);
            assert_eq!(Note::decode(&note.encode()), Some(note));
        }
        for purpose in [Purpose::Control, Purpose::Messages { window: 4 }] {
            // The transport pads private data with zeros.
            let mut data = purpose.encode();
            data.resize(56, 0);
            assert_eq!(Purpose::decode(&data), Some(purpose));
        }
    }

    #[test]
    fn what_others_say_is_no_purpose_and_no_note() {
        assert_eq!(Purpose::decode(&[0; 56]), None);
        assert_eq!(Purpose::decode(b"DBEL"), None);
        assert_eq!(Purpose::decode(&Purpose::Messages { window: 0 }.encode()), None);
        assert_eq!(Note::decode(&[0; NOTE_BYTES]), None);
        assert_eq!(Note::decode(&[]), None);
    }
}
