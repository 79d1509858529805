//! The C ABI: what libdat2 loads. Nothing here but translation.
//!
//! libdat2 reads dat.conf, loads the library, calls `dat_provider_init` and finds the slots in the table that this registers.
//! Each slot turns handles into objects ([`handle`]), C's values into the core's ([`raw`], [`abi`]), calls the core, and turns
//! the outcome into a `DAT_RETURN` ([`code`]). Checks go in the order of the rules: handles, pointers, values, then what
//! the core checks.
//!
//! All 79 slots do what they are for. `MODEL_NOT_SUPPORTED` is left for what no connection of verbs devices can be asked:
//!
//! | slot | declined | why |
//! |---|---|---|
//! | `dat_ep_connect`, `dat_ep_dup_connect` | a quality of service other than best effort | nothing on the way would keep it (`dat_qos_supported` is 0) |
//! | `dat_ep_connect` | multipath flags | one IA is one port (`supports_multipath`, `ha_supported` are FALSE) |
//! | `dat_ep_create`, `dat_ep_create_with_srq` | service type UD | where the device has no datagrams (`DAT_IB_UD`) |
//! | `dat_ep_common_connect` | endpoints of service type UD | common service points are for streams |
//! | `dat_rmr_create`, `dat_rmr_create_for_ep` | all | where the device has no memory windows of that kind (`max_rmrs`, `rmr_scope_supported`) |
//! | `dat_rmr_bind` | zero-based addresses of an RMR of a PZ; zero-based LMRs | devices bind neither |
//! | `dat_ep_post_send_with_invalidate` | all | where the device cannot invalidate a peer's key |
//! | extension: atomics | all | where the device has none (`DAT_IB_FETCH_AND_ADD`, `DAT_IB_CMP_AND_SWAP`) |
//! | extension: collectives | all | not made here |
//!
//! # References
//! udat.h, udat_redirection.h, dat_registry.h; dat.conf(5).

#![expect(unsafe_code, reason = "the two entry points have to have these names")]

mod abi;
mod cno;
mod code;
mod context;
mod counters;
mod cr;
mod ep;
mod evd;
mod event;
mod extension;
mod handle;
mod ia;
mod lane;
mod libdat;
mod lmr;
mod objects;
mod post;
mod raw;
mod rmr;
mod service;
mod srq;
mod table;

use self::abi::ProviderInfo;
use self::raw::In;
use self::table::Table;
use crate::fork;
use crate::sync::{Mutex, MutexGuard, rank};
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char};
use std::sync::{Once, OnceLock, PoisonError};

/// A line of dat.conf.
#[derive(Clone)]
struct Line {
    table: &'static Table,
    /// Field 7: which device.
    parameters: String,
}

static LINES: OnceLock<Mutex<{ rank::TABLE }, HashMap<String, Line>>> = OnceLock::new();

/// The locks that all threads of the process share, the outermost first; for a fork.
fn hold_shared_locks() -> Vec<Box<dyn std::any::Any>> {
    let mut held = service::hold_shared_locks();
    held.push(Box::new(LINES.get_or_init(Mutex::default).hold()));
    held.extend(handle::hold_shared_locks());
    held.extend(lane::hold_shared_locks());
    held.extend(raw::hold_shared_locks());
    held
}

fn lines() -> MutexGuard<'static, HashMap<String, Line>> {
    LINES.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// The line of this IA name.
fn line(name: &str) -> Option<Line> {
    lines().get(name).cloned()
}

/// The name inside, up to its NUL.
fn name_of(info: &ProviderInfo) -> Option<String> {
    CStr::from_bytes_until_nul(&info.ia_name).ok().map(|name| name.to_string_lossy().into_owned())
}

/// Called by libdat2 at the first open of each name in dat.conf.
#[unsafe(no_mangle)]
extern "C" fn dat_provider_init(info: In<ProviderInfo>, parameters: In<c_char>) {
    code::guard("dat_provider_init", || {
        log();
        fork::share(fork::Part::Handles, hold_shared_locks, handle::forget_inherited);
        let info = info.need(1)?;
        let Some(name) = name_of(&info) else {
            tracing::error!("an IA name without an end");
            return Ok(());
        };
        let parameters = parameters.text().unwrap_or_default();
        let mut lines = lines();
        let line = lines.entry(name.clone()).or_insert_with(|| {
            // The registry may hold the table, and handles the name, for as long as the process lives.
            let name: &'static CStr = Box::leak(CString::new(name.clone()).unwrap_or_default().into());
            Line { table: Box::leak(Box::new(Table::new(name))), parameters: String::new() }
        });
        line.parameters = parameters;
        match libdat::add_provider(line.table, &info) {
            Some(code::SUCCESS) => tracing::debug!(name, parameters = line.parameters, "registered"),
            Some(refused) => tracing::error!("libdat2 does not register {name}: {refused:#010x}"),
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
        if let Some(line) = name_of(&info).and_then(|name| line(&name)) {
            libdat::remove_provider(line.table, &info);
        }
        Ok(())
    });
}

/// The log goes to standard error, as far as `DOORBELL_LOG` asks (`debug`, `doorbell=trace`, `off`); errors unless it says
/// otherwise.
fn log() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let filter = std::env::var("DOORBELL_LOG").unwrap_or_else(|_| "error".to_owned());
        let _ = tracing_subscriber::fmt()
            .with_env_filter(tracing_subscriber::EnvFilter::new(filter))
            .with_writer(std::io::stderr)
            .with_target(false)
            .without_time()
            .with_ansi(false)
            .try_init();
    });
}
