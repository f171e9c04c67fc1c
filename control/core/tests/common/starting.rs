//! When the jobs of a story may start: conditions, holds, and the time that decides.

use super::Story;
use muster_control_core::Command;
use muster_model::ids::JobId;
use muster_model::{ArraySpec, Dependency, DependencyKind, EndedJob, Holder, JobPhase, StartConditions, ValidJobSpec};

const KINDS: [DependencyKind; 5] = [
    DependencyKind::AfterOk,
    DependencyKind::AfterAny,
    DependencyKind::AfterNotOk,
    DependencyKind::After,
    DependencyKind::AfterCorr,
];

impl Story {
    /// Tenants, and in most stories the level from which on jobs have start conditions.
    pub(super) fn found_cluster(&mut self) -> Vec<Command> {
        let mut commands = self.found_tenants();
        if !self.chance.one_in(4) {
            commands.insert(0, Command::RaiseFeatureLevel { level: 4 });
        }
        commands
    }

    /// Mostly none.
    pub(super) fn start(&mut self) -> StartConditions {
        let mut start = StartConditions::default();
        if self.state.meta.feature_level < 3 && !self.chance.one_in(20) {
            return start;
        }
        if self.chance.one_in(3) {
            let jobs = self.state.meta.next_job.0;
            let count = self.chance.below(3) + 1;
            start.dependencies = (0..count).filter_map(|_| self.dependency(jobs)).collect();
        }
        start.held = self.chance.one_in(12);
        start.singleton = self.chance.one_in(12);
        start.begin_ms = self.chance.one_in(10).then(|| self.now_ms + self.chance.below(60_000));
        start.deadline_ms = self.chance.one_in(10).then(|| self.now_ms + 60_000 + self.chance.below(100_000));
        start.kill_on_invalid_dependency = self.chance.one_in(2);
        let corr = |on: &Dependency| on.kind == DependencyKind::AfterCorr;
        start.any_dependency =
            self.state.meta.feature_level >= 4 && !start.dependencies.iter().any(corr) && self.chance.one_in(3);
        start
    }

    /// Mostly none, and small.
    pub(super) fn array(&mut self) -> Option<ArraySpec> {
        if self.state.meta.feature_level < 3 || !self.chance.one_in(12) {
            return None;
        }
        let first = self.chance.below(4) as u32;
        let indices = (first..first + self.chance.below(5) as u32 + 1).collect();
        Some(ArraySpec { indices, max_running: self.chance.one_in(2).then(|| self.chance.below(3) as u32 + 1) })
    }

    /// On one of the last jobs; now and then on one that does not exist yet.
    fn dependency(&mut self, next: u64) -> Option<Dependency> {
        let back = self.chance.below(12);
        let job = JobId(if self.chance.one_in(20) { next + back } else { next.saturating_sub(back + 1).max(1) });
        let kind = self.chance.pick(&KINDS)?;
        let delay_s = if kind == DependencyKind::After { self.chance.below(20) } else { 0 };
        Some(Dependency { kind, job, delay_s })
    }

    /// What the history says of the jobs on which these depend; now and then it is forgotten.
    pub(super) fn ends_of(&mut self, specs: &[ValidJobSpec]) -> Vec<EndedJob> {
        let named = specs.iter().flat_map(|spec| &spec.start.dependencies).map(|on| on.job);
        let ended: Vec<EndedJob> = named.filter_map(|job| self.ended.get(&job).cloned()).collect();
        ended.into_iter().filter(|_| !self.chance.one_in(50)).collect()
    }

    /// Hold, release, and what time decides.
    pub(super) fn start_command(&mut self) -> Command {
        let by = if self.chance.one_in(2) { Holder::User } else { Holder::Admin };
        let held = self.some_job(|job| job.unmet.held.is_some()).map_or(JobId(1), |job| job.id);
        let array = self.some_job(|job| job.array.is_some()).map_or(JobId(1), |job| job.id);
        match self.chance.below(10) {
            0 => Command::Sweep,
            8 => Command::CancelTasks { job: array, indices: (0..=self.chance.below(4) as u32).collect() },
            9 => Command::SetArrayLimit {
                job: array,
                max_running: self.chance.one_in(2).then(|| self.chance.below(4) as u32),
            },
            1 => Command::Hold { job: self.some_job(|_| true).map_or(JobId(1), |job| job.id), by },
            2 => {
                let pending = self.some_job(|job| job.phase == JobPhase::Queued);
                Command::Hold { job: pending.map_or(JobId(1), |job| job.id), by }
            }
            3 | 4 => Command::Release { job: held, by },
            _ => Command::DecideDue,
        }
    }
}
