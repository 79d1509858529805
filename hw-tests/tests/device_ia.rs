//! What the provider advertises, memory under SRQs, IA close, and the IB extension (sections Q to T
//! of the rules).

use doorbell::{
    AsyncKind, AsyncObject, CloseFlags, CompletionFlags, ConnectionEventKind, Count, DtoCompletion, DtoOp,
    DtoStatus, Ep, EpAttr, EpChange, EpEvds, EpState, Evd, EvdFlags, EventData, Ia, Lmr, MemPriv, Psp, Pz,
    ReturnType, RmrTriplet, Srq, SrqAttr, reason,
};
use doorbell_hw_tests::dat;
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Pair, Rig, devices, tests};

fn main() {
    doorbell_hw_tests::run(tests![
        r259_attr_srq_supported,
        r260_attr_watermark_bits,
        r261_attr_pz_difference,
        r262_attr_srq_info_bits,
        r263_attr_ep_recv_info_bits,
        r264_attr_ia_srq_limits,
        r267_attr_completion_flags,
        r268_attr_iov_ownership,
        r269_recv_needs_local_write_only,
        r270_lmr_free_with_posted_buffer,
        r271_pz_free_refused_while_srq,
        r272_lmr_sync_not_required,
        r273_ia_close_graceful_refused_with_srq,
        r274_ia_close_abrupt_frees_srq,
        r275_ia_close_drops_handles,
        r276_write_immed_takes_srq_buffer,
        r277_write_immed_event_on_srq_ep,
        r278_write_immed_counts_everywhere,
        r279_write_immed_solicited,
    ])
    .exit();
}

const NONE: CompletionFlags = CompletionFlags::empty();

fn open() -> Ia {
    Ia::open(&devices().unwrap().0).unwrap()
}

/// SRQs are there, and work.
fn r259_attr_srq_supported() {
    let rig = Rig::new();
    assert!(rig.server.ia.provider_attributes().srq_supported);
    let mut srq = rig.server.srq(2);
    let mut pair = rig.connect_srq(&srq);
    rig.server.post(&mut srq, 1, 64, 0, 5);
    assert_eq!(rig.deliver(&mut pair, 8).cookie, 5);
}

/// All three watermark bits are set, and each mark works: none of the calls is refused. Also R125,
/// R227.
fn r260_attr_watermark_bits() {
    let rig = Rig::new();
    assert_eq!(rig.server.ia.provider_attributes().srq_watermarks_supported, 0x111);
    let mut srq = rig.server.srq(4);
    srq.set_low_watermark(1).unwrap();
    let low = asynchronous(&rig.server.ia);
    assert_eq!((low.object, low.reason), (AsyncObject::Srq(srq.id()), reason::SRQ_LOW_WATERMARK));
    let mut ep = rig.server.ep(&EpAttr::default());
    ep.post_recv(&[], 0, NONE).unwrap();
    ep.set_watermark(0, 0).unwrap();
    let soft = asynchronous(&rig.server.ia);
    assert_eq!((soft.object, soft.reason), (AsyncObject::Ep(ep.id()), reason::EP_SOFT_HIGH_WATERMARK));
}

/// The attribute is right: if differing PZs are supported, an EP of another PZ can be created and
/// receives; otherwise it is refused with INVALID_PARAMETER (ARG2).
fn r261_attr_pz_difference() {
    let rig = Rig::new();
    let server = &rig.server;
    let other = Pz::create(&server.ia).unwrap();
    let mut srq = server.srq(4);
    let made = Ep::create_with_srq(&server.ia, &other, server.evds(), &srq, &EpAttr::default());
    if server.ia.provider_attributes().srq_ep_pz_difference_supported {
        let mut pair = rig.connect(made.unwrap(), rig.client.ep(&EpAttr::default()));
        server.post(&mut srq, 1, 64, 0, 9);
        assert_eq!(rig.deliver(&mut pair, 8).cookie, 9);
    } else {
        assert_eq!(made.unwrap_err().code(), dat::INVALID_ARG2);
        other.free().unwrap();
    }
}

