//! Contexts, UAR pages, protection domains, address handles, XRC domains, completion channels.

use std::io;

use super::command::{Answer, Command};
use crate::device::{Device, tell};
use crate::host::{config, gids, mem, sys};
use crate::objects::{Ah, FIRST_DYNAMIC_UAR, ObjectKind, Pd, UAR_AREA, UarPage, Xrcd};

impl Device {
    /// GET_CONTEXT: mlx5 answers 72 bytes about its queues and registers.
    pub(super) fn cmd_get_context(&mut self, context: usize, command: &Command) -> io::Result<()> {
        command.need(8, 8)?;
        command.need_uhw(8)?;
        if self.card.contexts[context].ready {
            return Err(sys::errno(libc::EINVAL));
        }
        let request = command.uhw();
        const DEVX: u32 = 1;
        if command.uhw.len() >= 16 && request.u32(8) & DEVX != 0 {
            // No firmware to talk to: libmlx5 asks again without.
            return Err(sys::errno(libc::EOPNOTSUPP));
        }
        if command.uhw.len() >= 16 && (request.u32(8) != 0 || request.u32(12) != 0) {
            return Err(sys::errno(libc::EOPNOTSUPP));
        }
        let bfregs = request.u32(0);
        if bfregs == 0 || request.u32(4) > bfregs - 1 {
            return Err(sys::errno(libc::EINVAL));
        }
        let max_cqe_version = if command.uhw.len() > 16 { request.u8(16) } else { 0 };
        let lib_caps = if command.uhw.len() >= 32 { request.u64(24) } else { 0 };
        let cqe_version = config::cqe_version().min(max_cqe_version);
        const DYN_UAR: u64 = 2;
        let static_uars = config::static_uars() || lib_caps & DYN_UAR == 0;

        crate::host::pin::start();
        let (channel, fd) = self.open_channel()?;
        self.card.hold_channel(channel);
        let state = &mut self.card.contexts[context];
        state.async_channel = Some(channel);
        state.cqe_version = cqe_version;
        state.ready = true;
        let tot_bfregs = if static_uars { bfregs.next_multiple_of(2).min(512) } else { 0 };
        if static_uars {
            state.uar_pages.extend((0..tot_bfregs / 2).map(UarPage::new));
            self.uars_changed();
        }

        let mut core = Answer::default();
        core.u32(fd.cast_unsigned()).u32(1);
        command.answer(&core.0)?;
        self.start_clock(context);
        let mut uhw = self.context_answer(context);
        // Only this answer gives the number of static doorbell registers: an imported context has
        // no static registers.
        if static_uars {
            uhw.0[8..12].copy_from_slice(&tot_bfregs.to_ne_bytes());
            uhw.0[64..68].copy_from_slice(&512u32.to_ne_bytes());
        }
        command.answer_uhw(&uhw.0)
    }

    /// `mlx5_ib_alloc_ucontext_resp`: queue limits, formats and registers, without static doorbell
    /// registers.
    pub(super) fn context_answer(&self, context: usize) -> Answer {
        const CORE_CLOCK_OFFSET: u32 = 1;
        const DUMP_FILL_MKEY: u32 = 2;
        const REAL_TIME_TS: u32 = 16;
        let mut uhw = Answer::default();
        uhw.u32(1 << 18) // qp_tab_size
            .u32(512) // bf_reg_size
            .u32(0) // tot_bfregs
            .u32(64) // cache_line_size
            .u16(1024) // max_sq_desc_sz
            .u16(512) // max_rq_desc_sz
            .u32(32768) // max_send_wqebb
            .u32(32768) // max_recv_wr
            .u32(32767) // max_srq_recv_wr
            .u16(1) // num_ports
            .u16(0) // flow_action_flags
            .u32(CORE_CLOCK_OFFSET | DUMP_FILL_MKEY | REAL_TIME_TS) // comp_mask
            .u32(72) // response_length
            .u8(self.card.contexts[context].cqe_version)
            .u8(3) // cmds_supp_uhw: QUERY_DEVICE, CREATE_AH
            .u8(1) // eth_min_inline: none
            .u8(1) // clock_info_versions: version 1
            .u64(0) // hca_core_clock_offset
            .u32(12) // log_uar_size
            .u32(1) // num_uars_per_page
            .u32(0) // num_dyn_bfregs
            .u32(mem::NULL_KEY); // dump_fill_mkey
        uhw
    }

