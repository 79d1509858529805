//! Conversions of argument values that several entry points share. `arg` is the argument's number
//! for INVALID_PARAMETER.

use super::code::Code;
use super::handle::Handle;
use super::libdat::consumer_ia;
use super::objects::EvdObject;
use provider::inside::Qos;
use provider::{CloseFlags, CompletionFlags, Evd, ServiceType, Subtype, VaType};
use std::time::Duration;

/// The handle, in C's form, of the IA to which this handle belongs.
pub(super) fn ia_of(handle: Handle) -> usize {
    consumer_ia(handle.ia())
}

/// The EVD of a handle, or INVALID_HANDLE with this subtype. NULL is `None`.
pub(super) fn optional_evd(handle: Handle, sub: Subtype) -> Result<Option<Evd>, Code> {
    handle.given().map(|handle| Ok(handle.get_as::<EvdObject>(sub)?.evd.clone())).transpose()
}

/// `DAT_TIMEOUT`: microseconds; `None` waits without a limit.
pub(super) fn timeout(micros: u32) -> Option<Duration> {
    (micros != u32::MAX).then(|| Duration::from_micros(micros.into()))
}

/// `DAT_CLOSE_FLAGS`, always argument 2.
pub(super) fn close_flags(flags: u32) -> Result<CloseFlags, Code> {
    match flags {
        0 => Ok(CloseFlags::Abrupt),
        1 => Ok(CloseFlags::Graceful),
        _ => Err(Code::arg(2)),
    }
}

/// `DAT_COUNT`: a number that is not negative.
pub(super) fn count(count: i32, arg: u16) -> Result<u32, Code> {
    u32::try_from(count).map_err(|_| Code::arg(arg))
}

/// A number as a `DAT_COUNT`.
pub(super) fn to_count(number: impl TryInto<i32>) -> i32 {
    number.try_into().unwrap_or(i32::MAX)
}

/// A high watermark: `DAT_WATERMARK_INFINITE`, -1, is none.
pub(super) fn high_watermark(value: i32, arg: u16) -> Result<Option<u32>, Code> {
    if value == -1 { Ok(None) } else { count(value, arg).map(Some) }
}

/// `DAT_COMPLETION_FLAGS`.
pub(super) fn completion_flags(bits: u32, arg: u16) -> Result<CompletionFlags, Code> {
    CompletionFlags::from_bits(bits).ok_or_else(|| Code::arg(arg))
}

/// `DAT_QOS`.
pub(super) fn qos(qos: u32, arg: u16) -> Result<Qos, Code> {
    match qos {
        0 => Ok(Qos::BestEffort),
        1 => Ok(Qos::HighThroughput),
        2 => Ok(Qos::LowLatency),
        4 => Ok(Qos::Economy),
        8 => Ok(Qos::Premium),
        _ => Err(Code::arg(arg)),
    }
}

/// `DAT_SERVICE_TYPE`.
pub(super) fn service_type(service_type: u32, arg: u16) -> Result<ServiceType, Code> {
    match service_type {
        0 => Ok(ServiceType::Rc),
        1 => Ok(ServiceType::Ud),
        _ => Err(Code::arg(arg)),
    }
}

/// `DAT_VA_TYPE`.
pub(super) fn va_type(va_type: u32, arg: u16) -> Result<VaType, Code> {
    match va_type {
        0 => Ok(VaType::Virtual),
        1 => Ok(VaType::ZeroBased),
        _ => Err(Code::arg(arg)),
    }
}

/// Converts immediate data between DAT and verbs. libdaplofa sends the number in the byte order of
/// the machine; verbs takes a big-endian number.
pub(super) fn immediate(data: u32) -> u32 {
    u32::from_be(data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn close_flags_are_two() {
        assert_eq!(close_flags(0), Ok(CloseFlags::Abrupt));
        assert_eq!(close_flags(1), Ok(CloseFlags::Graceful));
        assert_eq!(close_flags(2), Err(Code(0x8006_0026)));
    }
}
