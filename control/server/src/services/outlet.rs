//! The events of a watch on their way to a slow reader, bounded in bytes: each watch by itself, and all of a kind together.
//!
//! A queue holds few events, and of large ones fewer. When all queues of a kind together pass their budget, the watch with most unread
//! bytes is ended, and told to go on from what it has seen: it is the one that reads too slowly or asked for too much. What must stay
//! true: what is counted is what is kept, whoever goes first, writer or reader; a writer that waits for room counts with what it holds.

use crate::api::refusal;
use futures::Stream;
use parking_lot::Mutex;
use prost::Message;
use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use tokio::sync::Notify;
use tonic::Status;

/// Events that wait for a reader.
const EVENTS_MAX: usize = 64;
/// Their bytes, but for one that is larger by itself: some hundred milliseconds of a usual link.
const BYTES_MAX: usize = 4 << 20;

/// The watches of one kind. Cheap to clone.
pub(crate) struct Outlets<T> {
    all: Arc<All<T>>,
}

struct All<T> {
    bytes_max: usize,
    bytes: AtomicUsize,
    open: Mutex<Open<T>>,
}

struct Open<T> {
    next: u64,
    queues: BTreeMap<u64, Arc<Queue<T>>>,
}

/// What one watch has to send.
struct Queue<T> {
    number: u64,
    all: Arc<All<T>>,
    /// Of what is queued, and of what its writer waits with.
    bytes: AtomicUsize,
    state: Mutex<State<T>>,
    /// There is room, or nobody reads any more.
    room: Notify,
}

struct State<T> {
    events: VecDeque<(T, Counted<T>)>,
    bytes: usize,
    reader: Option<Waker>,
    reader_gone: bool,
    writer_gone: bool,
    /// The last thing to say.
    last: Option<Status>,
}

/// Bytes that are counted until this is dropped.
struct Counted<T> {
    queue: Arc<Queue<T>>,
    bytes: usize,
}

