//! The links between hosts: their quality, and which of them are cut.
//!
//! Links are directed, so a partition can be one way. A cut link holds back what is sent over it, as TCP does; what is held
//! longer than [`DEAD_AFTER`] breaks, as HTTP/2 keep-alive makes it. A link that is mended earlier delivers.

use crate::chance::Chance;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// How long a connection survives without hearing from the other side: what the real network's keep-alive allows.
pub(super) const DEAD_AFTER: Duration = Duration::from_secs(5);

/// How good all links are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkQuality {
    /// Shortest delay of a message one way.
    pub delay_us_min: u64,
    /// Longest delay of an ordinary message.
    pub delay_us_max: u64,
    /// Of a million messages, how many take up to `spike_us_max` instead: a lost packet that is sent again.
    pub spikes_ppm: u64,
    /// The longest such delay.
    pub spike_us_max: u64,
    /// Of a million messages (calls, answers, frames of a stream), how many break their connection.
    pub breaks_ppm: u64,
    /// Of a million calls, how many reach their handler a second time, up to `repeat_us_max` later, with nobody waiting for the
    /// answer: what a middle box or a library that retries by itself does. Of a stream every message arrives twice.
    pub repeats_ppm: u64,
    /// See `repeats_ppm`.
    pub repeat_us_max: u64,
    /// What each link carries, in bytes a second, each way; 0: whatever there is.
    pub bytes_per_s: u64,
}

/// A message of at most so many bytes passes what waits for a link, but for one burst: queues are fair to flows that send little.
const SMALL_BYTES: u64 = 16 << 10;
/// See [`SMALL_BYTES`].
const BURST_BYTES: u64 = 64 << 10;

impl LinkQuality {
    /// A machine room on a good day.
    pub const GOOD: LinkQuality = LinkQuality {
        delay_us_min: 100,
        delay_us_max: 2_000,
        spikes_ppm: 1_000,
        spike_us_max: 30_000,
        breaks_ppm: 0,
        repeats_ppm: 0,
        repeat_us_max: 0,
        bytes_per_s: 0,
    };

    /// A network in trouble: delays past every timeout now and then, one connection in fifty lost, one call in fifty repeated.
    pub const BAD: LinkQuality = LinkQuality {
        delay_us_min: 100,
        delay_us_max: 20_000,
        spikes_ppm: 50_000,
        spike_us_max: 1_500_000,
        breaks_ppm: 20_000,
        repeats_ppm: 20_000,
        repeat_us_max: 3_000_000,
        bytes_per_s: 0,
    };

    /// A good network of 100 Mbit/s.
    pub const SLOW: LinkQuality = LinkQuality { bytes_per_s: 100_000_000 / 8, ..LinkQuality::GOOD };

    /// A network that loses many packets: what is lost is sent again by TCP, later and later.
    pub const LOSSY: LinkQuality = LinkQuality { spikes_ppm: 500_000, spike_us_max: 700_000, ..LinkQuality::GOOD };
}

/// What happens to one message.
pub(super) enum Fate {
    /// It arrives after this long.
    Arrives(Duration),
    /// It is lost, and the connection with it; whoever waits learns after this long.
    Breaks(Duration),
}

pub(super) struct Links {
    chance: Chance,
    state: Mutex<State>,
    changed: Notify,
}

struct State {
    quality: LinkQuality,
    /// Since when each cut link is cut, from one host to another.
    cut: BTreeMap<(String, String), Instant>,
    /// How much longer messages take from one host to another because of the distance.
    latency: BTreeMap<(String, String), Duration>,
    /// Until when each link is busy with what was given to it.
    busy_until: BTreeMap<(String, String), Instant>,
}

impl Links {
    pub(super) fn new(chance: Chance) -> Self {
        let state = State {
            quality: LinkQuality::GOOD,
            cut: BTreeMap::new(),
            latency: BTreeMap::new(),
            busy_until: BTreeMap::new(),
        };
        Links { chance, state: Mutex::new(state), changed: Notify::new() }
    }

    pub(super) fn set_quality(&self, quality: LinkQuality) {
        self.state.lock().quality = quality;
    }

    pub(super) fn set_latency(&self, from: &str, to: &str, one_way: Duration) {
        self.state.lock().latency.insert((from.to_owned(), to.to_owned()), one_way);
    }

