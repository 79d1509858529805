//! Calls for all types of handles: the consumer's context, and the type.

use super::code::{Code, guard};
use super::handle::Handle;
use super::raw::Out;
use super::slots::HandleSlot;
use provider::Subtype;
use std::sync::atomic::Ordering;

pub(super) extern "C" fn set_consumer_context(handle: Handle, context: u64) -> u32 {
    guard("dat_set_consumer_context", || {
        let slot = live(handle)?;
        slot.context.store(context, Ordering::Relaxed);
        Ok(())
    })
}

pub(super) extern "C" fn get_consumer_context(handle: Handle, context: Out<u64>) -> u32 {
    guard("dat_get_consumer_context", || {
        let slot = live(handle)?;
        context.need(2)?;
        context.set(slot.context.load(Ordering::Relaxed));
        Ok(())
    })
}

pub(super) extern "C" fn get_handle_type(handle: Handle, kind: Out<u32>) -> u32 {
    guard("dat_get_handle_type", || {
        let is = handle.kind().ok_or_else(|| Code::handle(Subtype::InvalidHandle1))?;
        kind.need(2)?;
        kind.set(is);
        Ok(())
    })
}

fn live(handle: Handle) -> Result<&'static HandleSlot, Code> {
    let invalid = || Code::handle(Subtype::InvalidHandle1);
    handle.kind().ok_or_else(invalid)?;
    handle.slot().ok_or_else(invalid)
}
