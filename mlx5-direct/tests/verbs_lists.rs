//! Lists of verbs work requests: the ring has the same bytes as after posts of the same requests
//! without verbs, and a list ends where `ibv_post_send` and `ibv_post_recv` would end it.
#![allow(unsafe_code)] // Requests of verbs hold pointers.

mod common;

use std::{
    mem::zeroed,
    ptr::{null, null_mut},
    sync::Arc,
};

use common::seen_by_device;
use doorbell_sys::{
    bind_mw_t, ibv_mr, ibv_mw, ibv_mw_bind_info, ibv_mw_type, ibv_recv_wr, ibv_send_flags, ibv_send_wr,
    ibv_sge, ibv_wr_opcode::*,
};
use mlx5_direct::{
    BatchError, DataSeg, HeapMem, PostError, RecvWrs, Rq, RqLayout, SendWrs, Sq, SqLayout, Srq, SrqLayout,
    sq::{WrError, WrListError},
    wr::{Bind, Data, Inline, Remote, Wr},
};

const BLOCKS: u32 = 64;
const THERE: Remote = Remote { addr: 0x1122_3344_5566_7788, rkey: 0x99aa };

fn queue() -> (Sq, Arc<HeapMem>) {
    let (layout, view) = SqLayout::on_heap(BLOCKS, 16).unwrap();
    (Sq::new(layout), seen_by_device(view))
}

/// The ring and the record.
fn contents(mem: &HeapMem) -> (Vec<u64>, u32) {
    let words = (0..BLOCKS as usize * 64).step_by(8).map(|at| mem.load_be64(at)).collect();
    (words, mem.load_be32(mem.dbrec_offset()))
}

fn sge(addr: u64, length: u32) -> ibv_sge {
    ibv_sge { addr, length, lkey: 0x77 }
}

fn request(opcode: u32, flags: &[ibv_send_flags], sges: &mut [ibv_sge]) -> ibv_send_wr {
    // SAFETY: integers and pointers, for which zeros are valid.
    let mut wr: ibv_send_wr = unsafe { zeroed() };
    (wr.wr_id, wr.opcode) = (0xc00c, opcode);
    (wr.sg_list, wr.num_sge) = (sges.as_mut_ptr(), sges.len() as i32);
    wr.send_flags = flags.iter().fold(0, |all, flag| all | flag.0);
    (wr.wr.rdma.remote_addr, wr.wr.rdma.rkey) = (THERE.addr, THERE.rkey);
    wr
}

/// Posts the requests as one list.
fn post(sq: &mut Sq, wrs: &mut [ibv_send_wr]) -> Result<u32, WrListError> {
    for n in 1..wrs.len() {
        wrs[n - 1].next = &raw mut wrs[n];
    }
    let first = wrs.first().map_or(null(), std::ptr::from_ref);
    // SAFETY: the requests live until the end of the call, with all that they name.
    sq.post_send_wrs(unsafe { SendWrs::new(first) })
}

/// A list of this one request leaves the queue as a post of `wr` does.
#[track_caller]
fn same<D: Data>(mut list: [ibv_send_wr; 1], wr: Wr<D>) {
    let ((mut by_list, list_mem), (mut by_post, post_mem)) = (queue(), queue());
    assert_eq!(post(&mut by_list, &mut list), Ok(1));
    by_post.post(wr, 0xc00c).unwrap();
    assert_eq!(contents(&list_mem), contents(&post_mem));
    assert!(by_list.outstanding().eq(by_post.outstanding()));
}

