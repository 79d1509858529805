//! Numbers and names of the verbs commands, and names of commands of the connection manager. The
//! front end (`uverbs`) dispatches by number; faults on demand name a command.

/// The bit of an extended command.
pub(crate) const EX: u32 = 0x8000_0000;

/// Defines the commands' numbers, and a table of their names for fault injection.
macro_rules! commands {
    ($($name:ident $number:ident = $value:literal;)*) => {
        $(pub(crate) const $number: u32 = $value;)*
        const NAMES: &[(&str, u32)] = &[$((stringify!($name), $number),)*];
    };
}

commands! {
    get_context GET_CONTEXT = 0;
    query_device QUERY_DEVICE = 1;
    query_port QUERY_PORT = 2;
    alloc_pd ALLOC_PD = 3;
    dealloc_pd DEALLOC_PD = 4;
    create_ah CREATE_AH = 5;
    destroy_ah DESTROY_AH = 8;
    reg_mr REG_MR = 9;
    rereg_mr REREG_MR = 11;
    dereg_mr DEREG_MR = 13;
    alloc_mw ALLOC_MW = 14;
    dealloc_mw DEALLOC_MW = 16;
    create_comp_channel CREATE_COMP_CHANNEL = 17;
    create_cq CREATE_CQ = 18;
    resize_cq RESIZE_CQ = 19;
    destroy_cq DESTROY_CQ = 20;
    create_qp CREATE_QP = 24;
    query_qp QUERY_QP = 25;
    modify_qp MODIFY_QP = 26;
    destroy_qp DESTROY_QP = 27;
    attach_mcast ATTACH_MCAST = 30;
    detach_mcast DETACH_MCAST = 31;
    create_srq CREATE_SRQ = 32;
    modify_srq MODIFY_SRQ = 33;
    query_srq QUERY_SRQ = 34;
    destroy_srq DESTROY_SRQ = 35;
    open_xrcd OPEN_XRCD = 37;
    close_xrcd CLOSE_XRCD = 38;
    create_xsrq CREATE_XSRQ = 39;
    open_qp OPEN_QP = 40;
    create_flow CREATE_FLOW = 50;
    destroy_flow DESTROY_FLOW = 51;
    create_wq CREATE_WQ = 52;
    modify_wq MODIFY_WQ = 53;
    destroy_wq DESTROY_WQ = 54;
    create_rwq_ind_tbl CREATE_RWQ_IND_TBL = 55;
    destroy_rwq_ind_tbl DESTROY_RWQ_IND_TBL = 56;
    modify_cq MODIFY_CQ = 57;
}

/// Commands of the connection manager that can fail on demand (`ucma`). An accept at the active
/// side, which confirms the answer, is `establish`.
const CM_NAMES: &[&str] = &[
    "resolve_addr",
    "resolve_route",
    "connect",
    "listen",
    "accept",
    "establish",
    "reject",
    "disconnect",
    "init_qp_attr",
];

/// Names of the commands that can fail on demand.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    NAMES.iter().map(|&(name, _)| name).chain(["uar_alloc"]).chain(CM_NAMES.iter().copied())
}

/// Name of a command, in its plain or extended form.
pub(crate) fn name(number: u32) -> Option<&'static str> {
    NAMES.iter().find(|&&(_, known)| known == number & !EX).map(|&(name, _)| name)
}
