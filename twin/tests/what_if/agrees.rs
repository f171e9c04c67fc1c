//! An answer agrees with what then happens: seeded clusters with quotas, borrowed devices and gangs; the edit is asked about, then made.

use crate::cluster::{BEGIN_MS, Cluster, pool, tenant, whole};
use muster_control_core::Command;
use muster_control_core::plan::drain_name;
use muster_model::preemption::RECLAIM_AGAIN_MS_MAX;
use muster_model::request::SharingMode;
use muster_model::tenant_edit::{AmountsEdit, TenantEdit};
use muster_model::{GpuModel, GpuUnits, JobId, JobSpec, Preemption, WindowKind, WindowSpec};
use muster_twin::what_if::{Answer, Edit, Start};
use std::collections::{BTreeMap, BTreeSet};

/// xorshift64*: the seed alone decides.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % bound
    }
}

const HORIZON_S: u64 = 4 * 3_600;
const TEAMS: [&str; 3] = ["a/one", "a/two", "b/one"];

/// A cluster with some hours behind it, at a moment at which nothing starts or stops.
fn lived_in(chance: &mut Chance) -> Cluster {
    let mut cluster = Cluster::new("4x8:h100:leaf=2", pool(&[SharingMode::Whole]));
    cluster.tenants(vec![
        tenant("a", 16, 0),
        tenant("a/one", 8, 24),
        tenant("a/two", 8, 0),
        tenant("b", 12, 28),
        tenant("b/one", 12, 0),
    ]);
    for _ in 0..40 {
        cluster.submit(job(chance));
        cluster.run_until(cluster.now_ms + chance.below(400) * 1_000);
    }
    while !cluster.is_calm() {
        cluster.run_until(cluster.now_ms + 1_000);
    }
    cluster
}

fn job(chance: &mut Chance) -> JobSpec {
    let team = TEAMS[chance.below(3) as usize];
    let (tasks, count) = [(1, 1), (1, 2), (1, 4), (1, 8), (2, 8), (2, 4), (4, 2)][chance.below(7) as usize];
    let limit_s = 600 * (1 + chance.below(18));
    let grace_s = 10 + chance.below(50);
    let preemption = Preemption { grace_s: Some(grace_s), ..Preemption::default() };
    JobSpec { priority: chance.below(2) as i32, preemption, ..whole(team, tasks, count, limit_s) }
}

/// One edit, as it is asked about and as it is made.
fn edit(cluster: &Cluster, chance: &mut Chance) -> (Edit, Vec<Command>) {
    let quota = |path: &str, guarantee: Option<u64>, max: Option<u64>| {
        let amount = |cards: Option<u64>| {
            let gpu = cards.map(|cards| (GpuModel::H100, Some(GpuUnits::cards(cards))));
            AmountsEdit { gpu: gpu.into_iter().collect(), ..AmountsEdit::default() }
        };
        TenantEdit { guarantee: amount(guarantee), max: amount(max), path: path.to_owned(), ..TenantEdit::default() }
    };
    let tenants = |edits: Vec<TenantEdit>| {
        let made = Command::EditTenants { edits: edits.clone(), prune: false, half_life_s: None };
        (Edit::Tenants { edits, prune: false, half_life_s: None }, vec![made])
    };
    match chance.below(5) {
        0 => tenants(vec![quota("b", Some(16), None), quota("b/one", Some(16), None)]),
        1 => tenants(vec![quota("a/one", Some(2), None), quota("a/two", Some(14), None)]),
        2 => tenants(vec![quota("a", None, Some(32)), quota("a/one", None, Some(32)), quota("b", None, Some(32))]),
        3 => {
            let number = 1 + chance.below(4);
            let name = format!("g1-n{number:04}");
            let node = cluster.state.index().node_ids[&name];
            (
                Edit::DrainNode(name),
                vec![Command::SetDrained { node, drained: true, reason: String::new(), force: false }],
            )
        }
        _ => {
            let rules = muster_model::Pool { cool_down_s: 1_800, ..pool(&[SharingMode::Whole]) };
            (Edit::Pool(rules.clone()), vec![Command::PutPool(rules)])
        }
    }
}

/// What the answer says of each job that waited: when it starts.
fn starts(answer: &Answer) -> BTreeMap<JobId, Option<u64>> {
    let lines = answer.gains.iter().chain(&answer.loses).chain(&answer.unchanged);
    let of = |start: &Start| match start {
        Start::Starts { in_s } => Some(Some(*in_s)),
        Start::Waits => Some(None),
        _ => None,
    };
    lines.filter_map(|line| Some((line.job?, of(&line.after)?))).collect()
}

