//! Which messages a run sends: sizes, bytes and segments follow from the seed, the connection and
//! the message's index.

use std::ops::Range;

/// Starts that messages may have in the table of bytes.
const STARTS: usize = 1 << 16;

/// Segments of a message at most.
pub(super) const MAX_SEGMENTS: usize = 4;

/// All messages of a run.
#[derive(Debug)]
pub(super) struct Pattern {
    table: Vec<u8>,
    sizes: Vec<usize>,
    /// Running sums of how often each size comes.
    shares: Vec<u64>,
    seed: u64,
}

/// One message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message<'a> {
    pub(super) bytes: &'a [u8],
    /// Which of the run's sizes it has.
    pub(super) size: usize,
    hash: u64,
}

impl Pattern {
    pub(super) fn new(seed: u64, sizes: &[usize]) -> Self {
        let largest = sizes.iter().copied().max().unwrap_or(0);
        let words = (largest + STARTS).div_ceil(8) as u64;
        let table = (0..words).flat_map(|i| mix(seed ^ mix(i)).to_le_bytes()).collect();
        // Larger sizes are rarer, so that long messages do not take most of the time.
        let shares = sizes.iter().scan(0, |sum, &size| {
            *sum += 1 + (1 << 20) / (8192 + size as u64);
            Some(*sum)
        });
        Self { table, shares: shares.collect(), sizes: sizes.to_vec(), seed }
    }

    pub(super) fn largest(&self) -> usize {
        self.sizes.iter().copied().max().unwrap_or(0)
    }

    pub(super) fn sizes(&self) -> &[usize] {
        &self.sizes
    }

    /// Connection 0 begins with each size once; after that they come at random.
    pub(super) fn message(&self, connection: usize, index: u64) -> Message<'_> {
        let hash = mix(self.seed ^ mix((connection as u64) << 40 ^ index));
        let size = if connection == 0 && index < self.sizes.len() as u64 {
            index as usize
        } else {
            let at = (hash >> 32) % self.shares.last().copied().unwrap_or(1);
            self.shares.partition_point(|&sum| sum <= at)
        };
        let start = hash as usize % STARTS;
        Message { bytes: &self.table[start..start + self.sizes[size]], size, hash }
    }
}

impl Message<'_> {
    /// Lays the message out in `buffer`, last segment first, and gives the segments in the order in
    /// which they make the message.
    pub(super) fn lay_out(&self, buffer: &mut [u8]) -> ([Range<usize>; MAX_SEGMENTS], usize) {
        let len = self.bytes.len();
        let segments = 1 + (self.hash >> 16) as usize % MAX_SEGMENTS;
        let mut cuts = [len; MAX_SEGMENTS + 1];
        cuts[0] = 0;
        for (i, cut) in cuts[1..segments].iter_mut().enumerate() {
            *cut = mix(self.hash ^ i as u64) as usize % (len + 1);
        }
        cuts.sort_unstable();
        let mut pieces = [const { 0..0 }; MAX_SEGMENTS];
        for (piece, cut) in pieces.iter_mut().zip(cuts.windows(2)).take(segments) {
            *piece = len - cut[1]..len - cut[0];
            buffer[piece.clone()].copy_from_slice(&self.bytes[cut[0]..cut[1]]);
        }
        (pieces, segments)
    }
}

/// SplitMix64's finisher: every bit of the input changes half of the output.
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: [usize; 5] = [0, 1, 64, 4096, 1 << 20];

    #[test]
    fn the_segments_make_the_message() {
        let pattern = Pattern::new(7, &SIZES);
        let mut seen = [false; MAX_SEGMENTS + 1];
        for index in 0..400 {
            let message = pattern.message(3, index);
            let mut buffer = vec![0; pattern.largest()];
            let (pieces, n) = message.lay_out(&mut buffer);
            let gathered: Vec<u8> =
                pieces[..n].iter().flat_map(|piece| &buffer[piece.clone()]).copied().collect();
            assert!(gathered == message.bytes, "message {index}");
            seen[n] = true;
        }
        assert_eq!(seen, [false, true, true, true, true]);
    }

    #[test]
    fn every_size_occurs_and_a_seed_repeats_its_messages() {
        let (one, two, other) = (Pattern::new(7, &SIZES), Pattern::new(7, &SIZES), Pattern::new(8, &SIZES));
        let mut sizes = [0; SIZES.len()];
        for index in 0..5000 {
            let message = one.message(1, index);
            sizes[message.size] += 1;
            assert!(message.bytes == two.message(1, index).bytes);
        }
        assert!(sizes.iter().all(|&n| n > 0), "{sizes:?}");
        assert!(sizes[4] < sizes[0] / 10, "{sizes:?}");
        assert!(one.message(0, 3).bytes != other.message(0, 3).bytes);
        assert!((0..5).all(|i| one.message(0, i).size == i as usize));
    }

    #[test]
    fn neighbouring_messages_differ() {
        let pattern = Pattern::new(1, &[32]);
        let first = pattern.message(0, 0).bytes;
        assert!((1..1000).all(|i| pattern.message(0, i).bytes != first));
        assert!((1..64).all(|c| pattern.message(c, 0).bytes != first));
    }
}
