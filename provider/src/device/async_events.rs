//! Asynchronous events of the device. Each goes to the object that it concerns, or to the
//! asynchronous EVD.

use super::Device;
use super::registry::Class;
use crate::IaCounter;
use crate::datapath;
use crate::event_data::{AsyncEvent, AsyncKind, AsyncObject, reason};
use rxe_fallback::{AsyncKind as Kind, AsyncObject as Object};

impl Device {
    /// Handles all events of the device's event channel, which is readable.
    pub(super) fn async_ready(&self) {
        loop {
            match self.context.next_async_event() {
                Ok(Some(event)) => self.on_async_event(event),
                Ok(None) => return,
                Err(error) => {
                    tracing::error!(%error, "cannot read the device's event channel");
                    return;
                }
            }
        }
    }

    fn on_async_event(&self, event: rxe_fallback::AsyncEvent) {
        tracing::debug!(?event, "device event");
        self.count_async(&event);
        let (class, id) = match event.object {
            Object::Qp(_, token) => (Class::Ep, token),
            Object::Srq(token) => (Class::Srq, token),
            Object::Cq(token) => (Class::Evd, datapath::evd_of(token)),
            Object::Device => return self.push_about_ia(AsyncKind::IaCatastrophic, reason::IA_CATASTROPHIC),
            Object::Port(port) => {
                if port == self.port && event.kind == Kind::PortError {
                    self.push_about_ia(AsyncKind::Notice, reason::IA_OTHER);
                }
                return;
            }
        };
        if let Some(member) = self.registry.find(class, id) {
            member.device_event(event.kind);
        }
    }

    fn push_about_ia(&self, kind: AsyncKind, reason: u32) {
        let context = self.consumer_context();
        self.push_async(AsyncEvent { kind, object: AsyncObject::Ia, context, reason });
    }

    fn count_async(&self, event: &rxe_fallback::AsyncEvent) {
        let counter = match (event.object, event.kind) {
            (Object::Qp(..), Kind::QpFatal | Kind::QpRequestError | Kind::QpAccessError) => {
                IaCounter::AsyncQpError
            }
            (Object::Cq(_), _) => IaCounter::AsyncCqError,
            (Object::Srq(_), Kind::SrqError) | (Object::Device, _) => IaCounter::AsyncError,
            (Object::Port(port), Kind::PortError) if port == self.port => IaCounter::AsyncError,
            _ => return,
        };
        self.count(counter);
    }
}
