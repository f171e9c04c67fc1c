//! One direction of one call: the frames of a body, carried over a link.
//!
//! What must stay true: frames arrive in order; several are under way at once; a receiver that does not read holds the sender
//! back; when the sender's host crashes, the link dies or a frame is lost, the receiver gets an error and never a clean end.

use super::links::Fate;
use super::world::World;
use bytes::Bytes;
use http_body::{Body as _, Frame};
use http_body_util::BodyExt;
use std::collections::VecDeque;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tonic::Status;
use tonic::body::Body;

/// Frames under way or waiting to be read, each way: about what HTTP/2's standard window holds of small messages.
const WINDOW_FRAMES: usize = 32;

/// From one host to another.
#[derive(Clone)]
pub(super) struct Link {
    pub(super) world: Arc<World>,
    pub(super) from: String,
    pub(super) to: String,
}

impl Link {
    pub(super) fn back(&self) -> Link {
        Link { world: self.world.clone(), from: self.to.clone(), to: self.from.clone() }
    }

    pub(super) fn fate(&self) -> Fate {
        self.world.links.fate(&self.from, &self.to)
    }

    pub(super) async fn passes(&self) -> bool {
        self.world.links.passes(&self.from, &self.to).await
    }

    pub(super) async fn dead(&self) {
        self.world.links.dead(&self.from, &self.to).await;
    }
}

pub(super) enum Item {
    Frame(Frame<Bytes>),
    End,
    Broken(Status),
}

/// The receiving end.
pub(super) struct PipedBody {
    items: mpsc::Receiver<Item>,
    ended: bool,
}

pub(super) fn pipe() -> (mpsc::Sender<Item>, PipedBody) {
    let (sender, items) = mpsc::channel(WINDOW_FRAMES);
    (sender, PipedBody { items, ended: false })
}

impl http_body::Body for PipedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let item = ready!(self.items.poll_recv(cx));
        if !matches!(item, Some(Item::Frame(_))) {
            self.ended = true;
        }
        Poll::Ready(match item {
            Some(Item::Frame(frame)) => Some(Ok(frame)),
            Some(Item::End) => None,
            Some(Item::Broken(status)) => Some(Err(status)),
            // The sender is gone without an end: its host has crashed.
            None => Some(Err(reset())),
        })
    }

    fn is_end_stream(&self) -> bool {
        self.ended
    }
}

pub(super) fn reset() -> Status {
    Status::unavailable("connection reset")
}

pub(super) fn timed_out() -> Status {
    Status::unavailable("keep-alive timed out")
}

/// Carries `body` over `link` until it ends, breaks, or the receiver lets go. Nothing arrives before `not_before`.
pub(super) async fn pump(mut body: Body, link: Link, not_before: Instant, to: mpsc::Sender<Item>) {
    let mut under_way: VecDeque<(Instant, Item)> = VecDeque::new();
    let mut last_arrival = not_before;
    let mut read_all = body.is_end_stream();
    if read_all {
        under_way.push_back((last_arrival, Item::End));
    }
    let mut dead = pin!(link.dead());
    loop {
        let next_arrival = under_way.front().map(|(at, _)| *at);
        tokio::select! {
            biased;
            () = to.closed() => return,
            () = &mut dead => {
                // Both sides find out by themselves; the window may be full, and then dropping the sender says the same.
                let _ = to.try_send(Item::Broken(timed_out()));
                return;
            }
            () = arrival(next_arrival), if next_arrival.is_some() => {
                let Some((_, item)) = under_way.pop_front() else { continue };
                let item = if link.passes().await { item } else { Item::Broken(timed_out()) };
                let over = !matches!(item, Item::Frame(_));
                if to.send(item).await.is_err() || over {
                    return;
                }
            }
            frame = body.frame(), if !read_all && under_way.len() < WINDOW_FRAMES => {
                let item = match frame {
                    None => Item::End,
                    Some(Ok(frame)) => Item::Frame(frame),
                    Some(Err(status)) => Item::Broken(status),
                };
                let (delay, item) = match (link.fate(), item) {
                    (Fate::Arrives(delay), item) => (delay, item),
                    (Fate::Breaks(delay), _) => (delay, Item::Broken(reset())),
                };
                read_all = !matches!(item, Item::Frame(_));
                last_arrival = last_arrival.max(Instant::now() + delay);
                under_way.push_back((last_arrival, item));
            }
        }
    }
}

/// Sleeps to the timer's next tick only when the moment lies ahead.
async fn arrival(at: Option<Instant>) {
    if let Some(at) = at
        && at > Instant::now()
    {
        tokio::time::sleep_until(at).await;
    }
}
