//! What stands apart, by example: tasks that are spread, work that suffers from neighbours, tenants that disturb each other.

use super::fleet::*;
use muster_model::*;
use std::collections::BTreeMap;

/// Two blocks of two leaves of two nodes with four cards each: nodes 1 to 8.
fn grid() -> Fleet {
    let leaves = [("b1", "l1"), ("b1", "l2"), ("b2", "l3"), ("b2", "l4")];
    let host = |(block, leaf)| Host::new("n", GpuModel::H100, 4).at(block, leaf);
    Fleet::new(leaves.into_iter().flat_map(|at| [host(at), host(at)]))
}

fn spread(level: TopologyLevel, tasks_max: u32, required: bool, spec: JobSpec) -> JobSpec {
    JobSpec { topology: Topology { spread: Some(Spread { level, tasks_max, required }), ..spec.topology }, ..spec }
}

/// Tasks of a job by the domain of `level` that they stand in.
fn crowds(fleet: &Fleet, job: JobId, level: TopologyLevel) -> BTreeMap<String, usize> {
    let mut crowds = BTreeMap::new();
    for task in &fleet.allocation_of(job).expect("runs").tasks {
        *crowds.entry(closeness::spread_domain(&fleet.nodes[&task.node], level)).or_default() += 1;
    }
    crowds
}

fn nodes_of(fleet: &Fleet, job: JobId) -> Vec<u32> {
    fleet.allocation_of(job).map(|held| held.tasks.iter().map(|task| task.node.0).collect()).unwrap_or_default()
}

/// Kept off a whole NVLink domain for what one of its nodes holds: when that node is described anew outside of it, the other is open.
#[test]
fn a_node_that_leaves_an_nvlink_domain_opens_it_for_whom_it_kept_off() {
    let rack = |name| Host { nvlink: "nvl", ..Host::new(name, GpuModel::H100, 4) };
    let mut fleet = Fleet::new([rack("a"), rack("b")]);
    fleet.tenant("other", |_| {});
    let rules = vec![AntiAffinity { tenant: "other".into(), level: AntiAffinityLevel::Island }];
    fleet.tenant("org", |tenant| tenant.anti_affinity = rules.clone());
    let theirs = fleet.submit(JobSpec { tenant: "other".into(), ..gang(1, 4) });
    fleet.settle();
    let ours = fleet.submit(gang(1, 4));
    fleet.settle();
    assert!(fleet.runs(theirs) && !fleet.runs(ours));
    let mut moved = fleet.nodes[&NodeId(nodes_of(&fleet, theirs)[0])].clone();
    moved.spec.place.nvlink_domain = String::new();
    fleet.put_node(moved);
    fleet.settle();
    assert!(fleet.runs(ours));
}

#[test]
fn tasks_are_spread_over_nodes_leaves_and_blocks() {
    let check = |level: TopologyLevel, tasks: u32, most: u32, domains: Option<usize>| {
        let mut fleet = grid();
        let job = fleet.submit(spread(level, most, true, gang(tasks, 1)));
        fleet.settle();
        let found = fleet.runs(job).then(|| crowds(&fleet, job, level));
        assert!(found.as_ref().is_none_or(|found| found.values().all(|tasks| *tasks <= most as usize)));
        assert_eq!(found.map(|found| found.len()), domains, "{tasks} tasks, {most} on each {level}");
    };
    check(TopologyLevel::Node, 8, 1, Some(8));
    check(TopologyLevel::Node, 9, 1, None);
    check(TopologyLevel::Node, 9, 2, Some(5));
    check(TopologyLevel::Leaf, 4, 1, Some(4));
    check(TopologyLevel::Leaf, 5, 1, None);
    check(TopologyLevel::Leaf, 12, 3, Some(4));
    check(TopologyLevel::Block, 2, 1, Some(2));
    check(TopologyLevel::Block, 3, 1, None);
    check(TopologyLevel::Block, 16, 8, Some(2));
    check(TopologyLevel::Region, 2, 1, None);
}

