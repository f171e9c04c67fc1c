//! What the demonstration saw, what must hold of it, and the closing table.

use super::gpu_fault::GpuFault;
use super::slices::Slices;
use crate::commands::explain::Explanation;
use crate::demo::record::{Rank, Record};
use crate::failure::Failure;
use crate::output::{Block, Columns, note};
use muster_proto::v1;
use muster_proto::v1::device_request::Kind;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A failover or take-over that takes longer has gone wrong: leases, elections and detection are all far below it.
const BACK_MAX: Duration = Duration::from_secs(10);
/// A faulty GPU is withheld within this.
const WITHHELD_MAX: Duration = Duration::from_secs(1);

/// What was seen.
#[derive(Debug, Default)]
pub struct Evidence {
    /// Ids of acknowledged jobs.
    pub acknowledged: Vec<u64>,
    /// What the first request answered when it was sent again at the end.
    pub again: Vec<u64>,
    /// Every job that the cluster lists.
    pub jobs: Vec<v1::Job>,
    /// The tasks' own lines.
    pub record: Record,
    /// GPU-seconds by tenant, as metered.
    pub usage: Vec<(String, f64)>,
    /// Why a job waited.
    pub reason: Option<Explanation>,
    /// From the kill of the leader to the next acknowledgement.
    pub leader_back: Option<Duration>,
    /// From the kill of a shard to the cell's next holder.
    pub shard_back: Option<Duration>,
    /// What followed from the fault of a GPU.
    pub gpu_fault: GpuFault,
    /// What was seen on the double of NVIDIA's driver, where there is one.
    pub slices: Option<Slices>,
}

fn of_slices(seen: &Slices) -> [Claim; 7] {
    let withheld = format!("{} ms", seen.withheld.as_millis());
    [
        ("MIG slice failed: withheld after", withheld, seen.withheld <= WITHHELD_MAX),
        ("its job runs again", yes_or_no(seen.restarted), seen.restarted),
        ("the job on the other slice runs on", yes_or_no(seen.neighbour_runs), seen.neighbour_runs),
        ("GPU instances are destroyed at the end", yes_or_no(seen.destroyed), seen.destroyed),
        ("MPS fault: the neighbour is told whose", yes_or_no(seen.sharers.told_by_whom), seen.sharers.told_by_whom),
        ("unclean GPU is held back from the next tenant", yes_or_no(seen.sharers.held_back), seen.sharers.held_back),
        (
            "its clean-up is on record",
            format!("{} ms", seen.sharers.cleaned.as_millis()),
            !seen.sharers.cleaned.is_zero(),
        ),
    ]
}

fn yes_or_no(holds: bool) -> String {
    if holds { "yes" } else { "no" }.to_owned()
}

