//! Clients that use the public API as people's tools do: request ids, retries at another control node, cancels, a watch.

use super::account::Account;
use super::servers::{Servers, VOTERS};
use crate::history::{Answer, Call, Submission, WatchRecord};
use crate::specs;
use muster_model::ids::{JobId, Revision};
use muster_model::{Job, JobPhase};
use muster_proto::convert::job_from_control_plane;
use muster_proto::status::may_retry;
use muster_proto::v1::jobs_client::JobsClient;
use muster_proto::v1::tenants_client::TenantsClient;
use muster_proto::v1::{self, job_event};
use muster_runtime::{Chance, Channel, Expect, Host};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};
use tonic::{Code, Request, Status};

/// How long a client waits for one answer before it asks elsewhere.
pub(super) const ANSWER_MAX: Duration = Duration::from_secs(5);

/// One client.
pub(super) struct Client {
    pub(super) host: Host,
    pub(super) chance: Chance,
    /// Whom it expects at a control node.
    expect: Expect,
    /// Whose session its calls carry, where the cluster asks.
    account: Option<Arc<Account>>,
}

impl Client {
    pub(super) fn new(servers: &Servers, name: &str, chance: &Chance) -> Self {
        let host = servers.world.boot(name);
        servers.identities.introduce(&host);
        let (chance, expect) = (Chance::seeded(chance.u64()), servers.identities.expect());
        let account = Account::of(servers, &host);
        Client { host, chance, expect, account }
    }

    /// The name that its user has at the identity provider.
    pub(super) fn user(&self) -> Option<&str> {
        self.account.as_deref().map(Account::user)
    }

    /// Keeps its user logged in, for ever.
    pub(super) async fn stay_logged_in(&self) {
        match &self.account {
            Some(account) => account.stay_logged_in().await,
            None => std::future::pending().await,
        }
    }

    pub(super) fn channel(&self) -> Channel {
        self.channel_to().1
    }

    /// A channel to any control node, and which.
    fn channel_to(&self) -> (&'static str, Channel) {
        let (_, _, endpoint) = VOTERS[self.chance.between(0, VOTERS.len() as u64) as usize];
        let channel = match &self.account {
            Some(account) => account.channel(endpoint),
            None => self.host.net.dial(endpoint, self.expect).expect("an endpoint"),
        };
        (endpoint, channel)
    }

    /// Takes down a call that is about to be made over a channel that was opened in the same moment.
    fn called(&self, servers: &Servers, of: &str, endpoint: &str, call: Call) -> usize {
        let mut history = servers.history();
        let operation = history.called(of, endpoint, call);
        history.operations[operation].session = self.account.as_ref().and_then(|account| account.session());
        operation
    }

    pub(super) async fn pause(&self, ms_max: u64) {
        sleep(Duration::from_millis(self.chance.between(10, ms_max))).await;
    }

    /// Sets up the tenants.
    pub(super) async fn apply_tenants(&self) {
        let tenants: Vec<v1::TenantSpec> = specs::tenants_with_floors().iter().map(Into::into).collect();
        loop {
            let call = v1::ApplyTenantsRequest { tenants: tenants.clone(), ..Default::default() };
            let answer = timeout(ANSWER_MAX, TenantsClient::new(self.channel()).apply(call)).await;
            if matches!(answer, Ok(Ok(_))) {
                return;
            }
            self.pause(500).await;
        }
    }

    /// Submits one request after another until `end`, each retried under its id until it is answered, and cancels some of the jobs.
    pub(super) async fn submit_until(&self, servers: &Servers, end: Instant, gives_up: Instant) {
        for number in 0.. {
            if Instant::now() >= end {
                return;
            }
            let count = self.chance.between(1, 4);
            let jobs: Vec<v1::JobSpec> =
                (0..count).map(|job| v1::JobSpec::from(&specs::job(&self.chance, number * 10 + job))).collect();
            let request_id = format!("{}-{number}", self.host.name);
            // A client whose clock is wrong is refused; that is tested elsewhere.
            let issued_ms = Some(servers.world.wall_ms());
            let call = v1::SubmitRequest { request_id: request_id.clone(), issued_ms, jobs };
            let index =
                servers.history().submit(Submission { request_id, jobs: count as usize, ..Submission::default() });
            let ids = self.submit(servers, index, &call, gives_up).await;
            if let Some(id) = ids.first() {
                self.read(servers, &call.request_id, *id).await;
            }
            if let Some(id) = ids.first()
                && self.chance.between(0, 5) == 0
            {
                self.pause(3_000).await;
                self.cancel(servers, &call.request_id, *id, gives_up).await;
            }
            if let Some((of, id)) = self.any_acknowledged(servers) {
                self.read(servers, &of, id).await;
            }
            self.pause(2_500).await;
        }
    }