    pub(super) fn cut(&self, from: &str, to: &str) {
        self.state.lock().cut.entry((from.to_owned(), to.to_owned())).or_insert_with(Instant::now);
        self.changed.notify_waiters();
    }

    pub(super) fn mend(&self, from: &str, to: &str) {
        self.state.lock().cut.remove(&(from.to_owned(), to.to_owned()));
        self.changed.notify_waiters();
    }

    pub(super) fn mend_all(&self) {
        self.state.lock().cut.clear();
        self.changed.notify_waiters();
    }

    /// Decides what becomes of the next message. A host reaches itself at once and always.
    pub(super) fn fate(&self, from: &str, to: &str) -> Fate {
        if from == to {
            return Fate::Arrives(Duration::ZERO);
        }
        let (quality, latency) = {
            let state = self.state.lock();
            let distance = state.latency.get(&(from.to_owned(), to.to_owned()));
            (state.quality, distance.copied().unwrap_or_default())
        };
        let delay =
            latency + Duration::from_micros(self.chance.between(quality.delay_us_min, quality.delay_us_max + 1));
        let draw = self.chance.between(0, 1_000_000);
        if draw < quality.breaks_ppm {
            // Half of those who wait learn at once (a reset), the others when keep-alive gives up.
            let learns = if draw.is_multiple_of(2) { delay } else { DEAD_AFTER };
            return Fate::Breaks(learns);
        }
        if draw < quality.breaks_ppm + quality.spikes_ppm {
            let spike = self.chance.between(quality.delay_us_max, quality.spike_us_max + 1);
            return Fate::Arrives(latency + Duration::from_micros(spike));
        }
        Fate::Arrives(delay)
    }

    /// How much longer a message of so many bytes takes for its size, behind what the link carries already.
    pub(super) fn carry(&self, from: &str, to: &str, bytes: u64) -> Duration {
        let mut state = self.state.lock();
        let rate = state.quality.bytes_per_s;
        if from == to || rate == 0 || bytes == 0 {
            return Duration::ZERO;
        }
        let takes = |bytes: u64| Duration::from_micros(bytes * 1_000_000 / rate);
        let now = Instant::now();
        let busy_until = state.busy_until.entry((from.to_owned(), to.to_owned())).or_insert(now);
        let free_at = (*busy_until).max(now);
        *busy_until = free_at + takes(bytes);
        let waits = free_at - now;
        takes(bytes) + if bytes <= SMALL_BYTES { waits.min(takes(BURST_BYTES)) } else { waits }
    }

    /// After how long a call reaches its handler again, if it does.
    pub(super) fn repeat(&self, from: &str, to: &str) -> Option<Duration> {
        let quality = self.state.lock().quality;
        let repeats = from != to && quality.repeats_ppm > 0 && self.chance.between(0, 1_000_000) < quality.repeats_ppm;
        repeats.then(|| Duration::from_micros(self.chance.between(0, quality.repeat_us_max + 1)))
    }

    fn cut_since(&self, from: &str, to: &str) -> Option<Instant> {
        self.state.lock().cut.get(&(from.to_owned(), to.to_owned())).copied()
    }

    /// Waits until a message can pass; false when it has been held back for too long.
    pub(super) async fn passes(&self, from: &str, to: &str) -> bool {
        let gives_up = Instant::now() + DEAD_AFTER;
        loop {
            // Taken before the look at the table, so that no change in between is missed.
            let changed = self.changed.notified();
            if self.cut_since(from, to).is_none() {
                return true;
            }
            tokio::select! {
                biased;
                () = changed => {}
                () = tokio::time::sleep_until(gives_up) => return false,
            }
        }
    }

    /// Ready when the link has been cut, in either direction, for so long that both sides have given the connection up.
    pub(super) async fn dead(&self, one: &str, other: &str) {
        loop {
            let changed = self.changed.notified();
            let since = match (self.cut_since(one, other), self.cut_since(other, one)) {
                (Some(there), Some(back)) => Some(there.min(back)),
                (there, back) => there.or(back),
            };
            let Some(since) = since else {
                changed.await;
                continue;
            };
            tokio::select! {
                biased;
                () = changed => {}
                () = tokio::time::sleep_until(since + DEAD_AFTER) => return,
            }
        }
    }
}