#[test]
fn each_opcode_writes_the_same_request() {
    let segs = [DataSeg::new(0x1000, 64, 0x77), DataSeg::new(0x2000, 9, 0x77)];
    // Empty entries are left out.
    let mut sges = [sge(0x1000, 64), sge(0x3000, 0), sge(0x2000, 9)];
    let s = &mut sges[..];
    same([request(IBV_WR_SEND, &[], s)], Wr::send(&segs[..]));
    same([request(IBV_WR_RDMA_WRITE, &[], s)], Wr::write(THERE, &segs[..]));
    same([request(IBV_WR_RDMA_READ, &[], s)], Wr::read(THERE, &segs[..]));
    let mut wr = request(IBV_WR_SEND_WITH_IMM, &[], s);
    wr.imm_data_invalidated_rkey_union.imm_data = 0x0102_0304_u32.to_be();
    same([wr], Wr::send_imm(0x0102_0304, &segs[..]));
    wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    same([wr], Wr::write_imm(THERE, 0x0102_0304, &segs[..]));
    wr.opcode = IBV_WR_SEND_WITH_INV;
    wr.imm_data_invalidated_rkey_union.invalidated_rkey = 0x0506_0708;
    same([wr], Wr::send_inval(0x0506_0708, &segs[..]));
    wr.opcode = IBV_WR_LOCAL_INV;
    same([wr], Wr::local_inval(0x0506_0708));
    // An atomic's entry counts as 8 bytes.
    let mut result = [sge(0x4000, 100), sge(0x5000, 0)];
    let mut wr = request(IBV_WR_ATOMIC_FETCH_AND_ADD, &[], &mut result);
    (wr.wr.atomic.remote_addr, wr.wr.atomic.rkey) = (THERE.addr, THERE.rkey);
    (wr.wr.atomic.compare_add, wr.wr.atomic.swap) = (11, 12);
    same([wr], Wr::fetch_add(THERE, 11, DataSeg::new(0x4000, 8, 0x77)));
    wr.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
    same([wr], Wr::compare_swap(THERE, 11, 12, DataSeg::new(0x4000, 8, 0x77)));
}

#[test]
fn each_flag_writes_the_same_request() {
    let seg = DataSeg::new(0x1000, 64, 0x77);
    let mut sges = [sge(0x1000, 64)];
    let (signalled, solicited) = (ibv_send_flags::IBV_SEND_SIGNALED, ibv_send_flags::IBV_SEND_SOLICITED);
    same([request(IBV_WR_SEND, &[signalled], &mut sges)], Wr::send(seg).signalled());
    same([request(IBV_WR_SEND, &[solicited], &mut sges)], Wr::send(seg).solicited());
    same([request(IBV_WR_SEND, &[ibv_send_flags::IBV_SEND_FENCE], &mut sges)], Wr::send(seg).fenced());
    let all = [signalled, solicited, ibv_send_flags::IBV_SEND_FENCE];
    same([request(IBV_WR_SEND, &all, &mut sges)], Wr::send(seg).signalled().solicited().fenced());
    let text = *b"inline data of 44 bytes, as much as there is";
    let at = |n: usize| text[n..].as_ptr().expose_provenance() as u64;
    let mut parts = [sge(at(0), 7), sge(0, 0), sge(at(7), 37)];
    let inline = [ibv_send_flags::IBV_SEND_INLINE];
    same([request(IBV_WR_SEND, &inline, &mut parts)], Wr::send(Inline(&text)));
    same([request(IBV_WR_RDMA_WRITE, &inline, &mut parts)], Wr::write(THERE, Inline(&text)));
    same([request(IBV_WR_SEND, &inline, &mut [])], Wr::send(()));
}

fn bind(length: u64, window: &mut ibv_mw, region: *mut ibv_mr) -> ibv_send_wr {
    let mut wr = request(IBV_WR_BIND_MW, &[], &mut []);
    let bind_info = ibv_mw_bind_info { mr: region, addr: 0x8000, length, mw_access_flags: 0x2e };
    wr.bind_mw_tso_union.bind_mw = bind_mw_t { mw: window, rkey: 0x1235, bind_info };
    wr
}

#[test]
fn windows_are_bound_as_without_verbs() {
    // SAFETY: integers and pointers, for which zeros are valid.
    let (mut window, mut region): (ibv_mw, ibv_mr) = unsafe { (zeroed(), zeroed()) };
    (window.rkey, region.lkey) = (0x1234, 0x4321);
    for type2 in [false, true] {
        window.type_ = if type2 { ibv_mw_type::IBV_MW_TYPE_2 } else { ibv_mw_type::IBV_MW_TYPE_1 };
        for (len, lkey) in [(1 << 31, 0x4321), (4096, 0x4321), (0, 0x4321), (0, 0)] {
            let expected =
                Bind { rkey: 0x1234, new_rkey: 0x1235, type2, lkey, addr: 0x8000, len, access: 0x2e };
            let region = if lkey == 0 { null_mut() } else { &raw mut region };
            same([bind(len, &mut window, region)], Wr::bind(expected));
        }
    }
    let (mut sq, mem) = queue();
    let before = contents(&mem);
    let refused = post(&mut sq, &mut [bind((1 << 31) + 1, &mut window, &raw mut region)]);
    assert_eq!(refused, Err(WrListError { posted: 0, error: WrError::WindowTooLong }));
    assert_eq!(contents(&mem), before);
}

