//! Work that takes long: searches of tenths of a second, which must not hold up heartbeats and elections beside them.
//!
//! In production each host has one thread for it, which the operating system prefers less than the others; in simulation it is done at
//! once, in place, so that a run still follows from its seed. What must stay true: what waits is bounded, and more is refused; work
//! whose caller has gone is not begun.

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::oneshot;

/// Work to do.
pub type Work = Box<dyn FnOnce() + Send>;

/// Where long work is done.
pub trait Heavy: Send + Sync + 'static {
    /// Takes work, to be done after what was taken before.
    ///
    /// # Errors
    /// [`Full`] when too much waits already.
    fn take(&self, work: Work) -> Result<(), Full>;
}

/// Too much waits already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{limit} pieces of long work wait already")]
pub struct Full {
    /// As many as may wait.
    pub limit: usize,
}

/// The work did not come to its end: it panicked, or the host ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("long work broke off")]
pub struct BrokeOff;

/// Has `heavy` do `work`; the future gives what comes of it. When the future is dropped before the work has begun, it is not begun.
pub(crate) fn ask<R: Send + 'static>(
    heavy: &dyn Heavy,
    work: impl FnOnce() -> R + Send + 'static,
) -> Result<BoxFuture<'static, Result<R, BrokeOff>>, Full> {
    let (answer, answered) = oneshot::channel();
    heavy.take(Box::new(move || {
        if !answer.is_closed() {
            // Whoever asked may have gone meanwhile.
            let _ = answer.send(work());
        }
    }))?;
    Ok(async move { answered.await.map_err(|_| BrokeOff) }.boxed())
}
