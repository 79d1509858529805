//! A driver that writes queue memory itself, at literal offsets from the addresses of
//! `mlx5dv_init_obj`.
#![expect(unsafe_code, reason = "raw queue memory")]
#![allow(dead_code, unreachable_pub, missing_docs, reason = "each test file uses a part")]

use super::common::*;

#[link(name = "mlx5")]
unsafe extern "C" {
    fn mlx5dv_init_obj(obj: *mut [u64; 64], kind: u64) -> i32;
}

pub const OBJ_QP: u64 = 1;
pub const OBJ_CQ: u64 = 2;
pub const OBJ_SRQ: u64 = 4;

/// A view that libmlx5 filled in; field offsets as in mlx5dv.h.
pub struct View([u64; 32]);

impl View {
    pub fn of(kind: u64, object: usize) -> Self {
        let mut view = Self([0; 32]);
        let mut obj = [0u64; 64];
        let at = match kind {
            OBJ_QP => 0,
            OBJ_CQ => 2,
            _ => 4,
        };
        obj[at] = object as u64;
        obj[at + 1] = view.0.as_mut_ptr() as u64;
        // SAFETY: in and out pointers of the requested kind are set. The view is larger than any of
        // the structures.
        assert_eq!(unsafe { mlx5dv_init_obj(&raw mut obj, kind) }, 0);
        view
    }

    pub fn u64(&self, offset: usize) -> u64 {
        self.0[offset / 8]
    }

    pub fn u32(&self, offset: usize) -> u32 {
        (self.0[offset / 8] >> (offset % 8 * 8)) as u32
    }
}

/// # Safety
/// `at` is a mapped, aligned word of queue memory.
pub unsafe fn store32(at: u64, value: u32) {
    // SAFETY: by contract.
    unsafe { (at as *mut u32).write_volatile(value.to_be()) };
}

/// # Safety
/// `at` is a mapped, aligned word of queue memory.
pub unsafe fn load32(at: u64) -> u32 {
    // SAFETY: by contract.
    u32::from_be(unsafe { (at as *const u32).read_volatile() })
}

/// A send queue that is written directly.
pub struct DirectSq {
    pub buf: u64,
    pub record: u64,
    pub register: u64,
    /// Bytes of a half of the register.
    pub half: u64,
    pub qpn: u32,
    pub count: u32,
    pub index: u16,
}

impl DirectSq {
    pub fn new(qp: *mut ibv_qp) -> Self {
        let view = View::of(OBJ_QP, qp as usize);
        Self {
            buf: view.u64(8),
            record: view.u64(0),
            register: view.u64(40),
            half: u64::from(view.u32(48)),
            qpn: qpn(qp),
            count: view.u32(16),
            index: 0,
        }
    }

    /// A signalled SEND of 48 bytes; returns the first eight bytes of the WQE.
    pub fn write(&self, sge: &ibv_sge) -> (u32, u32) {
        let at = self.buf + u64::from(u32::from(self.index) & (self.count - 1)) * 64;
        let words = (u32::from(self.index) << 8 | 0x0a, self.qpn << 8 | 2);
        // SAFETY: the first 32 bytes of the WQE, inside the ring.
        unsafe {
            for (i, word) in
                [words.0, words.1, 8, 0, sge.length, sge.lkey, (sge.addr >> 32) as u32, sge.addr as u32]
                    .iter()
                    .enumerate()
            {
                store32(at + i as u64 * 4, *word);
            }
        }
        words
    }

    /// A signalled RDMA WRITE; returns the first eight bytes of the WQE.
    pub fn write_rdma(&self, sge: &ibv_sge, to: u64, rkey: u32) -> (u32, u32) {
        let at = self.buf + u64::from(u32::from(self.index) & (self.count - 1)) * 64;
        let words = (u32::from(self.index) << 8 | 0x08, self.qpn << 8 | 3);
        let remote = [(to >> 32) as u32, to as u32, rkey, 0];
        let local = [sge.length, sge.lkey, (sge.addr >> 32) as u32, sge.addr as u32];
        let control = [words.0, words.1, 8, 0];
        for (i, word) in control.iter().chain(&remote).chain(&local).enumerate() {
            // SAFETY: the first 48 bytes of the WQE, inside the ring.
            unsafe { store32(at + i as u64 * 4, *word) };
        }
        words
    }