/// A list posts the requests before the first that is refused.
#[test]
fn a_list_ends_at_the_first_request_that_is_refused() {
    let text = [1u8; 45];
    let mut sges = [sge(0x1000, 64); 5];
    let mut long = [sge(text.as_ptr().expose_provenance() as u64, 45)];
    let good = request(IBV_WR_SEND, &[], &mut sges[..4]);
    let inline = [ibv_send_flags::IBV_SEND_INLINE];
    for (bad, error, errno) in [
        (request(IBV_WR_SEND, &[], &mut sges), WrError::TooManySegments, 12),
        (request(IBV_WR_SEND, &inline, &mut long), WrError::InlineTooLong, 12),
        (request(IBV_WR_TSO, &[], &mut []), WrError::Opcode(IBV_WR_TSO), 22),
        (request(u32::MAX, &[], &mut []), WrError::Opcode(u32::MAX), 22),
    ] {
        for before in 0..3 {
            let (mut sq, mem) = queue();
            let mut list = vec![good; before];
            list.extend([bad, good]);
            let refused = WrListError { posted: before as u32, error };
            assert_eq!((post(&mut sq, &mut list), error.errno()), (Err(refused), errno));
            assert_eq!(sq.posted(), before as u32);
            // Two blocks each.
            assert_eq!(contents(&mem).1, 2 * before as u32);
        }
    }
    let (mut sq, _mem) = queue();
    assert_eq!(post(&mut sq, &mut []), Ok(0));
    let full = WrListError { posted: 16, error: WrError::Full };
    assert_eq!(post(&mut sq, &mut vec![good; 20]), Err(full));
    assert_eq!((WrError::Full.errno(), WrError::TooLong.errno(), WrError::NoAddress.errno()), (12, 12, 22));
    assert_eq!(WrError::WindowTooLong.errno(), 95);
    // As long as the queue was made for, but longer than the ring's blocks.
    let mut short = Sq::new(SqLayout::on_heap(BLOCKS, BLOCKS).unwrap().0);
    let too_long = WrListError { posted: 0, error: WrError::TooLong };
    assert_eq!(post(&mut short, &mut [good]), Err(too_long));
}

#[test]
fn a_list_of_receives_ends_at_the_first_that_is_refused() {
    for (most, segments, error) in
        [(8, 2, None), (3, 2, Some(PostError::Full)), (8, 3, Some(PostError::TooManySegments))]
    {
        let (layout, _view) = RqLayout::on_heap(4, 32).unwrap();
        assert_eq!(layout.wqe_count(), 4);
        let mut rq = Rq::new(layout);
        assert_eq!((rq.qpn(), rq.max_requests(), rq.max_segments()), (0x42, 4, 2));
        // So that there is room for `most`.
        for n in most..4 {
            rq.post(&[], n).unwrap();
        }
        let mut sges: Vec<_> = (0..4).map(|n| [sge(n << 12, 1), sge(n << 12 | 8, 2), sge(0, 3)]).collect();
        let mut list: Vec<_> = (0..4)
            .map(|n| ibv_recv_wr {
                wr_id: 100 + n as u64,
                next: null_mut(),
                sg_list: sges[n].as_mut_ptr(),
                num_sge: if n == 2 { segments } else { 2 },
            })
            .collect();
        for n in 1..4 {
            list[n - 1].next = &raw mut list[n];
        }
        // SAFETY: the requests live until the end of the call, with all that they name.
        let outcome = rq.post_recv_wrs(unsafe { RecvWrs::new(list.as_ptr()) });
        let posted = match error {
            None => 4,
            Some(PostError::Full) => 3,
            Some(PostError::TooManySegments) => 2,
        };
        assert_eq!(outcome, error.map_or(Ok(posted), |error| Err(BatchError { posted, error })));
        let cookies: Vec<_> = rq.outstanding().collect();
        let first = cookies.len() - posted as usize;
        assert!(cookies[first..].iter().copied().eq((100..).take(posted as usize)));
        for n in 0..u64::from(posted) {
            let expected = [(n << 12, 1), (n << 12 | 8, 2)].map(|(addr, len)| DataSeg::new(addr, len, 0x77));
            assert!(rq.segments(first as u16 + n as u16).eq(expected));
        }
    }
}

