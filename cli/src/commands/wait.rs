//! Waiting for jobs: by watch, with a look now and then in case the watch was cut.
//!
//! What must stay true: a job that is over is never missed, whatever happens to the stream; the waiting itself puts no load on the
//! cluster that grows with the number of jobs.

use crate::commands::{Context, now_ms};
use crate::failure::Failure;
use crate::output::{Block, Format, note};
use crate::view;
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
        self.progress.set_message(format!("{} running, {waiting} pending", self.running.len()));
    }
}

/// `muster wait`: jobs that were submitted at some other time.
///
/// # Errors
/// As [`until_over`]; and when one of them is unknown.
pub async fn run(context: &Context, ids: &[u64]) -> Result<(), Failure> {
    let (mut revision, mut known) = (u64::MAX, Vec::new());
    for id in ids {
        let reply = super::job::get(&context.client, *id, v1::Consistency::Linearizable).await?;
        revision = revision.min(reply.revision);
        known.extend(reply.job);
    }
    until_over(context, ids, revision, known).await
}

/// Waits until every one of `ids` is over and shows them; `known` are such of them as they were at `revision`. Ctrl-C ends the waiting
/// and nothing else.
///
/// # Errors
/// When one of them did not complete, the cluster stays away, or the waiting is interrupted.
pub async fn until_over(context: &Context, ids: &[u64], revision: u64, known: Vec<v1::Job>) -> Result<(), Failure> {
    let progress = ProgressBar::new(ids.len() as u64).with_style(style()).with_message("waiting");
    progress.enable_steady_tick(Duration::from_millis(200));
    let mut waiting =
        Waiting { open: ids.iter().copied().collect(), over: BTreeMap::new(), running: BTreeSet::new(), progress };
    known.into_iter().for_each(|job| waiting.take(job));
    let interrupted = tokio::select! {
        ended = wait(context, ids, revision, &mut waiting) => ended.map(|()| false)?,
        signal = tokio::signal::ctrl_c() => signal.map(|()| true).map_err(|error| Failure::io("listening for Ctrl-C", error))?,
    };
    waiting.progress.finish_and_clear();
    if interrupted { Err(Failure::Interrupted(go_on(&waiting.open))) } else { close(context, &waiting.over) }
}

async fn wait(context: &Context, ids: &[u64], mut from: u64, waiting: &mut Waiting) -> Result<(), Failure> {
    while !waiting.open.is_empty() {
        let mut stream = watch(context, ids, from).await?;
        from = follow(context, &mut stream, waiting, from).await?;
    }
    Ok(())
}

/// What becomes of jobs that nobody waits for any more, and what to do about it.
fn go_on(open: &BTreeSet<u64>) -> String {
    let named: Vec<String> = open.iter().take(NAMED_MAX).map(ToString::to_string).collect();
    let more = if open.len() > NAMED_MAX { format!(" and {} more", open.len() - NAMED_MAX) } else { String::new() };
    let (ids, list) = (named.join(" "), named.join(", "));
    let go = if open.len() == 1 { format!("job {list} continues") } else { format!("jobs {list}{more} continue") };
    format!("{go}\n  wait again:  muster wait {ids}\n  list:        muster jobs\n  cancel:      muster cancel {ids}")
}

fn style() -> ProgressStyle {
    let usual = ProgressStyle::default_bar();
    ProgressStyle::with_template("{spinner} {elapsed} [{bar:30}] {pos}/{len} ended, {msg}").unwrap_or(usual)
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
        |wide| if views.len() == 1 { vec![Block::Text(one_line(&views[0]))] } else { view::jobs::table(&views, wide) };
    match context.out.format {
        Format::Table | Format::Wide => {
            for block in summary(context.out.format == Format::Wide) {
                note(&block.render(false, None));
            }
        }
        _ => context.out.show(&views, |_| Vec::new())?,
    }
    match unfinished(&views) {
        Some(text) => Err(Failure::Job(text)),
        None => Ok(()),
    }
}

/// `2 of 5 jobs failed: 46, 47`, state by state; none when all completed.
fn unfinished(jobs: &[JobView]) -> Option<String> {
    let mut by_state: BTreeMap<usize, (&str, Vec<u64>)> = BTreeMap::new();
    for job in jobs.iter().filter(|job| job.state != "completed") {
        by_state.entry(job.state_order()).or_insert_with(|| (job.state, Vec::new())).1.push(job.id);
    }
    let said = |(state, ids): &(&str, Vec<u64>)| {
        let named: Vec<String> = ids.iter().take(NAMED_MAX).map(ToString::to_string).collect();
        let more = if ids.len() > NAMED_MAX { format!(" and {} more", ids.len() - NAMED_MAX) } else { String::new() };
        let became = match *state {
            "cancelled" => "were cancelled",
            "timeout" => "reached their time limit",
            "deadline" => "missed their deadline",
            other => other,
        };
        format!("{} of {} jobs {became}: {}{more}", ids.len(), jobs.len(), named.join(", "))
    };
    (!by_state.is_empty()).then(|| by_state.values().map(said).collect::<Vec<_>>().join("; "))
}

fn one_line(job: &JobView) -> String {
    let why = if job.reason.is_empty() { String::new() } else { format!(": {}", job.reason) };
    let became = match job.state {
        "timeout" => "reached its time limit",
        "deadline" => "missed its deadline",
        other => other,
    };
    format!("job {} {became} after {}{why}", job.id, crate::units::show_seconds(job.ran_s))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(states: &[v1::JobPhase], expected: Option<&str>) {
        let job = |(index, phase): (usize, &v1::JobPhase)| {
            JobView::new(&v1::Job { id: 46 + index as u64, phase: (*phase).into(), ..v1::Job::default() }, 0)
        };
        let views: Vec<JobView> = states.iter().enumerate().map(job).collect();
        assert_eq!(unfinished(&views).as_deref(), expected);
    }

    #[test]
    fn jobs_that_did_not_complete_are_counted_by_state() {
        use v1::JobPhase::{Cancelled, Completed, Failed, Timeout};
        check(&[Completed, Completed], None);
        check(&[Failed], Some("1 of 1 jobs failed: 46"));
        check(&[Failed, Completed, Failed], Some("2 of 3 jobs failed: 46, 48"));
        check(
            &[Cancelled, Timeout, Failed],
            Some("1 of 3 jobs failed: 48; 1 of 3 jobs were cancelled: 46; 1 of 3 jobs reached their time limit: 47"),
        );
        check(&[Failed; 8], Some("8 of 8 jobs failed: 46, 47, 48, 49, 50 and 3 more"));
    }

    #[test]
    fn an_interrupted_wait_says_how_to_go_on() {
        let one = go_on(&BTreeSet::from([7]));
        assert!(
            one.starts_with("job 7 continues\n") && one.contains("muster wait 7") && one.contains("muster cancel 7")
        );
        assert!(go_on(&(1..=9).collect()).starts_with("jobs 1, 2, 3, 4, 5 and 4 more continue\n"));
    }
}
