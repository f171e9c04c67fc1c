//! Nothing that is sent grows without bound: every text, list and map of every message, at its bound and one beyond, at the real port.

use super::common::*;
use futures::StreamExt;
use muster_model::validate::table::Bound;
use muster_proto::bounded::{FieldSchema, Kind, Schema, schema};
use muster_proto::v1;
use prost::bytes::{Buf, BufMut};
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

/// Bytes as they are, in the place of messages.
#[derive(Clone, Copy, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Raw;
    type Decoder = Raw;

    fn encoder(&mut self) -> Raw {
        Raw
    }

    fn decoder(&mut self) -> Raw {
        Raw
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(&item);
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::default()
    }
}

impl Decoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        let mut bytes = vec![0; buffer.remaining()];
        buffer.copy_to_slice(&mut bytes);
        Ok(Some(bytes))
    }
}

/// Sends one message to a method of any kind, and gives the refusal if there is one.
async fn send(channel: &Channel, method: &str, message: Vec<u8>) -> Result<(), Status> {
    let mut client = tonic::client::Grpc::new(channel.clone());
    client.ready().await.expect("the node serves");
    let path = format!("/muster.v1.{method}").parse().expect("a path");
    // A stream of one message is on the wire what a single message is. It stays open, as an agent's does.
    let messages = futures::stream::once(async { message }).chain(futures::stream::pending());
    let unary = !method.ends_with("/Session");
    let messages = if unary { messages.take(1).boxed() } else { messages.boxed() };
    let mut answers = client.streaming(Request::new(messages), path, Raw).await?.into_inner();
    tokio::time::timeout(PATIENCE, answers.message()).await.expect("an answer comes").map(|_| ())
}

fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// A field of bytes: text, bytes or a message.
fn sized(number: u32, inside: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(inside.len() + 12);
    varint(u64::from(number) << 3 | 2, &mut out);
    varint(inside.len() as u64, &mut out);
    out.extend_from_slice(inside);
    out
}

fn several(number: u32, count: usize, inside: &[u8]) -> Vec<u8> {
    sized(number, inside).repeat(count)
}

/// A field filled to its bound and one beyond: what it is called, its bytes in both cases, and where the refusal points.
struct Case {
    at: Vec<u8>,
    beyond: Vec<u8>,
    path: String,
    /// What the refusal says to do.
    fix: String,
}

fn texts(number: u32, name: &str, most: usize) -> Case {
    let text = |bytes: usize| sized(number, "a".repeat(bytes).as_bytes());
    Case { at: text(most), beyond: text(most + 1), path: name.to_owned(), fix: format!("use at most {most} bytes") }
}

/// Every way in which a field can be too large.
fn cases(schema: &Schema, number: u32, field: &FieldSchema) -> Vec<Case> {
    let name = &field.name;
    let entries = |items_max: usize, inside: &[u8]| Case {
        at: several(number, items_max, inside),
        beyond: several(number, items_max + 1, inside),
        path: name.clone(),
        fix: format!("use at most {items_max}"),
    };
    match field.bound.expect("a test of the schema has found a bound for each") {
        Bound::Text { bytes_max } => vec![texts(number, name, bytes_max)],
        Bound::List { items_max } => match field.kind {
            Kind::Message(_) => vec![entries(items_max, &[])],
            _ => {
                let list = |items: usize| sized(number, &vec![1; items]);
                let fix = format!("use at most {items_max}");
                vec![Case { at: list(items_max), beyond: list(items_max + 1), path: name.clone(), fix }]
            }
        },
        Bound::Texts { items_max, bytes_max } => {
            vec![entries(items_max, &[]), texts(number, &format!("{name}[0]"), bytes_max)]
        }
        Bound::Map { items_max, key_bytes_max, value_bytes_max } => {
            let Kind::Message(entry) = field.kind else { panic!("{name} is a map") };
            let mut all = vec![entries(items_max, &[])];
            for (part, most, word) in [(1, key_bytes_max, "key"), (2, value_bytes_max, "value")] {
                if schema.message(entry).fields[&part].kind == Kind::Text {
                    let inner = texts(part, word, most);
                    let (at, beyond) = (sized(number, &inner.at), sized(number, &inner.beyond));
                    all.push(Case { at, beyond, path: format!("{name}.{word}"), fix: inner.fix });
                }
            }
            all
        }
    }
}

/// Every case of the message at `place` and of what it consists of.
fn cases_of(schema: &Schema, place: usize) -> Vec<Case> {
    let mut all = Vec::new();
    for (number, field) in &schema.message(place).fields {
        if field.grows() {
            all.extend(cases(schema, *number, field));
        }
        if let Kind::Message(inner) = field.kind
            && !schema.message(inner).map_entry
        {
            let step = if field.repeated { format!("{}[0]", field.name) } else { field.name.clone() };
            all.extend(cases_of(schema, inner).into_iter().map(|case| Case {
                at: sized(*number, &case.at),
                beyond: sized(*number, &case.beyond),
                path: format!("{step}.{}", case.path),
                fix: case.fix,
            }));
        }
    }
    all
}

