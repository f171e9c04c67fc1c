//! One direction of one call: the frames of a body, carried over a link.
//!
//! What must stay true: frames arrive in order; several are under way at once; a receiver that does not read holds the sender
//! back; when the sender's host crashes, the link dies or a frame is lost, the receiver gets an error and never a clean end. A second
//! receiver of the same body sees the same frames in the same order, or a part of them and then an error; it never holds the first back.

use super::links::Fate;
use super::network::Network;
use bytes::Bytes;
use futures::FutureExt;
use http_body::Frame;
use http_body_util::BodyExt;
use std::collections::VecDeque;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tonic::Status;
use tonic::body::Body;

/// Frames under way or waiting to be read, each way: about what HTTP/2's standard window holds of small messages.
const WINDOW_FRAMES: usize = 32;
/// Frames that wait for a second receiver, which may begin seconds after the first.
const COPIED_FRAMES: usize = 1_024;

/// From one host to another.
#[derive(Clone)]
pub(super) struct Link {
    pub(super) network: Arc<Network>,
    pub(super) from: String,
    pub(super) to: String,
}

impl Link {
    pub(super) fn back(&self) -> Link {
        Link { network: self.network.clone(), from: self.to.clone(), to: self.from.clone() }
    }

    pub(super) fn fate(&self) -> Fate {
        self.network.links.fate(&self.from, &self.to)
    }

    pub(super) fn carry(&self, bytes: u64) -> Duration {
        self.network.links.carry(&self.from, &self.to, bytes)
    }

    pub(super) async fn passes(&self) -> bool {
        self.network.links.passes(&self.from, &self.to).await
    }

    pub(super) async fn dead(&self) {
        self.network.links.dead(&self.from, &self.to).await;
    }
}

pub(super) enum Item {
    Frame(Frame<Bytes>),
    End,
    Broken(Status),
}

impl Item {
    fn copy(&self) -> Option<Item> {
        Some(match self {
            Item::Frame(frame) => Item::Frame(copy_of(frame)?),
            Item::End => Item::End,
            Item::Broken(status) => Item::Broken(status.clone()),
        })
    }
}

/// The receiving end.
pub(super) struct PipedBody {
    /// Came with the head.
    ready: VecDeque<Frame<Bytes>>,
    /// Comes later; nothing when all came with the head.
    items: Option<mpsc::Receiver<Item>>,
    ended: bool,
}

fn bytes_of(frame: &Frame<Bytes>) -> u64 {
    frame.data_ref().map_or(0, |data| data.len() as u64)
}

impl PipedBody {
    /// Bytes of what came with the head.
    pub(super) fn bytes(&self) -> u64 {
        self.ready.iter().map(bytes_of).sum()
    }

    /// The same again, with what `rest` brings later; nothing of a body that broke before it was sent, or that has more than data.
    pub(super) fn copy(&self, rest: Option<&mut Rest>) -> Option<PipedBody> {
        let ready = self.ready.iter().map(copy_of).collect::<Option<_>>()?;
        let items = match (&self.items, rest) {
            (None, _) => None,
            (Some(_), None) => return None,
            (Some(_), Some(rest)) => {
                let (copy, items) = mpsc::channel(COPIED_FRAMES);
                rest.copy = Some(copy);
                Some(items)
            }
        };
        Some(PipedBody { ready, items, ended: false })
    }
}

/// What is still to be carried of a body.
pub(super) struct Rest {
    body: Body,
    to: mpsc::Sender<Item>,
    /// To a second receiver, if there is one.
    copy: Option<mpsc::Sender<Item>>,
}

impl Rest {
    /// Gives the second receiver what the first is about to get. One that reads too slowly gets no more.
    fn tell_copy(&mut self, item: &Item) {
        let Some(copy) = &self.copy else { return };
        let told = item.copy().is_some_and(|item| copy.try_send(item).is_ok());
        if !told {
            self.copy = None;
        }
    }
}

fn copy_of(frame: &Frame<Bytes>) -> Option<Frame<Bytes>> {
    frame.data_ref().cloned().map(Frame::data)
}

/// Makes the receiving end of `body`. What is there already travels with the head, so a unary call needs no task of its own.
pub(super) fn pipe(mut body: Body) -> (PipedBody, Option<Rest>) {
    let mut ready = VecDeque::new();
    while ready.len() < WINDOW_FRAMES {
        match body.frame().now_or_never() {
            Some(None) => return (PipedBody { ready, items: None, ended: false }, None),
            Some(Some(Ok(frame))) => ready.push_back(frame),
            Some(Some(Err(status))) => {
                let (to, items) = mpsc::channel(1);
                // There is room for one.
                let _ = to.try_send(Item::Broken(status));
                return (PipedBody { ready, items: Some(items), ended: false }, None);
            }
            None => break,
        }
    }
    let (to, items) = mpsc::channel(WINDOW_FRAMES);
    (PipedBody { ready, items: Some(items), ended: false }, Some(Rest { body, to, copy: None }))
}

impl http_body::Body for PipedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        if let Some(frame) = self.ready.pop_front() {
            return Poll::Ready(Some(Ok(frame)));
        }
        let item = match &mut self.items {
            None => Some(Item::End),
            Some(items) => ready!(items.poll_recv(cx)),
        };
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

/// Carries the rest of a body over `link` until it ends, breaks, or the receiver lets go. Nothing arrives before `not_before`.
pub(super) async fn pump(mut rest: Rest, link: Link, not_before: Instant) {
    let mut under_way: VecDeque<(Instant, Item)> = VecDeque::new();
    let mut last_arrival = not_before;
    let mut read_all = false;
    let mut dead = pin!(link.dead());
    loop {
        let next_arrival = under_way.front().map(|(at, _)| *at);
        tokio::select! {
            biased;
            () = rest.to.closed() => return,
            () = &mut dead => {
                // Both sides find out by themselves; the window may be full, and then dropping the sender says the same.
                let _ = rest.to.try_send(Item::Broken(timed_out()));
                return;
            }
            () = arrival(next_arrival), if next_arrival.is_some() => {
                let Some((_, item)) = under_way.pop_front() else { continue };
                let item = if link.passes().await { item } else { Item::Broken(timed_out()) };
                let over = !matches!(item, Item::Frame(_));
                rest.tell_copy(&item);
                if rest.to.send(item).await.is_err() || over {
                    return;
                }
            }
            frame = rest.body.frame(), if !read_all && under_way.len() < WINDOW_FRAMES => {
                let item = match frame {
                    None => Item::End,
                    Some(Ok(frame)) => Item::Frame(frame),
                    Some(Err(status)) => Item::Broken(status),
                };
                let carried = if let Item::Frame(frame) = &item { link.carry(bytes_of(frame)) } else { Duration::ZERO };
                let (delay, item) = match (link.fate(), item) {
                    (Fate::Arrives(delay), item) => (delay + carried, item),
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
