//! Entries of dat.conf, as libdat2 passes them to `dat_provider_init`.

use super::abi::ProviderInfo;
use super::table::{Functions, Table};
use provider::inside::sync::{Mutex, MutexGuard, rank};
use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::sync::{OnceLock, PoisonError};

/// An entry of dat.conf.
#[derive(Clone)]
pub(super) struct DatConfEntry {
    /// The provider table that libdat2 has for this IA name.
    pub(super) table: &'static Table,
    /// The table for objects of the verbs path.
    pub(super) by_verbs: &'static Table,
    /// The same where the driver posts by system calls.
    pub(super) by_calls: &'static Table,
    /// Field 7: the device.
    pub(super) parameters: String,
}

/// Entries by IA name.
static ENTRIES: OnceLock<Mutex<{ rank::TABLE }, HashMap<String, DatConfEntry>>> = OnceLock::new();

fn entries() -> MutexGuard<'static, HashMap<String, DatConfEntry>> {
    ENTRIES.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// The entry of this IA name.
pub(super) fn entry(name: &str) -> Option<DatConfEntry> {
    entries().get(name).cloned()
}

/// Adds an entry with the functions of each data path (direct, by verbs, by verbs with system
/// calls), or changes the parameters of the entry with this name.
pub(super) fn add(name: &str, parameters: String, functions: [fn() -> Functions; 3]) -> DatConfEntry {
    let mut entries = entries();
    let entry = entries.entry(name.to_owned()).or_insert_with(|| {
        // Never freed: libdat2's registry may keep the table, and handles refer to the name.
        let name: &'static CStr = Box::leak(CString::new(name).unwrap_or_default().into());
        let [table, by_verbs, by_calls] =
            functions.map(|functions| &*Box::leak(Box::new(Table::new(name, functions()))));
        DatConfEntry { table, by_verbs, by_calls, parameters: String::new() }
    });
    entry.parameters = parameters;
    entry.clone()
}

/// The IA name in this structure; `None` without a NUL.
pub(super) fn name_of(info: &ProviderInfo) -> Option<String> {
    CStr::from_bytes_until_nul(&info.ia_name).ok().map(|name| name.to_string_lossy().into_owned())
}

/// Locks the table for a fork.
pub(super) fn hold_shared_locks() -> Vec<Box<dyn std::any::Any>> {
    vec![Box::new(ENTRIES.get_or_init(Mutex::default).hold())]
}
