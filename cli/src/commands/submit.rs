//! `muster submit`: acknowledged means durable on a quorum; the id is printed at once.

use crate::args::jobs::Submit;
use crate::client::Client;
use crate::commands::{Context, input, now_ms, wait};
use crate::failure::Failure;
use crate::output::{Block, Format, note};
use crate::spec::job::JobText;
use muster_model::FieldError;
use muster_model::validate::bounds::JOBS_PER_SUBMIT_MAX;
use muster_proto::v1;
use muster_proto::v1::jobs_client::JobsClient;
use serde::Serialize;
use std::path::PathBuf;

/// What a submission answers.
#[derive(Debug, Serialize)]
struct Submitted {
    jobs: Vec<u64>,
    request_id: String,
    revision: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

/// Jobs, and what they were written in.
pub struct Written {
    /// The jobs.
    pub specs: Vec<v1::JobSpec>,
    /// For each job the text that it comes from, and whether it is the first of it: `count` makes several jobs of one.
    origins: Vec<(usize, bool)>,
    /// For each text the file and document, for messages; none for the command line alone.
    places: Vec<Option<String>>,
}

impl Written {
    /// What is said of `jobs[3].tasks`, in words of the text that it comes from; none for a repetition of what was said.
    fn field(&self, field: &str) -> Option<String> {
        let index = |field: &str| {
            field.strip_prefix("jobs[")?.split_once("].").map(|(n, rest)| (n.to_owned(), rest.to_owned()))
        };
        let Some((index, rest)) = index(field) else { return Some(field.to_owned()) };
        let Some((text, first)) = index.parse().ok().and_then(|index: usize| self.origins.get(index)) else {
            return Some(field.to_owned());
        };
        let place = self.places.get(*text).and_then(Option::as_ref);
        first.then(|| place.map_or_else(|| rest.clone(), |place| format!("{place}: {rest}")))
    }

    /// A refusal in words of the texts.
    #[must_use]
    pub fn refusal(&self, failure: Failure) -> Failure {
        let Failure::Invalid(faults, left_out) = failure else { return failure };
        let placed =
            faults.into_iter().filter_map(|fault| Some(FieldError { field: self.field(&fault.field)?, ..fault }));
        // Of one text repeated, what is left out says the same again.
        Failure::Invalid(placed.collect(), if self.places.len() == 1 { 0 } else { left_out })
    }

    /// Warnings in words of the texts.
    fn warnings(&self, warnings: &[String]) -> Vec<String> {
        let placed = |warning: &String| match warning.split_once(": ") {
            Some((field, said)) => Some(format!("{}: {said}", self.field(field)?)),
            None => (self.places.len() > 1).then(|| warning.clone()),
        };
        warnings.iter().filter_map(placed).collect()
    }
}

/// Submits, prints the ids, and waits if asked to.
///
/// # Errors
/// When anything is refused, or a job that was waited for did not complete.
pub async fn run(context: &Context, args: &Submit) -> Result<(), Failure> {
    let mut written = written(&args.files, args.text(), context.config.tenant.as_deref())?;
    let request_id = args.request_id.clone().unwrap_or_else(|| muster_runtime::Chance::from_entropy().token());
    let specs = std::mem::take(&mut written.specs);
    let reply = submit(&context.client, &request_id, now_ms(), specs).await;
    let reply = reply.map_err(|failure| written.refusal(failure))?;
    let warnings = written.warnings(&reply.warnings);
    let shown = Submitted { jobs: reply.job_ids.clone(), request_id, revision: reply.revision, warnings };
    for warning in &shown.warnings {
        note(&format!("warning: {warning}"));
    }
    match context.out.format {
        // A script that asked for JSON and waits gets one document, at the end.
        Format::Json | Format::Yaml if args.wait => {}
        _ => context.out.show(&shown, |_| shown.jobs.iter().map(|id| Block::Text(id.to_string())).collect())?,
    }
    if args.wait { wait::until_over(context, &reply.job_ids, reply.revision, Vec::new()).await } else { Ok(()) }
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
#[must_use]
pub fn login_name() -> Option<String> {
    let user = nix::unistd::User::from_uid(nix::unistd::getuid()).ok().flatten()?;
    (!user.name.is_empty() && !user.name.contains(char::is_whitespace)).then_some(user.name)
}

/// Everything that flags and files ask for, in their order.
///
/// # Errors
/// When a file cannot be read, or a job is not written as one.
pub fn written(files: &[PathBuf], flags: JobText, usual_tenant: Option<&str>) -> Result<Written, Failure> {
    let mut texts = Vec::new();
    for path in files {
        let (text, name) = input::read(path)?;
        let jobs = JobText::parse(&text, &name)?;
        let several = jobs.len() > 1;
        for (index, job) in jobs.into_iter().enumerate() {
            let place = if several { format!("{name}, job {}", index + 1) } else { name.clone() };
            texts.push((Some(place), job.overlaid(&flags)));
        }
    }
    if files.is_empty() {
        texts.push((None, flags));
    }
    let mut written = Written { specs: Vec::new(), origins: Vec::new(), places: Vec::new() };
    let mut faults: Vec<FieldError> = Vec::new();
    for (place, mut text) in texts {
        if text.tenant.is_none() {
            text.tenant = usual_tenant.map(str::to_owned);
        }
        if text.user.is_none() {
            text.user = login_name();
        }
        match text.into_specs() {
            Ok(some) => {
                let origin = written.places.len();
                written.origins.extend((0..some.len()).map(|index| (origin, index == 0)));
                written.specs.extend(some);
            }
            Err(wrong) => faults.extend(wrong.into_iter().map(|mut fault| {
                if let Some(place) = &place {
                    fault.field = format!("{place}: {}", fault.field);
                }
                fault
            })),
        }
        written.places.push(place);
    }
    if written.specs.len() > JOBS_PER_SUBMIT_MAX {
        let problem = format!("makes {} jobs in one submission", written.specs.len());
        faults.push(FieldError::new("count", problem, "submit at most 1,000 jobs at once"));
    }
    if faults.is_empty() { Ok(written) } else { Err(Failure::from(faults)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_jobs_is_said_of_their_texts() {
        let places = vec![Some("a.yaml, job 1".to_owned()), Some("a.yaml, job 2".to_owned())];
        let written = Written { specs: Vec::new(), origins: vec![(0, true), (0, false), (1, true)], places };
        let field = |field: &str| written.field(field);
        assert_eq!(field("jobs[0].tasks").as_deref(), Some("a.yaml, job 1: tasks"));
        assert_eq!(field("jobs[1].tasks"), None, "the same text again");
        assert_eq!(field("jobs[2].request.mig").as_deref(), Some("a.yaml, job 2: request.mig"));
        assert_eq!(field("jobs[7].tasks").as_deref(), Some("jobs[7].tasks"));
        assert_eq!(field("request_id").as_deref(), Some("request_id"));
        let alone = Written { specs: Vec::new(), origins: vec![(0, true), (0, false)], places: vec![None] };
        let faults =
            vec![FieldError::new("jobs[0].name", "is odd", "no"), FieldError::new("jobs[1].name", "is odd", "no")];
        let refusal = alone.refusal(Failure::Invalid(faults, 38));
        assert_eq!(refusal.to_string(), "name: is odd; no");
        let warned = [
            "jobs[0].request.mig: trains".to_owned(),
            "jobs[1].request.mig: trains".to_owned(),
            "and 3 more".to_owned(),
        ];
        assert_eq!(alone.warnings(&warned), ["request.mig: trains"]);
    }
}
