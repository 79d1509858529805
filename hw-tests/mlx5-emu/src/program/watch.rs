//! Watching the doorbell pages: userfaultfd(2) reports the first write to a write-protected page.
//!
//! A driver rings a doorbell with a plain store to a page that it mapped from the command
//! descriptor. While the device is idle, the helper thread protects these mappings and sleeps. The
//! first store blocks the storing thread and wakes the helper. The helper runs the queues of that
//! page and then lifts the protection, so that the store completes. The device's own mapping of the
//! same memory is not protected.
//!
//! The alternative, mprotect(2) with a SIGSEGV handler, lacks four properties of userfaultfd.
//! First, a range must be registered before it can be protected, and unmapping ends the
//! registration. Memory that the program later maps at the same address is therefore never
//! protected by mistake (see [`Watch::register`]). Second, the program's signal handlers are not
//! involved. Third, a forked child inherits no protection. Fourth, closing the descriptor lifts
//! every protection at once.
#![expect(unsafe_code, reason = "userfaultfd(2) and its ioctls")]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use crate::device::Device;
use crate::host::sys::{self, FileId};
use crate::objects::Context;

/// `ioctl` numbers and bits of `linux/userfaultfd.h`.
mod uffd {
    pub(super) const API: u64 = 0xc018_aa3f;
    pub(super) const REGISTER: u64 = 0xc020_aa00;
    pub(super) const UNREGISTER: u64 = 0x8010_aa01;
    pub(super) const WRITEPROTECT: u64 = 0xc018_aa06;
    pub(super) const VERSION: u64 = 0xaa;
    pub(super) const FEATURE_WP: u64 = 1;
    pub(super) const FEATURE_WP_SHMEM: u64 = 1 << 12;
    pub(super) const MODE_WP: u64 = 2;
    pub(super) const PROTECT: u64 = 1;
    /// Only faults of user code: an unprivileged process may ask for these only.
    pub(super) const USER_MODE_ONLY: i32 = 1;
    pub(super) const EVENT_PAGEFAULT: u8 = 0x12;
    pub(super) const MESSAGE: usize = 32;
}

/// The request of `linux/fs.h` that describes one mapping of a process (Linux 6.11).
mod procmap {
    pub(super) const QUERY: u64 = 0xc068_6611;
    pub(super) const SHARED: u64 = 8;
    /// The mapping at the address, or else the next one.
    pub(super) const OR_NEXT: u64 = 0x10;
    pub(super) const OF_FILE: u64 = 0x20;
    /// `struct procmap_query` in 64-bit words.
    pub(super) const WORDS: usize = 13;
}

const PAGE: u64 = 4096;
/// How long a page stays unprotected after a hook on libmlx5 took a doorbell from it. Such
/// doorbells need no watching, and a protected page would slow them down.
const HOOKED_QUIET: Duration = Duration::from_millis(10);

/// One page of the program's mappings of UAR memory.
#[derive(Clone, Copy, Debug)]
struct Page {
    address: u64,
    context: usize,
    index: u32,
    protected: bool,
    /// Not to be protected before this time.
    quiet_at: Option<Instant>,
}

impl Page {
    /// Whether `other` is the same page at the same address.
    fn is_at(&self, other: &Self) -> bool {
        (self.address, self.context, self.index) == (other.address, other.context, other.index)
    }
}

/// A doorbell page that is being written, by a thread that waits for [`Watch::lift`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Touched {
    pub(crate) context: usize,
    pub(crate) index: u32,
    address: u64,
}

/// The UAR pages of a context.
#[derive(Debug)]
struct WantedContext {
    context: usize,
    file: FileId,
    /// Where the device itself has mapped the pages.
    own: u64,
    pages: Vec<u32>,
}

/// The UAR pages of the device, whose mappings are looked for.
#[derive(Debug)]
pub(crate) struct Wanted(Vec<WantedContext>);

impl Wanted {
    fn of(device: &Device) -> Self {
        let of_context = |(context, state): (usize, &Context)| WantedContext {
            context,
            file: state.uar_file,
            own: state.uar.address(),
            pages: state.uar_pages.iter().map(|page| page.index).collect(),
        };
        Self(device.card.contexts.iter().map(of_context).collect())
    }

