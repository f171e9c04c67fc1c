//! Finished jobs are kept for a time and in a number, and whoever asks for one that is forgotten learns why it is not there. Records of the audit are kept
//! for a time.

use super::common::{Control, job, until};
use muster_control_server::HistoryConfig;
use muster_proto::v1;
use std::sync::atomic::Ordering;
use tonic::Code;

/// Submits jobs and ends them.
async fn end(control: &Control, request_id: &str, count: usize) -> Vec<u64> {
    let ids = control.submit(request_id, vec![job(); count]).await;
    for job_id in &ids {
        control.jobs().cancel(v1::CancelRequest { job_id: *job_id }).await.expect("it waits");
    }
    ids
}

async fn finished(control: &Control) -> Vec<u64> {
    let request = v1::ListJobsRequest {
        phases: vec![v1::JobPhase::Cancelled.into()],
        page_size: 1_000,
        ..v1::ListJobsRequest::default()
    };
    let reply = control.jobs().list(request).await.expect("a page").into_inner();
    reply.jobs.iter().map(|job| job.id).collect()
}

async fn until_kept(control: &Control, expected: &[u64]) {
    until("the others to be forgotten", || async { (finished(control).await == expected).then_some(()) }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_jobs_that_ended_first_are_forgotten_when_there_are_too_many() {
    let mut control = Control::keeping(HistoryConfig { keep_max: 20, ..HistoryConfig::default() }).await;
    control.tenant("research").await;
    // The oldest job ends last.
    let oldest = control.submit("oldest", vec![job()]).await[0];
    let ids = end(&control, "many", 50).await;
    control.jobs().cancel(v1::CancelRequest { job_id: oldest }).await.expect("it waits");
    let mut expected = vec![oldest];
    expected.extend(&ids[31..]);
    until_kept(&control, &expected).await;

    let ask = v1::GetJobRequest { job_id: ids[0], ..v1::GetJobRequest::default() };
    let gone = control.jobs().get(ask).await.expect_err("it is forgotten");
    assert_eq!(gone.code(), Code::NotFound);
    let kept = "finished jobs are kept for 30 days, at most 20 jobs";
    assert!(gone.message().contains("its record was deleted") && gone.message().contains(kept), "{gone}");
    let gone = control.jobs().cancel(v1::CancelRequest { job_id: ids[0] }).await.expect_err("it is forgotten");
    assert!(gone.message().contains(kept), "{gone}");
    let gone = control
        .jobs()
        .explain(v1::ExplainRequest { job_id: ids[0], ..v1::ExplainRequest::default() })
        .await
        .expect_err("it is forgotten");
    assert!(gone.message().contains(kept), "{gone}");
    let ask = v1::GetJobRequest { job_id: ids[49] + 1, ..v1::GetJobRequest::default() };
    let never = control.jobs().get(ask).await.expect_err("it never was");
    assert!(!never.message().contains("kept"), "{never}");

    // The same after a restart, and a retry is still known for one.
    control.restart().await;
    assert_eq!(finished(&control).await, expected);
    assert_eq!(control.submit("many", vec![job(); 50]).await, ids, "law 5");
    let more = end(&control, "more", 5).await;
    expected = vec![oldest];
    expected.extend(ids[36..].iter().chain(&more));
    until_kept(&control, &expected).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_are_forgotten_when_their_time_is_over() {
    const HOUR_MS: u64 = 3_600 * 1_000;
    let control = Control::keeping(HistoryConfig { keep_ms: HOUR_MS, ..HistoryConfig::default() }).await;
    control.tenant("research").await;
    end(&control, "old", 30).await;
    control.clock_ahead_ms.store(HOUR_MS as i64 - 60_000, Ordering::Relaxed);
    let young = end(&control, "young", 10).await;
    assert_eq!(finished(&control).await.len(), 40, "none is an hour old");
    control.clock_ahead_ms.store(HOUR_MS as i64 + 60_000, Ordering::Relaxed);
    // A command brings the state's time along.
    control.submit("live", vec![job()]).await;
    until_kept(&control, &young).await;
    let (kept, forgotten) =
        control.node().consensus().read(|state, _| (state.meta.finished_kept, state.meta.finished_forgotten));
    assert_eq!((kept, forgotten), (10, 30));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_of_the_audit_are_removed_when_their_time_is_over_and_the_rest_still_follows() {
    const HOUR_MS: u64 = 3_600 * 1_000;
    let control = Control::keeping(HistoryConfig { keep_audit_ms: HOUR_MS, ..HistoryConfig::default() }).await;
    let counts = || control.node().consensus().read(|state, _| (state.meta.audited, state.meta.audit_trimmed));
    control.tenant("research").await;
    control.submit("old", vec![job()]).await;
    let (old, removed) = counts();
    assert!(old >= 2 && removed == 0, "{old} records, {removed} removed");
    control.clock_ahead_ms.store(HOUR_MS as i64 - 60_000, Ordering::Relaxed);
    control.submit("young", vec![job()]).await;
    // Past the time that records are kept, and the tenth of it in which they gather.
    control.clock_ahead_ms.store(HOUR_MS as i64 * 11 / 10 + 60_000, Ordering::Relaxed);
    control.submit("now", vec![job()]).await;
    until("the old records to be removed", || async { (counts().1 == old).then_some(()) }).await;
    let ask = v1::AuditQueryRequest { oldest_first: true, page_size: 100, sign: true, ..Default::default() };
    let reply = control.audit().query(ask).await.expect("a page").into_inner();
    assert_eq!(reply.signed_head, None, "a control node without an identity signs nothing");
    let numbers: Vec<u64> = reply.records.iter().map(|record| record.number).collect();
    assert_eq!((reply.trimmed, numbers.first().copied()), (old, Some(old + 1)));
    assert_eq!(numbers.last().copied(), Some(reply.last_number), "{numbers:?}");
    assert!(reply.records.iter().any(|record| record.rpc == "trim"), "removing is a record too");
}