/// The request with these flags of verbs.
fn flagged<D: Data>(mut wr: Wr<D>, flags: &[ibv_send_flags]) -> Wr<D> {
    for flag in flags {
        wr = match *flag {
            ibv_send_flags::IBV_SEND_SIGNALED => wr.signalled(),
            ibv_send_flags::IBV_SEND_SOLICITED => wr.solicited(),
            _ => wr.fenced(),
        };
    }
    wr
}

/// The short way for a list of one Send writes the same request, or none.
#[test]
fn one_short_send_leaves_the_queue_as_a_post_does() {
    let text: Vec<u8> = (1..=60).collect();
    let (signalled, solicited) = (ibv_send_flags::IBV_SEND_SIGNALED, ibv_send_flags::IBV_SEND_SOLICITED);
    let fence = ibv_send_flags::IBV_SEND_FENCE;
    let most = queue().0.caps().max_inline as usize;
    assert!(most >= 44);
    for length in 0..=60_usize {
        for inline in [true, false].into_iter().filter(|inline| !inline || length <= most) {
            for flags in [&[][..], &[signalled], &[signalled, solicited], &[fence]] {
                let mut all = flags.to_vec();
                let addr = if inline { text.as_ptr().expose_provenance() as u64 } else { 0x9000 };
                all.extend(inline.then_some(ibv_send_flags::IBV_SEND_INLINE));
                let mut sges = [sge(addr, length as u32)];
                let wr = request(IBV_WR_SEND, &all, &mut sges);
                let ((mut short, short_mem), (mut long, long_mem)) = (queue(), queue());
                let mut fast = 0;
                // Around the ring more than once.
                for n in 0..3 * BLOCKS {
                    // SAFETY: the request lives until the end of the call, with all that it names.
                    let list = || unsafe { SendWrs::new(&raw const wr) };
                    if short.post_send_wr_fast(&list()) {
                        fast += 1;
                    } else {
                        assert_eq!(short.post_send_wrs(list()), Ok(1));
                    }
                    // A queue whose requests do not come as lists of verbs.
                    let posted = if inline {
                        long.post(flagged(Wr::send(Inline(&text[..length])), flags), wr.wr_id)
                    } else {
                        long.post(
                            flagged(
                                Wr::send(DataSeg::new(sges[0].addr, sges[0].length, sges[0].lkey)),
                                flags,
                            ),
                            wr.wr_id,
                        )
                    };
                    assert_eq!(posted, Ok(()));
                    assert_eq!(contents(&short_mem), contents(&long_mem), "request {n} of {length} bytes");
                    let (first, _) = short.outstanding().next().unwrap();
                    assert_eq!(short.complete(first), long.complete(first));
                }
                let fits = length > 0 && (!inline || length <= 44) && flags != [fence];
                assert_eq!(fast > BLOCKS, fits, "{length} bytes, inline {inline}: {fast} the short way");
                assert!(fits || fast == 0);
            }
        }
    }
}

