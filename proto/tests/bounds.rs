//! The table of bounds covers the API, and what is read over is what is decoded.

use muster_model::validate::table::{self, Bound};
use muster_proto::bounded::{Kind, check, schema};
use muster_proto::v1;
use prost::Message;

#[test]
fn every_field_that_grows_has_a_bound() {
    let missing: Vec<_> = schema().unbounded().collect();
    assert!(missing.is_empty(), "add rows to model/src/validate/table.rs for {missing:?}");
    assert!(schema().roots().count() > 30, "the descriptors were not read");
}

#[test]
fn every_row_is_of_a_field_that_is_sent() {
    fn collect(place: usize, names: &mut Vec<(String, String)>) {
        let message = schema().message(place);
        for field in message.fields.values() {
            names.push((message.name.clone(), field.name.clone()));
            if let Kind::Message(inner) = field.kind {
                collect(inner, names);
            }
        }
    }
    let mut names = Vec::new();
    for (_, place, _) in schema().roots() {
        collect(place, &mut names);
    }
    let rows: Vec<_> = table::rows().collect();
    for (index, (message, field, bound)) in rows.iter().enumerate() {
        let sent = names.iter().any(|(m, f)| m == message && f == field);
        assert!(sent, "{message}.{field} is in the table and is never sent");
        let twice = rows[..index].iter().any(|(m, f, _)| m == message && f == field);
        assert!(!twice, "{message}.{field} is in the table twice");
        let Bound::Text { bytes_max } = bound else { continue };
        assert!(*bytes_max > 0, "{message}.{field} could not be sent at all");
    }
}

fn refused(name: &str, message: &impl Message) -> String {
    check(name, &message.encode_to_vec()).expect_err("it is too large").to_string()
}

#[test]
fn a_refusal_names_the_field_the_figure_and_the_bound() {
    let job = |name: &str, command: Vec<String>| v1::JobSpec { name: name.to_owned(), command, ..Default::default() };
    let submit = |job: v1::JobSpec| v1::SubmitRequest { jobs: vec![v1::JobSpec::default(), job], ..Default::default() };
    let long = refused("SubmitRequest", &submit(job(&"x".repeat(129), Vec::new())));
    assert_eq!(long, "jobs[1].name: has 129 bytes; use at most 128 bytes");
    let many = refused("SubmitRequest", &submit(job("x", vec![String::new(); 1_025])));
    assert_eq!(many, "jobs[1].command: has more than 1024 entries; use at most 1024");
    let reservation = v1::Reservation { start_ms: 0, nodes: vec![7; 40_000] };
    let reserve = v1::Reserve { job: 1, reserved: Some(reservation) };
    let proposal = v1::Proposal { kind: Some(v1::proposal::Kind::Reserve(reserve)) };
    let packed = refused("ProposeRequest", &v1::ProposeRequest { proposals: vec![proposal], ..Default::default() });
    assert_eq!(packed, "proposals[0].reserve.reserved.nodes: has more than 32768 entries; use at most 32768");
}

/// Each binding is within its bounds, and together they would take a hundred times their bytes.
#[test]
fn what_is_small_on_the_wire_and_large_in_memory_is_refused() {
    let devices = vec![v1::DeviceHold::default(); 16];
    let tasks = vec![v1::TaskPlacement { node: 1, devices }; 32_768];
    let bind = v1::Bind { tasks, ..Default::default() };
    let proposals = |count: usize| {
        let proposal = v1::Proposal { kind: Some(v1::proposal::Kind::Bind(bind.clone())) };
        v1::ProposeRequest { proposals: vec![proposal; count], ..Default::default() }
    };
    check("ProposeRequest", &proposals(1).encode_to_vec()).expect("the largest gang fits");
    let refusal = refused("ProposeRequest", &proposals(5));
    assert!(refusal.ends_with("makes the message larger than 64 MiB in memory; send it in several calls"), "{refusal}");
}

#[test]
fn replies_are_not_judged() {
    let job = v1::Job { reason: "x".repeat(100_000), ..Default::default() };
    let reply = v1::ListJobsReply { jobs: vec![job; 10], ..Default::default() };
    check("ListJobsReply", &reply.encode_to_vec()).expect("nobody sends it to a control node");
}