    /// Allocates a UAR page. Its index is also its offset in pages.
    pub(super) fn alloc_uar_page(&mut self, context: usize) -> io::Result<u32> {
        let context = &mut self.card.contexts[context];
        let page = context.next_uar_page;
        if page as usize >= UAR_AREA / 4096 {
            return Err(sys::errno(libc::ENOMEM));
        }
        context.next_uar_page += 1;
        context.uar_pages.push(UarPage::new(page));
        self.unused_uars_changed();
        Ok(page)
    }

    pub(super) fn free_uar_page(&mut self, context: usize, page: u32) {
        self.card.contexts[context].uar_pages.retain(|known| known.index != page);
        self.unused_uars_changed();
    }

    /// True when `page` is a UAR page of this context.
    pub(super) fn has_uar_page(&self, context: usize, page: u32) -> bool {
        self.card.contexts[context].uar_slot(page).is_some()
    }

    /// Adds a page that the program maps itself in static mode (BlueFlame registers beyond the
    /// first ones).
    pub(super) fn note_static_page(&mut self, context: usize, page: u32) {
        if page < FIRST_DYNAMIC_UAR && !self.has_uar_page(context, page) {
            self.card.contexts[context].uar_pages.push(UarPage::new(page));
            self.uars_changed();
        }
    }

    /// Destroys all objects of the context after the command descriptor was closed. The order makes
    /// sure that no reference outlives its object.
    pub(super) fn close_context(&mut self, context: usize) {
        if self.card.contexts.get(context).is_none() {
            return;
        }
        self.card.net.linger();
        let handles: Vec<(u32, ObjectKind, usize)> = self.card.contexts[context]
            .handles
            .iter()
            .map(|(&handle, &(kind, index))| (handle, kind, index))
            .collect();
        let order = [
            ObjectKind::Flow,
            ObjectKind::Matcher,
            ObjectKind::Mw,
            ObjectKind::Qp,
            ObjectKind::IndirectionTable,
            ObjectKind::WorkQueue,
            ObjectKind::Srq,
            ObjectKind::Cq,
            ObjectKind::Mkey,
            ObjectKind::ReservedQpns,
            ObjectKind::Mr,
            ObjectKind::Dm,
            ObjectKind::Ah,
            ObjectKind::Xrcd,
            ObjectKind::Pd,
        ];
        for kind in order {
            for &(_, _, index) in handles.iter().filter(|&&(_, found, _)| found == kind) {
                match kind {
                    ObjectKind::Qp | ObjectKind::WorkQueue => drop(self.put_qp(index)),
                    ObjectKind::IndirectionTable => drop(self.card.tables.remove(index)),
                    ObjectKind::Srq => drop(self.remove_srq(index)),
                    ObjectKind::Cq => drop(self.remove_cq(index)),
                    ObjectKind::Mr | ObjectKind::Mw | ObjectKind::Mkey => self.remove_key(index),
                    ObjectKind::Ah => drop(self.ahs.remove(index)),
                    ObjectKind::Xrcd => self.put_xrcd(index),
                    ObjectKind::Pd => drop(self.pds.remove(index)),
                    ObjectKind::Flow => drop(self.card.flows.remove(index)),
                    ObjectKind::Matcher => drop(self.matchers.remove(index)),
                    ObjectKind::Dm => self.remove_dm(index),
                    ObjectKind::ReservedQpns => self.reserved_qpns &= !(1 << index),
                    ObjectKind::Uar | ObjectKind::AddressMapping => {}
                }
            }
        }
        tell(|observer| observer.context_closed(context));
        if let Some(state) = self.card.contexts.remove(context) {
            self.uars_changed();
            crate::host::mem::unmap(state.uar);
            if let Some(channel) = state.async_channel {
                self.card.put_channel(channel);
            }
        }
    }

    pub(super) fn cmd_alloc_pd(&mut self, context: usize, command: &Command) -> io::Result<()> {
        command.need(8, 4)?;
        let pd = self.pds.insert(Pd { users: 0 }).ok_or_else(|| sys::errno(libc::ENOMEM))?;
        let handle = self.add_handle(context, ObjectKind::Pd, pd);
        command.answer(&handle.to_ne_bytes())?;
        command.answer_uhw(&(pd as u32 + 1).to_ne_bytes())
    }

    pub(super) fn cmd_dealloc_pd(&mut self, context: usize, command: &Command) -> io::Result<()> {
        command.need(4, 0)?;
        let handle = command.core().u32(0);
        let pd = self.object(context, handle, ObjectKind::Pd)?;
        if self.pds[pd].users > 0 {
            return Err(sys::errno(libc::EBUSY));
        }
        self.pds.remove(pd);
        self.drop_handle(context, handle);
        Ok(())
    }