/// A window that is planned, given up, or put off, as it is asked about and as it is made; and how it is called.
fn window_edit(cluster: &mut Cluster, chance: &mut Chance) -> (Vec<Edit>, Vec<Command>, &'static str) {
    let in_s = |seconds: u64| BEGIN_MS.max(cluster.now_ms) + 1_000 * seconds;
    let node = |number: u64| format!("g1-n{number:04}");
    let (first, second) = (1 + chance.below(4), 1 + chance.below(4));
    let maintenance = WindowSpec {
        name: "kernel".to_owned(),
        kind: WindowKind::Maintenance,
        nodes: BTreeSet::from([node(first), node(second)]).into_iter().collect(),
        gpus: 0,
        model: None,
        start_ms: in_s(600 * chance.below(10)),
        end_ms: Some(in_s(6_000 + 600 * chance.below(12))),
        reason: String::new(),
        tenants: Vec::new(),
        flex: false,
        preempt: chance.below(2) == 0,
    };
    // By then every job that runs has reached its time limit.
    let launch = WindowSpec {
        name: "launch".to_owned(),
        kind: WindowKind::Reservation,
        nodes: Vec::new(),
        gpus: 8 * (1 + chance.below(2)),
        model: Some(GpuModel::H100),
        start_ms: in_s(11_000),
        end_ms: Some(in_s(13_000)),
        tenants: vec!["a".to_owned()],
        preempt: false,
        ..maintenance.clone()
    };
    let by_ms = in_s(600 * chance.below(10));
    let drain_spec = WindowSpec {
        name: drain_name(&node(first)),
        kind: WindowKind::Drain,
        nodes: vec![node(first)],
        start_ms: by_ms,
        end_ms: None,
        preempt: true,
        ..maintenance.clone()
    };
    let made = |spec: WindowSpec| (vec![Edit::Window(spec.clone())], vec![Command::PutWindow(spec)]);
    let kind = chance.below(5);
    let name = ["maintenance", "reservation", "drain", "given up", "put off"][kind as usize];
    let (edits, commands) = match kind {
        0 => made(maintenance),
        1 => made(launch),
        2 => (vec![Edit::DrainNodeBy { node: node(first), by_ms }], vec![Command::PutWindow(drain_spec)]),
        _ => {
            // It is there already, and jobs wait for it or because of it.
            let (spec, named) = if chance.below(2) == 0 { (launch, true) } else { (maintenance, false) };
            cluster.make(Command::PutWindow(spec.clone())).expect("a window");
            if named {
                let reservation = Some(spec.name.clone());
                cluster.submit(JobSpec { reservation, ..whole("a/one", 1, 8, 1_200) });
            }
            let name = spec.name.clone();
            let later = |ms: u64| ms + 1_800_000;
            let off = WindowSpec { start_ms: later(spec.start_ms), end_ms: spec.end_ms.map(later), ..spec };
            let mut edits = vec![Edit::DeleteWindow(name.clone())];
            let mut commands = vec![Command::DeleteWindow { name }];
            if kind == 4 {
                edits.push(Edit::Window(off.clone()));
                commands.push(Command::PutWindow(off));
            }
            (edits, commands)
        }
    };
    (edits, commands, name)
}

/// How answers compare with what happened.
#[derive(Debug, Default)]
struct Compared {
    agreeing: usize,
    started: usize,
    waited: usize,
    otherwise: usize,
    evicted: usize,
    changed: usize,
}

impl Compared {
    /// Asks, makes the edit, lets the cluster run on, and compares.
    fn one(&mut self, cluster: &mut Cluster, edits: Vec<Edit>, commands: Vec<Command>) {
        let asked_ms = cluster.now_ms;
        assert!(asked_ms > BEGIN_MS);
        let answer = cluster.ask(edits, Vec::new(), HORIZON_S);

        (cluster.starts, cluster.evicted) = (BTreeMap::new(), BTreeMap::new());
        // As after a failover: what a shard remembers of vain attempts is in no copy of the state.
        cluster.restart_shards();
        for command in commands {
            cluster.make(command).expect("what was answered is not refused");
        }
        cluster.run_until(asked_ms + HORIZON_S * 1_000);

        let told: BTreeSet<JobId> = answer.evicted.iter().filter_map(|line| line.job.job).collect();
        let happened: BTreeSet<JobId> = cluster.evicted.keys().copied().collect();
        let mut agrees = told == happened;
        for (job, told_s) in starts(&answer) {
            let first = cluster.starts.get(&job).and_then(|starts| starts.first());
            let happened_s = first.map(|at_ms| (at_ms - asked_ms) / 1_000);
            // Within the time until a shard tries a reclaim again: that timer is the shard's own and in no copy of the state.
            let near = match (told_s, happened_s) {
                (Some(told_s), Some(happened_s)) => told_s.abs_diff(happened_s) <= RECLAIM_AGAIN_MS_MAX / 1_000,
                (told, happened) => told == happened,
            };
            if near {
                self.started += usize::from(happened_s.is_some());
                self.waited += usize::from(happened_s.is_none());
            } else {
                agrees = false;
                self.otherwise += 1;
            }
        }
        self.agreeing += usize::from(agrees);
        self.evicted += told.len();
        self.changed += usize::from(!answer.gains.is_empty() || !answer.loses.is_empty());
    }

    /// One reclaim that is tried some seconds earlier or later changes what comes after it, for hours.
    fn check(&self, asked: usize) {
        println!("{asked} answers: {self:?}");
        let Compared { agreeing, started, waited, otherwise, evicted, changed } = *self;
        assert!(5 * agreeing >= 4 * asked && 20 * otherwise <= started + waited, "{self:?}");
        assert!(started > 40 && evicted > 5 && waited > 3 && changed > 8, "{self:?}");
    }
}

#[test]
fn an_answer_agrees_with_what_then_happens() {
    let mut compared = Compared::default();
    for seed in 1..=40 {
        let mut chance = Chance(u64::wrapping_mul(seed, 0x9E37_79B9_7F4A_7C15));
        let mut cluster = lived_in(&mut chance);
        let (edit, commands) = edit(&cluster, &mut chance);
        compared.one(&mut cluster, vec![edit], commands);
    }
    compared.check(40);
}

#[test]
fn an_answer_about_windows_agrees_with_what_then_happens() {
    let mut compared = Compared::default();
    let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
    for seed in 1..=40 {
        let mut chance = Chance(u64::wrapping_mul(seed + 1_000, 0x9E37_79B9_7F4A_7C15));
        let mut cluster = lived_in(&mut chance);
        let (edits, commands, kind) = window_edit(&mut cluster, &mut chance);
        *kinds.entry(kind).or_default() += 1;
        compared.one(&mut cluster, edits, commands);
    }
    assert!(kinds.len() == 5 && kinds.values().all(|count| *count >= 3), "{kinds:?}");
    compared.check(40);
}
