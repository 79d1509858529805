//! The C ABI: what libdat2 loads. This library only translates.
//!
//! libdat2 reads dat.conf, loads the library, calls `dat_provider_init`, and finds the entry points
//! in the table that `dat_provider_init` registers ([`entry_points`]). Each entry point converts
//! handles to objects ([`handles`]) and C values to Rust values ([`raw`], [`abi`], [`convert`]),
//! calls the object's method, and converts the outcome to a `DAT_RETURN` ([`code`]). Arguments are
//! checked in the order of the rules: handles, pointers, values, then the checks of the object.
//!
//! All 79 entry points are implemented. Requests that verbs devices cannot fulfil get
//! MODEL_NOT_SUPPORTED:
//!
//! | entry point | declined | why |
//! |---|---|---|
//! | `dat_ep_connect`, `dat_ep_dup_connect` | a quality of service other than best effort | no network path keeps it (`dat_qos_supported` is 0) |
//! | `dat_ep_connect` | multipath flags | one IA is one port (`supports_multipath`, `ha_supported` are FALSE) |
//! | `dat_ep_create`, `dat_ep_create_with_srq` | service type UD | where the device has no datagrams (`DAT_IB_UD`) |
//! | `dat_ep_common_connect` | endpoints of service type UD | common service points are for streams |
//! | `dat_rmr_create`, `dat_rmr_create_for_ep` | all | where the device has no memory windows of that kind (`max_rmrs`, `rmr_scope_supported`) |
//! | `dat_rmr_bind` | zero-based addresses of an RMR of a PZ; zero-based LMRs | devices bind neither |
//! | `dat_ep_post_send_with_invalidate` | all | where the device cannot invalidate a peer's key |
//! | extension: atomics | all | where the device has none (`DAT_IB_FETCH_AND_ADD`, `DAT_IB_CMP_AND_SWAP`) |
//! | extension: collectives | all | not implemented |
//!
//! # References
//! udat.h, udat_redirection.h, dat_registry.h; dat.conf(5).

#![expect(unsafe_code, reason = "two functions that libdat2 finds by their names")]

mod abi;
mod cno;
mod code;
mod context;
mod convert;
mod counters;
mod cr;
mod dat_conf;
mod entry_points;
mod ep;
mod evd;
mod event;
mod extension;
mod handle;
mod handles;
mod held;
mod ia;
mod libdat;
mod lmr;
mod objects;
mod post;
mod raw;
mod rmr;
mod service;
mod slots;
mod sockaddr;
mod srq;
mod table;

use self::abi::ProviderInfo;
use self::raw::In;
use provider::inside::fork;
use std::ffi::c_char;
use std::sync::atomic::{AtomicBool, Ordering};

/// Locks the tables that all threads of the process share, the outermost first, for a fork.
fn hold_shared_locks() -> Vec<Box<dyn std::any::Any>> {
    libdat::wait_for();
    let mut held = service::hold_shared_locks();
    held.extend(dat_conf::hold_shared_locks());
    held.extend(slots::hold_shared_locks());
    held.extend(sockaddr::hold_shared_locks());
    held
}

/// Called by libdat2 at the first open of each name in dat.conf.
#[unsafe(no_mangle)]
extern "C" fn dat_provider_init(info: In<ProviderInfo>, parameters: In<c_char>) {
    code::guard("dat_provider_init", || {
        begin();
        fork::share(fork::Part::Handles, hold_shared_locks, slots::forget_inherited);
        let info = info.need(1)?;
        let Some(name) = dat_conf::name_of(&info) else {
            tracing::error!("an IA name has no NUL");
            return Ok(());
        };
        let parameters = parameters.text().unwrap_or_default();
        let functions: [fn() -> table::Functions; 3] = [
            entry_points::functions,
            entry_points::functions_of_verbs::<false>,
            entry_points::functions_of_verbs::<true>,
        ];
        let entry = dat_conf::add(&name, parameters, functions);
        match libdat::add_provider(entry.table, &info) {
            Some(code::SUCCESS) => tracing::debug!(name, parameters = entry.parameters, "IA registered"),
            Some(refused) => tracing::error!("libdat2 refuses to register {name}: {refused:#010x}"),
            None => tracing::error!("libdat2 is not in this process: {name} is not registered"),
        }
        Ok(())
    });
}

/// Called by libdat2 after the last close of each name.
#[unsafe(no_mangle)]
extern "C" fn dat_provider_fini(info: In<ProviderInfo>) {
    code::guard("dat_provider_fini", || {
        let info = info.need(1)?;
        if let Some(entry) = dat_conf::name_of(&info).and_then(|name| dat_conf::entry(&name)) {
            libdat::remove_provider(entry.table, &info);
        }
        Ok(())
    });
}

/// Registers the fork handlers, and starts the log, which then also has the panics of the library.
/// The standard library would write them to standard error under a lock.
fn begin() {
    static BEGUN: AtomicBool = AtomicBool::new(false);
    // No `Once`: a child would wait for a thread of the parent that was in it.
    if !BEGUN.swap(true, Ordering::Relaxed) {
        fork::watch();
        provider::log_to_stderr();
        std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
    }
}