/// Both counts of an SRQ are advertised and never unknown.
fn r262_attr_srq_info_bits() {
    let rig = Rig::new();
    assert_eq!(rig.server.ia.provider_attributes().srq_info_supported, 0x11);
    let mut srq = rig.server.srq(8);
    let mut pair = rig.connect_srq(&srq);
    rig.server.post(&mut srq, 8, 64, 0, 0);
    for _ in 0..8 {
        pair.client.post_send(&[rig.client.lmr.triplet(0, 8)], 0, NONE).unwrap();
    }
    until("all have arrived, the counts known throughout", || {
        let (available, outstanding) = counts(&srq);
        assert!((0..=8).contains(&available));
        assert_eq!(outstanding, 8);
        available == 0
    });
}

/// Both numbers of an EP are advertised, and a plain EP always knows them.
fn r263_attr_ep_recv_info_bits() {
    let rig = Rig::new();
    assert_eq!(rig.server.ia.provider_attributes().ep_recv_info_supported, 0x11);
    let mut ep = rig.server.ep(&EpAttr::default());
    ep.post_recv(&[], 0, NONE).unwrap();
    let held = ep.recv_query().unwrap();
    assert_eq!((held.buffers, held.span), (1, 1));
}

/// The three limits are above zero; depth is enforced at creation (ARG3) and resize (ARG2), and
/// what is within it works.
fn r264_attr_ia_srq_limits() {
    let rig = Rig::new();
    let server = &rig.server;
    let attr = server.ia.attributes();
    assert!(attr.max_srqs > 0 && attr.max_ep_per_srq > 0 && attr.max_recv_per_srq > 0, "{attr:?}");
    let most = attr.max_recv_per_srq;
    for depth in [most + 1, Count::MAX] {
        let refused = Srq::create(&server.ia, &server.pz, SrqAttr::depth(depth)).unwrap_err();
        assert_eq!(refused.code(), dat::INVALID_ARG3);
    }
    let mut srq = server.srq(2);
    assert_eq!(srq.resize(most + 1).unwrap_err().code(), dat::INVALID_ARG2);
    assert_eq!(srq.query().unwrap().max_recv_dtos, 2);
    let deepest = Srq::create(&server.ia, &server.pz, SrqAttr::depth(most)).unwrap();
    assert!(deepest.query().unwrap().max_recv_dtos >= most);
}

/// Every advertised flag is taken where it belongs.
fn r267_attr_completion_flags() {
    let rig = Rig::new();
    let supported = rig.server.ia.provider_attributes().completion_flags_supported;
    let modes =
        [CompletionFlags::UNSIGNALLED, CompletionFlags::SOLICITED_WAIT, CompletionFlags::EVD_THRESHOLD];
    let srq = rig.server.srq(4);
    for mode in modes {
        assert!(supported.contains(mode), "{supported:?}");
        let recv = Evd::create(&rig.server.ia, 8, None, EvdFlags::DTO).unwrap();
        let evds = EpEvds { recv: Some(&recv), ..rig.server.evds() };
        let attr = EpAttr { recv_completion_flags: mode, ..EpAttr::default() };
        let ep = Ep::create_with_srq(&rig.server.ia, &rig.server.pz, evds, &srq, &attr).unwrap();
        assert_eq!(ep.query().unwrap().attr.recv_completion_flags, mode);
    }
    let mut pair = rig.connect_plain(&EpAttr::default());
    for flags in [CompletionFlags::SUPPRESS, CompletionFlags::BARRIER_FENCE, CompletionFlags::SOLICITED_WAIT]
    {
        assert!(supported.contains(flags), "{supported:?}");
        pair.server.post_recv(&[rig.server.lmr.triplet(0, 64)], 1, NONE).unwrap();
        pair.client.post_send(&[rig.client.lmr.triplet(0, 8)], 1, flags).unwrap();
        assert_eq!(dto(&rig.server.recv).status, DtoStatus::Success);
    }
}

