//! Advertised attributes match behaviour: limits, kinds of memory, quality of service, where
//! asynchronous events go.

use doorbell::{
    AsyncKind, AsyncObject, CompletionFlags, ConnectOptions, DtoStatus, Ep, EpAttr, Evd, EvdFlags, Ia, Lmr,
    LmrTriplet, MemPriv, Psp, ReturnType, Rmr, RmrScope, RmrTriplet, VaType,
};
use doorbell_hw_tests::dat;
use doorbell_hw_tests::rig::*;
use doorbell_hw_tests::{Rig, devices, tests};
use memmap2::MmapMut;

fn main() {
    doorbell_hw_tests::run(tests![
        eps_can_have_what_is_advertised_and_no_more,
        evds_can_be_as_long_as_advertised_and_no_longer,
        private_data_has_the_advertised_limit,
        messages_have_the_advertised_limit_of_segments,
        totals_are_no_less_than_what_one_ep_can_have,
        zero_based_memory_is_named_from_0,
        zero_based_memory_ends_where_it_ends,
        lmrs_can_be_as_long_as_advertised_and_no_longer,
        segments_to_be_synced_have_to_be_there,
        shared_memory_can_be_registered_as_such,
        memory_can_be_registered_with_two_ias,
        two_ias_tell_one_evd,
        an_ia_closes_although_another_tells_its_evd,
        an_evd_for_other_streams_is_not_told,
    ])
    .exit();
}

const NONE: CompletionFlags = CompletionFlags::empty();

/// There is no memory for such an LMR, but its length is none of the bad parameters.
fn lmrs_can_be_as_long_as_advertised_and_no_longer() {
    let side = one_side();
    let most = side.ia.attributes().max_lmr_size;
    let make = |len| code(Lmr::builder(&side.ia, &side.pz).privileges(all_privileges()).allocate(len));
    assert_eq!(make(0), dat::INVALID_ARG4);
    match usize::try_from(most) {
        Ok(most) if most < usize::MAX => assert_eq!(make(most + 1), dat::INVALID_ARG4),
        _ => assert_eq!(make(usize::MAX), dat::RESOURCE_MEMORY_REGION),
    }
}

fn eps_can_have_what_is_advertised_and_no_more() {
    let side = one_side();
    let a = side.ia.attributes().clone();
    type Set = fn(&mut EpAttr, u32);
    let limits: [(&str, Set, u32); 8] = [
        ("recv_depth", |attr, n| attr.recv_depth = n, a.max_ep_depth),
        ("request_depth", |attr, n| attr.request_depth = n, a.max_ep_depth),
        ("recv_segments", |attr, n| attr.recv_segments = n, a.max_segments),
        ("request_segments", |attr, n| attr.request_segments = n, a.max_segments),
        ("rdma_reads_in", |attr, n| attr.rdma_reads_in = n, a.max_rdma_reads_in),
        ("rdma_reads_out", |attr, n| attr.rdma_reads_out = n, a.max_rdma_reads_out),
        ("rdma_read_segments", |attr, n| attr.rdma_read_segments = n, a.max_read_segments),
        ("rdma_write_segments", |attr, n| attr.rdma_write_segments = n, a.max_write_segments),
    ];
    for (name, set, most) in limits {
        assert!(most > 0, "{name}");
        let make = |n| {
            let mut attr = EpAttr { request_depth: 1, recv_depth: 1, ..EpAttr::default() };
            set(&mut attr, n);
            Ep::builder(&side.ia, &side.pz).evds(side.evds()).attributes(&attr).build()
        };
        // How many requests fit depends on their segments too: a device may refuse for lack of
        // resources, but not as a bad parameter.
        match make(most) {
            Ok(_) => {}
            Err(e) => assert_eq!(e.return_type(), ReturnType::InsufficientResources, "{name} {most}: {e}"),
        }
        assert_eq!(code(make(most + 1)), dat::INVALID_ARG6, "{name}");
    }
}