/// One claim: its name, what was seen, and whether it holds.
type Claim = (&'static str, String, bool);

impl Evidence {
    fn spec(job: &v1::Job) -> v1::JobSpec {
        job.spec.clone().unwrap_or_default()
    }

    /// Jobs whose tasks leave lines: all but the probes.
    fn recorded(&self) -> impl Iterator<Item = &v1::Job> {
        self.jobs.iter().filter(|job| Self::spec(job).command.first().is_some_and(|program| program == "/bin/sh"))
    }

    fn ranks<'a>(&'a self, job: &'a v1::Job) -> impl Iterator<Item = Option<&'a Rank>> {
        let left = self.record.get(&job.id);
        (0..Self::spec(job).tasks).map(move |rank| left.and_then(|ranks| ranks.get(&rank)))
    }

    /// GPU-seconds by tenant, by the tasks' own clocks: less than what is metered, since devices are held a little longer.
    fn by_own_clocks(&self) -> BTreeMap<String, f64> {
        let mut sums = BTreeMap::new();
        for job in self.recorded() {
            let spec = Self::spec(job);
            let devices = spec.request.and_then(|request| request.devices).and_then(|devices| devices.kind);
            let seconds: f64 = self.ranks(job).flatten().map(Rank::seconds).sum();
            *sums.entry(spec.tenant).or_default() += cards(devices.as_ref()) * seconds;
        }
        sums
    }

    /// Whether the metered usage has caught up with what the tasks themselves saw.
    #[must_use]
    pub fn usage_covers_record(&self, usage: &[(String, f64)]) -> bool {
        let metered: BTreeMap<&str, f64> = usage.iter().map(|(path, seconds)| (path.as_str(), *seconds)).collect();
        self.by_own_clocks()
            .iter()
            .all(|(path, seconds)| metered.get(path.as_str()).copied().unwrap_or(0.0) >= seconds * 0.98)
    }

    fn claims(&self) -> Vec<Claim> {
        let ids: BTreeSet<u64> = self.acknowledged.iter().copied().collect();
        let listed: BTreeSet<u64> = self.jobs.iter().map(|job| job.id).collect();
        let lost = ids.difference(&listed).count();
        let unknown = listed.difference(&ids).count();
        let twice_given = self.acknowledged.len() - ids.len();
        let completed = self.jobs.iter().filter(|job| job.phase() == v1::JobPhase::Completed).count();
        let ranks = || self.recorded().flat_map(|job| self.ranks(job));
        let twice = ranks().flatten().filter(|rank| rank.starts.len() > 1 || rank.ends.len() > 1).count();
        let never = ranks().filter(|rank| !rank.is_some_and(Rank::ran_once)).count() - twice;
        let torn = self.recorded().filter(|job| !self.was_whole(job)).count();
        let codes: Vec<&str> =
            self.reason.iter().flat_map(|reason| &reason.reasons).map(|reason| reason.code.as_str()).collect();
        let fixed = self.reason.iter().flat_map(|reason| &reason.reasons).any(|reason| !reason.fix.is_empty());
        // Where it lacks free devices as well, no single change would start it.
        let explained = codes.contains(&"over_max") && (fixed || codes.len() > 1);
        let back = |took: Option<Duration>| took.map_or("never".to_owned(), |took| format!("{} ms", took.as_millis()));
        let in_time = |took: Option<Duration>| took.is_some_and(|took| took <= BACK_MAX);
        let mut claims = vec![
            ("jobs acknowledged", self.acknowledged.len().to_string(), !self.acknowledged.is_empty()),
            ("jobs completed", format!("{completed} of {}", ids.len()), completed == ids.len() && completed > 0),
            ("lost jobs", lost.to_string(), lost == 0),
            ("jobs without an acknowledgement", unknown.to_string(), unknown == 0),
            ("task processes", ranks().count().to_string(), ranks().count() > 0),
            ("tasks that ran twice", twice.to_string(), twice == 0),
            ("tasks that did not run to the end", never.to_string(), never == 0),
            ("gangs that did not start together", torn.to_string(), torn == 0),
            ("duplicate job ids", twice_given.to_string(), twice_given == 0),
            (
                "new jobs from a repeated request id",
                self.new_by_repeat(&ids).to_string(),
                self.new_by_repeat(&ids) == 0 && !self.again.is_empty(),
            ),
            ("reason of the pending job", codes.join(", "), explained),
            ("leader killed: next acknowledgement after", back(self.leader_back), in_time(self.leader_back)),
            ("shard killed: another shard has its cell after", back(self.shard_back), in_time(self.shard_back)),
            (
                "usage covers the run times of the tasks",
                if self.usage_covers_record(&self.usage) { "yes" } else { "no" }.to_owned(),
                self.usage_covers_record(&self.usage),
            ),
            (
                "GPU failed: withheld after",
                format!("{} ms", self.gpu_fault.withheld.as_millis()),
                self.gpu_fault.withheld <= WITHHELD_MAX,
            ),
            ("its job completed on another GPU", yes_or_no(self.gpu_fault.ran_elsewhere), self.gpu_fault.ran_elsewhere),
            ("cleared by an operator, it takes work again", yes_or_no(self.gpu_fault.cleared), self.gpu_fault.cleared),
        ];
        claims.extend(self.slices.iter().flat_map(of_slices));
        claims
    }

    fn new_by_repeat(&self, ids: &BTreeSet<u64>) -> usize {
        self.again.iter().filter(|id| !ids.contains(id)).count()
    }

    /// Whether there was a moment at which every rank of the gang ran.
    fn was_whole(&self, job: &v1::Job) -> bool {
        let ranks: Vec<Option<&Rank>> = self.ranks(job).collect();
        let last_start =
            ranks.iter().flatten().flat_map(|rank| &rank.starts).map(|(_, at)| *at).fold(f64::MIN, f64::max);
        let first_end = ranks.iter().flatten().flat_map(|rank| &rank.ends).map(|(_, at)| *at).fold(f64::MAX, f64::min);
        ranks.len() < 2 || last_start <= first_end
    }

    /// What people read at the end.
    #[must_use]
    pub fn table(&self) -> String {
        let mut claims = Columns::new(&["CHECK", "FOUND", "PASSED"]).right(&["FOUND"]);
        for (what, seen, holds) in self.claims() {
            claims.row(vec![what.to_owned(), seen, if holds { "yes" } else { "NO" }.to_owned()]);
        }
        let own = self.by_own_clocks();
        let heads = ["TENANT", "GPU-SECONDS METERED", "RUN TIME OF THE TASKS"];
        let mut usage = Columns::new(&heads).right(&heads[1..]);
        for (path, seconds) in &self.usage {
            let by_own = own.get(path).map_or_else(|| "-".to_owned(), |seconds| format!("{seconds:.1}"));
            usage.row(vec![path.clone(), format!("{seconds:.1}"), by_own]);
        }
        let blocks = [claims.block(), Block::Text(String::new()), usage.block()];
        blocks.iter().map(|block| block.render(false, None)).collect::<Vec<_>>().join("\n")
    }

    /// Whether every claim holds.
    ///
    /// # Errors
    /// Names those that do not.
    pub fn verdict(&self) -> Result<(), Failure> {
        let broken: Vec<&str> = self.claims().iter().filter(|(_, _, holds)| !holds).map(|(what, _, _)| *what).collect();
        if broken.is_empty() {
            return Ok(());
        }
        for job in self.jobs.iter().filter(|job| job.phase() != v1::JobPhase::Completed).take(10) {
            let spec = Self::spec(job);
            note(&format!("job {} {} of {}: {:?} {}", job.id, spec.name, spec.tenant, job.phase(), job.reason));
        }
        Err(Failure::Job(format!("these checks failed: {}", broken.join("; "))))
    }
}

/// Cards that a task holds; of a slice its charge, of a share the larger of compute and memory, as in the model.
fn cards(kind: Option<&Kind>) -> f64 {
    const H100_MIB: f64 = 81_920.0;
    match kind {
        None => 0.0,
        Some(Kind::Whole(whole)) => f64::from(whole.count),
        Some(Kind::Mig(mig)) if mig.profile.starts_with("1g") => 1.0 / 7.0,
        Some(Kind::Mig(_)) => 0.5,
        Some(Kind::Mps(mps)) => (f64::from(mps.percent) / 100.0).max(mps.memory_mib as f64 / H100_MIB),
        Some(Kind::TimeSlice(slice)) => slice.memory_mib as f64 / H100_MIB,
    }
}