/// The triplets are copied during the post (`DAT_IOV_CONSUMER`, 0): later changes of the array have
/// no effect.
fn r268_attr_iov_ownership() {
    let rig = Rig::new();
    let server = &rig.server;
    assert_eq!(server.ia.provider_attributes().iov_ownership_on_return, 0);
    let mut srq = server.srq(2);
    let mut pair = rig.connect_srq(&srq);
    let mut iov = [server.lmr.triplet(0, 64)];
    server.lmr.write(0, &[0; 256]).unwrap();
    srq.post_recv(&iov, 1).unwrap();
    iov[0] = server.lmr.triplet(128, 64);
    rig.client.lmr.write(0, b"doorbell").unwrap();
    rig.deliver(&mut pair, 8);
    let mut got = [0; 8];
    server.lmr.read(0, &mut got).unwrap();
    assert_eq!(&got, b"doorbell");
    server.lmr.read(iov[0].virtual_address as usize - server.lmr.address() as usize, &mut got).unwrap();
    assert_eq!(got, [0; 8]);
}

/// A buffer with local write alone receives; one with everything else is refused.
fn r269_recv_needs_local_write_only() {
    let rig = Rig::new();
    let server = &rig.server;
    let only = Lmr::create(&server.ia, &server.pz, 64, MemPriv::LOCAL_WRITE).unwrap();
    let all_but = MemPriv::LOCAL_READ | MemPriv::REMOTE_READ | MemPriv::REMOTE_WRITE;
    let without = Lmr::create(&server.ia, &server.pz, 64, all_but).unwrap();
    let mut srq = server.srq(2);
    let refused = srq.post_recv(&[without.triplet(0, 64)], 0).unwrap_err();
    assert_eq!((refused.code(), counts(&srq)), (dat::PRIVILEGES_WRITE, (0, 0)));
    srq.post_recv(&[only.triplet(0, 64)], 3).unwrap();
    let mut pair = rig.connect_srq(&srq);
    rig.client.lmr.write(0, b"message!").unwrap();
    assert_eq!(rig.deliver(&mut pair, 8).cookie, 3);
    let mut got = [0; 8];
    only.read(0, &mut got).unwrap();
    assert_eq!(&got, b"message!");
}

/// An LMR can be freed under a posted buffer. A message that lands there fails with
/// LOCAL_PROTECTION and breaks its connection; the SRQ and its other EP carry on.
fn r270_lmr_free_with_posted_buffer() {
    let rig = Rig::new();
    let server = &rig.server;
    let gone = Lmr::create(&server.ia, &server.pz, 64, MemPriv::LOCAL_WRITE).unwrap();
    let mut srq = server.srq(4);
    srq.post_recv(&[gone.triplet(0, 64)], 66).unwrap();
    server.post(&mut srq, 3, 64, 0, 0);
    let mut victim = rig.connect_srq(&srq);
    let mut other = rig.connect_srq(&srq);
    gone.free().unwrap();
    assert_eq!(counts(&srq), (4, 4));
    assert_ne!(rig.send(&mut victim, 0, 8).status, DtoStatus::Success);
    let failed = dto(&server.recv);
    assert_eq!(
        (failed.cookie, failed.ep, failed.status),
        (66, victim.server.id(), DtoStatus::LocalProtection)
    );
    expect_connection(&server.connect, &victim.server, ConnectionEventKind::Broken);
    expect_connection(&rig.client.connect, &victim.client, ConnectionEventKind::Broken);
    let got = rig.deliver(&mut other, 8);
    assert_eq!((got.ep, got.status), (other.server.id(), DtoStatus::Success));
    assert_eq!(counts(&srq), (2, 2));
}

