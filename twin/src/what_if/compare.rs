//! Compares the two runs of a question.
//!
//! What must stay true: each job is in one of *gains*, *loses* and *unchanged* at most; a difference of less than a second is none.

use super::answer::{Answer, Evicted, JobLine, ModelLine, ModelState, Start, TenantLine, TenantState, Why};
use super::edits::Edit;
use super::forecast::{Forecast, JobKey};
use super::run::Run;
use super::{Outcome, Question, work};
use muster_control_core::State;
use muster_model::{GpuModel, GpuUnits, Node, Outcome as Ended, Tenant, Window, WindowKind};
use std::collections::{BTreeMap, BTreeSet};

/// Starts that are nearer to each other are the same.
const SAME_MS: u64 = 1_000;

pub(super) fn compare(question: &Question, before: &Outcome, after: &Outcome) -> Answer {
    let begin_ms = after.run.begin_ms();
    let mut answer = Answer {
        as_of_ms: begin_ms,
        horizon_s: question.options.horizon_ms / 1_000,
        edits: question.edits.iter().map(Edit::text).collect(),
        basis: work::basis(question, &after.run.forecasts.predictions()),
        models: models(question, before, after),
        tenants: tenants(before, after),
        gains: Vec::new(),
        loses: Vec::new(),
        evicted: Vec::new(),
        spared: Vec::new(),
        waiting: Vec::new(),
        unchanged: Vec::new(),
    };
    if question.edits.is_empty() {
        answer.edits.push(format!("{} submitted", counted(question.workload.len(), "job")));
    }
    let unplaced = before.needed.unplaced.max(after.needed.unplaced);
    if unplaced > 0 {
        let jobs = counted(unplaced as usize, "job");
        answer.basis.push(format!("{jobs} without a place on any number of such nodes are not among the needed cards"));
    }
    for key in keys(before, after) {
        one(key, before, after, &mut answer);
    }
    answer
}

fn counted(count: usize, word: &str) -> String {
    if count == 1 { format!("1 {word}") } else { format!("{count} {word}s") }
}

fn keys(before: &Outcome, after: &Outcome) -> BTreeSet<JobKey> {
    let forecasts = before.run.forecasts.jobs.keys().chain(after.run.forecasts.jobs.keys()).copied();
    forecasts.chain(before.run.refused.keys().map(|index| JobKey::Added(*index))).collect()
}

fn one(key: JobKey, before: &Outcome, after: &Outcome, answer: &mut Answer) {
    let forecasts = [before, after].map(|outcome| outcome.run.forecasts.jobs.get(&key));
    let Some(any) = forecasts[1].or(forecasts[0]) else { return };
    // The record of an array never starts; its tasks do.
    if any.is_array {
        return;
    }
    let [was, is] = [before, after].map(|outcome| start(key, outcome));
    let line = line(key, any, [was.clone(), is.clone()], forecasts[1]);
    let evictions = forecasts.map(|forecast| forecast.is_some_and(|forecast| !forecast.evictions.is_empty()));
    match evictions {
        [in_both, true] => answer.evicted.extend(evicted(&line, forecasts[1], &after.run, in_both)),
        [true, false] => answer.spared.extend(evicted(&line, forecasts[0], &before.run, false)),
        [false, false] => {}
    }
    if is == Start::Waits {
        answer.waiting.push(line.clone());
    }
    let rank = |start: &Start, forecast: Option<&Forecast>| match start {
        Start::Running => Some(0),
        Start::Starts { .. } => forecast.and_then(|forecast| forecast.start_ms),
        Start::Waits | Start::Refused { .. } => Some(u64::MAX),
        Start::Ended | Start::Absent => None,
    };
    match (rank(&was, forecasts[0]), rank(&is, forecasts[1])) {
        (None, Some(_)) if matches!(was, Start::Absent) => answer.unchanged.push(line),
        (Some(_), Some(_)) if was == Start::Running && is == Start::Running => match evictions {
            [false, true] => answer.loses.push(line),
            [true, false] => answer.gains.push(line),
            _ => {}
        },
        (Some(was_ms), Some(is_ms)) if is_ms < u64::MAX && is_ms + SAME_MS <= was_ms => answer.gains.push(line),
        (Some(was_ms), Some(is_ms)) if was_ms < u64::MAX && was_ms + SAME_MS <= is_ms => answer.loses.push(line),
        (Some(_), Some(_)) => answer.unchanged.push(line),
        (None, Some(_)) => answer.gains.push(line),
        (Some(_), None) => answer.loses.push(line),
        (None, None) => {}
    }
}