#[test]
fn the_short_way_takes_one_plain_send_only() {
    let (mut sq, mem) = queue();
    sq.find_room();
    let before = contents(&mem);
    let mut two = [sge(0x1000, 8), sge(0x2000, 8)];
    let mut one = [sge(0x1000, 8)];
    let mut behind = request(IBV_WR_SEND, &[], &mut one);
    let mut list = request(IBV_WR_SEND, &[], &mut one);
    list.next = &raw mut behind;
    let others = [
        list,
        request(IBV_WR_SEND, &[], &mut two),
        request(IBV_WR_SEND, &[], &mut []),
        request(IBV_WR_RDMA_WRITE, &[], &mut one),
        request(IBV_WR_SEND_WITH_IMM, &[], &mut one),
        request(IBV_WR_LOCAL_INV, &[], &mut one),
    ];
    for wr in &others {
        // SAFETY: the request lives until the end of the call, with all that it names.
        assert!(!sq.post_send_wr_fast(&unsafe { SendWrs::new(wr) }), "opcode {}", wr.opcode);
    }
    // SAFETY: null is an empty list.
    assert!(!sq.post_send_wr_fast(&unsafe { SendWrs::new(null::<ibv_send_wr>()) }));
    assert_eq!((contents(&mem), sq.posted()), (before, 0));
    // SAFETY: as above.
    assert!(sq.post_send_wr_fast(&unsafe { SendWrs::new(&raw const behind) }));
}

/// Requests of one segment and others in one list; and which error a full SRQ gives.
#[test]
fn a_list_to_an_srq_ends_at_the_first_that_is_refused() {
    for (room, lengths, outcome) in [
        (7, &[1, 1, 1][..], Ok(3)),
        (7, &[1, 2, 0, 1, 3], Ok(5)),
        (7, &[1, 4, 1], Err((1, PostError::TooManySegments))),
        (7, &[4], Err((0, PostError::TooManySegments))),
        (2, &[1, 1, 1], Err((2, PostError::Full))),
        (2, &[1, 2, 2], Err((2, PostError::Full))),
        (0, &[1], Err((0, PostError::Full))),
        (0, &[2], Err((0, PostError::Full))),
        // Verbs count the segments before they look for room.
        (0, &[4], Err((0, PostError::TooManySegments))),
        (2, &[1, 1, 4], Err((2, PostError::TooManySegments))),
    ] {
        let (layout, _view) = SrqLayout::on_heap(8, 64).unwrap();
        let mut srq = Srq::new(layout, 7).unwrap();
        assert_eq!(srq.max_segments(), 3);
        while srq.free() > room {
            srq.post_one(DataSeg::new(1, 2, 3), 4).unwrap();
        }
        let mut sges = [sge(0x1000, 1), sge(0x2000, 2), sge(0x3000, 3), sge(0x4000, 4)];
        let sg_list = sges.as_mut_ptr();
        let wr = |(n, num_sge): (usize, &i32)| ibv_recv_wr {
            wr_id: 100 + n as u64,
            next: null_mut(),
            sg_list,
            num_sge: *num_sge,
        };
        let mut list: Vec<_> = lengths.iter().enumerate().map(wr).collect();
        for n in 1..list.len() {
            list[n - 1].next = &raw mut list[n];
        }
        let before: Vec<_> = srq.in_use().map(|(slot, _)| slot).collect();
        // SAFETY: the requests live until the end of the call, with all that they name.
        let got = srq.post_recv_wrs(unsafe { RecvWrs::new(list.as_ptr()) });
        assert_eq!(
            got,
            outcome.map_err(|(posted, error)| BatchError { posted, error }),
            "{room} {lengths:?}"
        );
        let new: Vec<_> = srq.in_use().filter(|(slot, _)| !before.contains(slot)).collect();
        let posted = got.unwrap_or_else(|error| error.posted) as usize;
        assert_eq!(new.len(), posted);
        for (slot, cookie) in new {
            let length = lengths[cookie as usize - 100] as usize;
            let expected = sges[..length].iter().map(|s| DataSeg::new(s.addr, s.length, s.lkey));
            assert!(srq.segments(slot).eq(expected), "receive {cookie} of {lengths:?}");
        }
        srq.check();
    }
}

