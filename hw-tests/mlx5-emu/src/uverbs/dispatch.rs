//! Which function carries out a command.

use std::io;

use super::command::Command;
use crate::device::Device;
use crate::host::sys;

impl Device {
    pub(super) fn dispatch(&mut self, context: usize, command: &mut Command) -> io::Result<()> {
        use crate::objects::commands::*;
        if self.card.dead {
            // A removed device answers EIO. Destroy commands still succeed, so that programs can
            // clean up.
            if !command.destroys() {
                return Err(sys::errno(libc::EIO));
            }
        }
        if let Some(errno) = self.card.faults.command_error(command.number) {
            return Err(sys::errno(errno));
        }
        if !self.card.contexts[context].ready
            && command.number != GET_CONTEXT
            && command.number != EX | QUERY_DEVICE
        {
            // Before GET_CONTEXT the kernel accepts no other command. The size probe of libibverbs
            // comes even earlier.
            if command.number == QUERY_DEVICE && command.core_out_len() == 0 {
                return Err(sys::errno(libc::ENOSPC));
            }
            return Err(sys::errno(libc::EINVAL));
        }
        match command.number {
            GET_CONTEXT => self.cmd_get_context(context, command),
            QUERY_DEVICE => self.cmd_query_device(command),
            n if n == EX | QUERY_DEVICE => self.cmd_query_device_ex(command),
            QUERY_PORT => self.cmd_query_port(command),
            ALLOC_PD => self.cmd_alloc_pd(context, command),
            DEALLOC_PD => self.cmd_dealloc_pd(context, command),
            CREATE_AH => self.cmd_create_ah(context, command),
            DESTROY_AH => self.cmd_destroy_ah(context, command),
            REG_MR => self.cmd_reg_mr(context, command),
            REREG_MR => self.cmd_rereg_mr(context, command),
            DEREG_MR => self.cmd_dereg_mr(context, command),
            ALLOC_MW => self.cmd_alloc_mw(context, command),
            DEALLOC_MW => self.cmd_dealloc_mw(context, command),
            CREATE_COMP_CHANNEL => self.cmd_create_channel(command),
            CREATE_CQ => self.cmd_create_cq(context, command, false),
            n if n == EX | CREATE_CQ => self.cmd_create_cq(context, command, true),
            RESIZE_CQ => self.cmd_resize_cq(context, command),
            DESTROY_CQ => self.cmd_destroy_cq(context, command),
            n if n == EX | MODIFY_CQ => self.cmd_modify_cq(context, command),
            CREATE_QP => self.cmd_create_qp(context, command, false),
            n if n == EX | CREATE_QP => self.cmd_create_qp(context, command, true),
            OPEN_QP => self.cmd_open_qp(context, command),
            QUERY_QP => self.cmd_query_qp(context, command),
            MODIFY_QP => self.cmd_modify_qp(context, command),
            n if n == EX | MODIFY_QP => self.cmd_modify_qp_ex(context, command),
            DESTROY_QP => self.cmd_destroy_qp(context, command),
            CREATE_SRQ => self.cmd_create_srq(context, command),
            CREATE_XSRQ => self.cmd_create_xsrq(context, command),
            MODIFY_SRQ => self.cmd_modify_srq(context, command),
            QUERY_SRQ => self.cmd_query_srq(context, command),
            DESTROY_SRQ => self.cmd_destroy_srq(context, command),
            n if n == EX | CREATE_FLOW => self.cmd_create_flow(context, command),
            n if n == EX | DESTROY_FLOW => self.cmd_destroy_flow(context, command),
            n if n == EX | CREATE_WQ => self.cmd_create_wq(context, command),
            n if n == EX | MODIFY_WQ => self.cmd_modify_wq(context, command),
            n if n == EX | DESTROY_WQ => self.cmd_destroy_wq(context, command),
            n if n == EX | CREATE_RWQ_IND_TBL => self.cmd_create_table(context, command),
            n if n == EX | DESTROY_RWQ_IND_TBL => self.cmd_destroy_table(context, command),
            OPEN_XRCD => self.cmd_open_xrcd(context, command),
            CLOSE_XRCD => self.cmd_close_xrcd(context, command),
            ATTACH_MCAST => self.cmd_attach_mcast(context, command, true),
            DETACH_MCAST => self.cmd_attach_mcast(context, command, false),
            _ => Err(sys::errno(libc::EOPNOTSUPP)),
        }
    }
}
