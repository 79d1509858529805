//! Conversions from and to the crate `rdma-sys`.

/// A type that `rdma-sys` declares as well, with the same layout.
///
/// A pointer converts with [`to_rdma_sys`] and [`from_rdma_sys`]. What it points to stays the same.
///
/// # Safety
///
/// [`RdmaSys`](Self::RdmaSys) declares the same C type.
pub unsafe trait Compatible {
    /// The type in `rdma-sys`.
    type RdmaSys;
}

/// A pointer for functions of `rdma-sys`.
#[inline]
pub const fn to_rdma_sys<T: Compatible>(pointer: *mut T) -> *mut T::RdmaSys {
    pointer.cast()
}

/// A pointer that came from `rdma-sys`.
#[inline]
pub const fn from_rdma_sys<T: Compatible>(pointer: *mut T::RdmaSys) -> *mut T {
    pointer.cast()
}

macro_rules! compatible {
    ($($name:ident)*) => {$(
        // SAFETY: both are made from the declaration of this name in rdma-core's headers.
        unsafe impl Compatible for crate::$name {
            type RdmaSys = rdma_sys::$name;
        }
        // A newer rdma-core may have appended members: rdma-sys reads the installed headers.
        const _: () = {
            assert!(align_of::<crate::$name>() == align_of::<rdma_sys::$name>());
            assert!(size_of::<crate::$name>() <= size_of::<rdma_sys::$name>());
        };
    )*};
}

compatible! {
    ibv_ah ibv_async_event ibv_comp_channel ibv_context ibv_cq ibv_device ibv_device_attr ibv_gid
    ibv_grh ibv_mr ibv_mw ibv_mw_bind ibv_pd ibv_port_attr ibv_qp ibv_qp_attr ibv_qp_ex
    ibv_qp_init_attr ibv_qp_init_attr_ex ibv_recv_wr ibv_send_wr ibv_sge ibv_srq ibv_srq_attr
    ibv_srq_init_attr ibv_wc rdma_addr rdma_cm_event rdma_cm_id rdma_conn_param rdma_event_channel
    verbs_context
}
