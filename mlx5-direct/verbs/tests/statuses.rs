//! What a program learns of a failed operation: from any entry that a card may write.
#![allow(missing_docs)]

use doorbell_sys::ibv_wc;
use doorbell_sys::ibv_wc_status::*;
use mlx5_direct::{
    Completion,
    cqe::{self, RawCqe},
};

#[path = "../src/wc.rs"]
#[allow(dead_code, reason = "only failures are tested here")]
mod wc;

/// The status that libmlx5 gives for a syndrome.
fn status(syndrome: u8) -> u32 {
    match syndrome {
        0x01 => IBV_WC_LOC_LEN_ERR,
        0x02 => IBV_WC_LOC_QP_OP_ERR,
        0x04 => IBV_WC_LOC_PROT_ERR,
        0x05 => IBV_WC_WR_FLUSH_ERR,
        0x06 => IBV_WC_MW_BIND_ERR,
        0x10 => IBV_WC_BAD_RESP_ERR,
        0x11 => IBV_WC_LOC_ACCESS_ERR,
        0x12 => IBV_WC_REM_INV_REQ_ERR,
        0x13 => IBV_WC_REM_ACCESS_ERR,
        0x14 => IBV_WC_REM_OP_ERR,
        0x15 => IBV_WC_RETRY_EXC_ERR,
        0x16 => IBV_WC_RNR_RETRY_EXC_ERR,
        0x22 => IBV_WC_REM_ABORT_ERR,
        _ => IBV_WC_GENERAL_ERR,
    }
}

#[test]
fn status_and_vendor_error_depend_on_the_syndromes_only() {
    let mut seed = 7_u64;
    let mut random = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 40) as u8
    };
    for round in 0..100_000_u32 {
        let mut bytes: [u8; 64] = std::array::from_fn(|_| random());
        // All syndromes, as a sender and as a receiver, solicited or not, for both owners.
        bytes[55] = round as u8;
        bytes[63] = if round & 0x100 == 0 { 0xd0 } else { 0xe0 } | random() & 3;
        let raw = RawCqe::from_bytes(&bytes);
        let (Ok(Completion::SendError(error)) | Ok(Completion::RecvError(error))) = cqe::decode(&raw) else {
            panic!("{bytes:x?}");
        };
        let mut completion = ibv_wc {
            wr_id: 0,
            status: 0,
            opcode: 0x77,
            vendor_err: 0,
            byte_len: 0x77,
            imm_data_invalidated_rkey_union: doorbell_sys::imm_data_invalidated_rkey_union_t { imm_data: 0 },
            qp_num: 0,
            src_qp: 0,
            wc_flags: 0,
            pkey_index: 0,
            slid: 0,
            sl: 0,
            dlid_path_bits: 0,
        };
        wc::failed(&mut completion, &error, 42);
        assert_eq!(completion.status, status(bytes[55]), "{bytes:x?}");
        assert_eq!((completion.wr_id, completion.vendor_err), (42, bytes[54].into()));
        assert_eq!(completion.qp_num, u32::from_be_bytes([0, bytes[57], bytes[58], bytes[59]]));
        assert_eq!((completion.opcode, completion.byte_len), (0x77, 0x77), "untouched");
        // The reader of an extended CQ.
        assert_eq!(raw.error_syndromes().1, bytes[54]);
    }
}
