//! What the demonstration submits: gangs, single GPUs, MIG slices, shares; each task a real process that leaves its lines.

use crate::spec::job::JobText;
use crate::spec::scalar::{OneOrMany, Scalar};
use muster_proto::v1;
use std::path::Path;

/// The quota tree.
pub const TENANTS: &str = "\
research:
  guarantee: {h100: 256}
  teams:
    nlp: {guarantee: {h100: 128}, weight: 2}
    vision: {max: {h100: 16}}
product:
  guarantee: {h100: 64}
  max: {h100: 256}
  teams:
    search: {}
    ads: {trust: untrusted}
";

/// Jobs of one submission in the stream.
const BATCH: usize = 4;

/// Submissions in their order, each with its request id.
pub struct Workload {
    /// At once, and then one after the other.
    pub waves: Vec<(String, Vec<v1::JobSpec>)>,
    /// The very first one.
    pub first: (String, Vec<v1::JobSpec>),
    jobs: usize,
    tasks: u32,
}

/// A request id of this demonstration.
#[must_use]
pub fn request_id(what: &str) -> String {
    format!("demo-{}-{what}", std::process::id())
}

impl Workload {
    /// Twelve gangs and `small` small jobs, mixed.
    #[must_use]
    pub fn new(record: &Path, small: u32) -> Self {
        let mut waves = Vec::new();
        let gangs: Vec<v1::JobSpec> = (0..12).map(|index| gang(record, index)).collect();
        let mut tasks: u32 = gangs.iter().map(|gang| gang.tasks).sum();
        let mut jobs = gangs.len();
        waves.extend(
            gangs.into_iter().enumerate().map(|(index, gang)| (request_id(&format!("gang-{index}")), vec![gang])),
        );
        let singles: Vec<v1::JobSpec> = (0..small).map(|index| small_job(record, index)).collect();
        jobs += singles.len();
        tasks += small;
        let batches = singles.chunks(BATCH).enumerate();
        waves.extend(batches.map(|(index, batch)| (request_id(&format!("small-{index}")), batch.to_vec())));
        Workload { first: waves[0].clone(), waves, jobs, tasks }
    }

    /// For people.
    #[must_use]
    pub fn words(&self) -> String {
        format!(
            "{} jobs, {} processes: gangs of 4 and 16 nodes, single GPUs, MIG slices, MPS shares, time-slices",
            self.jobs, self.tasks
        )
    }
}

/// The time a process is there, in tenths of a second; between the two so that not all end at once.
fn script(record: &Path, seconds: f64) -> OneOrMany {
    // One echo is one write in append mode: the lines of many tasks do not mix.
    let line = "$MUSTER_JOB_ID $RANK $MUSTER_ATTEMPT";
    let clock = "$(cut -d' ' -f1 /proc/uptime)";
    let file = record.display();
    let text =
        format!("echo start {line} {clock} >> '{file}'; sleep {seconds:.1}; echo end {line} {clock} >> '{file}'");
    OneOrMany::Many(vec!["/bin/sh".to_owned(), "-c".to_owned(), text])
}

fn spec(text: JobText) -> v1::JobSpec {
    // These are constants of ours: a test makes every one of them.
    text.into_specs().ok().and_then(|mut specs| specs.pop()).unwrap_or_default()
}

/// Gangs of 4 tasks under one leaf; every fourth has 16 tasks inside a block.
fn gang(record: &Path, index: u32) -> v1::JobSpec {
    let large = index % 4 == 3;
    spec(JobText {
        tenant: Some("research/nlp".to_owned()),
        name: Some(if large { format!("pretrain-{index}") } else { format!("finetune-{index}") }),
        gpus: Some(8),
        tasks: Some(Scalar((if large { "16" } else { "4" }).to_owned())),
        model: Some(OneOrMany::One("h100".to_owned())),
        topology: Some(if large { "block".to_owned() } else { "leaf".to_owned() }),
        class: Some("training".to_owned()),
        cpus: Some(Scalar("8".to_owned())),
        time: Some(Scalar("5m".to_owned())),
        command: Some(script(record, 7.0 + f64::from(index % 5))),
        ..JobText::default()
    })
}