    /// The pages in these mappings.
    fn pages_in(&self, mappings: Vec<Mapping>) -> Vec<Page> {
        let mut found = Vec::new();
        for Mapping { start, end, offset, file } in mappings {
            let Some(wanted) = self.0.iter().find(|wanted| wanted.file == file) else { continue };
            // The device's own mapping covers all pages; a program maps them one by one.
            if start <= wanted.own && wanted.own < end {
                continue;
            }
            for step in 0..(end - start) / PAGE {
                let Ok(index) = u32::try_from(offset / PAGE + step) else { break };
                if wanted.pages.contains(&index) {
                    let (context, address) = (wanted.context, start + step * PAGE);
                    found.push(Page { address, context, index, protected: false, quiet_at: None });
                }
            }
        }
        found
    }
}

/// The watch over this process's doorbell pages.
pub(crate) struct Watch {
    fd: OwnedFd,
    /// The list of the process's mappings. It stays open: programs count their descriptors.
    maps: File,
    pages: Vec<Page>,
    /// [`Device::uar_changes`] at the last look at the mappings.
    changes: Option<u64>,
    /// Every UAR page of the device was found mapped.
    complete: bool,
    next_look: Instant,
    look_after: Duration,
}

fn control(fd: RawFd, request: u64, words: &mut [u64]) -> io::Result<()> {
    let at = words.as_mut_ptr().expose_provenance();
    // SAFETY: the callers pass as many words as the structure of the request has. The request reads
    // and writes only these, and the buffer for a name that they point to.
    match unsafe { sys::ioctl(fd, request, at) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A shared mapping of a file.
#[derive(Debug, PartialEq)]
struct Mapping {
    start: u64,
    end: u64,
    offset: u64,
    file: FileId,
}

/// The shared mapping of a file at this address. With [`procmap::OR_NEXT`] in `flags`: that one or
/// the next.
fn query(maps: &File, address: u64, flags: u64) -> io::Result<Mapping> {
    let mut query = [0; procmap::WORDS];
    query[0] = size_of_val(&query) as u64;
    query[1] = procmap::SHARED | procmap::OF_FILE | flags;
    query[2] = address;
    control(maps.as_raw_fd(), procmap::QUERY, &mut query)?;
    let [_, _, _, start, end, _, _, offset, inode, device, ..] = query;
    let device = libc::makedev(device as u32, (device >> 32) as u32);
    Ok(Mapping { start, end, offset, file: (device, inode) })
}

/// The mappings of these files, by one request for each shared mapping of a file. A program has few
/// of these, and hundreds of other mappings, which [`listed`] reads as well. `None` where the
/// kernel does not have the request.
fn asked(maps: &File, is_wanted: impl Fn(FileId) -> bool) -> Option<Vec<Mapping>> {
    let mut found = Vec::new();
    let mut next = 0;
    loop {
        let mapping = match query(maps, next, procmap::OR_NEXT) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Some(found),
            outcome => outcome.ok()?,
        };
        next = mapping.end;
        if is_wanted(mapping.file) {
            found.push(mapping);
        }
    }
}

/// The mappings of these files, by the list in text form.
fn listed(maps: &File, is_wanted: impl Fn(FileId) -> bool) -> Option<Vec<Mapping>> {
    let of_line = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let (range, _, offset, device, inode) =
            (fields.next()?, fields.next(), fields.next()?, fields.next()?, fields.next()?);
        let number = |text: &str| u64::from_str_radix(text, 16).ok();
        let small = |text: &str| u32::from_str_radix(text, 16).ok();
        let ((start, end), (major, minor)) = (range.split_once('-')?, device.split_once(':')?);
        let file = (libc::makedev(small(major)?, small(minor)?), inode.parse().ok()?);
        Some(Mapping { start: number(start)?, end: number(end)?, offset: number(offset)?, file })
    };
    let list = read_all(maps).ok()?;
    Some(list.lines().filter_map(of_line).filter(|mapping| is_wanted(mapping.file)).collect())
}

/// Reads the list of mappings without moving the file's position. The program may have closed the
/// descriptor, and may use the same number for a file of its own.
fn read_all(maps: &File) -> io::Result<String> {
    let mut text = Vec::new();
    let mut block = [0; 4096];
    loop {
        match maps.read_at(&mut block, text.len() as u64)? {
            0 => return Ok(String::from_utf8_lossy(&text).into_owned()),
            n => text.extend_from_slice(&block[..n]),
        }
    }
}

