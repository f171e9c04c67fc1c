//! Why many jobs wait, each in one sentence: what a list of jobs shows beside them.
//!
//! What must stay true: it is the first reason of an explanation, from the same gates and the same search, asked once the shard's passes have
//! been played on one copy for each cell; jobs that wait for the same share an answer, and the different ones are bounded.

#![expect(clippy::mutable_key_type, reason = "what a class keeps for later follows from what it is ordered by")]

use super::cell_name;
use super::diagnose;
use super::limited::Names;
use super::reason::Why;
use super::supply::{Supply, has_model};
use super::trial::Trial;
use crate::job_class::JobClass;
use crate::policy::gate::Gate;
use crate::view::{Known, View};
use muster_model::{CellId, JobId, TenantId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Different answers that are looked for; jobs that ask for the same share one, so most pages of a list take a few.
const ANSWERS_MAX: usize = 64;
/// Jobs that wait on the copy beside those asked about.
const BESIDE_MAX: usize = 10_000;

/// One sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Brief(Why);

/// Jobs that wait for the same: their tenant, what they ask for, and those for whom alone something is kept.
type Alike = (TenantId, Arc<JobClass>, Option<JobId>);

/// Says of each of these jobs that waits why it does; of some nothing, where there are too many different ones.
#[must_use]
pub fn brief(view: &View, jobs: &[JobId], now_ms: u64) -> BTreeMap<JobId, Brief> {
    let mut by_cell: BTreeMap<Option<CellId>, Vec<JobId>> = BTreeMap::new();
    let mut told = BTreeMap::new();
    for id in jobs {
        let leaving = |job: &Arc<Known>| Why::claimed(view, job, now_ms).or_else(|| Why::growth_ends(view, job));
        if let Some(why) = view.jobs.get(id.0).and_then(leaving) {
            told.insert(*id, Brief(why));
        }
        if let Some(job) = view.jobs.get(id.0).filter(|job| job.waits() && !told.contains_key(id)) {
            by_cell.entry(job.cell).or_default().push(*id);
        }
    }
    let mut answers = 0;
    for (cell, jobs) in by_cell {
        let unheld = cell.and_then(|cell| view.cells.get(&cell)).filter(|there| there.holder.is_none());
        if let Some(there) = unheld {
            let brief = Brief(Why::CellWithoutShard { cell: there.name.clone() });
            told.extend(jobs.into_iter().map(|id| (id, brief.clone())));
            continue;
        }
        let Some(cell) = cell else {
            let classes = jobs.iter().filter_map(|id| Some((*id, view.jobs.get(id.0)?.class.clone()?)));
            told.extend(classes.map(|(id, class)| (id, Brief(super::no_cell(view, &class)))));
            continue;
        };
        let waiting: BTreeSet<JobId> = view.waiting_in(cell).take(BESIDE_MAX).chain(jobs.iter().copied()).collect();
        let mut trial = Trial::of_cell(view, cell, &waiting, now_ms);
        let protected = trial.play();
        let mut known: BTreeMap<Alike, Brief> = BTreeMap::new();
        for id in jobs {
            let Some(job) = trial.view.jobs.get(id.0).cloned() else { continue };
            let Some(class) = job.class.clone().filter(|_| !trial.view.is_assumed(id)) else {
                told.insert(id, Brief(Why::JustQueued { model: trial.view.assumed_model(id) }));
                continue;
            };
            let own = trial.view.reserved(id).is_some() || protected.contains(&id);
            let alike = (job.tenant, class.clone(), own.then_some(id));
            if !known.contains_key(&alike) && answers < ANSWERS_MAX {
                answers += 1;
                known.insert(alike.clone(), Brief(why(&mut trial, &job, &class)));
            }
            told.extend(known.get(&alike).map(|brief| (id, brief.clone())));
        }
    }
    told
}

/// The first closed gate on the first model of which the cell has cards.
fn why(trial: &mut Trial, job: &Known, class: &JobClass) -> Why {
    trial.id = job.id;
    let mut first = None;
    for offer in class.offers() {
        let ask = trial.ask(job, class, offer.model);
        let mut nodes = trial.view.capacity().nodes().values().map(|there| &there.node);
        if !nodes.any(|node| node.cell == trial.cell && has_model(&ask, node)) {
            continue;
        }
        let why = match trial.gate(offer) {
            Ok(_) => return Why::JustQueued { model: offer.model },
            Err(Gate::Quota(over)) => Some(Why::over_max(&trial.view, over)),
            Err(Gate::NotLent(why, _)) => Some(Why::NotLent(why)),
            Err(Gate::Trust) => Some(Why::Untrusted),
            Err(Gate::Reservation(fault)) => Some(Why::reservation(class, fault)),
            Err(Gate::StarvationGuard(model, guard)) => {
                let free = Supply::of(&trial.view, &ask).free;
                Some(Why::StarvationGuard {
                    cell: cell_name(&trial.view, trial.cell),
                    model,
                    gang: guard.gang,
                    cards: guard.cards,
                    free,
                })
            }
            Err(Gate::NoPlace(model)) => diagnose::no_place(trial, job, class, model).into_iter().next(),
        };
        first = first.or(why);
    }
    let models = class.request.devices.models().to_vec();
    first.unwrap_or_else(|| Why::NoCards { cell: cell_name(&trial.view, trial.cell), models })
}

impl Brief {
    /// A stable word, as in an explanation.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        self.0.code()
    }

    /// For people.
    #[must_use]
    pub fn text(&self) -> String {
        self.0.text()
    }

    /// What of it `names` lets the reader know.
    #[must_use]
    pub fn limited(self, names: &Names<'_>) -> Self {
        Brief(self.0.limited(names))
    }
}
