//! A CQ that is resized while it has completions, against a device that writes entries.
#![allow(missing_docs)]

mod common;

use std::collections::VecDeque;

use common::{Entry, Rng, cq_queue as queue, poll};
use mlx5_direct::{Completion, CqBuffer, CqLayout, CqeError};

/// Random pushes, polls and resizes: no completion is lost, doubled or out of order, and the device
/// gets each entry back.
#[test]
fn a_resized_cq_keeps_its_completions_in_order() {
    for bytes in [64, 128] {
        let (mut cq, mut device) = queue(4, bytes);
        let mut rng = Rng(u64::from(bytes));
        let mut waiting = VecDeque::new();
        let (mut entries, mut carried, mut full) = (4, 0, 0);
        for n in 0..60_000u32 {
            match rng.below(16) {
                0 => {
                    let size = 1 << rng.below(7);
                    cq.release();
                    // The device needs room for the mark, and refuses a buffer that is too small.
                    if device.room() == 0 || (size as usize) <= waiting.len() {
                        continue;
                    }
                    let (buffer, view) = CqBuffer::on_heap(size, bytes).unwrap();
                    device.change_over(view, size);
                    assert_eq!(cq.continue_in(buffer), Ok(()));
                    assert_eq!((cq.cqe_count(), cq.cqe_bytes()), (size, bytes));
                    assert_eq!(device.room() as usize, size as usize - waiting.len());
                    (entries, carried) = (size, carried + waiting.len());
                    full += usize::from(waiting.len() + 1 == size as usize);
                }
                1..=7 => match waiting.pop_front() {
                    None => assert_eq!(cq.poll(), Ok(None)),
                    Some((counter, payload)) => {
                        let completion = poll(&mut cq);
                        let Completion::RecvScattered(scattered) = &completion else {
                            assert_eq!(completion.send_counter(), Some(counter));
                            continue;
                        };
                        let mut got = [0; 64];
                        assert_eq!(cq.copy_scattered(scattered, &mut got), 64);
                        assert_eq!(got, [payload; 64], "the payload moved with its entry");
                    }
                },
                _ => {
                    cq.release();
                    if device.room() == 0 {
                        continue;
                    }
                    let wide = bytes == 128 && n % 2 == 0;
                    if wide {
                        let at = device.next_fields() - 64;
                        (0..64).for_each(|k| device.mem().store_u8(at + k, n as u8));
                    }
                    let (opcode, low_bits) = if wide { (2, 0x08) } else { (0, 0) };
                    let counter = n as u16;
                    device.push(Entry { opcode, low_bits, counter, bytes: 64, ..Entry::default() });
                    waiting.push_back((counter, n as u8));
                }
            }
        }
        assert!(entries > 0 && carried > 500 && full > 20, "{carried} carried, {full} full");
    }
}

/// A buffer to which the device has not changed over is refused, and the CQ goes on.
#[test]
fn a_cq_without_a_mark_stays_in_its_buffer() {
    let (mut cq, mut device) = queue(8, 64);
    device.push(Entry { counter: 7, ..Entry::default() });
    let (buffer, _view) = CqBuffer::on_heap(16, 64).unwrap();
    assert_eq!(cq.continue_in(buffer), Err(CqeError::NoResizeMark));
    assert_eq!(cq.cqe_count(), 8);
    assert_eq!(poll(&mut cq).send_counter(), Some(7));
}

/// libmlx5 resized an empty CQ before it was taken over.
#[test]
fn a_cq_that_was_resized_before_begins_behind_the_marks() {
    let (_, mut device) = queue(4, 64);
    let mut cq = None;
    for size in [8, 16, 8] {
        let (layout, view) = CqLayout::on_heap(size, 64).unwrap();
        device.change_over(view, size);
        cq = Some(mlx5_direct::Cq::new(layout));
    }
    let mut cq = cq.unwrap();
    cq.skip_resize_marks(3);
    for counter in 0..5 {
        device.push(Entry { counter, ..Entry::default() });
    }
    for counter in 0..5 {
        assert_eq!(poll(&mut cq).send_counter(), Some(counter));
    }
    assert_eq!(cq.poll(), Ok(None));
}