#[test]
fn one_receive_is_posted_the_short_way_while_the_run_lasts() {
    let (layout, _view) = SrqLayout::on_heap(8, 64).unwrap();
    let mut srq = Srq::new(layout, 7).unwrap();
    let mut sges = [sge(0x1000, 1), sge(0x2000, 2), sge(0x3000, 3), sge(0x4000, 4)];
    let sg_list = sges.as_mut_ptr();
    let wr = |num_sge, next| ibv_recv_wr { wr_id: 5, next, sg_list, num_sge };
    let [none, one, two, most, too_many] = [0, 1, 2, 3, 4].map(|num_sge| wr(num_sge, null_mut()));
    let list = wr(1, (&raw const one).cast_mut());
    // SAFETY: the requests live until the end of the call, with all that they name.
    let mut short = |wr: &ibv_recv_wr| srq.post_recv_wr_fast(&unsafe { RecvWrs::new(wr) });
    // The first post finds the run.
    assert!(!short(&one));
    srq.post_one(DataSeg::new(1, 2, 3), 4).unwrap();
    // SAFETY: as above.
    let mut short = |wr: &ibv_recv_wr| srq.post_recv_wr_fast(&unsafe { RecvWrs::new(wr) });
    assert!(!short(&too_many) && !short(&list));
    let posted = [(&two, 2), (&one, 1), (&most, 3), (&none, 0), (&one, 1)];
    assert!(posted.iter().all(|(wr, _)| short(wr)));
    assert_eq!((0..9).filter(|_| short(&two)).count(), 1);
    assert_eq!((srq.posted(), srq.free()), (7, 0));
    let segments = [1, 2, 3].map(|n| DataSeg::new(0x1000 * u64::from(n), n, 0x77));
    let counts = posted.iter().map(|(_, count)| *count).chain([2]);
    for ((slot, cookie), count) in srq.in_use().skip(1).zip(counts) {
        assert_eq!(cookie, 5);
        assert!(srq.segments(slot).eq(segments[..count].iter().copied()), "{count} segments");
    }
    srq.check();
}

/// What a program reads back from a posted request.
#[test]
fn reads_and_atomics_tell_their_segments_and_key_changes_what_they_are() {
    let (mut sq, _mem) = queue();
    let segs = [DataSeg::new(0x1000, 64, 0x77), DataSeg::new(0x2000, 9, 0x78), DataSeg::new(0x3000, 8, 0x79)];
    let eight = segs[2];
    let found = |sq: &mut Sq| {
        let (block, _) = sq.outstanding().last().unwrap();
        sq.segments(block).collect::<Vec<_>>()
    };
    for n in 0..4 {
        sq.post(Wr::read(THERE, &segs[..n]), 1).unwrap();
        assert_eq!(found(&mut sq), segs[..n]);
    }
    sq.post(Wr::fetch_add(THERE, 1, eight), 1).unwrap();
    assert_eq!(found(&mut sq), [eight]);
    sq.post(Wr::compare_swap(THERE, 1, 2, eight), 1).unwrap();
    assert_eq!(found(&mut sq), [eight]);
    use mlx5_direct::wr::Masked::*;
    for masked in [
        CompareSwap32 { compare: 1, compare_mask: 2, swap: 3, swap_mask: 4 },
        CompareSwap64 { compare: 1, compare_mask: 2, swap: 3, swap_mask: 4 },
        FetchAdd32 { add: 1, boundary: 2 },
        FetchAdd64 { add: 1, boundary: 2 },
    ] {
        sq.post(Wr::masked_atomic(THERE, masked, eight), 1).unwrap();
        assert_eq!(found(&mut sq), [eight], "{masked:?}");
    }
    sq.post(Wr::write(THERE, &segs[..]), 1).unwrap();
    assert_eq!(found(&mut sq), []);
    sq.reset();
    let bind = Bind { rkey: 2, new_rkey: 0x100, type2: true, lkey: 3, addr: 4, len: 5, access: 2 };
    for (wr, is_bind) in [
        (Wr::local_inval(7), false),
        (Wr::bind(bind), true),
        (Wr::bind(Bind { type2: false, ..bind }), true),
        (Wr::bind(Bind { len: 0, type2: false, ..bind }), true),
        (Wr::bind(Bind { len: 0, new_rkey: 0x101, ..bind }), true),
        // Looks like an invalidation.
        (Wr::bind(Bind { len: 0, ..bind }), false),
    ] {
        sq.post(wr, 1).unwrap();
        let (block, _) = sq.outstanding().last().unwrap();
        assert_eq!(sq.is_bind(block), is_bind, "{wr:?}");
        sq.complete(block).unwrap();
    }
}
