//! `muster submit`: acknowledged means durable on a quorum; the id is printed at once.

use crate::args::jobs::Submit;
use crate::client::Client;
use crate::commands::{Context, input, now_ms, wait};
use crate::failure::Failure;
use crate::output::{Block, Format};
use crate::spec::job::JobText;
use muster_model::FieldError;
use muster_model::validate::bounds::JOBS_PER_SUBMIT_MAX;
use muster_proto::v1;
use muster_proto::v1::jobs_client::JobsClient;
use serde::Serialize;

/// What a submission answers.
#[derive(Debug, Serialize)]
struct Submitted {
    jobs: Vec<u64>,
    request_id: String,
    revision: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

/// Submits, prints the ids, and waits if asked to.
///
/// # Errors
/// When anything is refused, or a job that was waited for did not complete.
pub async fn run(context: &Context, args: &Submit) -> Result<(), Failure> {
    let specs = specs(args, context.config.tenant.as_deref())?;
    let request_id = args.request_id.clone().unwrap_or_else(|| muster_runtime::Chance::from_entropy().token());
    let alone = specs.len() == 1;
    let reply = submit(&context.client, &request_id, now_ms(), specs).await;
    let reply = reply.map_err(|failure| if alone { in_words_of_one(failure) } else { failure })?;
    let warnings =
        reply.warnings.iter().map(|text| if alone { text.replacen("jobs[0].", "", 1) } else { text.clone() });
    let shown =
        Submitted { jobs: reply.job_ids.clone(), request_id, revision: reply.revision, warnings: warnings.collect() };
    for warning in &shown.warnings {
        eprintln!("warning: {warning}");
    }
    match context.out.format {
        // A script that asked for JSON and waits gets one document, at the end.
        Format::Json | Format::Yaml if args.wait => {}
        _ => context.out.show(&shown, |_| shown.jobs.iter().map(|id| Block::Text(id.to_string())).collect())?,
    }
    if args.wait { wait::until_over(context, &reply.job_ids, reply.revision).await } else { Ok(()) }
}

/// `jobs[0].tasks` is `tasks` where there is one job.
fn in_words_of_one(failure: Failure) -> Failure {
    let Failure::Invalid(mut faults) = failure else { return failure };
    for fault in &mut faults {
        if let Some(field) = fault.field.strip_prefix("jobs[0].") {
            fault.field = field.to_owned();
        }
    }
    Failure::Invalid(faults)
}

/// One submission, repeated with the same id until it is answered.
///
/// # Errors
/// What was refused, or that nobody answered.
pub async fn submit(
    client: &Client,
    request_id: &str,
    issued_ms: u64,
    jobs: Vec<v1::JobSpec>,
) -> Result<v1::SubmitReply, Failure> {
    let request = v1::SubmitRequest { request_id: request_id.to_owned(), issued_ms: Some(issued_ms), jobs };
    client
        .call("submit", |channel| {
            let request = request.clone();
            async move {
                JobsClient::new(channel)
                    .max_encoding_message_size(crate::client::reply_bytes_max())
                    .submit(request)
                    .await
            }
        })
        .await
}

/// The name of whoever runs this command, where the system knows one that the cluster takes.
fn login_name() -> Option<String> {
    let user = nix::unistd::User::from_uid(nix::unistd::getuid()).ok().flatten()?;
    (!user.name.is_empty() && !user.name.contains(char::is_whitespace)).then_some(user.name)
}

/// Everything that flags and files ask for, in their order.
fn specs(args: &Submit, usual_tenant: Option<&str>) -> Result<Vec<v1::JobSpec>, Failure> {
    let flags = args.text();
    let mut texts = Vec::new();
    for path in &args.files {
        let (text, name) = input::read(path)?;
        let jobs = JobText::parse(&text, &name)?;
        let several = jobs.len() > 1;
        for (index, job) in jobs.into_iter().enumerate() {
            let place = if several { format!("{name}, job {}", index + 1) } else { name.clone() };
            texts.push((Some(place), job.overlaid(&flags)));
        }
    }
    if args.files.is_empty() {
        texts.push((None, flags));
    }
    let mut specs = Vec::new();
    let mut faults: Vec<FieldError> = Vec::new();
    for (place, mut text) in texts {
        if text.tenant.is_none() {
            text.tenant = usual_tenant.map(str::to_owned);
        }
        if text.user.is_none() {
            text.user = login_name();
        }
        match text.into_specs() {
            Ok(some) => specs.extend(some),
            Err(wrong) => faults.extend(wrong.into_iter().map(|mut fault| {
                if let Some(place) = &place {
                    fault.field = format!("{place}: {}", fault.field);
                }
                fault
            })),
        }
    }
    if specs.len() > JOBS_PER_SUBMIT_MAX {
        let problem = format!("{} jobs in one submission", specs.len());
        faults.push(FieldError::new("count", problem, "submit at most 1,000 at once"));
    }
    if faults.is_empty() { Ok(specs) } else { Err(Failure::Invalid(faults)) }
}
