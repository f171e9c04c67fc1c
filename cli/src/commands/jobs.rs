//! `muster jobs`: pages are turned until the list is whole.

use crate::args::jobs::List;
use crate::client::Client;
use crate::commands::{Context, now_ms};
use crate::failure::Failure;
use crate::output::{Format, note};
use crate::units::show_moment;
use crate::view;
use crate::view::job::{self, JobView, PHASES};
use muster_proto::v1;
use muster_proto::v1::jobs_client::JobsClient;
use std::collections::BTreeMap;
use std::time::Duration;

/// The largest page the API gives.
const PAGE: u32 = 1_000;

/// Clears the screen and goes to its first line.
const CLEAR: &str = "\x1b[2J\x1b[H";

/// Lists, once or again and again.
///
/// # Errors
/// When a state is unknown or the cluster refuses.
pub async fn run(context: &Context, args: &List) -> Result<(), Failure> {
    let Some(every) = args.watch else { return once(context, args).await };
    let every = Duration::from_secs(every.0.max(1));
    loop {
        if context.out.width.is_some() {
            context.out.bytes(CLEAR.as_bytes())?;
        }
        once(context, args).await?;
        if matches!(context.out.format, Format::Table | Format::Wide) {
            let now = show_moment(now_ms());
            context.out.line(&format!("\n{now}, repeated every {} s; Ctrl-C stops", every.as_secs()))?;
        }
        tokio::time::sleep(every).await;
    }
}

async fn once(context: &Context, args: &List) -> Result<(), Failure> {
    let found = list(&context.client, request(args, context.consistency)?, args.limit).await?;
    let now = now_ms();
    let mut views: Vec<JobView> = found.jobs.iter().map(|job| shown(job, &found, now)).collect();
    if let Some(key) = args.sort {
        view::jobs::sort(&mut views, key, args.reverse);
    }
    context.out.show(&views, |wide| view::jobs::table(&views, wide))?;
    if found.more {
        let among = if args.sort.is_some() { "sorted among themselves only; " } else { "" };
        note(&format!("only the first {} jobs are shown, {among}use --limit 0 to show all", views.len()));
    }
    Ok(())
}

fn shown(job: &v1::Job, found: &Found, now_ms: u64) -> JobView {
    let view = JobView::new(job, now_ms);
    let view = match job.cell.and_then(|cell| found.cell_names.get(&cell)) {
        Some(name) => view.in_cell(name),
        None => view,
    };
    let view = match found.accounts.get(&job.id) {
        Some(account) => view.paid_by(account),
        None => view,
    };
    match found.reasons.get(&job.id) {
        Some(reason) => view.with_reason(reason),
        None => view,
    }
}

fn request(args: &List, consistency: v1::Consistency) -> Result<v1::ListJobsRequest, Failure> {
    let all = || PHASES.iter().map(|(phase, _)| *phase).collect::<Vec<_>>();
    let named = |word: &String| {
        job::phase_of(word).ok_or_else(|| {
            let known: Vec<&str> = PHASES.iter().map(|(_, word)| *word).collect();
            Failure::field("state", format!("{word:?} is not a state"), format!("use one of: {}", known.join(", ")))
        })
    };
    let phases = if args.all { all() } else { args.state.iter().map(named).collect::<Result<Vec<_>, _>>()? };
    Ok(v1::ListJobsRequest {
        tenant: args.tenant.clone().unwrap_or_default(),
        phases: phases.into_iter().map(Into::into).collect(),
        name: args.name.clone().unwrap_or_default(),
        page_size: PAGE,
        page_token: String::new(),
        consistency: consistency.into(),
        newest_first: args.newest,
        user: args.user.clone().unwrap_or_default(),
        reasons: true,
    })
}

/// What a list consists of.
#[derive(Debug, Default)]
pub struct Found {
    /// The jobs.
    pub jobs: Vec<v1::Job>,
    /// There are more.
    pub more: bool,
    /// Why pending jobs wait, by job, where that was asked for.
    pub reasons: BTreeMap<u64, v1::PendingReason>,
    /// Names of the jobs' cells.
    pub cell_names: BTreeMap<u32, String>,
    /// Whose floor account pays, by job; empty: burst.
    pub accounts: BTreeMap<u64, String>,
}

/// Every job that matches, up to `limit` (0: no limit).
///
/// # Errors
/// When the cluster refuses or stays away.
pub async fn list(client: &Client, mut request: v1::ListJobsRequest, limit: usize) -> Result<Found, Failure> {
    let mut found = Found::default();
    loop {
        if limit > 0 {
            let left = (limit - found.jobs.len()).min(PAGE as usize);
            request.page_size = u32::try_from(left.max(1)).unwrap_or(PAGE);
        }
        let page = |channel| {
            let request = request.clone();
            async move {
                JobsClient::new(channel).max_decoding_message_size(crate::client::reply_bytes_max()).list(request).await
            }
        };
        let reply: v1::ListJobsReply = client.call("list jobs", page).await?;
        found.jobs.extend(reply.jobs);
        found.reasons.extend(reply.reasons.into_iter().map(|reason| (reason.job_id, reason)));
        found.cell_names.extend(reply.cell_names);
        found.accounts.extend(reply.accounts);
        if reply.next_page_token.is_empty() {
            return Ok(found);
        }
        if limit > 0 && found.jobs.len() >= limit {
            found.more = true;
            return Ok(found);
        }
        request.page_token = reply.next_page_token;
    }
}