#[test]
fn what_is_spread_stays_as_close_as_that_lets_it() {
    let mut fleet = grid();
    // Two nodes: of one leaf, though six other nodes are free.
    let two = fleet.submit(spread(TopologyLevel::Node, 1, true, gang(2, 4)));
    fleet.settle();
    assert_eq!(crowds(&fleet, two, TopologyLevel::Leaf).len(), 1);
    // Two leaves: of one block.
    let far = fleet.submit(spread(TopologyLevel::Leaf, 1, true, gang(2, 4)));
    fleet.settle();
    assert_eq!(crowds(&fleet, far, TopologyLevel::Block).len(), 1);
    assert_eq!(crowds(&fleet, far, TopologyLevel::Leaf).len(), 2);
}

#[test]
fn a_spread_that_finds_too_few_domains_says_so() {
    let mut fleet = grid();
    let most = fleet.submit(gang(5, 4));
    fleet.settle();
    assert!(fleet.runs(most));
    let job = fleet.submit(spread(TopologyLevel::Leaf, 1, true, gang(3, 1)));
    fleet.settle();
    assert!(!fleet.runs(job));
    let said = crate::explain(&fleet.view, job, 0).expect("live");
    let reason = &said.reasons[0];
    assert_eq!(reason.code(), "spread", "{}", reason.text());
    assert!(
        reason
            .text()
            .contains("3 tasks on h100 must be spread, at most 1 on one leaf; only 2 leaves of cell cell-1 have room"),
        "{}",
        reason.text()
    );
    assert_eq!(reason.fix(), "accept 2 tasks on one leaf");
    assert_eq!(reason.figures()["open_leafs"], "2");
}

#[test]
fn a_preferred_spread_takes_what_there_is() {
    let check = |tasks: u32, crowd: usize| {
        let mut fleet = grid();
        let job = fleet.submit(spread(TopologyLevel::Leaf, 1, false, gang(tasks, 1)));
        fleet.settle();
        assert_eq!(crowds(&fleet, job, TopologyLevel::Leaf).into_values().max(), Some(crowd), "{tasks} tasks");
    };
    check(1, 1);
    check(4, 1);
    check(5, 2);
    check(9, 3);
    check(32, 8);
}

#[test]
fn shares_and_cpu_work_are_spread_too() {
    for devices in [DeviceRequest::TimeSlice { memory_mib: 1_000, models: vec![GpuModel::H100] }, DeviceRequest::None] {
        let mut fleet = grid();
        let leaves = fleet.submit(spread(TopologyLevel::Leaf, 1, true, job(4, devices.clone())));
        let too_many = fleet.submit(spread(TopologyLevel::Leaf, 1, true, job(5, devices)));
        fleet.settle();
        assert_eq!(crowds(&fleet, leaves, TopologyLevel::Leaf).len(), 4);
        assert!(!fleet.runs(too_many));
    }
}

/// `org` and `other`, and a job of each kind of one of them.
fn of(tenant: &str, spec: JobSpec) -> JobSpec {
    JobSpec { tenant: tenant.into(), ..spec }
}

fn inference(spec: JobSpec) -> JobSpec {
    JobSpec { class: WorkloadClass::Inference, ..spec }
}

#[test]
fn latency_critical_work_goes_where_no_other_tenant_is() {
    let mut fleet = Fleet::new([Host::new("a", GpuModel::H100, 4), Host::new("b", GpuModel::H100, 4)]);
    fleet.tenant("other", |_| {});
    let theirs = fleet.submit(of("other", gang(1, 2)));
    fleet.settle();
    assert_eq!(nodes_of(&fleet, theirs), [1]);
    let batch = fleet.submit(gang(1, 1));
    fleet.settle();
    assert_eq!(nodes_of(&fleet, batch), [1], "others go where least is left");
    let quiet = fleet.submit(inference(gang(1, 2)));
    fleet.settle();
    assert_eq!(nodes_of(&fleet, quiet), [2]);
    // Its own tenant is no neighbour to fear; a preference keeps nobody waiting.
    let more = fleet.submit(inference(gang(1, 2)));
    let last = fleet.submit(inference(gang(1, 1)));
    fleet.settle();
    assert_eq!((nodes_of(&fleet, more), nodes_of(&fleet, last)), (vec![2], vec![1]));
}

