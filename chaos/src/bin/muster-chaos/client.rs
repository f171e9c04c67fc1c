//! Clients of the public API who write down every call and every answer.
//!
//! Writers submit, read and cancel; one reader for each voter asks again and again, linearizably, for what was acknowledged last. What must
//! stay true: a call is written down before it is made and its answer after it came, so that the record orders two operations only where they
//! really followed each other.

use crate::cluster::{VOTERS, channel};
use anyhow::{Context, Result};
use muster_chaos::history::{Answer, Call, History, Submission};
use muster_model::ids::{JobId, Revision};
use muster_proto::v1;
use muster_proto::v1::jobs_client::JobsClient;
use muster_proto::v1::tenants_client::TenantsClient;
use muster_runtime::Chance;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, UNIX_EPOCH};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tonic::transport::Channel;
use tonic::{Code, Status};

/// The tenant of all jobs.
pub(crate) const TENANT: &str = "chaos";
/// How long a writer waits for one answer before it asks another voter.
const WRITTEN_MAX: Duration = Duration::from_secs(1);
/// How long a reader waits for one answer. Longer than any pause of a voter that the experiments make, so that what a voter says when it goes
/// on is still heard.
const ANSWER_MAX: Duration = Duration::from_secs(4);
/// Between two operations of one client: a few hundred acknowledgements a second, which leaves the machine room.
const PAUSE: Duration = Duration::from_millis(10);
/// A writer cancels its oldest job beyond so many: a tenant may have 10,000 waiting.
const LIVE_MAX: usize = 8;
/// The argument of the writers' jobs: with it an entry is larger than a vote or a heartbeat.
const ARGUMENT_BYTES: usize = 1_024;
/// Writers.
const WRITERS: u64 = 4;

/// What the clients of one cluster wrote down.
#[derive(Default)]
pub(crate) struct Book {
    history: Mutex<History>,
    acknowledged: Mutex<Vec<Acknowledged>>,
    refused: Mutex<Vec<String>>,
    count: watch::Sender<usize>,
    stop: AtomicBool,
}

/// A submission that was acknowledged.
#[derive(Clone, Debug)]
pub(crate) struct Acknowledged {
    request: String,
    /// The job.
    pub(crate) job: JobId,
    /// When the answer came.
    pub(crate) at: Instant,
}

impl Book {
    /// The history so far.
    pub(crate) fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All acknowledgements so far, in their order.
    pub(crate) fn acknowledged(&self) -> MutexGuard<'_, Vec<Acknowledged>> {
        self.acknowledged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Submissions that were refused for good, by why.
    pub(crate) fn refused(&self) -> MutexGuard<'_, Vec<String>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for so many more acknowledgements.
    ///
    /// # Errors
    /// When they do not come: the cluster stands still.
    pub(crate) async fn more(&self, count: usize, limit: Duration) -> Result<()> {
        let mut counted = self.count.subscribe();
        let wanted = *counted.borrow_and_update() + count;
        let came = timeout(limit, counted.wait_for(|count| *count >= wanted)).await;
        let stands =
            || format!("no {count} acknowledgements within {} s: the cluster makes no progress", limit.as_secs());
        came.with_context(stands)?.context("the clients have stopped")?;
        Ok(())
    }

    /// The longest time between two acknowledgements that lies in this span, its ends counted.
    pub(crate) fn longest_gap(&self, from: Instant, to: Instant) -> Duration {
        let inside = |at: &Instant| (from..to).contains(at);
        let times: Vec<Instant> = self.acknowledged().iter().map(|one| one.at).filter(inside).collect();
        let ends = std::iter::once(from).chain(times.iter().copied());
        ends.zip(times.iter().copied().chain([to])).map(|(a, b)| b - a).max().unwrap_or_default()
    }

