//! Joins the stamps of all processes: the way of each job, as the instant at which it had passed each step.
//!
//! What must stay true: a job is counted only if every step of it is known, so that all rows of a table are of the same jobs; steps that two
//! processes stamp are taken from the one that is on the job's way: the leader, the shard that bound it, the control node of its agent.

use super::stamp::Stamp;
use std::collections::BTreeMap;

/// What the client knows of one job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The request's id.
    pub request: String,
    /// The job.
    pub job: u64,
    /// Its submission's revision.
    pub revision: u64,
    /// When the call was sent.
    pub sent_ns: u64,
    /// When it was answered.
    pub answered_ns: u64,
    /// When the watch told that it runs, and of which revision.
    pub running: Option<(u64, u64)>,
}

/// The steps of a job, each from the one before it.
pub const JOB: [&str; 24] = [
    "client -> control node has the call",
    "-> leader has gathered it into an entry",
    "-> entry synced on the leader",
    "-> entry committed and applied on the leader",
    "-> shard has received the change",
    "-> planner has taken it in",
    "-> planned: proposal leaves the shard",
    "-> control node has the proposal",
    "-> leader has gathered it into an entry",
    "-> entry synced on the leader",
    "-> bound: committed and applied on the leader",
    "-> known to the control node of the agent's session",
    "-> desired state sent to the agent",
    "-> desired state received",
    "-> its stamp taken (and on disk where it must be)",
    "-> task started",
    "-> report leaves the agent",
    "-> control node has the report",
    "-> leader has gathered it into an entry",
    "-> entry synced on the leader",
    "-> running: committed and applied on the leader",
    "-> the watcher sees it running",
    "all: submit -> running",
    "beside it: submit -> bound",
];

/// The steps of a submission, each from the one before it.
pub const SUBMISSION: [&str; 8] = [
    "client -> control node has the call",
    "-> leader has gathered it into an entry",
    "-> entry appended on the leader",
    "-> entry synced on the leader",
    "-> committed and applied on the leader",
    "-> control node has the decision",
    "-> the client has the answer",
    "all: one submission",
];

/// Differences of each step in microseconds; the lists of all steps are equally long.
pub type Steps = Vec<Vec<u64>>;

/// One process: what it stamped, by step.
#[derive(Default)]
struct Process {
    /// First time of each key.
    firsts: BTreeMap<(&'static str, u64), u64>,
    requests: BTreeMap<(&'static str, String), u64>,
    /// Steps that stand for all revisions up to theirs, by revision.
    revisions: BTreeMap<&'static str, BTreeMap<u64, u64>>,
    bound: BTreeMap<u64, u64>,
    jobs: BTreeMap<u64, u64>,
}

const BY_REQUEST: [&str; 2] = ["submit_received", "submit_answered"];
const BY_REVISION: [&str; 6] = ["appended", "synced", "applied", "dispatched", "shard_received", "seen_by_shard"];
const BY_NUMBER: [&str; 10] = [
    "gathered",
    "planned",
    "bind_received",
    "desired_sent",
    "desired_received",
    "desired_taken",
    "started",
    "report_sent",
    "report_received",
    "bound",
];

fn known(names: &'static [&'static str], step: &str) -> Option<&'static str> {
    names.iter().find(|name| **name == step).copied()
}

impl Process {
    fn of(stamps: &[Stamp]) -> Self {
        let mut process = Process::default();
        for stamp in stamps {
            if let (Some(step), Some(request)) = (known(&BY_REQUEST, &stamp.step), &stamp.request) {
                process.requests.entry((step, request.clone())).or_insert(stamp.at_ns);
            } else if let (Some(step), Some(revision)) = (known(&BY_REVISION, &stamp.step), stamp.revision) {
                process.revisions.entry(step).or_default().entry(revision).or_insert(stamp.at_ns);
            } else if let Some(step) = known(&BY_NUMBER, &stamp.step)
                && let Some(number) = stamp.allocation.or(stamp.job).or(stamp.revision)
            {
                process.firsts.entry((step, number)).or_insert(stamp.at_ns);
                if let (Some(allocation), Some(revision)) = (stamp.allocation, stamp.revision) {
                    process.bound.insert(allocation, revision);
                }
                if let (Some(allocation), Some(job)) = (stamp.allocation, stamp.job) {
                    process.jobs.entry(job).or_insert(allocation);
                }
            }
        }
        process
    }

