//! Submitting, looking, watching, cancelling.

use super::common::*;
use muster_proto::v1;
use std::collections::BTreeSet;
use tonic::Code;
use v1::JobPhase;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_answers_the_same_ids_across_a_restart() {
    let mut control = Control::start().await;
    control.tenant("research").await;
    let first = control.submit("same", vec![job(), job()]).await;
    assert_eq!(first, [1, 2]);
    assert_eq!(control.submit("same", vec![job(), job()]).await, first);
    assert_eq!(control.submit("other", vec![job()]).await, [3]);
    control.restart().await;
    assert_eq!(control.submit("same", vec![job(), job()]).await, first, "after a restart");
    let status = control.try_submit("same", vec![job()]).await.expect_err("other content under the same id");
    assert_eq!(refused_fields(&status)[0].field, "request_id");
    assert_eq!(control.submit("third", vec![job()]).await, [4], "no id is used twice");
    assert_eq!(control.job(2).await.phase(), JobPhase::Pending);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_are_found_live_and_finished() {
    let control = Control::start().await;
    control.tenant("research").await;
    control.tenant("research/nlp").await;
    let named =
        v1::JobSpec { name: "special".to_owned(), tenant: "research/nlp".to_owned(), user: "ada".to_owned(), ..job() };
    let ids = control.submit("a", [vec![job(); 24], vec![named]].concat()).await;
    for id in ids.iter().filter(|id| **id % 3 == 0) {
        control.jobs().cancel(v1::CancelRequest { job_id: *id }).await.expect("a waiting job is cancelled");
    }
    let status = control.jobs().cancel(v1::CancelRequest { job_id: 3 }).await.expect_err("it is over");
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert_eq!(control.job(3).await.phase(), JobPhase::Cancelled);
    let missing = control.jobs().get(v1::GetJobRequest { job_id: 999, consistency: 0 }).await.expect_err("none");
    assert_eq!(missing.code(), Code::NotFound);

    let (queued, over) = (JobPhase::Pending.into(), JobPhase::Cancelled.into());
    let base = v1::ListJobsRequest { page_size: 4, ..v1::ListJobsRequest::default() };
    let live: Vec<u64> = ids.iter().copied().filter(|id| id % 3 != 0).collect();
    let done: Vec<u64> = ids.iter().copied().filter(|id| id % 3 == 0).collect();
    let backwards: Vec<u64> = ids.iter().copied().rev().collect();
    check_list(&control, base.clone(), &live).await;
    check_list(&control, v1::ListJobsRequest { phases: vec![over], ..base.clone() }, &done).await;
    let all = v1::ListJobsRequest { phases: vec![queued, over], ..base.clone() };
    check_list(&control, all.clone(), &ids).await;
    check_list(&control, v1::ListJobsRequest { newest_first: true, ..all.clone() }, &backwards).await;
    check_list(&control, v1::ListJobsRequest { name: "special".to_owned(), ..base.clone() }, &[25]).await;
    check_list(&control, v1::ListJobsRequest { user: "ada".to_owned(), ..base.clone() }, &[25]).await;
    check_list(&control, v1::ListJobsRequest { user: "ad".to_owned(), ..base.clone() }, &[]).await;
    check_list(&control, v1::ListJobsRequest { tenant: "research/nlp".to_owned(), ..all.clone() }, &[25]).await;
    check_list(&control, v1::ListJobsRequest { tenant: "research".to_owned(), ..all }, &ids).await;
    check_list(&control, v1::ListJobsRequest { consistency: 1, ..base }, &live).await;
}

/// Follows the pages of a list to their end.
async fn check_list(control: &Control, mut request: v1::ListJobsRequest, expected: &[u64]) {
    let case = format!("{request:?}");
    let mut found = Vec::new();
    loop {
        let reply = control.jobs().list(request.clone()).await.expect(&case).into_inner();
        assert!(reply.jobs.len() <= request.page_size as usize, "{case}");
        assert!(reply.revision > 0, "{case}");
        found.extend(reply.jobs.iter().map(|job| job.id));
        if reply.next_page_token.is_empty() {
            break;
        }
        request.page_token = reply.next_page_token;
    }
    assert_eq!(found, expected, "{case}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_questions_name_their_field() {
    let control = Control::start().await;
    control.tenant("research").await;
    control.submit("a", vec![job(), job()]).await;
    let first = v1::ListJobsRequest { page_size: 1, ..v1::ListJobsRequest::default() };
    let token = control.jobs().list(first.clone()).await.expect("a page").into_inner().next_page_token;
    let cases = [
        ("page_size", v1::ListJobsRequest { page_size: 1_001, ..first.clone() }),
        ("page_token", v1::ListJobsRequest { page_token: "x".to_owned(), ..first.clone() }),
        ("page_token", v1::ListJobsRequest { page_token: token.clone(), newest_first: true, ..first.clone() }),
        ("page_token", v1::ListJobsRequest { page_token: format!("{token}x"), ..first.clone() }),
        ("phases[0]", v1::ListJobsRequest { phases: vec![77], ..first.clone() }),
        ("consistency", v1::ListJobsRequest { consistency: 9, ..first.clone() }),
    ];
    for (field, request) in cases {
        let status = control.jobs().list(request).await.expect_err(field);
        assert_eq!(refused_fields(&status)[0].field, field);
    }
    let request = v1::ListJobsRequest { tenant: "nobody".to_owned(), ..first };
    assert_eq!(control.jobs().list(request).await.expect_err("no such tenant").code(), Code::NotFound);
    let request = v1::LogsRequest { job_id: 1, ..v1::LogsRequest::default() };
    assert_eq!(control.jobs().logs(request).await.expect_err("not started").code(), Code::FailedPrecondition);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_starts_with_what_is_and_goes_on_without_a_gap() {
    let control = Control::start().await;
    control.tenant("research").await;
    control.tenant("other").await;
    let before: BTreeSet<u64> = control.submit("a", vec![job(); 3]).await.into_iter().collect();
    let request = v1::WatchJobsRequest { tenant: "research".to_owned(), ..v1::WatchJobsRequest::default() };
    let mut watch = control.jobs().watch(request).await.expect("a watch").into_inner();
    let (mut shown, revision) = (BTreeSet::new(), loop_until_end(&mut watch).await);
    for event in &revision.0 {
        shown.insert(event.id);
    }
    assert_eq!(shown, before);
    control.submit("b", vec![v1::JobSpec { tenant: "other".to_owned(), ..job() }]).await;
    let after = control.submit("c", vec![job(); 2]).await;
    control.jobs().cancel(v1::CancelRequest { job_id: after[0] }).await.expect("cancelled");
    let mut seen = Vec::new();
    let mut last = revision.1;
    while seen.len() < 3 {
        let event = tokio::time::timeout(PATIENCE, watch.message()).await.expect("in time").expect("ok").expect("more");
        assert!(event.revision >= last, "revisions go up");
        last = event.revision;
        if let Some(v1::job_event::Event::Job(job)) = event.event {
            seen.push((job.id, job.phase()));
        }
    }
    let expected = [(after[0], JobPhase::Pending), (after[1], JobPhase::Pending), (after[0], JobPhase::Cancelled)];
    assert_eq!(seen, expected);

    // From the revision of the snapshot on, another watch sees the same changes.
    let request = v1::WatchJobsRequest {
        from_revision: revision.1,
        tenant: "research".to_owned(),
        ..v1::WatchJobsRequest::default()
    };
    let mut watch = control.jobs().watch(request).await.expect("a watch").into_inner();
    let mut again = Vec::new();
    while again.len() < 3 {
        let event = tokio::time::timeout(PATIENCE, watch.message()).await.expect("in time").expect("ok").expect("more");
        if let Some(v1::job_event::Event::Job(job)) = event.event {
            again.push((job.id, job.phase()));
        }
    }
    assert_eq!(again, expected);
}

async fn loop_until_end(watch: &mut tonic::Streaming<v1::JobEvent>) -> (Vec<v1::Job>, u64) {
    let mut jobs = Vec::new();
    loop {
        let event = tokio::time::timeout(PATIENCE, watch.message()).await.expect("in time").expect("ok").expect("more");
        match event.event.expect("not empty") {
            v1::job_event::Event::Job(job) => jobs.push(job),
            v1::job_event::Event::SnapshotEnd(_) => return (jobs, event.revision),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_watch_of_one_job_ends_with_it() {
    let control = Control::start().await;
    control.tenant("research").await;
    let id = control.submit("a", vec![job()]).await[0];
    let request = v1::WatchJobsRequest { job_id: id, ..v1::WatchJobsRequest::default() };
    let mut watch = control.jobs().watch(request.clone()).await.expect("a watch").into_inner();
    loop_until_end(&mut watch).await;
    control.jobs().cancel(v1::CancelRequest { job_id: id }).await.expect("cancelled");
    for (case, mut watch) in [
        ("begun before", watch),
        ("begun after", control.jobs().watch(request.clone()).await.expect("a watch").into_inner()),
        (
            "begun after, from a revision",
            control
                .jobs()
                .watch(v1::WatchJobsRequest { from_revision: 1, ..request.clone() })
                .await
                .expect("a watch")
                .into_inner(),
        ),
    ] {
        let event = tokio::time::timeout(PATIENCE, watch.message()).await.expect("in time").expect("ok").expect(case);
        let Some(v1::job_event::Event::Job(job)) = event.event else { panic!("{case}: {event:?}") };
        assert_eq!(job.phase(), JobPhase::Cancelled, "{case}");
        let end = tokio::time::timeout(PATIENCE, watch.message()).await.expect("in time").expect("ok");
        assert!(end.is_none(), "{case}: {end:?}");
    }
    let request = v1::WatchJobsRequest { job_id: 99, ..v1::WatchJobsRequest::default() };
    assert_eq!(control.jobs().watch(request).await.expect_err("none").code(), Code::NotFound);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_says_why_its_pending_jobs_wait() {
    let control = Control::start().await;
    control.tenant("research").await;
    let asked = v1::ListJobsRequest { reasons: true, ..v1::ListJobsRequest::default() };
    let ids = control.submit("a", vec![gpu_job(8); 30]).await;
    let reply = control.jobs().list(asked.clone()).await.expect("a list").into_inner();
    assert_eq!(reply.reasons.len(), 30);
    assert!(reply.reasons.iter().all(|reason| reason.code == "no_nodes"), "{:?}", reply.reasons);

    let _agent = Agent::join(&control, node_spec("n1"), None).await;
    // Each says what an explanation of it says first.
    let reply = control.jobs().list(asked.clone()).await.expect("a list").into_inner();
    let explained = |job_id| {
        let mut jobs = control.jobs();
        async move { jobs.explain(v1::ExplainRequest { job_id, consistency: 0 }).await.expect("explained").into_inner() }
    };
    for id in [ids[0], ids[29]] {
        let listed = reply.reasons.iter().find(|reason| reason.job_id == id).expect("its reason");
        let first = explained(id).await.reasons.into_iter().next().expect("a reason");
        assert_eq!((&listed.code, &listed.text), (&first.code, &first.text));
    }
    assert_eq!(reply.cell_names.values().collect::<Vec<_>>(), ["cell-1"]);
    let plain = v1::ListJobsRequest { page_size: 3, ..v1::ListJobsRequest::default() };
    let reply = control.jobs().list(plain).await.expect("a list").into_inner();
    assert!(reply.reasons.is_empty() && !reply.next_page_token.is_empty());
    let get = v1::GetJobRequest { job_id: ids[0], consistency: 0 };
    assert_eq!(control.jobs().get(get).await.expect("the job").into_inner().cell_name, "cell-1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_job_says_why() {
    let control = Control::start().await;
    let limited = v1::TenantSpec {
        path: "research".to_owned(),
        max: Some(v1::Limits { gpu_units: [("h100".to_owned(), 7_000)].into(), ..v1::Limits::default() }),
        ..v1::TenantSpec::default()
    };
    control
        .tenants()
        .apply(v1::ApplyTenantsRequest { tenants: vec![limited], ..Default::default() })
        .await
        .expect("a good tenant");
    let ids = control.submit("a", vec![gpu_job(1), gpu_job(1)]).await;
    check_reason(&control, ids[0], "no_nodes").await;
    let _agent = Agent::join(&control, node_spec("n1"), None).await;
    check_reason(&control, ids[0], "cell_without_shard").await;
    super::shards::bind(&control, ids[0], 1, &[0]).await;
    check_reason(&control, ids[0], "starting").await;
    check_reason(&control, ids[1], "over_max").await;
    control.jobs().cancel(v1::CancelRequest { job_id: ids[1] }).await.expect("cancelled");
    check_reason(&control, ids[1], "cancelled").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_lies_wider_than_it_prefers_says_so() {
    let control = Control::start().await;
    control.tenant("research").await;
    let mut agents = Vec::new();
    for (name, leaf) in [("n1", "l1"), ("n2", "l2"), ("n3", "l2")] {
        let mut spec = node_spec(name);
        spec.place.as_mut().expect("it has one").leaf = leaf.to_owned();
        agents.push(Agent::join(&control, spec, None).await);
    }
    let topology = Some(v1::Topology { preferred: "leaf".to_owned(), ..v1::Topology::default() });
    let ids = control.submit("a", vec![v1::JobSpec { tasks: 2, topology, ..gpu_job(1) }; 2]).await;
    for (gpu, nodes, expected) in [
        (
            0,
            [1, 2],
            Some("it prefers topology leaf, but no leaf had room for it when it started; it runs inside one block"),
        ),
        (1, [3, 2], None),
    ] {
        let id = ids[gpu as usize];
        super::shards::bind_on(&control, id, &nodes, gpu).await;
        let request = v1::ExplainRequest { job_id: id, consistency: 0 };
        let said = control.jobs().explain(request).await.expect("explained").into_inner();
        let wider = said.reasons.iter().find(|reason| reason.code == "preference_not_met");
        assert_eq!(wider.map(|reason| reason.text.as_str()), expected, "{:?}", said.reasons);
        assert_eq!(said.reasons[0].code, "starting", "what it does comes first");
    }
}

async fn check_reason(control: &Control, job_id: u64, code: &str) {
    let reply = control
        .jobs()
        .explain(v1::ExplainRequest { job_id, consistency: 0 })
        .await
        .expect("an explanation")
        .into_inner();
    assert!(reply.revision > 0);
    assert!(reply.reasons.iter().any(|reason| reason.code == code), "expected {code} in {:?}", reply.reasons);
    assert!(reply.reasons.iter().all(|reason| !reason.text.is_empty()));
}
