//! What a refusal looks like on the wire: it fits the reply's headers whatever was sent, it counts what it leaves out, and a message
//! that cannot be read is the caller's error.

use super::common::*;
use muster_proto::{status, v1};
use tonic::{Code, Status};

/// Longer than what a client takes as headers of a reply (16 KiB).
fn long() -> String {
    "x/ü".repeat(20_000)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_of_many_jobs_names_some_and_counts_the_rest() {
    let control = Control::start().await;
    control.tenant("research").await;
    for count in [1, 40, 400] {
        let bad = v1::JobSpec { name: "bad name".to_owned(), ..job() };
        let refused = control.try_submit("a", vec![bad; count]).await.expect_err("no good name");
        let named = refused_fields(&refused);
        assert!(named.iter().all(|fault| fault.field.ends_with(".name")), "{named:?}");
        assert_eq!(named.len() as u64 + status::left_out(&refused), count as u64, "{refused:?}");
        assert!(named.len() >= count.min(20), "{named:?}");
    }
    let wide = v1::JobSpec { pool: long(), numa: long(), ..job() };
    let refused = control.try_submit("a", vec![wide; 20]).await.expect_err("no such words");
    refused_fields(&refused);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_fits_whatever_it_has_to_repeat() {
    let control = Control::start().await;
    let (mut jobs, mut tenants, mut fleet) = (control.jobs(), control.tenants(), control.fleet());
    let mut admin = v1::admin_client::AdminClient::new(control.channel());
    let mut usage = v1::usage_client::UsageClient::new(control.channel());
    let answers: Vec<(&str, Status)> = vec![
        (
            "tenant",
            tenants.list(v1::ListTenantsRequest { under: long(), ..Default::default() }).await.expect_err("none"),
        ),
        ("tenant", tenants.delete(v1::DeleteTenantRequest { path: long() }).await.expect_err("none")),
        ("tenant", usage.get(v1::GetUsageRequest { under: long(), ..Default::default() }).await.expect_err("none")),
        ("tenant", jobs.list(v1::ListJobsRequest { tenant: long(), ..Default::default() }).await.expect_err("none")),
        (
            "node",
            fleet
                .set_drained(v1::SetDrainedRequest {
                    node: long(),
                    drained: true,
                    reason: String::new(),
                    by_ms: None,
                    force: false,
                })
                .await
                .expect_err("none"),
        ),
        ("node", fleet.list_gpus(v1::ListGpusRequest { node: long(), ..Default::default() }).await.expect_err("none")),
        (
            "cell",
            fleet.list_nodes(v1::ListNodesRequest { cell: long(), ..Default::default() }).await.expect_err("none"),
        ),
        ("pool", fleet.delete_pool(v1::DeletePoolRequest { name: long() }).await.expect_err("none")),
        ("device class", fleet.delete_device_class(v1::DeleteDeviceClassRequest { name: long() }).await.expect_err("")),
        ("address", admin.add_learner(v1::AddLearnerRequest { id: 2, address: long() }).await.expect_err("none")),
    ];
    for (what, answer) in answers {
        assert!(matches!(answer.code(), Code::NotFound | Code::InvalidArgument), "{what}: {answer:?}");
        assert!(answer.message().len() <= status::MESSAGE_BYTES_MAX, "{what}: {answer:?}");
    }
}

/// Sends bytes where text belongs: a message with bytes as its first field has the same form as one with a string there.
async fn send_bytes(control: &Control, path: &'static str) -> Status {
    let mut client = tonic::client::Grpc::new(control.channel());
    client.ready().await.expect("a connection");
    let message = v1::Payload { data: vec![b'a', 0xff] };
    let codec = tonic_prost::ProstCodec::<v1::Payload, v1::Payload>::default();
    let path = tonic::codegen::http::uri::PathAndQuery::from_static(path);
    client.unary(tonic::Request::new(message), path, codec).await.expect_err("no text")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn text_that_is_not_utf_8_is_the_callers_error_and_named() {
    let control = Control::start().await;
    for (path, field) in [
        ("/muster.v1.Jobs/Submit", "request_id"),
        ("/muster.v1.Jobs/List", "tenant"),
        ("/muster.v1.Tenants/Delete", "path"),
        ("/muster.v1.Fleet/ListNodes", "cell"),
    ] {
        let refused = refused_fields(&send_bytes(&control, path).await);
        assert_eq!(refused[0].field, field, "{refused:?}");
        assert!(refused[0].problem.contains("UTF-8"), "{refused:?}");
    }
    let huge = v1::ListTenantsRequest { under: "x".repeat(9 << 20), ..Default::default() };
    let refused = refused_fields(&control.tenants().list(huge).await.expect_err("far too large"));
    assert!(refused[0].problem.contains("larger than 8388608 bytes"), "{refused:?}");
    // Bytes where a message belongs: wrong in its form, and as much the caller's error.
    let refused = send_bytes(&control, "/muster.v1.Fleet/PutPool").await;
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_from_a_revision_that_is_not_there_yet_is_refused_with_the_present_one() {
    let control = Control::start().await;
    control.tenant("research").await;
    let id = control.submit("a", vec![job()]).await[0];
    let get = v1::GetJobRequest { job_id: id, consistency: 0 };
    let revision = control.jobs().get(get).await.expect("the job").into_inner().revision;
    for job_id in [0, id] {
        let request = v1::WatchJobsRequest { from_revision: revision + 1_000, job_id, tenant: String::new() };
        let opened = tokio::time::timeout(PATIENCE, control.jobs().watch(request)).await.expect("an answer");
        let refused = refused_fields(&opened.expect_err("the future"));
        assert_eq!(refused[0].field, "from_revision");
        assert!(refused[0].problem.contains(&format!("revision {revision}")), "{refused:?}");
    }
    let request = v1::WatchJobsRequest { from_revision: revision, ..Default::default() };
    control.jobs().watch(request).await.expect("the present is no future");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelling_a_job_that_has_ended_says_so_and_how() {
    let control = Control::start().await;
    control.tenant("research").await;
    let id = control.submit("a", vec![job()]).await[0];
    control.jobs().cancel(v1::CancelRequest { job_id: id }).await.expect("it waits");
    let again = control.jobs().cancel(v1::CancelRequest { job_id: id }).await.expect_err("it has ended");
    assert_eq!(again.code(), Code::FailedPrecondition, "{again:?}");
    assert!(again.message().contains(&format!("job {id} has ended: cancelled")), "{again:?}");
    let unknown = control.jobs().cancel(v1::CancelRequest { job_id: 999 }).await.expect_err("no such job");
    assert_eq!(unknown.code(), Code::NotFound, "{unknown:?}");
}
