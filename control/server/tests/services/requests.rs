//! How cards may be described, through the API: device classes, needs alone, warnings.

use super::common::*;
use muster_proto::v1;
use v1::device_request::Kind;

async fn furnished() -> (Control, Agent) {
    let control = Control::start().await;
    control.tenant("research").await;
    control.tenant("ads").await;
    let agent = Agent::join(&control, node_spec("n1"), None).await;
    (control, agent)
}

async fn spec_of(control: &Control, job_id: u64) -> v1::JobSpec {
    let request = v1::GetJobRequest { job_id, ..v1::GetJobRequest::default() };
    let reply = control.jobs().get(request).await.expect("the job").into_inner();
    reply.job.expect("the job").spec.expect("its spec")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn device_classes_come_are_used_and_go() {
    let (control, _agent) = furnished().await;
    let mut fleet = control.fleet();
    let class = v1::DeviceClass {
        name: "big".to_owned(),
        selector: "device.memory_mib >= 80000".to_owned(),
        tenants: vec!["research".to_owned()],
    };
    let put = |class: &v1::DeviceClass| v1::PutDeviceClassRequest { class: Some(class.clone()) };
    fleet.put_device_class(put(&class)).await.expect("a good class");
    let listed =
        fleet.list_device_classes(v1::ListDeviceClassesRequest::default()).await.expect("classes").into_inner();
    assert_eq!(listed.classes, std::slice::from_ref(&class));

    let selector = "device.driver >= version(\"550\")".to_owned();
    let asking = v1::JobSpec { device_class: "big".to_owned(), selector, ..gpu_job(1) };
    let id = control.submit("a", vec![asking.clone()]).await[0];
    let both = "device.memory_mib >= 80000 && device.driver >= version(\"550\")";
    assert_eq!(spec_of(&control, id).await.selector, both);
    // Another tenant may not use it; and the accepted job keeps what it meant when the class has gone.
    let foreign = v1::JobSpec { tenant: "ads".to_owned(), ..asking.clone() };
    let status = control.try_submit("b", vec![foreign]).await.expect_err("not its class");
    assert_eq!(refused_fields(&status)[0].field, "jobs[0].device_class");
    fleet.delete_device_class(v1::DeleteDeviceClassRequest { name: "big".to_owned() }).await.expect("there");
    assert_eq!(spec_of(&control, id).await.selector, both);
    let status = control.try_submit("c", vec![asking]).await.expect_err("it has gone");
    assert_eq!(refused_fields(&status)[0].field, "jobs[0].device_class");

    let bad = v1::DeviceClass { selector: "device.memory_mib >= many".to_owned(), ..class };
    let status = fleet.put_device_class(put(&bad)).await.expect_err("no selector");
    assert_eq!(refused_fields(&status)[0].field, "class.selector");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn needs_alone_are_given_a_way_and_told_why() {
    let (control, _agent) = furnished().await;
    let isolation = "best-effort".to_owned();
    let needs = v1::Needs { memory_mib: 8_192, compute_percent: 15, isolation, ..v1::Needs::default() };
    let asking = v1::JobSpec { needs: Some(needs.clone()), ..job() };
    let id = control.submit("a", vec![asking.clone()]).await[0];
    let spec = spec_of(&control, id).await;
    let devices = spec.request.and_then(|request| request.devices).expect("devices were chosen");
    assert_eq!(devices.kind, Some(Kind::Mig(v1::MigInstance { profile: "1g.10gb".to_owned() })));
    assert_eq!((devices.models, spec.needs), (vec!["h100".to_owned()], Some(needs)));
    let choice = spec.choice.expect("a choice");
    assert_eq!((choice.rule.as_str(), choice.compute_percent, choice.memory_mib), ("steady-and-small", 14, 10_240));
    let said =
        control.jobs().explain(v1::ExplainRequest { job_id: id, consistency: 0 }).await.expect("a reason").into_inner();
    let chosen = said.reasons.iter().find(|reason| reason.code == "chosen").expect("the choice is explained");
    assert!(chosen.text.contains("MIG slice 1g.10gb") && chosen.figures["rule"] == "steady-and-small", "{chosen:?}");
    // The same call again is the same job, though what was accepted differs from what was sent.
    assert_eq!(control.submit("a", vec![asking]).await, [id]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn training_on_one_slice_is_accepted_with_a_warning() {
    let (control, _agent) = furnished().await;
    let mut spec = v1::JobSpec { workload_class: "training".to_owned(), ..gpu_job(1) };
    let kind = Some(Kind::Mig(v1::MigInstance { profile: "1g.10gb".to_owned() }));
    spec.request.as_mut().expect("it has one").devices =
        Some(v1::DeviceRequest { kind, models: vec!["h100".to_owned()] });
    let request = v1::SubmitRequest { request_id: "a".to_owned(), issued_ms: issued_now(), jobs: vec![job(), spec] };
    let reply = control.jobs().submit(request).await.expect("accepted").into_inner();
    assert_eq!(reply.job_ids.len(), 2);
    assert!(matches!(&reply.warnings[..], [one] if one.starts_with("jobs[1].request.mig")), "{:?}", reply.warnings);
}
