//! What the fleet would refuse is refused here, by the same words.

use crate::cluster::{Cluster, at_once, pool, tenant, whole};
use muster_control_core::{Command, Reject};
use muster_model::request::SharingMode;
use muster_model::tenant_edit::{AmountsEdit, TenantEdit};
use muster_model::{GpuModel, GpuUnits, Pool, WindowKind, WindowSpec};
use muster_twin::what_if::{Edit, WhatIfError, ask};

fn cluster() -> Cluster {
    let mut cluster = Cluster::new("2x8:h100", pool(&[SharingMode::Whole]));
    cluster.tenants(vec![tenant("research", 8, 12), tenant("research/nlp", 4, 0)]);
    cluster
}

fn guarantee(path: &str, cards: u64) -> TenantEdit {
    let gpu = [(GpuModel::H100, Some(GpuUnits::cards(cards)))].into();
    TenantEdit {
        guarantee: AmountsEdit { gpu, ..AmountsEdit::default() },
        path: path.to_owned(),
        ..TenantEdit::default()
    }
}

fn refusal(cluster: &Cluster, edits: Vec<Edit>) -> (usize, Reject) {
    match ask(&cluster.question(edits, Vec::new(), 3_600)) {
        Err(WhatIfError::Edit { edit, reject }) => (edit, reject),
        other => panic!("{other:?}"),
    }
}

#[test]
fn edits_that_break_a_law_are_refused_as_the_real_ones() {
    for (path, cards) in [("research", 17), ("research/nlp", 9), ("research", 3), ("nobody/below", 1)] {
        let mut cluster = cluster();
        let edits = vec![guarantee(path, cards)];
        let asked = refusal(&cluster, vec![Edit::Tenants { edits: edits.clone(), prune: false, half_life_s: None }]);
        let made = cluster.make(Command::EditTenants { edits, prune: false, half_life_s: None }).expect_err("refused");
        assert_eq!(asked, (0, made), "{path} {cards}");
    }
}

#[test]
fn a_max_below_what_runs_and_rules_that_cards_in_use_break_are_refused_as_the_real_ones() {
    let mut cluster = cluster();
    cluster.submit(whole("research/nlp", 1, 8, 3_600));
    cluster.run_until(cluster.now_ms + 10_000);
    let gpu = [(GpuModel::H100, Some(GpuUnits::cards(7)))].into();
    let max = TenantEdit {
        max: AmountsEdit { gpu, ..AmountsEdit::default() },
        path: "research/nlp".to_owned(),
        ..TenantEdit::default()
    };
    let asked = refusal(&cluster, vec![Edit::Tenants { edits: vec![max.clone()], prune: false, half_life_s: None }]).1;
    assert_eq!(cluster.make(Command::EditTenants { edits: vec![max], prune: false, half_life_s: None }), Err(asked));
    let bad = Pool { time_slice_replicas: 0, ..Pool::standard() };
    let asked = refusal(&cluster, vec![Edit::Pool(bad.clone())]).1;
    assert_eq!(cluster.make(Command::PutPool(bad)), Err(asked));
}

#[test]
fn what_is_not_there_is_not_found() {
    let cluster = cluster();
    for (edit, what, id) in [
        (Edit::DrainNode("nowhere".to_owned()), "node", "nowhere"),
        (Edit::DrainCell("cell-9".to_owned()), "cell", "cell-9"),
    ] {
        assert_eq!(refusal(&cluster, vec![edit]).1, Reject::not_found(what, id));
    }
    let (index, reject) = refusal(
        &cluster,
        vec![Edit::DrainNode("g1-n0001".to_owned()), Edit::AddNodes("1x8:h100:pool=nobody".parse().expect("nodes"))],
    );
    assert_eq!(index, 1);
    assert!(reject.to_string().contains("nobody"), "{reject}");
}

#[test]
fn a_job_that_is_refused_in_both_runs_is_an_error_and_in_one_an_answer() {
    let cluster = cluster();
    let large = at_once([whole("research", 1, 1, 60), whole("research", 2, 8, 60)]);
    let alone = ask(&cluster.question(Vec::new(), large.clone(), 3_600)).expect_err("above the max");
    assert!(matches!(alone, WhatIfError::Job { index: 1, .. }), "{alone}");
    let gpu = [(GpuModel::H100, Some(GpuUnits::cards(16)))].into();
    let max = TenantEdit {
        max: AmountsEdit { gpu, ..AmountsEdit::default() },
        path: "research".to_owned(),
        ..TenantEdit::default()
    };
    let edit = Edit::Tenants { edits: vec![max], prune: false, half_life_s: None };
    let answer = cluster.ask(vec![edit], large, 3_600);
    assert_eq!(answer.gains.len(), 1, "{answer:?}");
    assert_eq!(answer.gains[0].workload, Some(2));
}

#[test]
fn windows_that_the_fleet_refuses_are_refused_as_the_real_ones() {
    let mut cluster = cluster();
    cluster.submit(whole("research", 1, 8, 3_600));
    cluster.run_until(cluster.now_ms + 10_000);
    let spec = WindowSpec {
        name: "launch".to_owned(),
        kind: WindowKind::Reservation,
        nodes: Vec::new(),
        gpus: 16,
        model: Some(GpuModel::H100),
        start_ms: cluster.now_ms + 1_000_000,
        end_ms: Some(cluster.now_ms + 2_000_000),
        reason: String::new(),
        tenants: vec!["research".to_owned()],
        flex: false,
        preempt: false,
    };
    let later = WindowSpec { start_ms: cluster.now_ms + 5_000_000, end_ms: Some(cluster.now_ms + 6_000_000), ..spec };
    let nodes = vec!["g1-n0001".to_owned()];
    let over =
        WindowSpec { kind: WindowKind::Maintenance, gpus: 0, model: None, tenants: Vec::new(), nodes, ..later.clone() };
    let kernel = WindowSpec { name: "kernel".to_owned(), ..over.clone() };
    let soon = WindowSpec { start_ms: cluster.now_ms + 1_000_000, end_ms: later.end_ms, ..later.clone() };
    let asked = refusal(&cluster, vec![Edit::Window(soon.clone())]).1;
    assert_eq!(cluster.make(Command::PutWindow(soon)), Err(asked), "a job runs into it");
    let asked = refusal(&cluster, vec![Edit::DeleteWindow("kernel".to_owned())]).1;
    assert_eq!(cluster.make(Command::DeleteWindow { name: "kernel".to_owned() }), Err(asked), "it is not there");

    cluster.make(Command::PutWindow(later)).expect("a reservation");
    for spec in [over, kernel.clone()] {
        let asked = refusal(&cluster, vec![Edit::Window(spec.clone())]).1;
        assert_eq!(cluster.make(Command::PutWindow(spec)), Err(asked), "a reservation of that name, on that node");
    }
    // What is deleted before is in nobody's way.
    cluster.ask(vec![Edit::DeleteWindow("launch".to_owned()), Edit::Window(kernel)], Vec::new(), 3_600);
}
