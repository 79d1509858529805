//! Handles: the numbers by which a program names the objects of a context.

use std::io;

use crate::device::Device;
use crate::host::sys;
use crate::objects::ObjectKind;

impl Device {
    /// Gives an object a handle in its context.
    pub(super) fn add_handle(&mut self, context: usize, kind: ObjectKind, index: usize) -> u32 {
        let context = &mut self.card.contexts[context];
        let handle = context.next_handle;
        context.next_handle += 1;
        context.handles.insert(handle, (kind, index));
        handle
    }

    /// The object behind a handle.
    ///
    /// # Errors
    /// ENOENT for a handle that does not exist, EINVAL for another kind of object.
    pub(super) fn object(&self, context: usize, handle: u32, kind: ObjectKind) -> io::Result<usize> {
        match self.card.contexts[context].handles.get(&handle) {
            None => Err(sys::errno(libc::ENOENT)),
            Some(&(found, index)) if found == kind => Ok(index),
            Some(_) => Err(sys::errno(libc::EINVAL)),
        }
    }

    /// The kind and the index of the object behind a handle.
    ///
    /// # Errors
    /// ENOENT for a handle that does not exist.
    pub(super) fn any_object(&self, context: usize, handle: u32) -> io::Result<(ObjectKind, usize)> {
        self.card.contexts[context].handles.get(&handle).copied().ok_or_else(|| sys::errno(libc::ENOENT))
    }

    pub(super) fn drop_handle(&mut self, context: usize, handle: u32) {
        self.card.contexts[context].handles.remove(&handle);
    }
}
