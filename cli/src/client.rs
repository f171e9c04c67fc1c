//! The client of a cluster: several endpoints, one deadline, and retries that never submit twice.
//!
//! What must stay true: a call that may have happened is repeated only with the same request id or where repeating it changes
//! nothing; no call outlives its deadline; the endpoint that answered last is asked first, also by the next command; one that hangs
//! costs the first command a quarter of a second and the others nothing.

mod channel;
mod memory;
mod race;

pub use channel::{Access, Channel};

use crate::failure::Failure;
use channel::Connector;
use memory::Memory;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::Instant;
use tonic::{Code, Status};
use tonic_types::StatusExt;

/// One attempt at one endpoint: long enough for a slow commit, short enough to try another within the deadline.
const ATTEMPT_MAX: Duration = Duration::from_secs(5);
/// The pause after every endpoint has failed once; it doubles to the second value.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(400));
/// Replies carry pages of up to 1,000 jobs whose command and environment may have 32 KiB each.
const REPLY_BYTES_MAX: usize = 64 * 1024 * 1024;

/// A handle to a cluster. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    connector: Connector,
    endpoints: Arc<Vec<(String, Channel)>>,
    current: Arc<AtomicUsize>,
    /// The current endpoint has answered and has not failed since.
    proven: Arc<AtomicBool>,
    memory: Memory,
    deadline: Duration,
}

impl Client {
    /// Connects when first used; both sides prove who they are as `access` says.
    ///
    /// # Errors
    /// When an endpoint is not `host:port`, there is none, or the token has characters that no token has.
    pub fn open(endpoints: &[String], deadline: Duration, access: &Access) -> Result<Self, Failure> {
        if endpoints.is_empty() {
            return Err(Failure::field("endpoints", "is empty", "give at least one HOST:PORT"));
        }
        let connector = Connector::new(access)?;
        let channels = endpoints.iter().map(|text| Ok((text.clone(), connector.connect(text)?)));
        let channels = channels.collect::<Result<_, Failure>>()?;
        Ok(Client {
            connector,
            endpoints: Arc::new(channels),
            current: Arc::default(),
            proven: Arc::default(),
            memory: Memory::default(),
            deadline,
        })
    }

    /// Begins with the endpoint that answered this user's last command, and keeps the one that answers this one.
    #[must_use]
    pub fn remembering(mut self) -> Self {
        self.memory = Memory::of_this_user();
        let kept = self.memory.recall(&self.endpoints().collect::<Vec<_>>());
        self.current.store(kept.unwrap_or(0), Ordering::Relaxed);
        self
    }

    /// The same cluster with another deadline for each call.
    #[must_use]
    pub fn with_deadline(&self, deadline: Duration) -> Self {
        Client { deadline, ..self.clone() }
    }

    /// The endpoints, as given.
    pub fn endpoints(&self) -> impl Iterator<Item = &str> {
        self.endpoints.iter().map(|(text, _)| text.as_str())
    }

    /// A client for each endpoint by itself.
    pub fn each(&self) -> impl Iterator<Item = Client> {
        self.endpoints.iter().map(|endpoint| self.with_endpoint(endpoint.clone()))
    }

    /// A client of another control node, with the same proofs.
    ///
    /// # Errors
    /// When it is not `host:port`.
    pub fn of(&self, endpoint: &str) -> Result<Client, Failure> {
        Ok(self.with_endpoint((endpoint.to_owned(), self.connect(endpoint)?)))
    }

    fn with_endpoint(&self, endpoint: (String, Channel)) -> Client {
        Client {
            endpoints: Arc::new(vec![endpoint]),
            current: Arc::default(),
            proven: Arc::default(),
            memory: Memory::default(),
            ..self.clone()
        }
    }

    /// Another endpoint is asked next: this one has answered, but cannot have what is wanted.
    pub fn pass_on(&self) {
        self.current.store((self.current_index() + 1) % self.endpoints.len(), Ordering::Relaxed);
    }

    /// A channel to another control node, with the same proofs.
    ///
    /// # Errors
    /// When it is not `host:port`.
    pub fn connect(&self, endpoint: &str) -> Result<Channel, Failure> {
        self.connector.connect(endpoint)
    }

    /// Whether calls are encrypted.
    #[must_use]
    pub fn is_secure(&self) -> bool {
        self.connector.is_secure()
    }

    fn current_index(&self) -> usize {
        self.current.load(Ordering::Relaxed) % self.endpoints.len()
    }

