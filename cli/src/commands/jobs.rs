//! `muster jobs`: pages are turned until the list is whole.

use crate::args::jobs::List;
use crate::client::Client;
use crate::commands::{Context, now_ms};
use crate::failure::Failure;
use crate::output::note;
use crate::view::job::{self, JobView, PHASES};
use muster_proto::v1;
use muster_proto::v1::jobs_client::JobsClient;

/// The largest page the API gives.
const PAGE: u32 = 1_000;

/// Lists.
///
/// # Errors
/// When a state is unknown or the cluster refuses.
pub async fn run(context: &Context, args: &List) -> Result<(), Failure> {
    let (jobs, more) = list(&context.client, request(args, context.consistency)?, args.limit).await?;
    let now = now_ms();
    let views: Vec<JobView> = jobs.iter().map(|job| JobView::new(job, now)).collect();
    context.out.show(&views, |wide| job::table(&views, wide))?;
    if more {
        note(&format!("only the first {} are shown; --limit 0 shows all", views.len()));
    }
    Ok(())
}

fn request(args: &List, consistency: v1::Consistency) -> Result<v1::ListJobsRequest, Failure> {
    let all = || PHASES.iter().map(|(phase, _)| *phase).collect::<Vec<_>>();
    let named = |word: &String| {
        job::phase_of(word).ok_or_else(|| {
            let known: Vec<&str> = PHASES.iter().map(|(_, word)| *word).collect();
            Failure::field("state", format!("{word:?} is not a state"), format!("known: {}", known.join(", ")))
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
    })
}

/// Every job that matches, up to `limit` (0: no limit), and whether there are more.
///
/// # Errors
/// When the cluster refuses or stays away.
pub async fn list(
    client: &Client,
    mut request: v1::ListJobsRequest,
    limit: usize,
) -> Result<(Vec<v1::Job>, bool), Failure> {
    let mut jobs = Vec::new();
    loop {
        let page = |channel| {
            let request = request.clone();
            async move {
                JobsClient::new(channel).max_decoding_message_size(crate::client::reply_bytes_max()).list(request).await
            }
        };
        let reply: v1::ListJobsReply = client.call("list jobs", page).await?;
        jobs.extend(reply.jobs);
        if limit > 0 && jobs.len() >= limit {
            let more = jobs.len() > limit || !reply.next_page_token.is_empty();
            jobs.truncate(limit);
            return Ok((jobs, more));
        }
        if reply.next_page_token.is_empty() {
            return Ok((jobs, false));
        }
        request.page_token = reply.next_page_token;
    }
}
