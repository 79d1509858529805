//! Numbers and names of the verbs commands, and names of commands of the connection manager. The
//! front end (`uverbs`) dispatches by number; faults on demand name a command.

/// The bit of an extended command.
pub(crate) const EX: u32 = 0x8000_0000;
pub(crate) const GET_CONTEXT: u32 = 0;
pub(crate) const QUERY_DEVICE: u32 = 1;
pub(crate) const QUERY_PORT: u32 = 2;
pub(crate) const ALLOC_PD: u32 = 3;
pub(crate) const DEALLOC_PD: u32 = 4;
pub(crate) const CREATE_AH: u32 = 5;
pub(crate) const DESTROY_AH: u32 = 8;
pub(crate) const REG_MR: u32 = 9;
pub(crate) const REREG_MR: u32 = 11;
pub(crate) const DEREG_MR: u32 = 13;
pub(crate) const ALLOC_MW: u32 = 14;
pub(crate) const DEALLOC_MW: u32 = 16;
pub(crate) const CREATE_COMP_CHANNEL: u32 = 17;
pub(crate) const CREATE_CQ: u32 = 18;
pub(crate) const RESIZE_CQ: u32 = 19;
pub(crate) const DESTROY_CQ: u32 = 20;
pub(crate) const CREATE_QP: u32 = 24;
pub(crate) const QUERY_QP: u32 = 25;
pub(crate) const MODIFY_QP: u32 = 26;
pub(crate) const DESTROY_QP: u32 = 27;
pub(crate) const ATTACH_MCAST: u32 = 30;
pub(crate) const DETACH_MCAST: u32 = 31;
pub(crate) const CREATE_SRQ: u32 = 32;
pub(crate) const MODIFY_SRQ: u32 = 33;
pub(crate) const QUERY_SRQ: u32 = 34;
pub(crate) const DESTROY_SRQ: u32 = 35;
pub(crate) const OPEN_XRCD: u32 = 37;
pub(crate) const CLOSE_XRCD: u32 = 38;
pub(crate) const CREATE_XSRQ: u32 = 39;
pub(crate) const OPEN_QP: u32 = 40;
pub(crate) const CREATE_FLOW: u32 = 50;
pub(crate) const DESTROY_FLOW: u32 = 51;
pub(crate) const CREATE_WQ: u32 = 52;
pub(crate) const MODIFY_WQ: u32 = 53;
pub(crate) const DESTROY_WQ: u32 = 54;
pub(crate) const CREATE_RWQ_IND_TBL: u32 = 55;
pub(crate) const DESTROY_RWQ_IND_TBL: u32 = 56;
pub(crate) const MODIFY_CQ: u32 = 57;

/// Names, for fault injection by name.
const NAMES: &[(&str, u32)] = &[
    ("get_context", GET_CONTEXT),
    ("query_device", QUERY_DEVICE),
    ("query_port", QUERY_PORT),
    ("alloc_pd", ALLOC_PD),
    ("dealloc_pd", DEALLOC_PD),
    ("create_ah", CREATE_AH),
    ("destroy_ah", DESTROY_AH),
    ("reg_mr", REG_MR),
    ("rereg_mr", REREG_MR),
    ("dereg_mr", DEREG_MR),
    ("alloc_mw", ALLOC_MW),
    ("dealloc_mw", DEALLOC_MW),
    ("create_comp_channel", CREATE_COMP_CHANNEL),
    ("create_cq", CREATE_CQ),
    ("resize_cq", RESIZE_CQ),
    ("destroy_cq", DESTROY_CQ),
    ("create_qp", CREATE_QP),
    ("query_qp", QUERY_QP),
    ("modify_qp", MODIFY_QP),
    ("destroy_qp", DESTROY_QP),
    ("create_srq", CREATE_SRQ),
    ("modify_srq", MODIFY_SRQ),
    ("query_srq", QUERY_SRQ),
    ("destroy_srq", DESTROY_SRQ),
    ("open_xrcd", OPEN_XRCD),
    ("close_xrcd", CLOSE_XRCD),
    ("create_xsrq", CREATE_XSRQ),
    ("open_qp", OPEN_QP),
    ("create_flow", CREATE_FLOW),
    ("destroy_flow", DESTROY_FLOW),
];

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
