//! Plans of moves through the API, and the explanations that lean on them.

use super::common::*;
use muster_proto::v1;
use muster_runtime::heavy::{Full, Heavy, Work};
use std::sync::Arc;
use tokio::sync::mpsc;
use tonic::Code;

/// A host of eight with half of it held by a job that may move, one of four that is free, and a gang of eight that waits.
async fn scattered() -> (Control, Vec<Agent>, Vec<u64>) {
    scattered_on(Control::start().await).await
}

async fn scattered_on(control: Control) -> (Control, Vec<Agent>, Vec<u64>) {
    control.tenant("research").await;
    let mut small = node_spec("n2");
    small.gpus.truncate(4);
    let agents = vec![Agent::join(&control, node_spec("n1"), None).await, Agent::join(&control, small, None).await];
    let movable =
        v1::JobSpec { movable: Some(v1::Movable { checkpoint_every_s: Some(600), restart_s: Some(60) }), ..gpu_job(4) };
    let topology = Some(v1::Topology { required: "node".to_owned(), ..v1::Topology::default() });
    let ids = control.submit("a", vec![movable, v1::JobSpec { topology, ..gpu_job(8) }]).await;
    super::shards::bind(&control, ids[0], 1, &[0, 1, 2, 3]).await;
    (control, agents, ids)
}

fn asking(cell: &str, share_percent: u32) -> v1::PlanMovesRequest {
    v1::PlanMovesRequest { cell: cell.to_owned(), share_percent: Some(share_percent), consistency: 0 }
}

fn nodes(tasks: &[v1::PlacedTask]) -> Vec<&str> {
    tasks.iter().map(|task| task.node.as_str()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_names_moves_costs_and_what_they_bring() {
    let (control, _agents, ids) = scattered().await;
    let reply = control.fleet().plan_moves(asking("cell-1", 100)).await.expect("a plan").into_inner();
    let [plan] = &reply.cells[..] else { panic!("one cell: {reply:?}") };
    assert!(plan.complete && plan.revision >= reply.revision && reply.revision > 0);
    assert_eq!((plan.movable_jobs, plan.movable_gpu_units, plan.moved_gpu_units), (1, 28_000, 28_000));
    let [opening] = &plan.openings[..] else { panic!("one opening: {plan:?}") };
    assert_eq!((opening.job_id, opening.cards, opening.islands, opening.cheapest), (ids[1], 8, 1, true));
    assert_eq!(nodes(&opening.tasks), ["n1"]);
    let [made] = &opening.moves[..] else { panic!("one move: {opening:?}") };
    assert_eq!((made.job_id, nodes(&made.from), nodes(&made.to)), (ids[0], vec!["n1"], vec!["n2"]));
    assert_eq!(made.to[0].devices.len(), 4);
    assert!(made.unsaved_s <= 600 && made.restart_s == 60);
    assert_eq!(made.lost_card_seconds, 4 * (made.unsaved_s + made.restart_s));

    // The usual share is too small for it, and the plan says what would do.
    let request = v1::PlanMovesRequest::default();
    let reply = control.fleet().plan_moves(request).await.expect("a plan").into_inner();
    assert!(reply.cells[0].openings.is_empty());
    let why = reply.cells[0].unhelped[0].why.clone().expect("a reason");
    assert_eq!((why.code.as_str(), reply.cells[0].unhelped[0].job_id), ("beyond_share", ids[1]));
    assert!(why.text.contains("100 %"), "{}", why.text);

    let status = control.fleet().plan_moves(asking("", 101)).await.expect_err("no share");
    assert_eq!(refused_fields(&status)[0].field, "share_percent");
    let status = control.fleet().plan_moves(asking("nowhere", 2)).await.expect_err("no such cell");
    assert_eq!(status.code(), Code::NotFound);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_explanation_names_who_is_in_the_way_and_the_moves_that_help() {
    let (control, _agents, ids) = scattered().await;
    let said = control
        .jobs()
        .explain(v1::ExplainRequest { job_id: ids[1], consistency: 0 })
        .await
        .expect("reasons")
        .into_inner();
    let reason = said.reasons.iter().find(|reason| reason.code == "nodes_too_full").expect("closeness is in the way");
    assert_eq!(
        reason.text,
        "8 h100 are free in cell cell-1, at most 4 on one node: room for 0 tasks of 8 h100 each, 1 task needed"
    );
    let expected = v1::Blocker {
        job_id: ids[0],
        cards: 4,
        node: "n1".to_owned(),
        movable: true,
        nodes: 1,
        text: format!(
            "job {} holds 4 GPUs on n1, movable, may not be preempted: it has the same tenant and no lower priority",
            ids[0]
        ),
    };
    assert_eq!(reason.blockers, [expected]);
    let moves = said.moves.expect("moves would start it");
    assert_eq!((moves.job_id, moves.moves[0].job_id, said.no_moves), (ids[1], ids[0], None));
    assert_eq!(said.position, Some(0));
    // A task lies on one node: nothing wider could help.
    assert!(said.wider.is_empty(), "{:?}", said.wider);
}

/// Long work is handed to the test, which does it when it likes.
struct Withheld(mpsc::UnboundedSender<Work>);

impl Heavy for Withheld {
    fn take(&self, work: Work) -> Result<(), Full> {
        self.0.send(work).expect("the test goes on");
        Ok(())
    }
}

/// The next search that a call begins.
async fn begun(works: &mut mpsc::UnboundedReceiver<Work>) -> Work {
    tokio::time::timeout(PATIENCE, works.recv()).await.expect("a search begins").expect("the node runs")
}

/// Searches take longer than an election may: the node goes on with everything else meanwhile, and takes only so many.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn searches_hold_up_nothing_and_are_bounded() {
    let (withheld, mut works) = mpsc::unbounded_channel();
    let (control, _agents, ids) = scattered_on(Control::with_heavy(Arc::new(Withheld(withheld))).await).await;
    let (mut jobs, mut fleet) = (control.jobs(), control.fleet());
    let explained =
        tokio::spawn(async move { jobs.explain(v1::ExplainRequest { job_id: ids[1], consistency: 0 }).await });
    let planned = tokio::spawn(async move { fleet.plan_moves(asking("", 100)).await });
    let mut searches = vec![begun(&mut works).await, begun(&mut works).await];
    // Everything else is answered.
    control.submit("meanwhile", vec![job()]).await;
    assert!(!explained.is_finished() && !planned.is_finished());

    // Others come one by one, until as many are under way as may be: each begins a search or is refused.
    let mut others = Vec::new();
    let refusal = loop {
        let mut fleet = control.fleet();
        let mut other = tokio::spawn(async move { fleet.plan_moves(asking("", 100)).await });
        tokio::select! {
            answer = &mut other => break answer.expect("no panic").expect_err("it is refused"),
            search = begun(&mut works) => searches.push(search),
        }
        others.push(other);
        assert!(others.len() < 100, "searches are taken without end");
    };
    assert_eq!(refusal.code(), Code::ResourceExhausted, "{refusal}");
    let wait = muster_proto::status::retry_delay(&refusal).expect("a time to wait");
    assert!(wait >= std::time::Duration::from_millis(500), "{wait:?}");

    for search in searches {
        search();
    }
    explained.await.expect("no panic").expect("an explanation");
    for plan in others.into_iter().chain([planned]) {
        plan.await.expect("no panic").expect("a plan");
    }
}
