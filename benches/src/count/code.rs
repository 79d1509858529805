//! The instructions at the addresses that callgrind names.

use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};

/// A program or library: an ELF file of 64 bits.
pub(super) struct Object {
    bytes: Vec<u8>,
    segments: Vec<Segment>,
}

/// A part of the file that is loaded.
struct Segment {
    offset: usize,
    address: u64,
    len: u64,
}

impl Object {
    pub(super) fn read(path: &Path) -> Result<Self> {
        let bytes = fs::read(path).with_context(|| format!("{}", path.display()))?;
        ensure!(bytes.starts_with(b"\x7fELF\x02\x01"), "{} is no ELF file of 64 bits", path.display());
        let segments = segments(&bytes).with_context(|| format!("{} is cut short", path.display()))?;
        Ok(Self { bytes, segments })
    }

    /// What the file has from this address on, as far as it is loaded together.
    pub(super) fn at(&self, address: u64) -> &[u8] {
        self.segments
            .iter()
            .find_map(|segment| {
                let within = address.checked_sub(segment.address).filter(|within| *within < segment.len)?;
                self.bytes.get(segment.offset + within as usize..segment.offset + segment.len as usize)
            })
            .unwrap_or(&[])
    }
}

/// The segments of type `PT_LOAD`. `None` if the file ends before.
fn segments(bytes: &[u8]) -> Option<Vec<Segment>> {
    let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let half = |at: usize| Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
    // `e_phoff`, `e_phentsize` and `e_phnum` of the header.
    let (start, size, n) = (word(0x20)? as usize, usize::from(half(0x36)?), usize::from(half(0x38)?));
    let headers = (0..n).map(|n| start + n * size);
    let loaded = headers.filter(|at| bytes.get(*at..*at + 4) == Some(&[1, 0, 0, 0]));
    // `p_offset`, `p_vaddr` and `p_filesz`.
    loaded
        .map(|at| {
            Some(Segment { offset: word(at + 8)? as usize, address: word(at + 16)?, len: word(at + 32)? })
        })
        .collect()
}

/// Whether the instruction of x86-64 with which these bytes begin locks a cache line: by a LOCK
/// prefix, or as XCHG with memory.
pub(super) fn is_locked(code: &[u8]) -> bool {
    const LOCK: u8 = 0xf0;
    const OTHERS: [u8; 10] = [0x66, 0x67, 0xf2, 0xf3, 0x2e, 0x36, 0x3e, 0x26, 0x64, 0x65];
    let prefixes = code.iter().take_while(|byte| **byte == LOCK || OTHERS.contains(byte)).count();
    let (prefixes, rest) = code.split_at(prefixes);
    let has_rex = rest.first().is_some_and(|byte| byte & 0xf0 == 0x40);
    let is_exchange = matches!(&rest[usize::from(has_rex)..], [0x86 | 0x87, modrm, ..] if *modrm < 0xc0);
    prefixes.contains(&LOCK) || is_exchange
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locked_instructions_are_told_from_others() {
        let locked: [&[u8]; 4] = [
            &[0xf0, 0x48, 0x0f, 0xb1, 0x0f], // lock cmpxchg %rcx,(%rdi)
            &[0x66, 0xf0, 0x0f, 0xc1, 0x07], // lock xadd %ax,(%rdi)
            &[0x48, 0x87, 0x07],             // xchg %rax,(%rdi)
            &[0x86, 0x07],                   // xchg %al,(%rdi)
        ];
        let others: [&[u8]; 5] = [
            &[0x48, 0x87, 0xc8], // xchg %rcx,%rax
            &[0x48, 0x89, 0x07], // mov %rax,(%rdi)
            &[0x66, 0x90],       // nop
            &[0x0f, 0xae, 0xf0], // mfence
            &[],
        ];
        assert!(locked.iter().all(|code| is_locked(code)));
        assert!(!others.iter().any(|code| is_locked(code)));
    }

    #[test]
    fn the_code_of_this_program_is_found() {
        let program = Object::read(&std::env::current_exe().unwrap()).unwrap();
        let code = program.segments.iter().find(|segment| segment.offset > 0 && segment.len > 0).unwrap();
        assert_eq!(program.at(code.address), &program.bytes[code.offset..][..code.len as usize]);
        assert_eq!(program.at(code.address + code.len - 1).len(), 1);
        assert!(program.at(u64::MAX).is_empty());
    }
}