fn start(key: JobKey, outcome: &Outcome) -> Start {
    if let JobKey::Added(index) = key
        && let Some(reject) = outcome.run.refused.get(&index)
    {
        return Start::Refused { why: reject.to_string() };
    }
    let Some(forecast) = outcome.run.forecasts.jobs.get(&key) else { return Start::Absent };
    match (forecast.start_ms, &forecast.outcome) {
        (Some(start_ms), _) => Start::Starts { in_s: start_ms.saturating_sub(outcome.run.begin_ms()) / 1_000 },
        (None, _) if forecast.held_at_begin => Start::Running,
        (None, Some(Ended::Completed)) => Start::Running,
        (None, Some(_)) => Start::Ended,
        (None, None) => Start::Waits,
    }
}

fn cards(units: u64) -> f64 {
    round(GpuUnits(units).as_cards())
}

fn round(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

fn line(key: JobKey, forecast: &Forecast, [before, after]: [Start; 2], with: Option<&Forecast>) -> JobLine {
    let (job, workload, array_index) = match key {
        JobKey::Live(id) => (Some(id), None, None),
        // A task that had a job has an id of its own; another gets it only later.
        JobKey::Task(array, index) if forecast.id <= array => (Some(array), None, Some(index)),
        JobKey::Task(array, index) => {
            (Some(if forecast.held_at_begin { forecast.id } else { array }), None, Some(index))
        }
        JobKey::Added(index) => (None, Some(index + 1), None),
        JobKey::AddedTask(index, task) => (None, Some(index + 1), Some(task)),
    };
    let says_why = matches!(after, Start::Waits) || matches!(after, Start::Starts { in_s } if in_s > 0);
    let why = with.filter(|_| says_why).and_then(|forecast| forecast.why.clone());
    JobLine {
        job,
        workload,
        array_index,
        name: forecast.name.clone(),
        tenant: forecast.tenant.clone(),
        user: forecast.user.clone(),
        gpus: cards(forecast.units.0),
        before,
        after,
        why: why.map(|(code, text)| Why { code, text }),
    }
}

fn evicted(line: &JobLine, forecast: Option<&Forecast>, run: &Run, in_both: bool) -> Option<Evicted> {
    let forecast = forecast?;
    let (first, last) = (forecast.evictions.first()?, forecast.evictions.last()?);
    let in_s = |at_ms: u64| at_ms.saturating_sub(run.begin_ms()) / 1_000;
    let by = first.by.and_then(|key| Some((key, run.forecasts.jobs.get(&key)?)));
    let for_job = by.map(|(key, forecast)| match key {
        JobKey::Live(id) => id.to_string(),
        JobKey::Task(array, index) => format!("{array}_{index}"),
        JobKey::Added(index) => format!("workload {}", index + 1),
        JobKey::AddedTask(index, _) => format!("workload {} ({})", index + 1, forecast.name),
    });
    let lost: u128 = forecast.evictions.iter().map(|eviction| eviction.lost).sum();
    Some(Evicted {
        job: line.clone(),
        in_s: in_s(first.at_ms),
        for_job: for_job.unwrap_or_default(),
        for_tenant: by.map(|(_, forecast)| forecast.tenant.clone()).unwrap_or_default(),
        reason: Evicted::word(first.reason),
        lost_gpu_seconds: u64::try_from(lost.div_ceil(u128::from(GpuUnits::CARD.0) * 1_000)).unwrap_or(u64::MAX),
        again_in_s: last.again_ms.map(in_s),
        times: forecast.evictions.len() as u64,
        in_both,
    })
}

fn models(question: &Question, before: &Outcome, after: &Outcome) -> Vec<ModelLine> {
    let begin = Run::begin(question.objects.iter().cloned(), question.now_ms, &question.options);
    let in_use = begin.forecasts.usage.cards();
    let states = [before, after].map(|outcome| {
        let end_ms = outcome.run.begin_ms() + question.options.horizon_ms;
        let means = outcome.run.forecasts.usage.clone().means(end_ms);
        let mut states: BTreeMap<GpuModel, ModelState> = BTreeMap::new();
        for node in outcome.run.state.nodes.values().filter(|node| takes_work(&outcome.run.state, node)) {
            for card in node.spec.gpus.iter().filter(|card| card.withheld.is_none()) {
                states.entry(card.model).or_default().cards += 1;
            }
        }
        for (model, (allocated, used)) in means {
            let state = states.entry(model).or_default();
            (state.allocated, state.used) = (round(allocated), round(used));
        }
        for (model, cards) in &outcome.needed.cards {
            states.entry(*model).or_default().needed = *cards;
        }
        states
    });
    let all: BTreeSet<GpuModel> = states.iter().flat_map(|states| states.keys().copied()).collect();
    let of = |model: GpuModel| ModelLine {
        model: model.to_string(),
        in_use: in_use.get(&model).copied().unwrap_or(0),
        before: states[0].get(&model).cloned().unwrap_or_default(),
        after: states[1].get(&model).cloned().unwrap_or_default(),
    };
    all.into_iter().map(of).collect()
}

/// Nodes are not marked by maintenance: they are closed while one is open.
fn takes_work(state: &State, node: &Node) -> bool {
    let closed = |window: &Window| window.open && window.kind == WindowKind::Maintenance;
    node.accepts_work() && !state.windows_on(node.id).any(closed)
}

fn tenants(before: &Outcome, after: &Outcome) -> Vec<TenantLine> {
    let [was, is] = [before, after].map(tenant_states);
    let paths: BTreeSet<&String> = was.keys().chain(is.keys()).collect();
    let of = |path: &String| TenantLine {
        tenant: path.clone(),
        before: was.get(path).cloned().unwrap_or_default(),
        after: is.get(path).cloned().unwrap_or_default(),
    };
    paths.into_iter().map(of).collect()
}

fn tenant_states(outcome: &Outcome) -> BTreeMap<String, TenantState> {
    let mut states: BTreeMap<String, TenantState> = BTreeMap::new();
    let mut unit_ms: BTreeMap<String, u128> = BTreeMap::new();
    for forecast in outcome.run.forecasts.jobs.values() {
        let mut path = Some(forecast.tenant.as_str());
        while let Some(at) = path {
            let state = states.entry(at.to_owned()).or_default();
            *unit_ms.entry(at.to_owned()).or_default() += forecast.unit_ms;
            state.starts += u64::from(forecast.start_ms.is_some());
            state.waiting += u64::from(forecast.waits && !forecast.is_array);
            state.evicted += u64::from(!forecast.evictions.is_empty());
            path = Tenant::parent_path(at);
        }
    }
    for (path, unit_ms) in unit_ms {
        if let Some(state) = states.get_mut(&path) {
            state.gpu_hours = round(unit_ms as f64 / GpuUnits::CARD.0 as f64 / 3_600_000.0);
        }
    }
    let state = &outcome.run.state;
    for (id, unmet) in state.capacity().unmet_floors() {
        for above in state.capacity().line_of(*id).filter_map(|(id, _)| state.tenants.get(&id)) {
            states.entry(above.path.clone()).or_default().unmet += unmet.gpu_total().as_cards();
        }
    }
    for state in states.values_mut() {
        state.unmet = round(state.unmet);
    }
    states
}