/// A PZ that an SRQ uses cannot be freed: INVALID_STATE (PZ_IN_USE); after the SRQ it can.
fn r271_pz_free_refused_while_srq() {
    let ia = open();
    let pz = Pz::create(&ia).unwrap();
    let srq = Srq::create(&ia, &pz, SrqAttr::depth(4)).unwrap();
    let refused = pz.free().unwrap_err();
    assert_eq!(refused.error.code(), dat::INVALID_STATE_PZ_IN_USE);
    srq.free().unwrap();
    refused.object.free().unwrap();
}

/// No sync call is needed: once the completion is reaped the bytes are there.
fn r272_lmr_sync_not_required() {
    let rig = Rig::new();
    assert!(!rig.server.ia.provider_attributes().lmr_sync_req);
    let mut srq = rig.server.srq(4);
    let mut pair = rig.connect_srq(&srq);
    for round in 1..=20_u8 {
        rig.server.post(&mut srq, 1, 4096, 0, 0);
        rig.client.lmr.write(0, &[round; 4096]).unwrap();
        rig.deliver(&mut pair, 4096);
        let mut got = [0; 4096];
        rig.server.lmr.read(0, &mut got).unwrap();
        assert_eq!(got, [round; 4096]);
    }
}

/// A graceful close is refused while an SRQ lives, and changes nothing: INVALID_STATE (IA_IN_USE).
fn r273_ia_close_graceful_refused_with_srq() {
    let ia = open();
    let pz = Pz::create(&ia).unwrap();
    let mut srq = Srq::create(&ia, &pz, SrqAttr::depth(4)).unwrap();
    let refused = ia.close(CloseFlags::Graceful).unwrap_err();
    assert_eq!(refused.error.code(), dat::INVALID_STATE_IA_IN_USE);
    assert!(refused.error.to_string().contains("1 SRQs"), "{}", refused.error);
    srq.post_recv(&[], 1).unwrap();
    assert_eq!(counts(&srq), (1, 1));
    srq.free().unwrap();
    let ia = refused.object;
    pz.free().unwrap();
    ia.close(CloseFlags::Graceful).unwrap();
}

/// An abrupt close ends connections and frees everything, SRQs with posted buffers included; peers
/// see the end.
fn r274_ia_close_abrupt_frees_srq() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(8);
    rig.server.post(&mut srq, 8, 64, 0, 0);
    let mut pair = rig.connect_srq(&srq);
    rig.send(&mut pair, 0, 8);
    let Rig { server, client } = rig;
    server.ia.close(CloseFlags::Abrupt).unwrap();
    expect_connection(&client.connect, &pair.client, ConnectionEventKind::Disconnected);
    assert_eq!(srq.query().unwrap_err().code(), dat::INVALID_HANDLE_SRQ);
    assert_eq!(pair.server.state(), EpState::Disconnected);
}

