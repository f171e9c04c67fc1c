//! The experiments, each a file: what is done, what is seen, and what must hold.
//!
//! What must stay true: safety is judged strictly (nothing lost, stale or doubled); figures about time are told and judged only where the
//! cluster stands still altogether, so a slow machine breaks nothing.

mod agents;
mod bandwidth;
mod bugs;
mod clocks;
mod disks;
mod kills;
mod loss;
mod partitions;
mod pauses;
mod power;
mod searches;
mod sockets;

use crate::lab::Lab;
use crate::needs::Need;
use crate::report::{Findings, Report, Verdict};
use anyhow::{Result, bail};
use futures::future::BoxFuture;
use std::time::Duration;

/// Without a limit: longer than any run.
const FOREVER: Duration = Duration::from_secs(30 * 86_400);

/// One of them.
pub(crate) struct Experiment {
    pub(crate) name: &'static str,
    /// What is done to the cluster.
    pub(crate) about: &'static str,
    needs: &'static [Need],
    /// Begins it. An error means that it could not be brought to its end.
    run: for<'a> fn(&'a Lab) -> BoxFuture<'a, Result<Findings>>,
}

/// All, in the order in which they run.
pub(crate) const ALL: &[Experiment] = &[
    Experiment {
        name: "kills",
        about: "kill -9 of the leader, a follower or all voters at a random acknowledgement",
        needs: &[],
        run: |lab| Box::pin(kills::run(lab)),
    },
    Experiment {
        name: "power",
        about: "power loss of all voters or of the leader at a random acknowledgement",
        needs: &[Need::Loop, Need::Iptables],
        run: |lab| Box::pin(power::run(lab)),
    },
    Experiment {
        name: "pauses",
        about: "SIGSTOP of the leader for longer than its lease, then SIGCONT",
        needs: &[],
        run: |lab| Box::pin(pauses::run(lab)),
    },
    Experiment {
        name: "partitions",
        about: "network partitions: leader isolated, leader receives nothing, leader sends nothing, ring of majorities",
        needs: &[Need::Iptables],
        run: |lab| Box::pin(partitions::run(lab)),
    },
    Experiment {
        name: "loss",
        about: "packet loss between voters, compared with etcd",
        needs: &[Need::Iptables],
        run: |lab| Box::pin(loss::run(lab)),
    },
    Experiment {
        name: "bandwidth",
        about: "100 Mbit/s between voters and submissions of 4 MB",
        needs: &[Need::Shaping],
        run: |lab| Box::pin(bandwidth::run(lab)),
    },
    Experiment {
        name: "clocks",
        about: "clocks wrong by 30 days, and `muster raft reset-clock`",
        needs: &[Need::Faketime],
        run: |lab| Box::pin(clocks::run(lab)),
    },
    Experiment {
        name: "fsync-errors",
        about: "fsync fails with EIO on one voter",
        needs: &[Need::Strace],
        run: |lab| Box::pin(disks::errors(lab)),
    },
    Experiment {
        name: "fsync-delays",
        about: "fsync takes 200 ms longer on one voter and on all",
        needs: &[Need::Strace],
        run: |lab| Box::pin(disks::delays(lab)),
    },
    Experiment {
        name: "disk-full",
        about: "the disk of one voter is full",
        needs: &[Need::Loop],
        run: |lab| Box::pin(disks::full(lab)),
    },
    Experiment {
        name: "disk-frozen",
        about: "the disk of the leader does not answer for 5 s",
        needs: &[Need::Loop],
        run: |lab| Box::pin(disks::frozen(lab)),
    },
    Experiment {
        name: "searches",
        about: "muster plan and explain in a loop",
        needs: &[],
        run: |lab| Box::pin(searches::run(lab)),
    },
    Experiment {
        name: "sockets",
        about: "thousands of idle sockets on the leader",
        needs: &[],
        run: |lab| Box::pin(sockets::run(lab)),
    },
    Experiment {
        name: "agents",
        about: "two agents with the same node name; the folder of an agent is deleted while its task runs",
        needs: &[],
        run: |lab| Box::pin(agents::run(lab)),
    },
    Experiment {
        name: "planted",
        about: "known bugs built in again: the experiments must find them",
        needs: &[Need::Loop, Need::Iptables, Need::Faketime],
        run: |lab| Box::pin(bugs::run(lab)),
    },
];

/// The named ones, or all.
///
/// # Errors
/// When there is none of that name.
pub(crate) fn chosen(names: &[String]) -> Result<Vec<&'static Experiment>> {
    for name in names {
        if !ALL.iter().any(|experiment| experiment.name == name) {
            let known: Vec<&str> = ALL.iter().map(|experiment| experiment.name).collect();
            bail!("experiment {name:?} does not exist; use one of: {}", known.join(", "));
        }
    }
    Ok(ALL.iter().filter(|one| names.is_empty() || names.iter().any(|name| name == one.name)).collect())
}

/// Runs them one after another.
pub(crate) async fn run(lab: &Lab, chosen: &[&'static Experiment]) -> Vec<Report> {
    let mut reports = Vec::new();
    for experiment in chosen {
        eprintln!("chaos: {}: {}", experiment.name, experiment.about);
        let began = std::time::Instant::now();
        let report = run_one(lab, experiment).await;
        let word = match &report.verdict {
            Verdict::Holds => "holds",
            Verdict::Broken(_) => "BROKEN",
            Verdict::Skipped(_) => "skipped",
        };
        eprintln!("chaos: {}: {word} after {:.0?}", experiment.name, began.elapsed());
        reports.push(report);
    }
    reports
}

async fn run_one(lab: &Lab, experiment: &'static Experiment) -> Report {
    let (name, done) = (experiment.name, experiment.about.to_owned());
    let lacks: Vec<String> = experiment.needs.iter().filter_map(|need| lab.check(*need).err()).collect();
    if !lacks.is_empty() {
        return Report { name, done, seen: String::new(), verdict: Verdict::Skipped(lacks.join("; ")) };
    }
    let ends = lab.ends.unwrap_or_else(|| std::time::Instant::now() + FOREVER);
    match tokio::time::timeout_at(ends.into(), (experiment.run)(lab)).await {
        Err(_) => {
            let why = "the time limit of --minutes was reached".to_owned();
            Report { name, done, seen: String::new(), verdict: Verdict::Skipped(why) }
        }
        Ok(Ok(findings)) => findings.report(name),
        Ok(Err(error)) => {
            Report { name, done, seen: String::new(), verdict: Verdict::Broken(vec![format!("{error:#}")]) }
        }
    }
}

/// A time as people read it.
pub(crate) fn words(time: Duration) -> String {
    if time < Duration::from_secs(1) {
        format!("{} ms", time.as_millis())
    } else {
        format!("{:.1} s", time.as_secs_f64())
    }
}

/// The middle and the largest of some times.
pub(crate) fn spread(times: &mut [Duration]) -> String {
    times.sort_unstable();
    match (times.get(times.len() / 2), times.last()) {
        (Some(middle), Some(most)) => format!("median {}, longest {}", words(*middle), words(*most)),
        _ => "none".to_owned(),
    }
}