/// Whether the refusal is for passing the bound of `path`.
fn names(refusal: &Status, path: &str, fix: &str) -> bool {
    let of_bound = |fault: &muster_model::FieldError| fault.field == path && fault.fix == fix;
    refusal.code() == Code::InvalidArgument && muster_proto::status::field_errors(refusal).iter().any(of_bound)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_field_holds_at_its_bound_and_is_refused_beyond() {
    let control = Control::start().await;
    let (schema, channel) = (schema(), control.channel());
    let (mut methods_tried, mut cases_tried) = (0, 0);
    for (_, place, methods) in schema.roots() {
        for method in methods {
            methods_tried += 1;
            for case in cases_of(schema, place) {
                cases_tried += 1;
                let (path, fix) = (case.path.as_str(), case.fix.as_str());
                if let Err(refusal) = send(&channel, method, case.at).await {
                    assert!(!names(&refusal, path, fix), "{method} {path} at its bound: {refusal}");
                }
                let refusal = send(&channel, method, case.beyond).await;
                let refusal = refusal.expect_err(&format!("{method} {path} beyond its bound is taken"));
                assert!(names(&refusal, path, fix), "{method} {path} beyond its bound: {refusal}");
            }
        }
    }
    assert!(methods_tried > 30 && cases_tried > 100, "{cases_tried} cases of {methods_tried} methods are not the API");
}

/// Eight megabytes of empty arguments are four million, and would be a hundred megabytes in every voter, at every restart.
#[tokio::test(flavor = "multi_thread")]
async fn millions_of_empty_arguments_are_refused_by_their_number() {
    let control = Control::start().await;
    control.tenant("research").await;
    let before = control.objects();
    let mut job = v1::JobSpec { command: vec![String::new(); 2_000_000], ..job() };
    job.command[0] = "true".to_owned();
    let refusal = control.try_submit("empty", vec![job]).await.expect_err("too many arguments");
    assert!(names(&refusal, "jobs[0].command", "use at most 1024"), "{refusal}");
    assert_eq!(control.objects(), before);
}

/// Checks of a list that compare each entry with each other would keep a node busy for minutes.
#[tokio::test(flavor = "multi_thread")]
async fn hundreds_of_thousands_of_models_are_refused_by_their_number() {
    let control = Control::start().await;
    control.tenant("research").await;
    let mut job = gpu_job(1);
    let devices = job.request.as_mut().and_then(|request| request.devices.as_mut()).expect("it asks for a card");
    devices.models = vec!["h100".to_owned(); 200_000];
    let refusal = control.try_submit("models", vec![job]).await.expect_err("too many models");
    assert!(names(&refusal, "jobs[0].request.devices.models", "use at most 64"), "{refusal}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_message_is_refused_by_name() {
    let control = Control::start().await;
    let channel = control.channel();
    // Field 3 (jobs), field 2 (name): one byte that no UTF-8 text begins with.
    let name = sized(3, &sized(2, &[0xff]));
    for (message, path, problem) in [
        (name, "jobs[0].name", "is not UTF-8 at byte 1"),
        (vec![0x0a, 0x05, b'a'], "message", "ends in the middle of a field"),
        (vec![0x0b], "message", "has a field of wire type 3, which this API does not use"),
        (vec![0x80], "message", "ends in the middle of a number"),
        (vec![0x02, 0x00], "message", "has a field without a number"),
        (several(3, 1, &several(4, 2, &[])), "jobs[0].request", "is given twice"),
    ] {
        let refusal = send(&channel, "Jobs/Submit", message).await.expect_err(problem);
        let faults = muster_proto::status::field_errors(&refusal);
        assert_eq!(refusal.code(), Code::InvalidArgument, "{refusal}");
        assert!(faults.iter().any(|fault| fault.field == path && fault.problem == problem), "{path}: {faults:?}");
    }
}

/// A profile has one name in the state, however it was written.
#[tokio::test(flavor = "multi_thread")]
async fn a_mig_profile_is_kept_in_one_form() {
    let control = Control::start().await;
    control.tenant("research").await;
    for (index, written) in ["1g.10gb", " MIG-1G.10GB ", "nvidia.com/mig-1g.10gb"].into_iter().enumerate() {
        let mut job = gpu_job(1);
        let profile = Some(v1::device_request::Kind::Mig(v1::MigInstance { profile: written.to_owned() }));
        let devices = v1::DeviceRequest { kind: profile, models: vec!["h100".to_owned()] };
        job.request.as_mut().expect("it has one").devices = Some(devices);
        let id = control.submit(&format!("mig-{index}"), vec![job]).await[0];
        let kept = control
            .node()
            .consensus()
            .read(|state, _| state.jobs.get(&muster_model::JobId(id)).map(|job| job.spec.request.devices.clone()));
        let Some(muster_model::DeviceRequest::Mig { profile, .. }) = kept else { panic!("{kept:?}") };
        assert_eq!(profile, "1g.10gb", "written {written:?}");
    }
}