    /// When it had come to `revision` in this step.
    fn reached(&self, step: &'static str, revision: u64) -> Option<u64> {
        self.revisions.get(step)?.range(revision..).map(|(_, at_ns)| *at_ns).min()
    }

    fn first(&self, step: &'static str, number: u64) -> Option<u64> {
        self.firsts.get(&(step, number)).copied()
    }

    fn request(&self, step: &'static str, request: &str) -> Option<u64> {
        self.requests.get(&(step, request.to_owned())).copied()
    }
}

/// All processes of a cluster.
pub struct Cluster(Vec<Process>);

impl Cluster {
    /// From the stamps of each process.
    #[must_use]
    pub fn of(processes: &[Vec<Stamp>]) -> Self {
        Cluster(processes.iter().map(|stamps| Process::of(stamps)).collect())
    }

    /// The first process that has stamped this, and when.
    fn who(&self, step: &'static str, number: u64) -> Option<(&Process, u64)> {
        self.0.iter().find_map(|process| Some((process, process.first(step, number)?)))
    }

    fn request(&self, step: &'static str, request: &str) -> Option<u64> {
        self.0.iter().find_map(|process| process.request(step, request))
    }

    /// The way of each submission.
    #[must_use]
    pub fn submissions(&self, asked: &[Asked]) -> Steps {
        differences(SUBMISSION.len(), asked.iter().filter_map(|one| self.submission(one)))
    }

    fn submission(&self, asked: &Asked) -> Option<Vec<(u64, u64)>> {
        let (leader, gathered) = self.who("gathered", asked.revision)?;
        let instants = [
            asked.sent_ns,
            self.request("submit_received", &asked.request)?,
            gathered,
            leader.reached("appended", asked.revision)?,
            leader.reached("synced", asked.revision)?,
            leader.reached("applied", asked.revision)?,
            self.request("submit_answered", &asked.request)?,
            asked.answered_ns,
        ];
        let mut steps = pairs(&instants);
        steps.push((asked.sent_ns, asked.answered_ns));
        Some(steps)
    }

    /// The way of each job.
    #[must_use]
    pub fn jobs(&self, asked: &[Asked]) -> Steps {
        differences(JOB.len(), asked.iter().filter_map(|one| self.job(one)))
    }

    fn job(&self, asked: &Asked) -> Option<Vec<(u64, u64)>> {
        let (running_ns, running) = asked.running?;
        let (shard, planned) = self.who("planned", asked.job)?;
        let session = self.0.iter().find(|process| process.jobs.contains_key(&asked.job))?;
        let allocation = *session.jobs.get(&asked.job)?;
        let (bound_by, bind_received) = self.who("bind_received", allocation)?;
        let bound = *bound_by.bound.get(&allocation)?;
        let entry = |revision: u64| {
            let (leader, gathered) = self.who("gathered", revision)?;
            Some([gathered, leader.reached("synced", revision)?, leader.reached("applied", revision)?])
        };
        let mut instants = vec![asked.sent_ns, self.request("submit_received", &asked.request)?];
        instants.extend(entry(asked.revision)?);
        instants.push(shard.reached("shard_received", asked.revision)?);
        instants.push(shard.reached("seen_by_shard", asked.revision)?);
        instants.extend([planned, bind_received]);
        let [gathered, synced, applied] = entry(bound)?;
        instants.extend([gathered, synced, applied]);
        instants.push(session.reached("dispatched", bound)?);
        instants.push(session.first("desired_sent", allocation)?);
        for step in ["desired_received", "desired_taken", "started", "report_sent", "report_received"] {
            instants.push(self.who(step, allocation)?.1);
        }
        instants.extend(entry(running)?);
        instants.push(running_ns);
        let mut steps = pairs(&instants);
        steps.extend([(asked.sent_ns, running_ns), (asked.sent_ns, applied)]);
        Some(steps)
    }
}

fn pairs(instants: &[u64]) -> Vec<(u64, u64)> {
    instants.windows(2).map(|pair| (pair[0], pair[1])).collect()
}

