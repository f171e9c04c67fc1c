//! Waiting for jobs: by watch, with a look now and then in case the watch was cut.
//!
//! What must stay true: a job that is over is never missed, whatever happens to the stream; the waiting itself puts no load on the
//! cluster that grows with the number of jobs.

use crate::commands::{Context, now_ms};
use crate::failure::Failure;
use crate::output::{Block, Format, note};
use crate::view::job::{self, JobView};
use indicatif::{ProgressBar, ProgressStyle};
use muster_proto::v1;
use muster_proto::v1::jobs_client::JobsClient;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tonic::{Status, Streaming};

/// After so long without an event, a few jobs are asked for directly.
const QUIET_MAX: Duration = Duration::from_secs(5);
/// Jobs asked for directly at one time.
const LOOKS_MAX: usize = 16;
/// Names of jobs that failed, in the closing message.
const NAMED_MAX: usize = 5;

/// What is known so far.
struct Waiting {
    open: BTreeSet<u64>,
    over: BTreeMap<u64, v1::Job>,
    running: BTreeSet<u64>,
    progress: ProgressBar,
}

impl Waiting {
    fn take(&mut self, job: v1::Job) {
        if !self.open.contains(&job.id) {
            return;
        }
        if job::is_over(job.phase()) {
            self.open.remove(&job.id);
            self.running.remove(&job.id);
            self.over.insert(job.id, job);
        } else if job.phase() == v1::JobPhase::Running {
            self.running.insert(job.id);
        } else {
            self.running.remove(&job.id);
        }
        self.progress.set_position(self.over.len() as u64);
        let waiting = self.open.len() - self.running.len();
        self.progress.set_message(format!("{} running, {waiting} waiting", self.running.len()));
    }
}

/// Waits until every one of `ids` is over and shows them.
///
/// # Errors
/// When one of them did not complete, or the cluster stays away.
pub async fn until_over(context: &Context, ids: &[u64], revision: u64) -> Result<(), Failure> {
    let progress = ProgressBar::new(ids.len() as u64).with_style(style()).with_message("waiting");
    progress.enable_steady_tick(Duration::from_millis(200));
    let mut waiting =
        Waiting { open: ids.iter().copied().collect(), over: BTreeMap::new(), running: BTreeSet::new(), progress };
    let mut from = revision;
    while !waiting.open.is_empty() {
        let mut stream = watch(context, ids, from).await?;
        from = follow(context, &mut stream, &mut waiting, from).await?;
    }
    waiting.progress.finish_and_clear();
    close(context, &waiting.over)
}

fn style() -> ProgressStyle {
    let usual = ProgressStyle::default_bar();
    ProgressStyle::with_template("{spinner} {elapsed} [{bar:30}] {pos}/{len} over, {msg}").unwrap_or(usual)
}

async fn watch(context: &Context, ids: &[u64], from_revision: u64) -> Result<Streaming<v1::JobEvent>, Failure> {
    let job_id = if let [only] = ids { *only } else { 0 };
    let request = v1::WatchJobsRequest { from_revision, job_id, tenant: String::new() };
    let open = |channel| {
        let request = request.clone();
        async move { JobsClient::new(channel).watch(request).await }
    };
    context.client.call("watch jobs", open).await
}

/// Reads events until all is over or the stream ends; the revision to go on from.
async fn follow(
    context: &Context,
    stream: &mut Streaming<v1::JobEvent>,
    waiting: &mut Waiting,
    mut from: u64,
) -> Result<u64, Failure> {
    while !waiting.open.is_empty() {
        match tokio::time::timeout(QUIET_MAX, stream.message()).await {
            Ok(Ok(Some(event))) => {
                // A revision is passed only once all of it has been seen: the next one shows that.
                from = from.max(event.revision.saturating_sub(1));
                if let Some(v1::job_event::Event::Job(job)) = event.event {
                    waiting.take(job);
                }
            }
            Ok(Ok(None) | Err(_)) => {
                look(context, waiting).await?;
                return Ok(from);
            }
            Err(_) => look(context, waiting).await?,
        }
    }
    Ok(from)
}

/// Asks for some of the open jobs directly.
async fn look(context: &Context, waiting: &mut Waiting) -> Result<(), Failure> {
    let some: Vec<u64> = waiting.open.iter().copied().take(LOOKS_MAX).collect();
    for job_id in some {
        let get = |channel| async move {
            let request = v1::GetJobRequest { job_id, consistency: v1::Consistency::Linearizable.into() };
            JobsClient::new(channel).get(request).await
        };
        let reply: Result<v1::GetJobReply, Status> = match context.client.call("get job", get).await {
            Ok(reply) => Ok(reply),
            Err(failure) => return Err(failure),
        };
        if let Ok(v1::GetJobReply { job: Some(job), .. }) = reply {
            waiting.take(job);
        }
    }
    Ok(())
}

fn close(context: &Context, over: &BTreeMap<u64, v1::Job>) -> Result<(), Failure> {
    let views: Vec<JobView> = over.values().map(|job| JobView::new(job, now_ms())).collect();
    let summary =
        |wide| if views.len() == 1 { vec![Block::Text(one_line(&views[0]))] } else { job::table(&views, wide) };
    match context.out.format {
        Format::Table | Format::Wide => {
            for block in summary(context.out.format == Format::Wide) {
                note(&block.render(false, None));
            }
        }
        _ => context.out.show(&views, |_| Vec::new())?,
    }
    let bad: Vec<&JobView> = views.iter().filter(|job| job.state != "completed").collect();
    if bad.is_empty() {
        return Ok(());
    }
    let named: Vec<String> = bad.iter().take(NAMED_MAX).map(|job| format!("job {} {}", job.id, job.state)).collect();
    let more = if bad.len() > NAMED_MAX { format!(" and {} more", bad.len() - NAMED_MAX) } else { String::new() };
    Err(Failure::Job(format!("{}{more} of {}", named.join(", "), views.len())))
}

fn one_line(job: &JobView) -> String {
    let why = if job.reason.is_empty() { String::new() } else { format!(": {}", job.reason) };
    format!("job {} {} after {}{why}", job.id, job.state, crate::units::show_seconds(job.ran_s))
}