impl<T> Drop for Counted<T> {
    fn drop(&mut self) {
        self.queue.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        self.queue.all.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The reader has gone, or its watch was ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gone;

/// Where the events of one watch are put in.
pub(crate) struct Outlet<T>(Arc<Queue<T>>);

/// Where they come out.
pub(crate) struct Events<T>(Arc<Queue<T>>);

impl<T: Message> Outlets<T> {
    /// All of them together may keep so many bytes.
    pub(crate) fn new(bytes_max: usize) -> Self {
        let open = Mutex::new(Open { next: 0, queues: BTreeMap::new() });
        Outlets { all: Arc::new(All { bytes_max, bytes: AtomicUsize::new(0), open }) }
    }

    /// A new watch.
    pub(crate) fn open(&self) -> (Outlet<T>, Events<T>) {
        let mut open = self.all.open.lock();
        let number = open.next;
        open.next += 1;
        let queue = Arc::new(Queue {
            number,
            all: Arc::clone(&self.all),
            bytes: AtomicUsize::new(0),
            state: Mutex::new(State {
                events: VecDeque::new(),
                bytes: 0,
                reader: None,
                reader_gone: false,
                writer_gone: false,
                last: None,
            }),
            room: Notify::new(),
        });
        open.queues.insert(number, Arc::clone(&queue));
        (Outlet(Arc::clone(&queue)), Events(queue))
    }
}

impl<T> All<T> {
    /// Ends the watch with most unread bytes when all together have more than they may. One at a time: what its writer still waits with
    /// is given back a moment later.
    fn keep_within(&self) {
        if self.bytes.load(Ordering::Relaxed) <= self.bytes_max {
            return;
        }
        let greediest = {
            let open = self.open.lock();
            open.queues.values().max_by_key(|queue| queue.bytes.load(Ordering::Relaxed)).cloned()
        };
        let Some(greediest) = greediest else { return };
        let bytes = greediest.bytes.load(Ordering::Relaxed);
        metrics::counter!("muster_watches_ended_total").increment(1);
        tracing::info!(bytes, "a watch was ended because its reader is too slow");
        greediest.end(refusal::fell_behind(bytes, self.bytes_max));
    }
}

impl<T> Queue<T> {
    /// Drops what is queued; the reader is told `last` in its place.
    fn end(&self, last: Status) {
        self.all.open.lock().queues.remove(&self.number);
        let mut state = self.state.lock();
        let events = std::mem::take(&mut state.events);
        state.bytes = 0;
        state.last.get_or_insert(last);
        state.writer_gone = true;
        let reader = state.reader.take();
        drop(state);
        drop(events);
        self.room.notify_waiters();
        if let Some(reader) = reader {
            reader.wake();
        }
    }
}

impl<T: Message> Outlet<T> {
    /// Waits for room and puts an event in.
    pub(crate) async fn send(&self, event: T) -> Result<(), Gone> {
        let mut carried = Some(self.count(event));
        self.0.all.keep_within();
        loop {
            let room = self.0.room.notified();
            match self.put(carried) {
                Ok(()) => return Ok(()),
                Err(Put::Gone) => return Err(Gone),
                Err(Put::Full(back)) => carried = back,
            }
            room.await;
        }
    }

    /// Puts an event in if there is room at once; otherwise it is dropped.
    pub(crate) fn send_now(&self, event: T) {
        let carried = self.count(event);
        self.0.all.keep_within();
        let _ = self.put(Some(carried));
    }

    /// Ends the watch with this word, after what is queued.
    pub(crate) fn fail(&self, last: Status) {
        self.0.state.lock().last.get_or_insert(last);
    }

    /// Ready when nobody reads any more, or the watch was ended.
    pub(crate) async fn closed(&self) {
        loop {
            let room = self.0.room.notified();
            {
                let state = self.0.state.lock();
                if state.reader_gone || state.writer_gone {
                    return;
                }
            }
            room.await;
        }
    }

    fn count(&self, event: T) -> (T, Counted<T>) {
        let bytes = event.encoded_len();
        self.0.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.0.all.bytes.fetch_add(bytes, Ordering::Relaxed);
        (event, Counted { queue: Arc::clone(&self.0), bytes })
    }

    fn put(&self, carried: Option<(T, Counted<T>)>) -> Result<(), Put<T>> {
        let mut state = self.0.state.lock();
        if state.reader_gone || state.writer_gone {
            return Err(Put::Gone);
        }
        let bytes = carried.as_ref().map_or(0, |(_, counted)| counted.bytes);
        let full = state.events.len() >= EVENTS_MAX || state.bytes + bytes > BYTES_MAX;
        if full && !state.events.is_empty() {
            return Err(Put::Full(carried));
        }
        state.bytes += bytes;
        state.events.extend(carried);
        if let Some(reader) = state.reader.take() {
            reader.wake();
        }
        Ok(())
    }
}

/// Why an event was not put in.
enum Put<T> {
    Full(Option<(T, Counted<T>)>),
    Gone,
}

impl<T> Drop for Outlet<T> {
    fn drop(&mut self) {
        self.0.all.open.lock().queues.remove(&self.0.number);
        let mut state = self.0.state.lock();
        state.writer_gone = true;
        if let Some(reader) = state.reader.take() {
            reader.wake();
        }
    }
}

impl<T: Message + Unpin> Stream for Events<T> {
    type Item = Result<T, Status>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let queue = &self.0;
        let mut state = queue.state.lock();
        if let Some((event, counted)) = state.events.pop_front() {
            state.bytes -= counted.bytes;
            drop(state);
            drop(counted);
            queue.room.notify_waiters();
            return Poll::Ready(Some(Ok(event)));
        }
        if !state.writer_gone {
            state.reader = Some(context.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(state.last.take().map(Err))
    }
}

impl<T> Drop for Events<T> {
    fn drop(&mut self) {
        let events = {
            let mut state = self.0.state.lock();
            state.reader_gone = true;
            state.bytes = 0;
            std::mem::take(&mut state.events)
        };
        drop(events);
        self.0.room.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::StreamExt;
    use muster_proto::v1;
    use tonic::Code;

    fn event(revision: u64, kib: usize) -> v1::JobEvent {
        let job = v1::Job { reason: "x".repeat(kib << 10), ..v1::Job::default() };
        v1::JobEvent { revision, event: Some(v1::job_event::Event::Job(job)) }
    }

    fn kept(outlets: &Outlets<v1::JobEvent>) -> usize {
        outlets.all.bytes.load(Ordering::Relaxed)
    }

    #[tokio::test]
    async fn events_come_out_in_order_and_then_the_last_word() {
        let outlets = Outlets::new(1 << 20);
        let (outlet, events) = outlets.open();
        for revision in 1..=10 {
            outlet.send(event(revision, 1)).await.expect("there is room");
        }
        outlet.fail(Status::unavailable("the node stops"));
        drop(outlet);
        let got: Vec<_> = events.collect().await;
        let revisions: Vec<u64> = got.iter().flatten().map(|event| event.revision).collect();
        assert_eq!(revisions, (1..=10).collect::<Vec<_>>());
        assert_eq!(got.last().and_then(|last| last.as_ref().err()).map(Status::code), Some(Code::Unavailable));
        assert_eq!(kept(&outlets), 0);
    }

    #[tokio::test]
    async fn a_writer_waits_for_its_own_reader_and_goes_on() {
        let outlets = Outlets::new(1 << 30);
        let (outlet, mut events) = outlets.open();
        let writing = tokio::spawn(async move {
            for revision in 1..=200 {
                outlet.send(event(revision, 100)).await.expect("the reader reads");
            }
        });
        tokio::task::yield_now().await;
        // It stands still long before all 20 MB are in memory.
        assert!(!writing.is_finished() && kept(&outlets) < BYTES_MAX + (1 << 20), "{} kept", kept(&outlets));
        for revision in 1..=200 {
            assert_eq!(events.next().await.expect("an event").expect("no refusal").revision, revision);
        }
        writing.await.expect("no panic");
        assert!(events.next().await.is_none());
        assert_eq!(kept(&outlets), 0);
    }

    /// Readers that stop take at most the budget together: the one with most unread is ended, the others go on.
    #[tokio::test]
    async fn the_greediest_is_ended_and_nobody_else() {
        let outlets = Outlets::new(4 << 20);
        let (small, mut small_events) = outlets.open();
        small.send(event(1, 500)).await.expect("there is room");
        let (greedy, mut greedy_events) = outlets.open();
        let mut sent = 0;
        let ended = loop {
            // Its reader reads nothing.
            let put = tokio::time::timeout(std::time::Duration::from_secs(20), greedy.send(event(sent, 500))).await;
            if put.expect("it does not wait for ever") == Err(Gone) {
                break sent;
            }
            sent += 1;
            if sent == 7 {
                // The budget is used up by another, smaller one.
                let (third, _events) = outlets.open();
                third.send(event(1, 500)).await.expect("there is room for the smaller one");
            }
        };
        assert!(ended >= 7, "{ended}");
        let refusal = greedy_events.next().await.expect("a last word").expect_err("it was ended");
        assert_eq!(refusal.code(), Code::ResourceExhausted);
        assert!(refusal.message().contains("watch again from the last revision you have seen"), "{refusal}");
        assert!(muster_proto::status::retry_delay(&refusal).is_some());
        assert!(greedy_events.next().await.is_none());
        // The small one is still served.
        assert_eq!(small_events.next().await.expect("an event").expect("no refusal").revision, 1);
        small.send(event(2, 1)).await.expect("it goes on");
        assert_eq!(small_events.next().await.expect("an event").expect("no refusal").revision, 2);
        drop((small, small_events, greedy, greedy_events));
        assert_eq!(kept(&outlets), 0);
    }

    #[tokio::test]
    async fn a_writer_learns_that_its_reader_has_gone() {
        let outlets = Outlets::new(1 << 20);
        let (outlet, events) = outlets.open();
        outlet.send(event(1, 1)).await.expect("there is room");
        drop(events);
        outlet.closed().await;
        assert_eq!(outlet.send(event(2, 1)).await, Err(Gone));
        assert_eq!(kept(&outlets), 0);
    }
}