/// True under valgrind, which stops all threads while a thread waits in a page fault. Valgrind
/// preloads libraries of its own into the program.
fn threads_run_one_at_a_time() -> bool {
    std::env::var("LD_PRELOAD").is_ok_and(|libraries| libraries.contains("/vgpreload_"))
}

impl Watch {
    /// Starts watching; `None` where the kernel does not offer it or the process may not use it.
    pub(crate) fn new() -> Option<Self> {
        if std::env::var("MLX5_EMU_WATCH").is_ok_and(|value| value == "0") || threads_run_one_at_a_time() {
            return None;
        }
        let maps = File::open("/proc/self/maps").ok()?;
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | uffd::USER_MODE_ONLY;
        // SAFETY: no pointers involved.
        let raw = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
        let raw = RawFd::try_from(raw).ok().filter(|&raw| raw >= 0)?;
        // SAFETY: a descriptor just made by the kernel, owned by nobody else.
        let fd = unsafe { OwnedFd::from_raw_fd(raw) };
        let mut api = [uffd::VERSION, uffd::FEATURE_WP | uffd::FEATURE_WP_SHMEM, 0];
        control(fd.as_raw_fd(), uffd::API, &mut api).ok()?;
        let now = Instant::now();
        Some(Self {
            fd,
            maps,
            pages: Vec::new(),
            changes: None,
            complete: false,
            next_look: now,
            look_after: Duration::from_millis(1),
        })
    }