/// After the close every object is stale: each call says so, none crashes, and dropping them is
/// harmless.
fn r275_ia_close_drops_handles() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(8);
    let mut pair = rig.connect_srq(&srq);
    let (psp, _) = Psp::create_any(&rig.server.ia, &rig.server.cr).unwrap();
    let Rig { server, client } = rig;
    let (id, segment) = (srq.id(), server.lmr.triplet(0, 8));
    server.ia.close(CloseFlags::Abrupt).unwrap();

    let stale = |code: u32| assert_eq!(code & 0x7fff_0000, ReturnType::InvalidHandle as u32, "{code:#x}");
    stale(srq.query().unwrap_err().code());
    stale(srq.resize(4).unwrap_err().code());
    stale(srq.set_low_watermark(1).unwrap_err().code());
    stale(srq.post_recv(&[segment], 1).unwrap_err().code());
    assert_eq!(srq.id(), id);
    let ep = &mut pair.server;
    stale(ep.query().unwrap_err().code());
    stale(ep.status().unwrap_err().code());
    stale(ep.recv_query().unwrap_err().code());
    stale(ep.set_watermark(1, 1).unwrap_err().code());
    stale(ep.modify(EpChange::default()).unwrap_err().code());
    stale(ep.disconnect(CloseFlags::Abrupt).unwrap_err().code());
    stale(ep.reset().unwrap_err().code());
    stale(ep.post_recv(&[segment], 1, NONE).unwrap_err().code());
    stale(ep.post_send(&[segment], 1, NONE).unwrap_err().code());
    stale(server.recv.dequeue().unwrap_err().code());
    stale(server.recv.wait(Some(LONG), 1).unwrap_err().error.code());
    stale(server.recv.query().unwrap_err().code());
    stale(server.recv.resize(100).unwrap_err().code());
    stale(server.recv.free().unwrap_err().code());
    stale(server.lmr.read(0, &mut [0]).unwrap_err().code());
    stale(server.lmr.free().unwrap_err().error.code());
    stale(psp.free().unwrap_err().code());
    stale(srq.free().unwrap_err().error.code());
    stale(pair.server.free().unwrap_err().error.code());
    stale(server.pz.free().unwrap_err().error.code());

    // The other IA is not touched.
    expect_connection(&client.connect, &pair.client, ConnectionEventKind::Disconnected);
    assert!(Lmr::create(&client.ia, &client.pz, 64, MemPriv::LOCAL_WRITE).is_ok());
}

/// A write with immediate from the client's first `len` bytes to the server's memory at `offset`.
fn write_immediate(
    rig: &Rig,
    pair: &mut Pair,
    offset: u64,
    len: u32,
    immediate: u32,
    flags: CompletionFlags,
) -> DtoCompletion {
    let to = RmrTriplet {
        virtual_address: rig.server.lmr.address() + offset,
        segment_length: len,
        rmr_context: rig.server.lmr.rmr_context(),
    };
    let from = [rig.client.lmr.triplet(0, len as usize)];
    pair.client.post_rdma_write_immediate(&from, 31, to, immediate, flags).unwrap();
    let event = next(&rig.client.request);
    // The requester's completion is one of the extension, too.
    assert_eq!(event.data.number(), 0x4_0000);
    *event.data.dto().unwrap()
}

const TARGET: u64 = 1 << 16;

/// A write with immediate takes one SRQ buffer and writes nothing into it: the bytes go to the RDMA
/// address.
fn r276_write_immed_takes_srq_buffer() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(4);
    let mut pair = rig.connect_srq(&srq);
    rig.server.lmr.write(0, &[0x55; 256]).unwrap();
    rig.client.lmr.write(0, &[0xaa; 100]).unwrap();
    rig.server.post(&mut srq, 3, 64, 0, 0);
    let sent = write_immediate(&rig, &mut pair, TARGET, 100, 7, NONE);
    assert_eq!((sent.status, sent.cookie, sent.op), (DtoStatus::Success, 31, DtoOp::RdmaWriteImmediate));
    assert!(dto(&rig.server.recv).is_success());
    assert_eq!(counts(&srq), (2, 2));
    let (mut buffer, mut target) = ([0; 256], [0; 101]);
    rig.server.lmr.read(0, &mut buffer).unwrap();
    assert_eq!(buffer, [0x55; 256]);
    rig.server.lmr.read(TARGET as usize, &mut target).unwrap();
    assert_eq!((&target[..100], target[100]), (&[0xaa; 100][..], 0));
}