    /// Calls until an endpoint answers for good, or the deadline passes.
    ///
    /// # Errors
    /// What the cluster answered, or that nobody did.
    pub async fn call<T, F, Fut>(&self, what: &str, mut call: F) -> Result<T, Failure>
    where
        F: FnMut(Channel) -> Fut,
        Fut: Future<Output = Result<tonic::Response<T>, Status>>,
    {
        let until = Instant::now() + self.deadline;
        let mut pause = PAUSE.0;
        let mut failed_in_a_row = 0;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let index = tokio::time::timeout(left, self.choose()).await.unwrap_or_else(|_| self.current_index());
            let (_, channel) = &self.endpoints[index];
            let limit = ATTEMPT_MAX.min(until.saturating_duration_since(Instant::now()));
            let answer = tokio::time::timeout(limit, call(channel.clone())).await;
            let status = match answer {
                Ok(Ok(response)) => {
                    self.proven.store(true, Ordering::Relaxed);
                    return Ok(response.into_inner());
                }
                Ok(Err(status)) if !may_get_better(&status) => return Err(Failure::from_status(what, &status)),
                Ok(Err(status)) => status,
                Err(_) => Status::deadline_exceeded(format!("no control node answered within {} s", limit.as_secs())),
            };
            // Several calls may share this client: only the first to fail moves it on.
            let next = (index + 1) % self.endpoints.len();
            let _ = self.current.compare_exchange(index, next, Ordering::Relaxed, Ordering::Relaxed);
            self.proven.store(false, Ordering::Relaxed);
            failed_in_a_row += 1;
            let wait = if status.code() == Code::ResourceExhausted || failed_in_a_row % self.endpoints.len() == 0 {
                let asked = status.get_details_retry_info().and_then(|info| info.retry_delay);
                let wait = asked.map_or(pause, |asked| asked.min(PAUSE.1));
                pause = (pause * 2).min(PAUSE.1);
                wait
            } else {
                Duration::ZERO
            };
            if Instant::now() + wait >= until {
                return Err(self.gave_up(what, &status));
            }
            tokio::time::sleep(wait).await;
        }
    }

    /// All items of a list: `call` asks for the page that a token names, and `parts` gives a reply's items and the token of the next page.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub async fn all_pages<R, T, F, Fut>(
        &self,
        what: &str,
        mut call: F,
        mut parts: impl FnMut(R) -> (Vec<T>, String),
    ) -> Result<Vec<T>, Failure>
    where
        F: FnMut(Channel, String) -> Fut,
        Fut: Future<Output = Result<tonic::Response<R>, Status>>,
    {
        let (mut found, mut token) = (Vec::new(), String::new());
        loop {
            let reply = self.call(what, |channel| call(channel, token.clone())).await?;
            let (items, next) = parts(reply);
            found.extend(items);
            if next.is_empty() {
                return Ok(found);
            }
            token = next;
        }
    }

    /// The endpoint to ask: the current one, unless nothing is known of it and another one is alive before it is.
    async fn choose(&self) -> usize {
        let (count, current) = (self.endpoints.len(), self.current_index());
        if count == 1 || self.proven.load(Ordering::Relaxed) {
            return current;
        }
        let order = (0..count).map(|step| (current + step) % count);
        let channels: Vec<(usize, Channel)> = order.map(|index| (index, self.endpoints[index].1.clone())).collect();
        let alive = race::first_alive(&channels).await;
        self.current.store(alive, Ordering::Relaxed);
        let names: Vec<&str> = self.endpoints().collect();
        if self.memory.recall(&names).unwrap_or(0) != alive {
            self.memory.keep(&names, alive);
        }
        alive
    }

    fn gave_up(&self, what: &str, status: &Status) -> Failure {
        if status.code() == Code::ResourceExhausted {
            return Failure::from_status(what, status);
        }
        // The other side has closed the connection at once: it may have expected a handshake.
        let clear =
            !self.is_secure() && ["transport error", "h2 protocol"].iter().any(|part| status.message().contains(part));
        let hint = if clear {
            "; if this cluster is encrypted, give its roots with MUSTER_ROOTS_FILE or roots-file"
        } else {
            ""
        };
        Failure::Unavailable {
            what: what.to_owned(),
            why: format!("{}{hint} (gave up after {} s)", status.message(), self.deadline.as_secs()),
            endpoints: self.endpoints().collect::<Vec<_>>().join(","),
        }
    }
}

/// The largest reply that is read.
#[must_use]
pub const fn reply_bytes_max() -> usize {
    REPLY_BYTES_MAX
}

/// Whether asking again, or asking another, may help.
fn may_get_better(status: &Status) -> bool {
    match status.code() {
        Code::Unavailable | Code::DeadlineExceeded | Code::ResourceExhausted | Code::Unknown | Code::Cancelled => true,
        // A connection that broke in the middle of a reply.
        Code::Internal => status.message().contains("h2 protocol"),
        _ => false,
    }
}