    /// Acknowledgements a second in this span.
    pub(crate) fn rate(&self, from: Instant, to: Instant) -> f64 {
        let count = self.acknowledged().iter().filter(|one| (from..to).contains(&one.at)).count();
        count as f64 / (to - from).as_secs_f64()
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// Clients at work.
pub(crate) struct Load {
    /// What they write down.
    pub(crate) book: Arc<Book>,
    clients: Vec<JoinHandle<()>>,
}

impl Load {
    /// Starts writers and readers where nobody runs jobs, so that one ends only when it is cancelled.
    ///
    /// # Errors
    /// When the tenant cannot be made.
    pub(crate) async fn start(endpoints: &[String]) -> Result<Load> {
        Load::start_where(endpoints, false).await
    }

    /// The same where jobs run (`runs`), and so end by themselves.
    ///
    /// # Errors
    /// As [`Load::start`].
    pub(crate) async fn start_where(endpoints: &[String], runs: bool) -> Result<Load> {
        make_tenant(endpoints).await?;
        let book = Arc::new(Book::default());
        let client = |number: u64| -> Result<Client> {
            let channels = endpoints.iter().map(|to| Ok((to.clone(), channel(to)?))).collect::<Result<_>>()?;
            Ok(Client { number, channels, book: Arc::clone(&book), chance: Chance::from_entropy(), runs })
        };
        let mut clients = Vec::new();
        for number in 0..WRITERS {
            clients.push(tokio::spawn(client(number)?.write()));
        }
        for voter in 0..VOTERS.len() {
            clients.push(tokio::spawn(client(WRITERS + voter as u64)?.read_at(voter)));
        }
        Ok(Load { book, clients })
    }

    /// Lets every client finish its operation, and gives what they wrote down.
    pub(crate) async fn stop(mut self) -> Arc<Book> {
        self.book.stop.store(true, Ordering::Relaxed);
        for client in std::mem::take(&mut self.clients) {
            // A client that panicked has written down what it did before.
            let _ = client.await;
        }
        Arc::clone(&self.book)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.clients.iter().for_each(JoinHandle::abort);
    }
}

struct Client {
    number: u64,
    channels: Vec<(String, Channel)>,
    book: Arc<Book>,
    chance: Chance,
    /// Whether there is anybody to run jobs.
    runs: bool,
}

impl Client {
    fn any(&self) -> usize {
        self.chance.between(0, self.channels.len() as u64) as usize
    }

    async fn write(self) {
        let mut live: VecDeque<(String, JobId)> = VecDeque::new();
        for number in 0_u64.. {
            if self.book.stopped() {
                return;
            }
            let request = format!("client{}-{number}", self.number);
            if let Some(job) = self.submit(&request).await {
                self.read(self.any(), &request, job).await;
                live.push_back((request, job));
            }
            if live.len() > LIVE_MAX
                && let Some((request, job)) = live.pop_front()
            {
                self.cancel(&request, job).await;
            }
            sleep(PAUSE).await;
        }
    }

    /// Asks one voter for what was acknowledged last, until the end.
    async fn read_at(self, voter: usize) {
        while !self.book.stopped() {
            let newest = {
                let acknowledged = self.book.acknowledged();
                let back = self.chance.between(1, 4) as usize;
                acknowledged.len().checked_sub(back).map(|at| (acknowledged[at].request.clone(), acknowledged[at].job))
            };
            if let Some((request, job)) = newest {
                self.read(voter, &request, job).await;
            }
            sleep(PAUSE / 2).await;
        }
    }

    /// Submits one job, again under the same id until it is answered.
    async fn submit(&self, request: &str) -> Option<JobId> {
        let command = vec!["true".to_owned(), "-".repeat(ARGUMENT_BYTES)];
        let jobs = vec![v1::JobSpec { command, ..job(request) }];
        let call = v1::SubmitRequest { request_id: request.to_owned(), issued_ms: Some(now_ms()), jobs };
        let record = Submission { request_id: request.to_owned(), jobs: 1, ..Submission::default() };
        let index = self.book.history().submit(record);
        while !self.book.stopped() {
            let (endpoint, channel) = &self.channels[self.any()];
            let operation = self.book.history().called(request, endpoint, Call::Submit);
            match timeout(WRITTEN_MAX, JobsClient::new(channel.clone()).submit(call.clone())).await {
                Ok(Ok(reply)) => {
                    let reply = reply.into_inner();
                    let jobs: Vec<JobId> = reply.job_ids.into_iter().map(JobId).collect();
                    let mut history = self.book.history();
                    history.answered(operation, Revision(reply.revision), Answer::Accepted);
                    history.submissions[index].acknowledged.push(jobs.clone());
                    drop(history);
                    let job = *jobs.first()?;
                    let mut acknowledged = self.book.acknowledged();
                    acknowledged.push(Acknowledged { request: request.to_owned(), job, at: Instant::now() });
                    self.book.count.send_replace(acknowledged.len());
                    return Some(job);
                }
                Ok(Err(status)) if is_final(&status) => {
                    let mut history = self.book.history();
                    // A refused call has no effect: it is no operation.
                    history.operations[operation].call = Call::Get { runs: false };
                    history.submissions[index].refused = Some(status.to_string());
                    drop(history);
                    self.book.refused().push(status.message().to_owned());
                    return None;
                }
                Ok(Err(_)) | Err(_) => sleep(PAUSE).await,
            }
        }
        None
    }

    async fn read(&self, voter: usize, request: &str, job: JobId) {
        let (endpoint, channel) = &self.channels[voter];
        let operation = self.book.history().called(request, endpoint, Call::Get { runs: self.runs });
        let call = v1::GetJobRequest { job_id: job.0, ..v1::GetJobRequest::default() };
        let (revision, said) = match timeout(ANSWER_MAX, JobsClient::new(channel.clone()).get(call)).await {
            Ok(Ok(reply)) => {
                let reply = reply.into_inner();
                let ended = reply.job.is_some_and(|job| job.phase() >= v1::JobPhase::Completed);
                (Some(Revision(reply.revision)), if ended { Answer::Ended } else { Answer::Live })
            }
            Ok(Err(status)) if status.code() == Code::NotFound => (None, Answer::Absent),
            Ok(Err(_)) | Err(_) => return,
        };
        self.book.history().answered(operation, revision, said);
    }

    /// Cancels a job with one call, whatever comes of it.
    async fn cancel(&self, request: &str, job: JobId) {
        let (endpoint, channel) = &self.channels[self.any()];
        let operation = self.book.history().called(request, endpoint, Call::Cancel { runs: self.runs });
        let call = v1::CancelRequest { job_id: job.0 };
        let (revision, said) = match timeout(WRITTEN_MAX, JobsClient::new(channel.clone()).cancel(call)).await {
            Ok(Ok(reply)) => (Some(Revision(reply.into_inner().revision)), Answer::Accepted),
            Ok(Err(status)) if is_final(&status) => (None, Answer::Gone),
            Ok(Err(_)) | Err(_) => return,
        };
        self.book.history().answered(operation, revision, said);
    }
}

/// Whether asking again would get the same answer.
fn is_final(status: &Status) -> bool {
    matches!(status.code(), Code::InvalidArgument | Code::NotFound | Code::FailedPrecondition | Code::AlreadyExists)
}

/// What a right clock shows.
pub(crate) fn now_ms() -> u64 {
    UNIX_EPOCH.elapsed().map_or(0, |since| since.as_millis() as u64)
}

/// A small job, which nobody can run: there are no nodes.
pub(crate) fn job(name: &str) -> v1::JobSpec {
    let request = v1::TaskRequest { cpu_milli: 1_000, memory_mib: 1_024, ..v1::TaskRequest::default() };
    v1::JobSpec {
        tenant: TENANT.to_owned(),
        name: name.to_owned(),
        tasks: 1,
        request: Some(request),
        command: vec!["true".to_owned()],
        ..v1::JobSpec::default()
    }
}

/// Makes the tenant, asking every voter in turn.
///
/// # Errors
/// When nobody does it within a minute.
pub(crate) async fn make_tenant(endpoints: &[String]) -> Result<()> {
    let until = Instant::now() + crate::cluster::STANDSTILL;
    let tenants = vec![v1::TenantSpec { path: TENANT.to_owned(), ..v1::TenantSpec::default() }];
    for endpoint in endpoints.iter().cycle() {
        let call = v1::ApplyTenantsRequest { tenants: tenants.clone(), ..v1::ApplyTenantsRequest::default() };
        if let Ok(Ok(_)) = timeout(ANSWER_MAX, TenantsClient::new(channel(endpoint)?).apply(call)).await {
            break;
        }
        anyhow::ensure!(Instant::now() < until, "no tenant could be created: the cluster makes no progress");
        sleep(PAUSE).await;
    }
    Ok(())
}
