//! What a new user found wrong in explanations, each as a test.

use super::fleet::*;
use crate::explain;
use crate::explain::{Explanation, Reason};
use muster_model::request::SharingMode;
use muster_model::*;
use std::collections::BTreeSet;

/// What is told where a job of the same tenant and priority holds what is needed.
const PRIORITY: &str = "raise its priority to 1: it may then preempt jobs of its own tenant";

fn h100(names: &[&'static str]) -> Fleet {
    Fleet::new(names.iter().map(|name| Host::new(name, GpuModel::H100, 8)))
}

fn asked(fleet: &Fleet, job: JobId) -> Explanation {
    explain(&fleet.view, job, fleet.now_ms).expect("live")
}

fn first(fleet: &Fleet, job: JobId) -> Reason {
    asked(fleet, job).reasons.remove(0)
}

#[track_caller]
fn says(reason: &Reason, code: &str, text: &str, fixes: &[&str]) {
    assert_eq!((reason.code(), reason.text().as_str()), (code, text));
    assert_eq!(reason.fixes(), fixes);
}

/// A gang of three nodes was bypassed, and 16 cards are held back for it: a job of one card is told so.
#[test]
fn a_job_that_is_held_back_for_a_starving_gang_is_told_for_whom() {
    let mut fleet = h100(&["a", "b", "c", "d"]);
    fleet.submit(gang(2, 8));
    fleet.settle();
    let gang_of_three = fleet.submit(gang(3, 8));
    fleet.settle();
    // Until smaller ones do not start any more.
    loop {
        let job = fleet.submit(gang(1, 8));
        fleet.settle();
        if !fleet.runs(job) {
            fleet.cancel(job);
            break;
        }
        fleet.end(job, false);
    }
    let small = fleet.submit(gang(1, 1));
    fleet.settle();
    assert!(!fleet.runs(small));
    let text = format!(
        "16 h100 are free in cell cell-1, but the starvation guard keeps them for job {gang_of_three} (24 GPUs): too many jobs behind it have \
         started before it"
    );
    let fix = format!("wait until job {gang_of_three} has ended, or cancel it");
    says(&first(&fleet, small), "starvation_guard", &text, &[&fix, "raise the guarantee of org to 1 h100"]);
    // Done as it says.
    fleet.cancel(gang_of_three);
    fleet.settle();
    assert!(fleet.runs(small));
}

#[test]
fn drained_and_silent_nodes_are_named_and_their_cards_are_not_free() {
    let mut fleet = h100(&["a", "b"]);
    fleet.submit(gang(1, 8));
    fleet.settle();
    let node = |fleet: &Fleet, id: u32| fleet.nodes[&NodeId(id)].clone();
    fleet.put_node(Node { drained: true, ..node(&fleet, 2) });
    let job = fleet.submit(gang(1, 1));
    fleet.settle();
    let text =
        "0 h100 are free in cell cell-1; 1 h100 needed; 8 h100 more are on nodes that take no new work: b (drained)";
    says(&first(&fleet, job), "nodes_closed", text, &["undrain b", "wait until job 1 has ended, or cancel it"]);
    fleet.put_node(Node { drained: false, health: NodeHealth::Silent, ..node(&fleet, 2) });
    fleet.settle();
    let text =
        "0 h100 are free in cell cell-1; 1 h100 needed; 8 h100 more are on nodes that take no new work: b (silent)";
    says(
        &first(&fleet, job),
        "nodes_closed",
        text,
        &["make b (silent) available again", "wait until job 1 has ended, or cancel it"],
    );
}

#[test]
fn a_node_that_has_not_proved_what_its_pool_needs_is_told() {
    let mut fleet = h100(&["a", "b"]);
    fleet.submit(gang(1, 8));
    fleet.settle();
    let mut node = fleet.nodes[&NodeId(2)].clone();
    node.notes.lacks = "pool default needs isolation full, and the node has not proved: memory".to_owned();
    fleet.put_node(node);
    let job = fleet.submit(gang(1, 1));
    fleet.settle();
    let text = "0 h100 are free in cell cell-1; 1 h100 needed; 8 h100 more are on nodes that take no new work: b (has not \
                proved the isolation that its pool needs)";
    let fixes = [
        "give b the isolation that its pool needs (`muster nodes` says what is missing)",
        "wait until job 1 has ended, or cancel it",
    ];
    says(&first(&fleet, job), "nodes_closed", text, &fixes);
}

#[test]
fn a_fleet_that_is_drained_is_not_told_to_add_nodes() {
    let mut fleet = h100(&["a"]);
    fleet.put_node(Node { drained: true, ..fleet.nodes[&NodeId(1)].clone() });
    let job = fleet.submit(gang(1, 1));
    // It ran before and was sent back when its node went.
    let requeued = Job { requeue_reason: Some("lost node a".into()), ..fleet.jobs[&job].clone() };
    fleet.put_job(requeued);
    fleet.settle();
    let said = asked(&fleet, job);
    let codes: Vec<&str> = said.reasons.iter().map(Reason::code).collect();
    assert_eq!(codes, ["nodes_closed", "requeued"], "why it waits now comes first");
    assert_eq!(said.reasons[0].fixes(), ["undrain a"]);
}

#[test]
fn a_job_that_no_cell_could_hold_counts_closed_nodes_apart() {
    let mut fleet = h100(&["a"]);
    fleet.put_node(Node { drained: true, ..fleet.nodes[&NodeId(1)].clone() });
    let job = fleet.submit(gang(1, 9));
    fleet.put_job(Job { cell: None, ..fleet.jobs[&job].clone() });
    fleet.settle();
    let text =
        "no cell is large enough: 9 h100 needed, the largest cell has 8, 8 of them on nodes that take no new work";
    says(&first(&fleet, job), "larger_than_any_cell", text, &[]);
}

/// "1 more must become free on one node" was told of a gang of two nodes, one of which was busy with one card.
#[test]
fn a_gang_of_two_nodes_is_told_who_must_end() {
    let mut fleet = h100(&["a", "b"]);
    let small = fleet.submit(gang(1, 1));
    fleet.settle();
    let job = fleet.submit(gang(2, 8));
    fleet.settle();
    let fix = format!("wait until job {small} has ended, or cancel it");
    let text = "15 of 16 h100 are free in cell cell-1; 16 h100 needed";
    says(&first(&fleet, job), "no_free_gpus", text, &["request 1 task instead of 2", &fix, PRIORITY]);
}

/// "ask for less CPU" was told to a job that had asked for none.
#[test]
fn scattered_cards_are_not_blamed_on_cpu() {
    let mut fleet = h100(&["a", "b"]);
    for _ in 0..2 {
        let spec = gang(1, 5);
        fleet.submit(spec);
        fleet.settle();
    }
    let job = fleet.submit(JobSpec {
        request: request::TaskRequest { cpu_milli: 0, memory_mib: 0, ..gang(1, 4).request },
        ..gang(1, 4)
    });
    fleet.settle();
    let text = "6 h100 are free in cell cell-1, at most 3 on one node: room for 0 tasks of 4 h100 each, 1 task needed";
    says(&first(&fleet, job), "nodes_too_full", text, &["wait until job 1 has ended, or cancel it", PRIORITY]);
}

#[test]
fn cpu_that_is_short_is_told_with_its_figures() {
    let mut fleet = h100(&["a"]);
    fleet.submit(JobSpec { request: request::TaskRequest { cpu_milli: 60_000, ..gang(1, 1).request }, ..gang(1, 1) });
    fleet.settle();
    let job = fleet
        .submit(JobSpec { request: request::TaskRequest { cpu_milli: 16_000, ..gang(1, 1).request }, ..gang(1, 1) });
    fleet.settle();
    let text = "h100 are free in cell cell-1, but their nodes lack CPUs or memory: a has 7 h100 and 4 of 64 CPUs free; each task needs 16 CPUs";
    let fixes = ["request at most 4 CPUs for each task", "wait until job 1 has ended, or cancel it", PRIORITY];
    says(&first(&fleet, job), "host_too_full", text, &fixes);
}

/// "ask for 4 tasks" was told where 6 fit.
#[test]
fn the_largest_smaller_gang_is_told() {
    let mut fleet = h100(&["a", "b"]);
    for cards in [6, 4] {
        fleet.submit(gang(1, cards));
        fleet.settle();
    }
    // Six are free: two on one node, four on the other.
    for tasks in [7, 8, 20] {
        let job = fleet.submit(gang(tasks, 1));
        fleet.settle();
        let fixes = first(&fleet, job).fixes();
        assert_eq!(fixes[0], format!("request 6 tasks instead of {tasks}"));
        fleet.cancel(job);
    }
}

/// "job 1 with 16 on node-0003" was told of a node of eight.
#[test]
fn who_holds_cards_on_several_nodes_is_told_with_their_number() {
    let mut fleet = h100(&["a", "b"]);
    fleet.submit(gang(2, 8));
    fleet.settle();
    let job = fleet.submit(gang(1, 8));
    fleet.settle();
    let held: Vec<String> = first(&fleet, job).holders.iter().map(|held| held.text()).collect();
    assert_eq!(
        held,
        ["job 1 holds 16 GPUs on 2 nodes (a, ...), may not be preempted: it has the same tenant and no lower priority"]
    );
}

#[test]
fn ceilings_are_told_in_cards_and_cpus() {
    let mut fleet = h100(&["a", "b"]);
    fleet.tenant("research", |tenant| {
        tenant.max =
            Limits { gpu: [(GpuModel::H100, GpuUnits::cards(8))].into(), cpu_milli: Some(16_000), ..Limits::default() };
    });
    let of = |spec: JobSpec| JobSpec { tenant: "research".into(), ..spec };
    fleet.submit(of(gang(1, 8)));
    fleet.settle();
    let job = fleet.submit(of(mps(50, 1_000)));
    fleet.settle();
    let fixes = ["raise the max of research to 8.5 h100", "wait until job 1 has ended, or cancel it"];
    says(&first(&fleet, job), "over_max", "quota of research: 8 of 8 h100 in use; this job needs 0.5 more", &fixes);

    let cpu =
        |cpu_milli| of(JobSpec { request: request::TaskRequest { cpu_milli, ..job_of_cpu().request }, ..job_of_cpu() });
    fleet.submit(cpu(9_900));
    fleet.settle();
    let job = fleet.submit(cpu(8_000));
    fleet.settle();
    let reason = first(&fleet, job);
    assert_eq!(reason.text(), "quota of research: 10 of 16 CPUs in use; this job needs 8 more");
    assert_eq!(reason.fix(), "raise the max of research to 18 CPUs");
}

fn job_of_cpu() -> JobSpec {
    job(1, DeviceRequest::None)
}

/// A raised max must do for those who go before it as well.
#[test]
fn the_max_that_is_told_is_enough_for_who_goes_before() {
    let mut fleet = h100(&["a", "b"]);
    fleet.tenant("research", |tenant| tenant.max.gpu = [(GpuModel::H100, GpuUnits::cards(1))].into());
    let of = |spec: JobSpec| JobSpec { tenant: "research".into(), ..spec };
    fleet.submit(of(gang(1, 1)));
    fleet.settle();
    fleet.submit(JobSpec { priority: 1, ..of(gang(1, 4)) });
    let last = fleet.submit(of(gang(1, 2)));
    fleet.settle();
    assert_eq!(first(&fleet, last).fix(), "raise the max of research to 7 h100");
}

#[test]
fn the_only_pool_with_a_model_says_what_it_forbids() {
    let mut fleet = h100(&["a"]);
    let classes = BTreeSet::from([WorkloadClass::Training, WorkloadClass::Batch]);
    let modes = [SharingMode::Whole].into();
    fleet.put_pool(Pool { name: "gold".into(), modes, classes, ..Pool::standard() });
    let mut node = fleet.nodes[&NodeId(1)].clone();
    node.spec.pool = "gold".into();
    fleet.put_node(node);
    let job = fleet.submit(JobSpec { class: WorkloadClass::Inference, ..mig("1g.10gb") });
    fleet.settle();
    let text = "pool gold (the only one with h100 in cell cell-1) does not allow MIG inference";
    says(&first(&fleet, job), "no_pool", text, &[]);
}

/// C waited beside 16 free cards, with a reason about a region that nobody had asked for.
#[test]
fn no_level_is_named_that_nobody_asked_for() {
    let mut fleet = h100(&["a", "b", "c", "d"]);
    fleet.now_ms = 1_000_000;
    let limited = |spec: JobSpec, limit_s| JobSpec { time_limit_s: Some(limit_s), grace_s: 0, ..spec };
    fleet.submit(limited(gang(2, 8), 1_200));
    fleet.settle();
    let big = fleet.submit(limited(gang(3, 8), 3_600));
    fleet.settle();
    let long = fleet.submit(limited(gang(2, 8), 7_200));
    fleet.settle();
    let text = format!("h100 are free in cell cell-1, but reserved for job {big}, which starts there within 21 min");
    let fixes = [
        "set a time limit of at most 15 min".to_owned(),
        "request 1 task instead of 2".to_owned(),
        format!("wait until job {big} has ended, or cancel it"),
    ];
    says(&first(&fleet, long), "reserved_for_gang", &text, &fixes.each_ref().map(String::as_str));
}

#[test]
fn a_place_in_another_cell_is_told() {
    let mut fleet = h100(&["a", "b"]);
    fleet.cell(CellId(2), Some("s2"));
    let mut node = fleet.nodes[&NodeId(2)].clone();
    (node.cell, node.spec.cell) = (CellId(2), "cell-2".into());
    fleet.put_node(node);
    fleet.submit(gang(1, 8));
    fleet.settle();
    let job = fleet.submit(gang(1, 8));
    fleet.settle();
    let codes: Vec<&str> = asked(&fleet, job).reasons.iter().map(Reason::code).collect();
    assert_eq!(codes, ["no_free_gpus", "other_cell"]);
}

/// What a list shows of each is what an explanation names first, as far as gates go.
#[test]
fn a_list_is_told_the_gate_of_each_job() {
    let mut fleet = h100(&["a"]);
    fleet.tenant("capped", |tenant| tenant.max.gpu = [(GpuModel::H100, GpuUnits::cards(0))].into());
    fleet.submit(gang(1, 8));
    fleet.settle();
    let capped = fleet.submit(JobSpec { tenant: "capped".into(), ..gang(1, 1) });
    let full = fleet.submit(gang(1, 1));
    fleet.settle();
    let told = crate::explain::brief(&fleet.view, &[capped, full, JobId(1)], fleet.now_ms);
    let told: Vec<(JobId, &str, String)> = told.iter().map(|(id, brief)| (*id, brief.code(), brief.text())).collect();
    let over = "quota of capped: 0 of 0 h100 in use; this job needs 1 more";
    assert_eq!(
        told,
        [
            (capped, "over_max", over.to_owned()),
            (full, "no_free_gpus", "0 of 8 h100 are free in cell cell-1; 1 h100 needed".to_owned())
        ]
    );
}