fn evds_can_be_as_long_as_advertised_and_no_longer() {
    let side = one_side();
    let most = side.ia.attributes().max_evd_depth;
    let software = Evd::new(&side.ia, most, EvdFlags::SOFTWARE).unwrap();
    assert!(software.query().unwrap().depth >= most);
    assert_eq!(code(Evd::new(&side.ia, most + 1, EvdFlags::SOFTWARE)), dat::INVALID_ARG2);
    assert_eq!(code(software.resize(most + 1)), dat::INVALID_ARG2);
}

fn private_data_has_the_advertised_limit() {
    let rig = Rig::new();
    let most = rig.server.ia.provider_attributes().max_private_data_size;
    let psp = Psp::builder(&rig.server.ia, &rig.server.cr).build().unwrap();
    let port = psp.port();
    let client = rig.client.ep(&EpAttr::default());
    let connect = |data: &[u8]| {
        client.connect_with(
            (rig.server.ia.address(), port).into(),
            ConnectOptions::new().timeout(LONG).private_data(data),
        )
    };
    assert_eq!(code(connect(&vec![7; most + 1])), dat::INVALID_ARG5);
    connect(&vec![7; most]).unwrap();
    assert_eq!(connection_request(&rig.server.cr).cr.private_data(), vec![7; most]);
}

fn messages_have_the_advertised_limit_of_segments() {
    let rig = Rig::new();
    let most = rig.client.ia.attributes().max_segments;
    let attr = EpAttr { request_segments: most, recv_depth: 2, request_depth: 2, ..EpAttr::default() };
    let mut pair = rig.connect(rig.server.ep(&EpAttr::default()), rig.client.ep(&attr));
    pair.server.post_recv(&[rig.server.lmr.triplet(0, 4096)], 0, NONE).unwrap();
    let pieces: Vec<_> = (0..=most as usize).map(|i| rig.client.lmr.triplet(16 * i, 1)).collect();
    pair.client.send(&pieces[..most as usize]).post().unwrap();
    assert_eq!(dto(&rig.server.recv).length, most);
    assert_eq!(code(pair.client.send(&pieces).post()), dat::INVALID_ARG2);
}

fn totals_are_no_less_than_what_one_ep_can_have() {
    let side = one_side();
    let a = side.ia.attributes();
    assert!(a.total_rdma_reads_in >= a.max_rdma_reads_in);
    assert!(a.total_rdma_reads_out >= a.max_rdma_reads_out);
    for n in [a.max_eps, a.max_evds, a.max_lmrs, a.max_pzs, a.max_srqs, a.max_eps_per_srq] {
        assert!(n > 0);
    }
}