fn differences(count: usize, all: impl Iterator<Item = Vec<(u64, u64)>>) -> Steps {
    let mut steps: Steps = vec![Vec::new(); count];
    for one in all {
        for (step, (from_ns, to_ns)) in steps.iter_mut().zip(one) {
            // Two steps may overlap, such as a sync and the commit by the two others: no time of its own then.
            step.push(to_ns.saturating_sub(from_ns) / 1_000);
        }
    }
    for step in &mut steps {
        step.sort_unstable();
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(at_us: u64, step: &str, number: &str, of: u64) -> Stamp {
        let mut stamp = Stamp { at_ns: at_us * 1_000, step: step.to_owned(), ..Stamp::default() };
        match number {
            "job" => stamp.job = Some(of),
            "allocation" => stamp.allocation = Some(of),
            "request" => stamp.request = Some(of.to_string()),
            _ => stamp.revision = Some(of),
        }
        stamp
    }

    /// One job through a leader (also its front door), a shard, another control node with the agent's session, and an agent.
    fn cluster() -> Cluster {
        let both = |mut one: Stamp, job: Option<u64>, revision: Option<u64>| {
            (one.job, one.revision) = (one.job.or(job), one.revision.or(revision));
            one
        };
        let mut leader = vec![stamp(10, "submit_received", "request", 1), stamp(60, "submit_answered", "request", 1)];
        for (base, revision) in [(20, 5), (120, 7), (220, 9)] {
            leader.push(stamp(base, "gathered", "revision", revision));
            leader.push(stamp(base + 5, "appended", "revision", revision));
            // One sync is for two entries: it stands for the earlier one too.
            leader.push(stamp(base + 10, "synced", "revision", revision + 1));
            leader.push(stamp(base + 30, "applied", "revision", revision));
        }
        leader.push(stamp(115, "bind_received", "allocation", 30));
        leader.push(both(stamp(155, "bound", "allocation", 30), None, Some(7)));
        // The other control node is later with the same revisions; only its session counts.
        let session = vec![
            stamp(70, "applied", "revision", 5),
            stamp(165, "dispatched", "revision", 7),
            both(stamp(170, "desired_sent", "allocation", 30), Some(100), None),
            stamp(211, "report_received", "allocation", 30),
            both(stamp(300, "desired_sent", "allocation", 30), Some(100), None),
        ];
        let shard = vec![
            stamp(80, "shard_received", "revision", 6),
            stamp(90, "seen_by_shard", "revision", 6),
            stamp(100, "planned", "job", 100),
        ];
        let agent = ["desired_received", "desired_taken", "started", "report_sent"];
        let agent = agent.iter().enumerate();
        let agent = agent.map(|(at, step)| stamp(180 + 5 * at as u64, step, "allocation", 30)).collect();
        Cluster::of(&[session, leader, shard, agent])
    }

    fn asked() -> Asked {
        let us = |us: u64| us * 1_000;
        let (sent_ns, answered_ns) = (us(0), us(65));
        Asked { request: "1".to_owned(), job: 100, revision: 5, sent_ns, answered_ns, running: Some((us(260), 9)) }
    }

    #[test]
    fn the_steps_of_a_job_follow_each_other_and_add_up() {
        let steps = cluster().jobs(&[asked()]);
        assert_eq!(steps.len(), JOB.len());
        let found: Vec<u64> = steps.iter().map(|step| step[0]).collect();
        let way = [10, 10, 10, 20, 30, 10, 10, 15, 5, 10, 20, 15, 5, 10, 5, 5, 5, 16, 9, 10, 20, 10, 260, 150];
        assert_eq!(found, way);
        assert_eq!(found[..22].iter().sum::<u64>(), 260);
    }

    #[test]
    fn the_steps_of_a_submission_follow_each_other_and_add_up() {
        let steps = cluster().submissions(&[asked()]);
        let found: Vec<u64> = steps.iter().map(|step| step[0]).collect();
        assert_eq!(found, [10, 10, 5, 5, 20, 10, 5, 65]);
    }

    #[test]
    fn a_job_of_which_a_step_is_missing_is_not_counted() {
        let never_ran = Asked { running: None, ..asked() };
        let unknown = Asked { job: 101, ..asked() };
        assert!(cluster().jobs(&[never_ran, unknown]).iter().all(Vec::is_empty));
    }
}