    /// The ids that were answered.
    async fn submit(&self, servers: &Servers, index: usize, call: &v1::SubmitRequest, gives_up: Instant) -> Vec<JobId> {
        let mut ids = Vec::new();
        while Instant::now() < gives_up {
            let (endpoint, channel) = self.channel_to();
            let operation = self.called(servers, &call.request_id, endpoint, Call::Submit);
            let answer = timeout(ANSWER_MAX, JobsClient::new(channel).submit(call.clone())).await;
            match answer {
                Ok(Ok(reply)) => {
                    let reply = reply.into_inner();
                    ids = reply.job_ids.into_iter().map(JobId).collect();
                    servers.world.note(format_args!("{} has {ids:?}", call.request_id));
                    let mut history = servers.history();
                    history.submissions[index].acknowledged.push(ids.clone());
                    history.answered(operation, Revision(reply.revision), Answer::Accepted);
                    drop(history);
                    // A client that did not hear the answer asks again.
                    if self.chance.between(0, 4) > 0 {
                        return ids;
                    }
                }
                Ok(Err(status)) if !may_retry(&status) && is_final(&status) => {
                    let mut history = servers.history();
                    history.submissions[index].refused = Some(status.to_string());
                    // A refused call has no effect: it is no operation.
                    history.operations[operation].call = Call::Get { runs: true };
                    return ids;
                }
                Ok(Err(_)) | Err(_) => {}
            }
            self.pause(600).await;
        }
        ids
    }

    /// A job whose submission was acknowledged, to whomever, one of the last few.
    fn any_acknowledged(&self, servers: &Servers) -> Option<(String, JobId)> {
        let history = servers.history();
        let known =
            |submission: &Submission| Some((submission.request_id.clone(), *submission.acknowledged.first()?.first()?));
        let known: Vec<(String, JobId)> = history.submissions.iter().rev().filter_map(known).take(6).collect();
        (!known.is_empty()).then(|| known[self.chance.between(0, known.len() as u64) as usize].clone())
    }

    /// Reads a job once, linearizably, from any control node.
    async fn read(&self, servers: &Servers, of: &str, job: JobId) {
        let (endpoint, channel) = self.channel_to();
        let operation = self.called(servers, of, endpoint, Call::Get { runs: true });
        let call = v1::GetJobRequest { job_id: job.0, ..v1::GetJobRequest::default() };
        let (revision, said) = match timeout(ANSWER_MAX, JobsClient::new(channel).get(call)).await {
            Ok(Ok(reply)) => {
                let reply = reply.into_inner();
                let job = reply.job.map(|job| job_from_control_plane(job).expect("what the API shows can be read"));
                let ended = job.is_some_and(|job| matches!(job.phase, JobPhase::Finished(_)));
                (Some(Revision(reply.revision)), if ended { Answer::Ended } else { Answer::Live })
            }
            Ok(Err(status)) if status.code() == Code::NotFound => {
                // What is said of a job that is not kept any more.
                let ended = status.message().contains("has ended");
                (None, if ended { Answer::Ended } else { Answer::Absent })
            }
            Ok(Err(_)) | Err(_) => return,
        };
        servers.history().answered(operation, revision, said);
    }

