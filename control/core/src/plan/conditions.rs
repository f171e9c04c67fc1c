//! The conditions under which a submitted job may start, as they stand when it is accepted.
//!
//! What must stay true: a job depends only on jobs with lower ids, so there are no cycles; what is known of a finished job comes with the
//! command, because it lives on disk alone, and is recorded here once.

use super::level;
use crate::bounds::DEPENDENTS_MAX;
use crate::draft::Draft;
use crate::reject::Reject;
use muster_model::array::{ArrayState, SameIndex};
use muster_model::ids::{JobId, TenantId};
use muster_model::start::Verdict;
use muster_model::{Dependency, DependencyKind, EndedJob, FieldError, Holder, StartConditions, Unmet, ValidJobSpec};
use std::collections::{BTreeMap, BTreeSet};

/// What a submission knows beside the state.
pub(super) struct Known<'a> {
    ended: BTreeMap<JobId, &'a EndedJob>,
    /// Tenants, users and names of the jobs of this submission so far.
    names: BTreeSet<(TenantId, &'a str, &'a str)>,
    /// Jobs that are over and of which the command says nothing.
    missing: BTreeSet<JobId>,
}

impl<'a> Known<'a> {
    pub(super) fn of(ended: &'a [EndedJob]) -> Self {
        let ended = ended.iter().map(|one| (one.job, one)).collect();
        Known { ended, names: BTreeSet::new(), missing: BTreeSet::new() }
    }

    /// Refuses the submission when it depends on jobs whose end the command does not tell of.
    pub(super) fn complete(self) -> Result<(), Reject> {
        if self.missing.is_empty() {
            return Ok(());
        }
        Err(Reject::EndUnknown { jobs: self.missing.into_iter().collect() })
    }

    /// What keeps a job from being eligible when it is accepted.
    pub(super) fn unmet(
        &mut self,
        draft: &Draft<'_>,
        tenant: TenantId,
        spec: &'a ValidJobSpec,
    ) -> Result<(Unmet, Option<Box<ArrayState>>), FieldError> {
        let start = &spec.start;
        let first_of_name = self.names.insert((tenant, &spec.user, &spec.name));
        if spec.array.is_some() {
            level::field(draft.state, level::QUOTAS, "array")?;
        }
        if !spec.comment.is_empty() {
            level::field(draft.state, level::ACCESS, "comment")?;
        }
        if spec.elastic.is_some() {
            level::field(draft.state, level::QUOTAS, "elastic")?;
        }
        let mut array = spec.array.as_ref().map(|array| Box::new(ArrayState::of(array)));
        if *start == StartConditions::default() {
            return Ok((Unmet::default(), array));
        }
        level::field(draft.state, level::QUOTAS, "start")?;
        if start.any_dependency {
            level::field(draft.state, level::ACCESS, "start.any_dependency")?;
        }
        check_deadline(draft, spec)?;
        let mut unmet = Unmet {
            held: start.held.then_some(Holder::User),
            begin_ms: start.begin_ms,
            dependencies: start.dependencies.clone(),
            never: None,
            singleton: start.singleton
                && (!first_of_name || draft.state.index().starts.named_as(tenant, spec).next().is_some()),
            any_dependency: start.any_dependency && !start.dependencies.is_empty(),
        };
        let mut verdicts = Vec::with_capacity(start.dependencies.len());
        for (index, on) in start.dependencies.iter().enumerate() {
            let verdict = self.verdict(draft, on).map_err(|error| {
                let field = format!("start.dependencies[{index}].job_id");
                FieldError { field, ..error }
            })?;
            match (array.as_mut(), self.tasks_of(draft, on)) {
                (Some(array), Some(same)) => {
                    unmet.dependencies.retain(|one| one != on);
                    array.with_same_index.push(same);
                }
                _ => verdicts.push((*on, verdict)),
            }
        }
        // Of several that are met, the one by which it may start first counts alone.
        let met = verdicts.iter().copied().filter(|(on, verdict)| on.met_ms(*verdict).is_some());
        if let Some(first) = met.min_by_key(|(on, verdict)| (on.met_ms(*verdict), *on)).filter(|_| unmet.any_dependency)
        {
            verdicts = vec![first];
        }
        for (on, verdict) in verdicts {
            unmet.decide(on, verdict);
        }
        unmet.begin_ms = unmet.begin_ms.filter(|begin_ms| *begin_ms > draft.now_ms);
        Ok((unmet, array))
    }

    /// The tasks of the array that an array depends on index by index, as they stand.
    fn tasks_of(&self, draft: &Draft<'_>, on: &Dependency) -> Option<SameIndex> {
        if on.kind != DependencyKind::AfterCorr {
            return None;
        }
        let live = draft.state.jobs.get(&on.job);
        let completed = match live {
            Some(job) => job.array.as_ref().map(|array| array.completed.clone()),
            None => self.ended.get(&on.job).and_then(|ended| ended.array_completed.clone()),
        };
        Some(SameIndex { array: on.job, completed: completed?, over: live.is_none() })
    }

    fn verdict(&mut self, draft: &Draft<'_>, on: &Dependency) -> Result<Verdict, FieldError> {
        if on.job >= draft.state.meta.next_job {
            let problem = format!("names job {}, which does not exist", on.job);
            return Err(FieldError::new("", problem, "name a job that was submitted before"));
        }
        if let Some(job) = draft.state.jobs.get(&on.job) {
            if draft.state.index().starts.dependent_count(on.job) >= DEPENDENTS_MAX {
                let problem = format!("names job {}, on which {DEPENDENTS_MAX} jobs depend already", on.job);
                let fix = "let one job wait for it, and depend on that job";
                return Err(FieldError::new("", problem, fix));
            }
            return Ok(on.on_live(job));
        }
        match self.ended.get(&on.job) {
            Some(ended) => Ok(on.on_ended(ended)),
            None => {
                self.missing.insert(on.job);
                Ok(Verdict::Waits)
            }
        }
    }
}

/// A job that could not end by its deadline even if it started now is refused, so that its user learns of it.
fn check_deadline(draft: &Draft<'_>, spec: &ValidJobSpec) -> Result<(), FieldError> {
    let late = spec.latest_start_ms().is_some_and(|latest_ms| latest_ms < draft.now_ms);
    if !late {
        return Ok(());
    }
    let problem = "leaves less time from now than the job may run";
    let fix = "set a later deadline, or a shorter time limit";
    Err(FieldError::new("start.deadline_ms", problem, fix))
}