/// At both ends, for messages and for RDMA.
fn zero_based_memory_is_named_from_0() {
    let rig = Rig::new();
    assert!(rig.server.ia.attributes().zero_based);
    let server = Lmr::builder(&rig.server.ia, &rig.server.pz)
        .privileges(all_privileges())
        .va_type(VaType::ZeroBased)
        .allocate(8192)
        .unwrap();
    let client = Lmr::builder(&rig.client.ia, &rig.client.pz)
        .privileges(all_privileges())
        .va_type(VaType::ZeroBased)
        .allocate(8192)
        .unwrap();
    assert_eq!((server.va_type(), server.triplet(5, 1).virtual_address), (VaType::ZeroBased, 5));
    assert_ne!(server.address(), 0);
    client.write(100, b"from zero").unwrap();
    let mut pair = rig.connect_plain(&EpAttr::default());
    pair.server.post_recv(&[server.triplet(200, 64)], 1, NONE).unwrap();
    pair.client.send(&[client.triplet(100, 9)]).cookie(2).post().unwrap();
    assert_eq!(dto(&rig.server.recv).status, DtoStatus::Success);
    assert_eq!(dto(&rig.client.request).status, DtoStatus::Success);
    let bytes = |lmr: &Lmr, at| {
        let mut bytes = [0; 9];
        lmr.read(at, &mut bytes).unwrap();
        bytes
    };
    assert_eq!(&bytes(&server, 200), b"from zero");
    let there = |at| RmrTriplet { virtual_address: at, segment_length: 9, rmr_context: server.rmr_context() };
    pair.client.write(&[client.triplet(100, 9)]).to(there(4096)).cookie(3).post().unwrap();
    assert_eq!(dto(&rig.client.request).status, DtoStatus::Success);
    assert_eq!(&bytes(&server, 4096), b"from zero");
    pair.client.read(&[client.triplet(0, 9)]).from(there(200)).cookie(4).post().unwrap();
    assert_eq!(dto(&rig.client.request).status, DtoStatus::Success);
    assert_eq!(&bytes(&client, 0), b"from zero");
    // Memory windows cannot be bound to it.
    if rig.server.ia.attributes().max_rmrs > 0 {
        let mut rmr = Rmr::new(&rig.server.pz, RmrScope::Ep).unwrap();
        let to = doorbell::RmrBind {
            lmr: &server,
            segment: server.triplet(0, 64),
            privileges: MemPriv::REMOTE_READ,
            va_type: VaType::ZeroBased,
        };
        assert_eq!(code(rmr.bind(&mut pair.server, to, 0, NONE)), dat::MODEL_NOT_SUPPORTED);
    }
}

fn zero_based_memory_ends_where_it_ends() {
    let rig = Rig::new();
    let lmr = Lmr::builder(&rig.server.ia, &rig.server.pz)
        .privileges(all_privileges())
        .va_type(VaType::ZeroBased)
        .allocate(4096)
        .unwrap();
    let mut ep = rig.server.ep(&EpAttr::default());
    assert_eq!((lmr.len(), lmr.is_empty()), (4096, false));
    ep.post_recv(&[lmr.triplet(0, 4096)], 0, NONE).unwrap();
    assert_eq!(code(ep.post_recv(&[lmr.triplet(1, 4096)], 0, NONE)), dat::INVALID_ARG3);
    let real = LmrTriplet { virtual_address: lmr.address(), ..lmr.triplet(0, 1) };
    assert_eq!(code(ep.post_recv(&[real], 0, NONE)), dat::INVALID_ARG3);
}

fn segments_to_be_synced_have_to_be_there() {
    let side = one_side();
    let good = side.lmr.triplet(0, 64);
    side.ia.sync_rdma_read(&[good, LmrTriplet::default()]).unwrap();
    side.ia.sync_rdma_write(&[good]).unwrap();
    let outside = side.lmr.triplet(side.lmr.len() - 1, 2);
    assert_eq!(code(side.ia.sync_rdma_read(&[good, outside])), dat::INVALID_ARG2);
    let freed = Lmr::builder(&side.ia, &side.pz).privileges(MemPriv::LOCAL_READ).allocate(64).unwrap();
    let stale = freed.triplet(0, 64);
    freed.close().unwrap();
    assert_eq!(code(side.ia.sync_rdma_write(&[stale])), dat::INVALID_ARG2);
}

#[expect(unsafe_code, reason = "registers memory that the test owns")]
fn shared_memory_can_be_registered_as_such() {
    let side = one_side();
    let file = tempfile();
    // SAFETY: nobody else has this file.
    let mut shared = unsafe { MmapMut::map_mut(&file).unwrap() };
    let mut private = MmapMut::map_anon(8192).unwrap();
    let register = |memory: &mut MmapMut| {
        // SAFETY: both mappings outlive the LMRs, and nothing is posted.
        unsafe {
            let start = memory.as_mut_ptr();
            Lmr::builder(&side.ia, &side.pz).privileges(all_privileges()).over_shared(start, 8192)
        }
    };
    let lmr = register(&mut shared).unwrap();
    lmr.write(0, b"shared").unwrap();
    assert_eq!(code(register(&mut private)), dat::INVALID_STATE_LMR_FREE);
    drop(lmr);
}