/// The target's event: number 0x40000, the immediate value, the buffer's cookie, its EP and
/// context, the bytes written. A write of nothing is one, too.
fn r277_write_immed_event_on_srq_ep() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(4);
    let mut pair = rig.connect_srq(&srq);
    pair.server.set_context(0xabc);
    rig.server.post(&mut srq, 2, 64, 0, u64::MAX - 1);
    for (len, immediate, cookie) in [(100, 0x1234_5678, u64::MAX - 1), (0, u32::MAX, u64::MAX)] {
        write_immediate(&rig, &mut pair, TARGET, len, immediate, NONE);
        let event = next(&rig.server.recv);
        assert_eq!((event.data.number(), event.evd), (0x4_0000, rig.server.recv.id()));
        let got = *event.data.dto().unwrap();
        assert_eq!((got.op, got.immediate), (DtoOp::ReceiveRdmaWriteImmediate, Some(immediate)));
        assert_eq!((got.ep, got.ep_context, got.cookie), (pair.server.id(), 0xabc, cookie));
        assert_eq!((got.status, got.length), (DtoStatus::Success, len));
    }
    // A Send is an ordinary completion.
    rig.server.post(&mut srq, 1, 64, 0, 1);
    rig.send(&mut pair, 0, 8);
    let event = next(&rig.server.recv);
    assert_eq!((event.data.number(), event.data.dto().unwrap().immediate), (1, None));
}

/// A write with immediate counts like a Send: available, outstanding, low and high watermarks, a
/// plain EP's receives; and on an empty SRQ it breaks the connection.
fn r278_write_immed_counts_everywhere() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(4);
    let mut pair = rig.connect_srq(&srq);
    rig.server.post(&mut srq, 3, 64, 0, 0);
    srq.set_low_watermark(3).unwrap();
    pair.server.set_watermark(0, -1).unwrap();
    write_immediate(&rig, &mut pair, TARGET, 8, 1, NONE);
    until("it has arrived", || counts(&srq) == (2, 3));
    let events = [asynchronous(&rig.server.ia), asynchronous(&rig.server.ia)];
    assert!(events.iter().all(|event| event.kind == AsyncKind::Notice));
    let objects = events.map(|event| event.object);
    assert!(objects.contains(&AsyncObject::Srq(srq.id())), "{objects:?}");
    assert!(objects.contains(&AsyncObject::Ep(pair.server.id())), "{objects:?}");
    dto(&rig.server.recv);
    assert_eq!(counts(&srq), (2, 2));

    let mut plain = rig.connect_plain(&EpAttr::default());
    for cookie in 0..2 {
        plain.server.post_recv(&[], cookie, NONE).unwrap();
    }
    write_immediate(&rig, &mut plain, TARGET, 8, 1, NONE);
    until("it has arrived", || {
        let held = plain.server.recv_query().unwrap();
        (held.buffers, held.span) == (1, 1)
    });

    let empty = rig.server.srq(1);
    let mut pair = rig.connect_srq(&empty);
    assert_eq!(write_immediate(&rig, &mut pair, TARGET, 8, 1, NONE).status, DtoStatus::ReceiverNotReady);
}

/// SOLICITED_WAIT on a write with immediate decides whether a receiver in that mode is woken.
fn r279_write_immed_solicited() {
    let rig = Rig::new();
    let mut srq = rig.server.srq(4);
    let attr = EpAttr { recv_completion_flags: CompletionFlags::SOLICITED_WAIT, ..EpAttr::default() };
    let cno = doorbell::Cno::create(&rig.server.ia).unwrap();
    rig.server.recv.set_cno(Some(&cno)).unwrap();
    let mut pair = rig.connect(rig.server.srq_ep(&srq, &attr), rig.client.ep(&EpAttr::default()));
    rig.server.post(&mut srq, 2, 64, 0, 0);
    write_immediate(&rig, &mut pair, TARGET, 8, 1, NONE);
    until("it has arrived", || counts(&srq) == (1, 2));
    match cno.wait(Some(SHORT)) {
        Err(error) if error.return_type() == ReturnType::TimeoutExpired => {}
        other => panic!("expected no trigger: {other:?}"),
    }
    write_immediate(&rig, &mut pair, TARGET, 8, 2, CompletionFlags::SOLICITED_WAIT);
    assert_eq!(cno.wait(Some(LONG)).unwrap(), rig.server.recv.id());
    for immediate in [1, 2] {
        let EventData::Dto(got) = rig.server.recv.dequeue().unwrap().data else { panic!("no completion") };
        assert_eq!(got.immediate, Some(immediate));
    }
}