    /// Becomes readable when a protected page is written.
    pub(crate) fn descriptor(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// The pages that blocked threads of the program write to.
    ///
    /// # Errors
    /// The program closed the descriptor, so the descriptor no longer belongs to the device.
    pub(crate) fn touched(&mut self) -> io::Result<Vec<Touched>> {
        let mut touched: Vec<Touched> = Vec::new();
        if self.pages.is_empty() {
            return Ok(touched);
        }
        loop {
            let mut message = [0u8; uffd::MESSAGE];
            // SAFETY: pointer and length describe `message`.
            let n = unsafe { libc::read(self.fd.as_raw_fd(), message.as_mut_ptr().cast(), message.len()) };
            if n < 0 {
                let error = io::Error::last_os_error();
                return match error.raw_os_error() {
                    Some(libc::EAGAIN | libc::EINTR) => Ok(touched),
                    _ => Err(error),
                };
            }
            if usize::try_from(n) != Ok(message.len()) || message[0] != uffd::EVENT_PAGEFAULT {
                return Err(sys::errno(libc::EBADF));
            }
            let mut word = [0; 8];
            word.copy_from_slice(&message[16..24]);
            let address = u64::from_ne_bytes(word) & !(PAGE - 1);
            let found = self.pages.iter().find(|page| page.address == address);
            if let Some(&Page { context, index, .. }) = found
                && !touched.iter().any(|known| known.address == address)
            {
                touched.push(Touched { context, index, address });
            } else if found.is_none() {
                // The mapping is not in the list any more. There is no queue to run, but the writer
                // must continue.
                self.write_protect(address, false)?;
            }
        }
    }

    /// Lets the writers of these pages continue.
    ///
    /// # Errors
    /// The errors of UFFDIO_WRITEPROTECT.
    pub(crate) fn lift(&mut self, touched: &[Touched]) -> io::Result<()> {
        for &Touched { address, .. } in touched {
            self.write_protect(address, false)?;
            for page in self.pages.iter_mut().filter(|page| page.address == address) {
                page.protected = false;
            }
        }
        Ok(())
    }

    fn write_protect(&self, address: u64, protect: bool) -> io::Result<()> {
        loop {
            let mut request = [address, PAGE, if protect { uffd::PROTECT } else { 0 }];
            match control(self.fd.as_raw_fd(), uffd::WRITEPROTECT, &mut request) {
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => sys::yield_now(),
                // The mapping is gone, and so are its waiting writers.
                Err(error) if !protect && error.raw_os_error() == Some(libc::ENOENT) => return Ok(()),
                result => return result,
            }
        }
    }

    /// Updates the watch from the device's data about its pages. Called with the device locked.
    /// Returns what [`Watch::find_mappings`] needs, if the mappings have to be looked up.
    pub(crate) fn note(&mut self, device: &mut Device) -> Option<Wanted> {
        let now = Instant::now();
        if self.changes != Some(device.uar_changes) {
            self.changes = Some(device.uar_changes);
            self.complete = false;
            self.next_look = now;
            self.look_after = Duration::from_millis(1);
        }
        let mut wanted = None;
        if !self.complete && now >= self.next_look {
            wanted = Some(Wanted::of(device));
            self.next_look = now + self.look_after;
            self.look_after = (self.look_after * 2).min(Duration::from_secs(1));
        }
        for page in &mut self.pages {
            let Some(state) = device.card.contexts.get_mut(page.context) else { continue };
            let Some(slot) = state.uar_slot(page.index) else { continue };
            if std::mem::take(&mut state.uar_pages[slot].hooked) {
                page.quiet_at = Some(now + HOOKED_QUIET);
            }
        }
        wanted
    }

    /// Finds the addresses at which the program has mapped the UAR pages. Called without the
    /// device's lock, since it takes longer than most commands.
    pub(crate) fn find_mappings(&mut self, wanted: &Wanted) {
        if let Some(found) = self.mapped_pages(wanted) {
            self.register(found, wanted);
        }
    }

    /// The program's mappings of the UAR pages at this moment.
    fn mapped_pages(&self, wanted: &Wanted) -> Option<Vec<Page>> {
        let is_wanted = |file| wanted.0.iter().any(|wanted| wanted.file == file);
        let mappings = asked(&self.maps, is_wanted).or_else(|| listed(&self.maps, is_wanted))?;
        Some(wanted.pages_in(mappings))
    }

    /// Which of these pages are still mapped, by one request for each. If one is gone, or the
    /// kernel does not have the request: all pages that are mapped.
    fn still_mapped(&self, pages: &[Page], wanted: &Wanted) -> Vec<Page> {
        let mappings = pages.iter().filter_map(|page| query(&self.maps, page.address, 0).ok()).collect();
        let mapped = wanted.pages_in(mappings);
        if pages.iter().all(|page| mapped.iter().any(|mapped| mapped.is_at(page))) {
            return mapped;
        }
        self.mapped_pages(wanted).unwrap_or_default()
    }

    /// Registers these pages and watches them from now on.
    ///
    /// The program may have mapped other memory at such an address since the list of mappings was
    /// read. That memory must not be protected: this thread lifts protections, so it would wait for
    /// itself if it wrote there. Only pages that are still UAR pages after the registration are
    /// watched. If the program replaces one of them later, the registration ends with the mapping.
    fn register(&mut self, mut found: Vec<Page>, wanted: &Wanted) {
        found.retain(|page| {
            let mut request = [page.address, PAGE, uffd::MODE_WP, 0];
            control(self.fd.as_raw_fd(), uffd::REGISTER, &mut request).is_ok()
        });
        let now = self.still_mapped(&found, wanted);
        found.retain_mut(|page| {
            let still = now.iter().any(|now| now.is_at(page));
            if !still {
                // Fails if the address is not mapped any more.
                let _ = control(self.fd.as_raw_fd(), uffd::UNREGISTER, &mut [page.address, PAGE]);
            }
            // The protection state is not carried over: the mapping at an address may have changed.
            page.quiet_at = self.pages.iter().find(|old| old.is_at(page)).and_then(|old| old.quiet_at);
            still
        });
        self.complete = wanted.0.iter().all(|wanted| {
            wanted.pages.iter().all(|&page| {
                found.iter().any(|mapped| (mapped.context, mapped.index) == (wanted.context, page))
            })
        });
        self.pages = found;
    }

    /// Protects every page that may be protected. If this returns true, no later doorbell can be
    /// missed. The caller must then look at the pages once more, for doorbells before the
    /// protection.
    pub(crate) fn protect(&mut self) -> bool {
        let now = Instant::now();
        let mut all = self.complete;
        for i in 0..self.pages.len() {
            let Page { address, protected, quiet_at, .. } = self.pages[i];
            if protected {
                continue;
            }
            if quiet_at.is_some_and(|at| now < at) {
                all = false;
                continue;
            }
            if self.write_protect(address, true).is_ok() {
                self.pages[i].protected = true;
            } else {
                // Unmapped, perhaps mapped elsewhere.
                self.changes = None;
                all = false;
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};

    /// Maps one page at `at`, or anywhere if that is null.
    fn map(at: *mut libc::c_void, memory: RawFd) -> *mut libc::c_void {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let place = if at.is_null() { 0 } else { libc::MAP_FIXED };
        // SAFETY: a new mapping, or one that replaces a mapping of this test.
        let page = unsafe { libc::mmap(at, PAGE as usize, access, libc::MAP_SHARED | place, memory, 0) };
        assert_ne!(page, libc::MAP_FAILED);
        page
    }

    /// Whether the page can be written. A system call fails where a thread's own store would block,
    /// since the watch asks for faults of user code only.
    fn is_writable(page: *mut libc::c_void) -> bool {
        let (mut reader, mut writer) = io::pipe().unwrap();
        writer.write_all(&[1]).unwrap();
        // SAFETY: a page of this test, to which nothing else refers.
        reader.read(unsafe { std::slice::from_raw_parts_mut(page.cast(), 1) }).is_ok()
    }

    #[test]
    fn requests_and_list_name_the_same_mappings() {
        let maps = File::open("/proc/self/maps").unwrap();
        let uar = sys::memfd(c"mlx5-emu-uar", 2 * PAGE).unwrap();
        let file = sys::inode_of(uar.as_raw_fd()).unwrap();
        let pages = [(); 2].map(|()| map(std::ptr::null_mut(), uar.as_raw_fd()));
        let list = listed(&maps, |other| other == file).unwrap();
        // The kernel may show neighbours with adjoining offsets as one mapping, but not these.
        assert_eq!(list.len(), 2);
        // A file of another file system may have the same inode number.
        let elsewhere = (file.0 + 1, file.1);
        assert_eq!(listed(&maps, |other| other == elsewhere).unwrap(), []);
        match asked(&maps, |other| other == file) {
            Some(asked) => {
                assert_eq!(asked, list);
                assert_eq!(query(&maps, list[0].start, 0).ok().as_ref(), Some(&list[0]));
            }
            None => println!("this kernel does not describe single mappings: the list is used"),
        }
        for page in pages {
            // SAFETY: a mapping made above.
            unsafe { libc::munmap(page, PAGE as usize) };
        }
    }

    #[test]
    fn memory_that_replaces_a_page_is_not_protected() {
        let Some(mut watch) = Watch::new() else {
            println!("userfaultfd is not available here: nothing is protected");
            return;
        };
        let uar = sys::memfd(c"mlx5-emu-uar", PAGE).unwrap();
        let other = sys::memfd(c"other", PAGE).unwrap();
        let file = sys::inode_of(uar.as_raw_fd()).unwrap();
        let wanted = Wanted(vec![WantedContext { context: 0, file, own: 0, pages: vec![0] }]);
        let page = map(std::ptr::null_mut(), uar.as_raw_fd());

        watch.find_mappings(&wanted);
        assert!(watch.protect() && !is_writable(page), "a UAR page is not protected");
        // Other memory replaces the page. That ends the registration and the protection, but the
        // page is already in a list of pages to register.
        let found = watch.mapped_pages(&wanted).unwrap();
        assert_eq!(found.len(), 1);
        map(page, other.as_raw_fd());
        assert!(is_writable(page));
        watch.register(found, &wanted);
        assert!(!watch.protect());
        assert!(is_writable(page), "other memory is protected");
        // A range can be registered with one userfaultfd at a time.
        let own = Watch::new().unwrap();
        let mut request = [page.expose_provenance() as u64, PAGE, uffd::MODE_WP, 0];
        let registered = control(own.fd.as_raw_fd(), uffd::REGISTER, &mut request);
        registered.expect("other memory is still registered");
        drop(own);
        // It becomes a UAR page again.
        map(page, uar.as_raw_fd());
        watch.find_mappings(&wanted);
        assert!(watch.protect() && !is_writable(page), "a UAR page is not protected");
        drop(watch);
        assert!(is_writable(page), "the end of the watch lifts no protection");
        // SAFETY: the mapping made above.
        unsafe { libc::munmap(page, PAGE as usize) };
    }
}
