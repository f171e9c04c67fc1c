//! Writes the kept inputs that are not text, or are too long to be written by hand: `muster-fuzz seed`.
//!
//! What must stay true: what is written is the same every time, but for certificates, whose keys are drawn: those are written once.

use crate::targets::images::archive_of;
use crate::targets::stored::{object_bytes, parted, sealed};
use muster_agent::task_folder::record::LaunchRecord;
use muster_cli::audit_export::{Head, Outgoing, SignedHead, json_lines};
use muster_control_core::{Command, audit_link};
use muster_control_server::consensus::fuzzing::FORM;
use muster_control_server::fuzzing::{Credential, backup_parts, credential_texts, page_token};
use muster_enrolment::JoinFile;
use muster_gpu_double::Fleet;
use muster_model::allocation::Allocation;
use muster_model::ids::Epoch;
use muster_model::node::NodeSpec;
use muster_model::request::TaskRequest;
use muster_model::task::{DeviceHold, HoldMode};
use muster_model::{
    AllocationId, Attempt, AuditRecord, Author, Binding, CellId, DeviceRequest, Gpu, GpuModel, Job, JobId, JobSpec,
    Node, NodeId, Object, Pool, Principal, Rank, Selector, TaskPlacement, TaskState, Tenant, TenantId, ValidJobSpec,
};
use muster_node_core::Meter;
use muster_proto::convert::{object_to_wire, report_to_wire};
use muster_proto::v1;
use muster_runtime::pki::{
    Certificate, MachineName, Role, Roots, Scheme, Signed, Subject, X509, new_root, sign_issuer, sign_machine,
};
use prost::Message;
use serde::Serialize;
use std::fs;
use std::io::Result;
use std::path::Path;

const NOW_MS: u64 = 1_700_000_000_000;

/// Writes them below the folder of all kept inputs.
///
/// # Errors
/// When a file cannot be written.
pub fn write(corpus: &Path) -> Result<()> {
    let corpus = &Corpus(corpus);
    long_texts(corpus)?;
    requests(corpus)?;
    streams(corpus)?;
    stored(corpus)?;
    peers(corpus)?;
    exports(corpus)?;
    tokens(corpus)?;
    certificates(corpus)?;
    corpus.put("double-files", "fleet.json", &serde_json::to_vec(&Fleet::h100(1))?)?;
    let archive = archive_of(
        "folder\t755\ta\nfile\t644\ta/b\t\tcontent\nsymlink\t777\tc\ta/b\npax\t0\tx\t\t20 path=a/d/e/f/gh\nfile\t600\tlong\t\tx",
    );
    corpus.put("layer-archive", "small", &archive)
}

struct Corpus<'a>(&'a Path);

impl Corpus<'_> {
    fn put(&self, target: &str, name: &str, bytes: &[u8]) -> Result<()> {
        let folder = self.0.join(target);
        fs::create_dir_all(&folder)?;
        fs::write(folder.join(name), bytes)
    }

    /// One whose first line says what it is.
    fn put_headed(&self, target: &str, name: &str, head: &str, bytes: &[u8]) -> Result<()> {
        self.put(target, name, &[head.as_bytes(), b"\n", bytes].concat())
    }

    fn has(&self, target: &str, name: &str) -> bool {
        self.0.join(target).join(name).exists()
    }
}

/// What makes a parser work for long, or fall over a border that only a long text reaches.
fn long_texts(corpus: &Corpus<'_>) -> Result<()> {
    corpus.put("array", "one-range-repeated", "0-9999,".repeat(5_000).trim_end_matches(',').as_bytes())?;
    corpus.put("names", "digits-past-a-width", format!("n[{}1-2]", "0".repeat(65_600)).as_bytes())?;
    corpus.put("selector", "brackets", "(".repeat(4_000).as_bytes())?;
    corpus.put("job-file", "deep-lists", format!("command: {}", "[".repeat(1_000)).as_bytes())?;
    corpus.put("agent-file", "deep-json", format!("launch\n{}", "{\"spec\":".repeat(4_000)).as_bytes())
}

fn spec() -> ValidJobSpec {
    let request = TaskRequest {
        devices: DeviceRequest::Whole { count: 8, models: vec![GpuModel::H100] },
        cpu_milli: 64_000,
        memory_mib: 512_000,
    };
    let mut spec = JobSpec::usual("research/nlp", request, &["torchrun", "train.py"]);
    spec.tasks = 4;
    spec.time_limit_s = Some(3_600);
    spec.env.insert("SEED".to_owned(), "7".to_owned());
    spec.asked.selector =
        "device.memory_mib >= 40000 && node.labels[\"tier\"] in [\"gold\", \"silver\"]".parse::<Selector>().ok();
    spec.validate().unwrap_or_else(|faults| panic!("the kept job is not valid: {faults:?}"))
}