/// One process: a whole GPU, a MIG slice, an MPS share or a time-slice.
fn small_job(record: &Path, index: u32) -> v1::JobSpec {
    let mut text = JobText {
        name: Some(format!("small-{index}")),
        cpus: Some(Scalar("0.5".to_owned())),
        command: Some(script(record, 1.0 + f64::from(index % 30) / 10.0)),
        ..JobText::default()
    };
    match index % 8 {
        0 | 1 => (text.tenant, text.gpus) = (Some("product/search".to_owned()), Some(1)),
        2 | 3 => (text.tenant, text.mig) = (Some("product/ads".to_owned()), Some("1g.10gb".to_owned())),
        4 => (text.tenant, text.mig) = (Some("product/ads".to_owned()), Some("3g.40gb".to_owned())),
        5 | 6 => {
            (text.tenant, text.mps) = (Some("product/search".to_owned()), Some(25));
            text.gpu_memory = Some(Scalar("16Gi".to_owned()));
        }
        _ => {
            (text.tenant, text.time_slice) = (Some("research/nlp".to_owned()), Some(true));
            text.gpu_memory = Some(Scalar("20Gi".to_owned()));
            text.class = Some("interactive".to_owned());
        }
    }
    spec(text)
}

/// Two jobs of 16 GPUs for a tenant that may use 16.
#[must_use]
pub fn over_max(record: &Path) -> Vec<v1::JobSpec> {
    let one = |name: &str, seconds: f64| {
        spec(JobText {
            tenant: Some("research/vision".to_owned()),
            name: Some(name.to_owned()),
            gpus: Some(8),
            tasks: Some(Scalar("2".to_owned())),
            command: Some(script(record, seconds)),
            ..JobText::default()
        })
    };
    vec![one("segment-a", 12.0), one("segment-b", 2.0)]
}

/// A job on one GPU that does nothing for a while.
#[must_use]
pub fn sleeper(name: &str, seconds: u32) -> v1::JobSpec {
    spec(JobText {
        tenant: Some("product/search".to_owned()),
        name: Some(name.to_owned()),
        gpus: Some(1),
        command: Some(OneOrMany::Many(vec!["sleep".to_owned(), seconds.to_string()])),
        ..JobText::default()
    })
}

/// A job on half a card by MIG, until it is cancelled.
#[must_use]
pub fn slice(name: &str) -> v1::JobSpec {
    spec(JobText {
        tenant: Some("dev".to_owned()),
        name: Some(name.to_owned()),
        mig: Some("3g.40gb".to_owned()),
        command: Some(OneOrMany::Many(vec!["sleep".to_owned(), "300".to_owned()])),
        ..JobText::default()
    })
}

/// A quarter of a GPU by MPS, until it is cancelled or `seconds` are over.
#[must_use]
pub fn mps_share(name: &str, seconds: u32) -> v1::JobSpec {
    spec(JobText {
        tenant: Some("dev".to_owned()),
        name: Some(name.to_owned()),
        mps: Some(25),
        gpu_memory: Some(Scalar("8Gi".to_owned())),
        command: Some(OneOrMany::Many(vec!["sleep".to_owned(), seconds.to_string()])),
        ..JobText::default()
    })
}

/// A job on one GPU of any tenant, until it is cancelled.
#[must_use]
pub fn whole(name: &str, tenant: &str) -> v1::JobSpec {
    spec(JobText {
        tenant: Some(tenant.to_owned()),
        name: Some(name.to_owned()),
        gpus: Some(1),
        command: Some(OneOrMany::Many(vec!["sleep".to_owned(), "300".to_owned()])),
        ..JobText::default()
    })
}

/// A job that is over at once: what is timed is its acknowledgement.
#[must_use]
pub fn probe(name: &str) -> v1::JobSpec {
    spec(JobText {
        tenant: Some("product/search".to_owned()),
        name: Some(name.to_owned()),
        gpus: Some(1),
        command: Some(OneOrMany::Many(vec!["true".to_owned()])),
        ..JobText::default()
    })
}