    /// The PD behind a handle.
    pub(super) fn pd(&self, context: usize, handle: u32) -> io::Result<usize> {
        self.object(context, handle, ObjectKind::Pd)
    }

    /// CREATE_AH: libmlx5 builds the address vector itself and asks for the hardware address.
    pub(super) fn cmd_create_ah(&mut self, context: usize, command: &Command) -> io::Result<()> {
        command.need(56, 4)?;
        let request = command.core();
        let pd = self.pd(context, request.u32(16))?;
        let (sgid_index, is_global, port) = (request.u8(24 + 20), request.u8(24 + 29), request.u8(24 + 30));
        if port != 1 || is_global == 0 || !gid_valid(sgid_index) {
            return Err(sys::errno(libc::EINVAL));
        }
        let ah = self.ahs.insert(Ah { pd }).ok_or_else(|| sys::errno(libc::ENOMEM))?;
        self.pds[pd].users += 1;
        let handle = self.add_handle(context, ObjectKind::Ah, ah);
        command.answer(&handle.to_ne_bytes())?;
        let mut uhw = Answer::default();
        uhw.u32(16).bytes(&gids::MAC).zeros(6);
        command.answer_uhw(&uhw.0)
    }

    pub(super) fn cmd_destroy_ah(&mut self, context: usize, command: &Command) -> io::Result<()> {
        command.need(4, 0)?;
        let handle = command.core().u32(0);
        let index = self.object(context, handle, ObjectKind::Ah)?;
        if let Some(ah) = self.ahs.remove(index) {
            self.pds[ah.pd].users -= 1;
        }
        self.drop_handle(context, handle);
        Ok(())
    }

    pub(super) fn cmd_create_channel(&mut self, command: &Command) -> io::Result<()> {
        command.need(8, 4)?;
        let (_, fd) = self.open_channel()?;
        command.answer(&fd.to_ne_bytes())
    }

    /// OPEN_XRCD: domains opened with a descriptor of the same file are the same domain.
    pub(super) fn cmd_open_xrcd(&mut self, context: usize, command: &Command) -> io::Result<()> {
        command.need(16, 4)?;
        let request = command.core();
        let (fd, flags) = (request.u32(8).cast_signed(), request.u32(12).cast_signed());
        if flags & !(libc::O_CREAT | libc::O_EXCL) != 0 {
            return Err(sys::errno(libc::EINVAL));
        }
        let inode = if fd == -1 {
            if flags & libc::O_CREAT == 0 {
                return Err(sys::errno(libc::EINVAL));
            }
            None
        } else {
            Some(sys::inode_of(fd)?)
        };
        let existing = inode.and_then(|inode| {
            self.xrcds.iter().find(|(_, xrcd)| xrcd.inode == Some(inode)).map(|(index, _)| index)
        });
        let index = match existing {
            Some(_) if flags & libc::O_EXCL != 0 => return Err(sys::errno(libc::EINVAL)),
            Some(index) => index,
            None if flags & libc::O_CREAT == 0 => return Err(sys::errno(libc::EAGAIN)),
            None => self
                .xrcds
                .insert(Xrcd { inode, opens: 0, users: 0 })
                .ok_or_else(|| sys::errno(libc::ENOMEM))?,
        };
        self.xrcds[index].opens += 1;
        let handle = self.add_handle(context, ObjectKind::Xrcd, index);
        command.answer(&handle.to_ne_bytes())
    }

    pub(super) fn cmd_close_xrcd(&mut self, context: usize, command: &Command) -> io::Result<()> {
        command.need(4, 0)?;
        let handle = command.core().u32(0);
        let index = self.object(context, handle, ObjectKind::Xrcd)?;
        let xrcd = &self.xrcds[index];
        if xrcd.opens == 1 && xrcd.users > 0 {
            return Err(sys::errno(libc::EBUSY));
        }
        self.drop_handle(context, handle);
        self.put_xrcd(index);
        Ok(())
    }

    fn put_xrcd(&mut self, index: usize) {
        let Some(xrcd) = self.xrcds.get_mut(index) else { return };
        xrcd.opens = xrcd.opens.saturating_sub(1);
        if xrcd.opens == 0 {
            self.xrcds.remove(index);
        }
    }
}

/// True for an index that holds an address.
pub(super) fn gid_valid(index: u8) -> bool {
    usize::from(index) < gids::table().len()
}