fn cards() -> Vec<Gpu> {
    Gpu::usual_cards("gpu-1", 8, GpuModel::H100)
}

fn placement() -> TaskPlacement {
    let devices = (0..8).map(|gpu| DeviceHold { gpu, mode: HoldMode::Whole }).collect();
    TaskPlacement { node: NodeId(1), devices }
}

/// Objects of the state, by kind.
fn objects() -> Vec<(&'static str, Object)> {
    let node = Node::usual(NodeId(1), CellId(1), NodeSpec::usual("gpu-1", cards()));
    vec![
        ("tenant", Object::Tenant(Tenant::usual(TenantId(1), "research"))),
        ("pool", Object::Pool(Pool::standard())),
        ("node", Object::Node(node)),
        ("job", Object::Job(Job::usual(JobId(7), TenantId(1), spec()))),
        (
            "allocation",
            Object::Allocation(Allocation::usual(AllocationId(9), JobId(7), TenantId(1), vec![placement(); 4])),
        ),
    ]
}

/// Calls with one message.
fn requests(corpus: &Corpus<'_>) -> Result<()> {
    let submit =
        v1::SubmitRequest { request_id: "a-1".to_owned(), jobs: vec![(&*spec()).into()], ..Default::default() };
    corpus.put("submit", "job", &submit.encode_to_vec())?;
    corpus.put_headed("request", "submit", "SubmitRequest", &submit.encode_to_vec())?;
    let list = v1::ListJobsRequest { tenant: "research".to_owned(), page_size: 10, ..Default::default() };
    corpus.put_headed("request", "list-jobs", "ListJobsRequest", &list.encode_to_vec())?;
    let edit = v1::TenantEdit {
        path: "research".to_owned(),
        weight: Some(v1::WeightEdit { weight: Some(2) }),
        lend: Some(v1::LendEdit { lend: None }),
        ..Default::default()
    };
    let apply = v1::ApplyTenantsRequest { edits: vec![edit], ..Default::default() };
    corpus.put("apply-tenants", "edit", &apply.encode_to_vec())?;
    let apply = v1::ApplyTenantsRequest {
        tenants: vec![v1::TenantSpec { path: "research".to_owned(), weight: Some(1), ..Default::default() }],
        ..Default::default()
    };
    corpus.put("apply-tenants", "tenant", &apply.encode_to_vec())?;
    let pool = v1::PutPoolRequest { pool: Some((&Pool::standard()).into()) };
    corpus.put_headed("fleet-request", "pool", "PutPoolRequest", &pool.encode_to_vec())?;
    let class = v1::DeviceClass {
        name: "large".to_owned(),
        selector: "device.memory_mib >= 80000".to_owned(),
        ..Default::default()
    };
    let class = v1::PutDeviceClassRequest { class: Some(class) };
    corpus.put_headed("fleet-request", "device-class", "PutDeviceClassRequest", &class.encode_to_vec())?;
    let window = v1::WindowSpec {
        name: "kernel".to_owned(),
        kind: "maintenance".to_owned(),
        nodes: vec!["gpu-1".to_owned()],
        start_ms: NOW_MS,
        end_ms: Some(NOW_MS + 3_600_000),
        ..Default::default()
    };
    let window = v1::PutWindowRequest { window: Some(window) };
    corpus.put_headed("fleet-request", "window", "PutWindowRequest", &window.encode_to_vec())
}

