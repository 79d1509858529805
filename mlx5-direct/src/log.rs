//! Events for `tracing`, with the feature of that name. Only taking a queue over is an event: no
//! function of the data path comes here.

/// Logs the number of a queue that was taken over and how many requests or entries it holds, which
/// `about` tells, or why it was refused.
#[cfg(feature = "tracing")]
pub(crate) fn taken_over<Q, E: core::fmt::Display>(
    kind: &str,
    queue: Result<Q, E>,
    about: impl FnOnce(&Q) -> (u32, u32),
) -> Result<Q, E> {
    match &queue {
        Ok(queue) => {
            let (number, holds) = about(queue);
            tracing::debug!(target: "mlx5_direct", kind, number, holds, "queue taken over");
        }
        Err(error) => tracing::debug!(target: "mlx5_direct", kind, %error, "queue refused"),
    }
    queue
}

#[cfg(not(feature = "tracing"))]
pub(crate) fn taken_over<Q, E: core::fmt::Display>(
    _kind: &str,
    queue: Result<Q, E>,
    _about: impl FnOnce(&Q) -> (u32, u32),
) -> Result<Q, E> {
    queue
}