    pub fn send(&mut self, sge: &ibv_sge) {
        let words = self.write(sge);
        self.ring(words);
    }

    /// Announces the WQE and lets the engine run.
    pub fn ring(&mut self, words: (u32, u32)) {
        self.ring_only(words);
        mlx5_emu::step();
    }

    /// Announces the WQE: doorbell record and register.
    pub fn ring_only(&mut self, words: (u32, u32)) {
        self.index = self.index.wrapping_add(1);
        // SAFETY: record and register of the QP.
        unsafe {
            store32(self.record + 4, u32::from(self.index));
            let word = u64::from(words.0) << 32 | u64::from(words.1);
            (self.register as *mut u64).write_volatile(word.to_be());
        }
    }
}

/// Bit of an arm word that limits it to solicited completions.
pub const SOLICITED_ONLY: u32 = 1 << 24;

/// A CQ that is read directly.
pub struct DirectCq {
    buf: u64,
    record: u64,
    count: u32,
    size: u64,
    index: u32,
    register: u64,
    cqn: u32,
}

impl DirectCq {
    pub fn new(cq: *mut ibv_cq) -> Self {
        let view = View::of(OBJ_CQ, cq as usize);
        Self {
            buf: view.u64(0),
            record: view.u64(8),
            count: view.u32(16),
            size: u64::from(view.u32(20)),
            index: 0,
            register: view.u64(24) + 0x20,
            cqn: view.u32(32),
        }
    }

    /// Writes the arm word into the record, as the first step of arming.
    pub fn arm_record(&self, word: u32) {
        // SAFETY: the CQ's doorbell record.
        unsafe { store32(self.record + 4, word) };
    }

    /// Writes the arm word into the register, as the second step of arming.
    pub fn arm_register(&self, word: u32) {
        let word = u64::from(word) << 32 | u64::from(self.cqn);
        // SAFETY: the register of the CQ's context.
        unsafe { (self.register as *mut u64).write_volatile(word.to_be()) };
    }

    /// Whether the device has taken the last arm word from the register.
    pub fn is_arm_taken(&self) -> bool {
        // SAFETY: as above.
        unsafe { (self.register as *const u64).read_volatile() == 0 }
    }

    /// Arms the CQ for the next completion. `serial` counts the events of the CQ.
    pub fn arm(&self, serial: u32) {
        let word = (serial & 3) << 28 | self.index & 0xff_ffff;
        self.arm_record(word);
        self.arm_register(word);
    }

    /// The bytes of the CQE `back` CQEs before the next one.
    pub fn bytes_before(&self, back: u32) -> [u8; 64] {
        let slot = u64::from(self.index.wrapping_sub(back) & (self.count - 1));
        let at = self.buf + slot * self.size + self.size - 64;
        // SAFETY: inside the CQ's buffer. The device has written the CQE and leaves it alone.
        unsafe { (at as *const [u8; 64]).read_volatile() }
    }

    /// Consumes all CQEs and returns their number. Every CQE must be good.
    pub fn consume(&mut self) -> usize {
        std::iter::from_fn(|| self.next_opcode()).count()
    }

    /// Consumes the next CQE, which must be good, and returns its opcode.
    pub fn next_opcode(&mut self) -> Option<u8> {
        let at = self.buf + u64::from(self.index & (self.count - 1)) * self.size + self.size - 1;
        // SAFETY: inside the CQ's buffer.
        let own = unsafe { (at as *const u8).read_volatile() };
        if own >> 4 == 15 || u32::from(own & 1) != (self.index >> self.count.trailing_zeros()) & 1 {
            return None;
        }
        assert!(own >> 4 < 13, "an error completion");
        self.index += 1;
        // SAFETY: the CQ's doorbell record.
        unsafe { store32(self.record, self.index & 0xff_ffff) };
        Some(own >> 4)
    }
}