/// What shards and agents send and are sent.
fn streams(corpus: &Corpus<'_>) -> Result<()> {
    use v1::agent_message::Message as FromAgent;
    let said = |message: FromAgent| v1::AgentMessage { message: Some(message) }.encode_to_vec();
    let hello = v1::Hello {
        spec: Some((&NodeSpec::usual("gpu-1", cards())).into()),
        version: "0.1.0".to_owned(),
        agent: 7,
        ..Default::default()
    };
    corpus.put("agent-message", "hello", &said(FromAgent::Hello(hello)))?;
    let withheld = v1::WithheldCard { gpu: 3, reason: "Xid 79".to_owned(), ..Default::default() };
    corpus.put("agent-message", "cards", &said(FromAgent::Cards(v1::CardReport { withheld: vec![withheld] })))?;
    let report = report_to_wire(AllocationId(9), Rank(0), &TaskState::Exited { code: 1 }, Some(NOW_MS));
    corpus.put(
        "agent-message",
        "reports",
        &said(FromAgent::Reports(v1::TaskReports { seq: 1, reports: vec![report] })),
    )?;
    let binding =
        Binding { job: JobId(7), attempt: Attempt(1), model: Some(GpuModel::H100), tasks: vec![placement(); 4] };
    let kind = Some(v1::proposal::Kind::Bind((&binding).into()));
    let propose = v1::ProposeRequest { cell: 1, epoch: 3, proposals: vec![v1::Proposal { kind }] };
    corpus.put("propose", "bind", &propose.encode_to_vec())?;
    corpus.put("propose", "cut", &propose.encode_to_vec()[..40])?;
    for (name, object) in objects() {
        let event = v1::WatchEvent {
            revision: 12,
            changes: object_to_wire(&object).into_iter().collect(),
            now_ms: NOW_MS,
            ..Default::default()
        };
        corpus.put("watch-event", name, &event.encode_to_vec())?;
    }
    let task = v1::DesiredTask {
        allocation: 9,
        job: 7,
        attempt: 1,
        devices: placement().devices.iter().map(Into::into).collect(),
        command: vec!["torchrun".to_owned(), "train.py".to_owned()],
        master_port: 29_500,
        ports: Some(v1::TaskPorts { first: 20_000, count: 16 }),
        ..Default::default()
    };
    let stamp = Some(v1::Stamp { incarnation: 1, revision: 12, node_epoch: 1 });
    let desired = v1::Desired { stamp, tasks: vec![task.clone(), task], ..Default::default() };
    corpus.put("desired", "one-task-twice", &desired.encode_to_vec())?;
    let read =
        muster_agent::fuzzing::desired(desired).unwrap_or_else(|error| panic!("the kept task is refused: {error}"));
    for task in read.tasks.values() {
        let launch = LaunchRecord {
            spec: (*task.spec).clone(),
            node_epoch: Epoch(1),
            boot_id: "boot-1".to_owned(),
            env: [("RANK".to_owned(), "0".to_owned())].into(),
            log_bytes_max: 1 << 20,
            isolation: None,
            of_image: None,
        };
        corpus.put_headed("agent-file", "launch", "launch", &serde_json::to_vec(&launch)?)?;
    }
    corpus.put_headed("agent-file", "meter-new", "meter", &serde_json::to_vec(&Meter::default())?)
}

fn record(number: u64, before: &[u8; 32]) -> AuditRecord {
    let author = Author {
        principal: Principal::User("alice".to_owned()),
        credential: Some(17),
        from: "10.0.0.9:4411".to_owned(),
        request_sha256: Some([7; 32]),
    };
    let (rpc, target) = ("Tenants.Apply".to_owned(), "tenant research".to_owned());
    let mut record = AuditRecord { number, at_ms: NOW_MS + number % 1_000, author, rpc, target, hash: [0; 32] };
    record.hash = audit_link(before, &record);
    record
}

fn postcard_of(value: &impl Serialize) -> Vec<u8> {
    postcard::to_stdvec(value).unwrap_or_else(|error| panic!("a kept value cannot be written: {error}"))
}

fn stored(corpus: &Corpus<'_>) -> Result<()> {
    for (name, object) in objects() {
        corpus.put("stored-object", name, &object_bytes(&object))?;
    }
    let job = object_bytes(&objects()[3].1);
    corpus.put("stored-object", "job-cut", &job[..job.len() / 2])?;
    corpus.put("stored-selector", "good", &postcard_of(&spec().asked.selector.clone()).split_off(1))?;
    // Each byte is a negation inside the one before it.
    corpus.put("stored-selector", "deep", &[2; 20_000])?;
    corpus.put("stored-selector", "wide", &[0, 0xff, 0xff, 0xff, 0xff, 0x0f])?;
    let commands = vec![
        Command::PutPool(Pool::standard())
            .by(Author { principal: Principal::User("alice".to_owned()), ..Author::default() }),
        Command::Submit {
            request_id: "a-1".to_owned(),
            issued_ms: NOW_MS,
            payload_hash: 7,
            specs: vec![spec()],
            ended: Vec::new(),
        },
    ];
    corpus.put("stored-commands", "two", &postcard_of(&commands))?;
    corpus.put("stored-commands", "cut", &postcard_of(&commands)[..60])?;
    corpus.put("stored-commands", "none", &[0])?;
    corpus.put("stored-refusal", "good", &postcard_of(&record(1, &[0; 32])))?;
    corpus.put("stored-refusal", "cut", &postcard_of(&record(1, &[0; 32]))[..20])?;
    corpus.put("stored-refusal", "last-number", &postcard_of(&record(u64::MAX, &[0; 32])))?;
    let mut parts = backup_parts();
    corpus.put("backup", "good", &parted(&parts))?;
    corpus.put("backup", "without-an-end", &parted(&parts[..2]))?;
    parts.remove(1);
    corpus.put("backup", "without-a-frame", &parted(&parts))?;
    corpus.put("backup", "nothing", &parted(&[]))
}