#[test]
fn latency_critical_shares_take_a_card_of_their_own_first() {
    let mut fleet = Fleet::new([Host::new("a", GpuModel::H100, 2)]);
    fleet.tenant("org/a", |_| {});
    fleet.tenant("org/b", |_| {});
    let card = |fleet: &Fleet, job: JobId| fleet.allocation_of(job).expect("runs").tasks[0].devices[0].gpu;
    let theirs = fleet.submit(of("org/b", slice(1_000)));
    fleet.settle();
    let batch = fleet.submit(of("org/a", slice(1_000)));
    fleet.settle();
    assert_eq!(card(&fleet, batch), card(&fleet, theirs), "shares fill a card first");
    let quiet = fleet.submit(of("org/a", inference(slice(1_000))));
    fleet.settle();
    assert_ne!(card(&fleet, quiet), card(&fleet, theirs));
    let again = fleet.submit(of("org/a", inference(slice(1_000))));
    fleet.settle();
    assert_eq!(card(&fleet, again), card(&fleet, quiet));
}

/// Two nodes of four; `org` runs on the first, and `other` may not share `level` with it.
fn anti_affinity_conflict(level: AntiAffinityLevel, nvlink: &'static str) -> Fleet {
    let host = |name| Host { nvlink, ..Host::new(name, GpuModel::H100, 4) };
    let mut fleet = Fleet::new([host("a"), host("b")]);
    fleet.tenant("org/team", |_| {});
    fleet.tenant("other", |tenant| tenant.anti_affinity = vec![AntiAffinity { tenant: "org".into(), level }]);
    let ours = fleet.submit(of("org/team", mig("3g.40gb")));
    fleet.settle();
    assert_eq!(nodes_of(&fleet, ours), [1]);
    fleet
}

#[test]
fn tenants_that_disturb_each_other_share_no_card_node_or_island() {
    let check = |level, nvlink, expected: &[u32]| {
        let mut fleet = anti_affinity_conflict(level, nvlink);
        let share = fleet.submit(of("other", mig("1g.10gb")));
        let jobs: Vec<JobId> = (0..4).map(|_| fleet.submit(of("other", gang(1, 2)))).collect();
        fleet.settle();
        let mut nodes: Vec<u32> = jobs.iter().flat_map(|job| nodes_of(&fleet, *job)).collect();
        nodes.sort_unstable();
        assert_eq!(nodes, expected, "{level}");
        assert!(fleet.anti_affinity_conflict().is_none());
        let apart = fleet
            .allocation_of(share)
            .is_none_or(|held| held.tasks[0].devices[0].gpu != 0 || held.tasks[0].node.0 == 2);
        assert!(apart, "{level}");
    };
    // One card of the first node is org's, one is opened for the share.
    check(AntiAffinityLevel::Card, "", &[1, 2, 2]);
    check(AntiAffinityLevel::Node, "", &[2]);
    check(AntiAffinityLevel::Island, "", &[2]);
    check(AntiAffinityLevel::Island, "nvl", &[]);
}

#[test]
fn who_is_kept_apart_is_told_and_starts_when_the_other_has_left() {
    let mut fleet = anti_affinity_conflict(AntiAffinityLevel::Island, "nvl");
    let job = fleet.submit(of("other", gang(1, 4)));
    fleet.settle();
    let said = crate::explain(&fleet.view, job, 0).expect("live");
    let reason = &said.reasons[0];
    assert_eq!((reason.code(), reason.subject().as_str()), ("anti_affinity", "org/team"), "{}", reason.text());
    assert!(
        reason.text().contains("other may not share one island with org/team (anti-affinity), which is on a"),
        "{}",
        reason.text()
    );
    assert_eq!(reason.figures()["kept_off_nodes"], "2");
    let theirs = fleet.jobs.values().find(|job| job.spec.tenant == "org/team").expect("runs").id;
    fleet.end(theirs, false);
    fleet.settle();
    assert!(fleet.runs(job), "the whole domain has become free for it");
}

#[test]
fn a_rule_that_is_lifted_starts_who_waited_for_it() {
    let mut fleet = anti_affinity_conflict(AntiAffinityLevel::Island, "nvl");
    let job = fleet.submit(of("other", gang(1, 4)));
    fleet.settle();
    assert!(!fleet.runs(job));
    fleet.tenant("other", |_| {});
    fleet.settle();
    assert!(fleet.runs(job));
}