    async fn cancel(&self, servers: &Servers, of: &str, job: JobId, gives_up: Instant) {
        while Instant::now() < gives_up {
            let (endpoint, channel) = self.channel_to();
            let operation = self.called(servers, of, endpoint, Call::Cancel { runs: true });
            let call = v1::CancelRequest { job_id: job.0 };
            match timeout(ANSWER_MAX, JobsClient::new(channel).cancel(call)).await {
                Ok(Ok(reply)) => {
                    let revision = Revision(reply.into_inner().revision);
                    servers.history().answered(operation, revision, Answer::Accepted);
                    return servers.world.note(format_args!("cancelled {job}"));
                }
                Ok(Err(status)) if is_final(&status) => return,
                Ok(Err(_)) | Err(_) => self.pause(500).await,
            }
        }
    }

    /// Watches all jobs for ever, one session after another; each becomes a record.
    pub(super) async fn watch(&self, servers: &Servers) {
        let mut from = Revision(0);
        loop {
            from = self.watch_once(servers, from).await;
            self.pause(1_000).await;
        }
    }

    /// One session, from a revision on; gives the revision up to which it was told everything.
    async fn watch_once(&self, servers: &Servers, from: Revision) -> Revision {
        let call = Request::new(v1::WatchJobsRequest { from_revision: from.0, ..v1::WatchJobsRequest::default() });
        let opened = timeout(ANSWER_MAX, async { JobsClient::new(self.channel()).watch(call).await }).await;
        let Ok(Ok(events)) = opened else { return from };
        let mut events = events.into_inner();
        let index = {
            let mut history = servers.history();
            let watcher = self.host.name.clone();
            history.watches.push(WatchRecord { watcher, from, ..WatchRecord::default() });
            history.watches.len() - 1
        };
        // Sessions end after a while, so that many begin.
        let ends = Instant::now() + Duration::from_millis(self.chance.between(500, 15_000));
        let mut last = from;
        while let Ok(Ok(Some(event))) = tokio::time::timeout_at(ends, events.message()).await {
            let revision = Revision(event.revision);
            let mut history = servers.history();
            let record = &mut history.watches[index];
            match event.event {
                Some(job_event::Event::Job(job)) => record.events.push((revision, JobId(job.id))),
                Some(job_event::Event::SnapshotEnd(_)) => {
                    // What came since the last change was the snapshot; a session may begin again with one when it lagged.
                    let jobs: BTreeSet<JobId> =
                        record.events.iter().filter(|(at, _)| *at == revision).map(|(_, job)| *job).collect();
                    *record = WatchRecord {
                        watcher: record.watcher.clone(),
                        from,
                        snapshot: Some((revision, jobs)),
                        events: Vec::new(),
                    };
                }
                None => {}
            }
            // Of the last revision there may be more to come.
            last = if revision > last { Revision(revision.0 - 1) } else { last };
        }
        let mut history = servers.history();
        let record = &mut history.watches[index];
        let one_revision = record.events.windows(2).all(|pair| pair[0].0 == pair[1].0);
        if record.snapshot.is_none() && (from == Revision(0) || one_revision) {
            // It may have broken off in the middle of a snapshot, whose jobs are no changes.
            record.events.clear();
        }
        last
    }

    /// A job as the API shows it, asked for until it is answered; `None` when there is no such job or no answer in time.
    pub(super) async fn get(&self, id: JobId, gives_up: Instant) -> Option<Job> {
        while Instant::now() < gives_up {
            let call = v1::GetJobRequest { job_id: id.0, ..v1::GetJobRequest::default() };
            match timeout(ANSWER_MAX, JobsClient::new(self.channel()).get(call)).await {
                Ok(Ok(reply)) => {
                    let job = job_from_control_plane(reply.into_inner().job?).expect("what the API shows can be read");
                    return matches!(job.phase, JobPhase::Finished(_)).then_some(job);
                }
                Ok(Err(status)) if status.code() == Code::NotFound => return None,
                Ok(Err(_)) | Err(_) => self.pause(300).await,
            }
        }
        None
    }
}

/// Whether asking again would get the same answer.
fn is_final(status: &Status) -> bool {
    matches!(status.code(), Code::InvalidArgument | Code::NotFound | Code::FailedPrecondition | Code::AlreadyExists)
}