/// What control nodes send each other, as tuples of the fields: the types are the crate's own.
fn peers(corpus: &Corpus<'_>) -> Result<()> {
    let envelope = (7_u64, 1_u64, 11_u64, 2_u64, 12_u64);
    let vote = ((3_u64, 1_u64), true);
    let last = Some(((3_u64, 1_u64), 41_u64));
    let put = |kind: &str, name: &str, body: Vec<u8>| {
        corpus.put_headed("peer-message", name, kind, &[&[FORM], body.as_slice()].concat())
    };
    put("heartbeat", "heartbeat", postcard_of(&(envelope, vote)))?;
    put("vote", "vote", postcard_of(&(envelope, vote, last)))?;
    put("pre-vote", "pre-vote", postcard_of(&(envelope, last)))?;
    put("identify", "identify", postcard_of(&(envelope, ())))?;
    put("forward", "forward", postcard_of(&(envelope, vec![Command::PutPool(Pool::standard())])))?;
    // One entry without commands: its log id, and the first kind of payload.
    let entries = vec![(((3_u64, 1_u64), 42_u64), 0_u8)];
    put("append", "append", postcard_of(&(envelope, vote, last, entries, last)))?;
    put("snapshot-frame", "snapshot-frame", postcard_of(&(0_u8, 1_u8, vec![(vec![1_u8, 2], vec![3_u8])])))?;
    put("snapshot-frame", "snapshot-end", postcard_of(&(1_u8, u64::MAX)))?;
    put("snapshot-frame", "pairs-that-are-not-there", vec![0, 1, 0xff, 0xff, 0xff, 0xff, 0x0f])
}

/// Parts of a history, an exported audit, a copy of the state.
fn exports(corpus: &Corpus<'_>) -> Result<()> {
    let objects: Vec<Vec<u8>> = objects().iter().map(|(_, object)| object_bytes(object)).collect();
    let state = v1::CopyHistoryPart {
        revision: 12,
        now_ms: NOW_MS,
        state: true,
        objects: objects.clone(),
        ..Default::default()
    };
    let change = v1::CopiedChange { change: Some(v1::copied_change::Change::Put(objects[0].clone())) };
    let next = v1::CopyHistoryPart { revision: 13, now_ms: NOW_MS + 5, changes: vec![change], ..Default::default() };
    let end = v1::CopyHistoryPart { now_ms: NOW_MS + 9, end: true, ..Default::default() };
    let parts = |parts: &[&v1::CopyHistoryPart]| {
        parts.iter().flat_map(|part| part.encode_length_delimited_to_vec()).collect::<Vec<u8>>()
    };
    corpus.put("event-export", "state-change-end", &parts(&[&state, &next, &end]))?;
    corpus.put("event-export", "gap", &parts(&[&state, &v1::CopyHistoryPart { revision: 15, ..next.clone() }]))?;
    let (last, after) =
        (v1::CopyHistoryPart { revision: u64::MAX, ..state.clone() }, v1::CopyHistoryPart { revision: 0, ..next });
    corpus.put("event-export", "last-number", &parts(&[&last, &after]))?;
    corpus.put("event-export", "state-after-the-last-number", &parts(&[&last, &state]))?;
    let mut head =
        format!("{{\"muster_state\":1,\"revision\":12,\"now_ms\":{NOW_MS},\"objects\":{}}}\n", objects.len())
            .into_bytes();
    for object in objects.iter().map(|object| sealed(object)) {
        head.extend((object.len() as u32).to_le_bytes());
        head.extend(object);
    }
    corpus.put("state-file", "good", &head)?;
    corpus.put("state-file", "cut", &head[..head.len() - 1])?;
    corpus.put(
        "state-file",
        "many-objects",
        format!("{{\"muster_state\":1,\"revision\":1,\"now_ms\":1,\"objects\":{}}}\n", u64::MAX).as_bytes(),
    )?;
    let mut records: Vec<AuditRecord> = Vec::new();
    for number in 1..=3 {
        let before = records.last().map_or([0; 32], |last| last.hash);
        records.push(record(number, &before));
    }
    let lines = |records: &[AuditRecord]| -> String {
        json_lines(&records.iter().filter_map(|record| Outgoing::new(record).ok()).collect::<Vec<_>>())
    };
    corpus.put("audit-file", "three", lines(&records).as_bytes())?;
    corpus.put("audit-file", "signed", format!("{}{}", lines(&records), signed_line(&records[2])).as_bytes())?;
    corpus.put(
        "audit-file",
        "last-number",
        lines(&[record(u64::MAX - 1, &[0; 32]), record(u64::MAX, &[0; 32])]).as_bytes(),
    )?;
    corpus.put("audit-file", "torn", &lines(&records).as_bytes()[..700])
}