/// The memory stays when the LMR that has allocated it is gone, with its IA.
fn memory_can_be_registered_with_two_ias() {
    let (first, second) = (one_side(), one_side());
    let table = Lmr::builder(&first.ia, &first.pz).allocate(4096).unwrap();
    let again = Lmr::builder(&second.ia, &second.pz).privileges(all_privileges()).memory_of(&table).unwrap();
    table.write(100, b"both").unwrap();
    assert_eq!(content_of(&[(&again, 100, 4)]), b"both");
    assert_eq!((again.address(), again.len()), (table.address(), table.len()));
    drop(first);
    let refused = Lmr::builder(&second.ia, &second.pz).memory_of(&table);
    assert_eq!(refused.unwrap_err().return_type(), ReturnType::InvalidHandle);
    drop(table);
    assert_eq!(content_of(&[(&again, 100, 4)]), b"both");
}

/// A file of 8 KiB without a name.
fn tempfile() -> std::fs::File {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = std::fs::OpenOptions::new();
    let folder = if std::path::Path::new("/dev/shm").is_dir() { "/dev/shm" } else { "/tmp" };
    let file = options.read(true).write(true).custom_flags(libc::O_TMPFILE).open(folder).unwrap();
    file.set_len(8192).unwrap();
    file
}

fn sharing(other: &Evd) -> Ia {
    Ia::builder(&devices().unwrap().0).async_evd(other).open().unwrap()
}

/// Exceeds the soft watermark of an EP of this IA.
fn make_news(ia: &Ia) -> (Ep, doorbell::Pz) {
    let pz = doorbell::Pz::new(ia).unwrap();
    let mut ep = Ep::builder(ia, &pz).build().unwrap();
    ep.post_recv(&[], 0, NONE).unwrap();
    ep.set_watermark(Some(0), None).unwrap();
    (ep, pz)
}

fn two_ias_tell_one_evd() {
    let first = one_side();
    let second = sharing(first.ia.async_evd());
    assert_eq!(second.async_evd().id(), first.ia.async_evd().id());
    for ia in [&second, &first.ia] {
        let (ep, _pz) = make_news(ia);
        let event = asynchronous(&first.ia);
        assert_eq!((event.kind, event.object), (AsyncKind::Notice, AsyncObject::Ep(ep.id())));
    }
    // The IA has no objects, so it closes gracefully; the EVD stays.
    second.close().unwrap();
    let (_ep, _pz) = make_news(&first.ia);
    asynchronous(&first.ia);
    // An EVD that was made for the stream works as well.
    let made = first.evd(EvdFlags::ASYNC);
    let third = sharing(&made);
    let (ep, _pz) = make_news(&third);
    match next(&made) {
        doorbell::Event::Async(event) => assert_eq!(event.object, AsyncObject::Ep(ep.id())),
        other => panic!("{other:?}"),
    }
}

fn an_ia_closes_although_another_tells_its_evd() {
    let first = Ia::open(&devices().unwrap().0).unwrap();
    let evd = first.async_evd().clone();
    let second = sharing(&evd);
    first.close().unwrap();
    assert_eq!(code(evd.dequeue()), dat::INVALID_HANDLE_EVD_REQUEST);
    let (_ep, _pz) = make_news(&second);
    drop(second);
}

fn an_evd_for_other_streams_is_not_told() {
    let side = one_side();
    let name = devices().unwrap().0;
    let refused = Ia::builder(&name).async_evd(&side.recv).open();
    assert_eq!(code(refused), dat::INVALID_HANDLE_EVD_ASYNC);
    let freed = side.evd(EvdFlags::ASYNC);
    freed.clone().close().unwrap();
    assert_eq!(code(Ia::builder(&name).async_evd(&freed).open()), dat::INVALID_HANDLE_EVD_ASYNC);
}
