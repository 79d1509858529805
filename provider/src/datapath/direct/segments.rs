//! Segments of requests and receives in the device's format.

use crate::Result;
use mlx5_direct::DataSeg;
use rxe_fallback::{PostError as Refusal, Sge};

pub(super) const NO_SEGMENT: DataSeg = DataSeg::new(0, 0, 0);

/// The segments in the device's format.
pub(super) fn encode<'a>(sges: &[Sge], into: &'a mut [DataSeg]) -> Result<&'a [DataSeg], Refusal> {
    let too_many = Refusal::TooManySegments { given: sges.len(), max: into.len() };
    let into = into.get_mut(..sges.len()).ok_or(too_many)?;
    for (to, from) in into.iter_mut().zip(sges) {
        *to = DataSeg::new(from.addr, from.len, from.lkey);
    }
    Ok(into)
}