/// The line of a signed head behind a record; its signature and certificates are not looked into.
fn signed_line(record: &AuditRecord) -> String {
    let chain = [2_u8, 3].iter().filter_map(|byte| Certificate::from_bytes(vec![*byte; 8]).ok()).collect();
    let signed = Signed { signature: vec![1; 8], chain };
    let head = Head { number: record.number, hash: record.hash };
    let line = SignedHead { head, at_ms: record.at_ms, signed }.outgoing();
    json_lines(&line.into_iter().collect::<Vec<_>>())
}

fn tokens(corpus: &Corpus<'_>) -> Result<()> {
    let secret = "0123456789abcdef".repeat(4);
    for (name, text) in ["session", "token"].iter().zip(credential_texts(&Credential::OfCaller(17, &secret))) {
        corpus.put("credential", name, text.as_bytes())?;
    }
    let join = credential_texts(&Credential::OfMachine(17, &secret));
    corpus.put("credential", "join", join[0].as_bytes())?;
    // The target puts the checksum under these.
    corpus.put("credential", "leading-zero", format!("ms1_017_{secret}").as_bytes())?;
    corpus.put("credential", "sign", format!("ms1_+17_{secret}").as_bytes())?;
    corpus.put("credential", "short-secret", format!("ms1_17_{}", &secret[1..]).as_bytes())?;
    corpus.put("page-token", "good", format!("tenant=research\n{}", page_token("tenant=research", "17")).as_bytes())?;
    corpus.put(
        "page-token",
        "of-another-question",
        format!("tenant=ads\n{}", page_token("tenant=research", "17")).as_bytes(),
    )
}

/// Certificates have keys that are drawn, so those that are there stay.
fn certificates(corpus: &Corpus<'_>) -> Result<()> {
    if corpus.has("certificate", "machine") {
        return Ok(());
    }
    let name = MachineName::new("c1", Role::Node("gpu-1".to_owned()));
    let made = name.and_then(|name| {
        let root = new_root(&X509, "c1", NOW_MS)?;
        let (issuer_key, key) = (X509.new_key()?, X509.new_key()?);
        let asked = X509.request(&issuer_key, &Subject::Issuer { cluster: "c1".to_owned(), id: 1 })?;
        let certificate = sign_issuer(&X509, &root, &asked, 1, NOW_MS)?;
        let issuer = muster_runtime::pki::Authority::new(&X509, issuer_key, certificate)?;
        let request = X509.request(&key, &Subject::Machine(name.clone()))?;
        let machine = sign_machine(&X509, &issuer, &request, &name, NOW_MS)?;
        let roots = Roots::new(&X509, vec![root.certificate().clone()])?;
        let endpoints = vec!["control-1:7400".to_owned(), "10.0.0.2:7400".to_owned()];
        let join = JoinFile { token: "mj1_7_secret_00000000".to_owned(), endpoints, roots };
        Ok((root, issuer, machine, request, join))
    });
    let (root, issuer, machine, request, join) = made.map_err(std::io::Error::other)?;
    corpus.put("certificate", "root", root.certificate().bytes())?;
    corpus.put("certificate", "issuer", issuer.certificate().bytes())?;
    corpus.put("certificate", "machine", machine.bytes())?;
    corpus.put("certificate-request", "machine", &request)?;
    corpus.put("certificate-request", "cut", &request[..request.len() / 2])?;
    corpus.put("join-file", "good", join.text("for node gpu-1").as_bytes())
}
