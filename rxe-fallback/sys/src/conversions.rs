//! Conversions to bindings of other crates, which this crate does not depend on.

/// Declares a module that converts pointers to types of this crate into pointers to the types of
/// the same name in another crate with bindings to rdma-core, and back.
///
/// This crate does not build the other one. So the conversions work with `rdma-sys` in the version,
/// fork or patched form that a program uses, and with crates such as `ibverbs-sys`. The feature
/// `rdma-sys` has the same conversions for `rdma-sys` 0.3.0 from the registry.
///
/// Without a list, the module converts the types that `rdma-sys` has. The compiler checks that the
/// alignments are the same, and that the other type is not smaller (a newer rdma-core may have
/// appended members).
///
/// ```
/// # mod rdma_sys { pub use doorbell_sys::*; }
/// // All types: `mod rdma = rdma_sys`. Some:
/// doorbell_sys::conversions! { mod rdma = crate::rdma_sys { ibv_sge, ibv_srq } }
///
/// # fn main() {
/// let mut segment = doorbell_sys::ibv_sge { addr: 1, length: 2, lkey: 3 };
/// let theirs: *mut rdma_sys::ibv_sge = rdma::to(&raw mut segment);
/// assert_eq!(rdma::from::<doorbell_sys::ibv_sge>(theirs), &raw mut segment);
/// # }
/// ```
///
/// A type that is smaller in the other crate does not compile:
///
/// ```compile_fail,E0080
/// mod other {
///     pub struct ibv_sge(u64);
/// }
/// doorbell_sys::conversions! { mod rdma = crate::other { ibv_sge } }
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! conversions {
    ($visibility:vis mod $module:ident = $theirs:path { $($name:ident),* $(,)? }) => {
        #[allow(dead_code, unreachable_pub, reason = "a program need not use all")]
        $visibility mod $module {
            use $theirs as theirs;

            /// A type of `doorbell-sys` that the other crate declares as well.
            pub trait Compatible {
                /// The type in the other crate.
                type Theirs;
            }

            /// A pointer for functions of the other crate.
            #[inline]
            pub const fn to<T: Compatible>(pointer: *mut T) -> *mut T::Theirs {
                pointer.cast()
            }

            /// A pointer that came from the other crate.
            #[inline]
            pub const fn from<T: Compatible>(pointer: *mut T::Theirs) -> *mut T {
                pointer.cast()
            }

            $(
                impl Compatible for $crate::$name {
                    type Theirs = theirs::$name;
                }
                const _: () = {
                    assert!(align_of::<$crate::$name>() == align_of::<theirs::$name>());
                    assert!(size_of::<$crate::$name>() <= size_of::<theirs::$name>());
                };
            )*
        }
    };
    ($visibility:vis mod $module:ident = $theirs:path) => {
        $crate::conversions! {
            $visibility mod $module = $theirs {
                ibv_ah, ibv_async_event, ibv_comp_channel, ibv_context, ibv_cq, ibv_device,
                ibv_device_attr, ibv_gid, ibv_grh, ibv_mr, ibv_mw, ibv_mw_bind, ibv_pd,
                ibv_port_attr, ibv_qp, ibv_qp_attr, ibv_qp_ex, ibv_qp_init_attr,
                ibv_qp_init_attr_ex, ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_srq, ibv_srq_attr,
                ibv_srq_init_attr, ibv_wc, rdma_addr, rdma_cm_event, rdma_cm_id, rdma_conn_param,
                rdma_event_channel, verbs_context,
            }
        }
    };
}
