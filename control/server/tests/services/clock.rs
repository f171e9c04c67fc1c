//! Wall clocks that are wrong by days: of one voter they do not matter, and what a wrong clock has done can be undone.

use super::common::*;
use muster_proto::v1;
use std::sync::atomic::Ordering;
use tonic::Code;

const MONTH_MS: i64 = 30 * 86_400_000;

fn right_ms() -> u64 {
    std::time::UNIX_EPOCH.elapsed().expect("after 1970").as_millis() as u64
}

/// A submission issued now, by the right time.
async fn submit(control: &Control, request_id: &str) -> Result<u64, tonic::Status> {
    let issued_ms = Some(right_ms());
    let request = v1::SubmitRequest { request_id: request_id.to_owned(), issued_ms, jobs: vec![gpu_job(1)] };
    control.jobs().submit(request).await.map(|reply| reply.into_inner().job_ids[0])
}

async fn time_ahead_ms(control: &Control) -> i64 {
    control.node().consensus().read(|state, _| state.meta.now_ms as i64 - right_ms() as i64)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_whose_clock_is_a_month_ahead_does_not_move_time() {
    let controls = Control::three(patient()).await;
    controls[0].tenant("research").await;
    let leads = || async { controls.iter().find(|control| control.node().consensus().is_leader()) };
    let leader = until("a leader", leads).await;
    leader.clock_ahead_ms.store(MONTH_MS, Ordering::Relaxed);
    for (number, control) in controls.iter().enumerate() {
        submit(control, &format!("ahead-{number}")).await.expect("accepted by the right time");
    }
    assert!(time_ahead_ms(leader).await < 5_000, "the state's time is right");
    let status = leader.admin().raft_status(v1::RaftStatusRequest {}).await.expect("a status").into_inner();
    let others: Vec<i64> = status
        .members
        .iter()
        .filter(|member| member.id != status.id)
        .filter_map(|member| member.clock_offset_ms)
        .collect();
    assert_eq!(others.len(), 2, "{status:?}");
    assert!(others.iter().all(|offset_ms| (offset_ms + MONTH_MS).abs() < 5_000), "the status says so: {others:?}");
    // And set right again, nothing is left of it.
    leader.clock_ahead_ms.store(0, Ordering::Relaxed);
    submit(leader, "right").await.expect("accepted");
    assert!(time_ahead_ms(leader).await < 5_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn time_that_was_moved_ahead_is_set_back_by_an_operator() {
    let control = Control::start().await;
    control.tenant("research").await;
    let early = submit(&control, "early").await.expect("accepted");
    let refused = control.admin().reset_clock(v1::ResetClockRequest {}).await.expect_err("nothing to reset");
    assert_eq!(refused.code(), Code::InvalidArgument);

    // The only voter's clock is wrong, and somebody writes.
    control.clock_ahead_ms.store(MONTH_MS, Ordering::Relaxed);
    control.tenant("product").await;
    control.clock_ahead_ms.store(0, Ordering::Relaxed);
    let refused = submit(&control, "too-old").await.expect_err("time is a month ahead");
    assert!(refused.message().contains("issued"), "{refused}");
    let status = control.admin().raft_status(v1::RaftStatusRequest {}).await.expect("a status").into_inner();
    assert!(status.time_ahead_ms.is_some_and(|ms| ms > MONTH_MS - 60_000), "{status:?}");

    let reply = control.admin().reset_clock(v1::ResetClockRequest {}).await.expect("reset").into_inner();
    assert!(reply.ahead_ms > (MONTH_MS - 60_000) as u64, "{reply:?}");
    assert!(time_ahead_ms(&control).await < 5_000);
    tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    let late = submit(&control, "late").await.expect("accepted again");
    assert!(late > early);
    assert_eq!(submit(&control, "early").await.expect("still known"), early, "law 5");
}
