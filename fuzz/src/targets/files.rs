//! Files that people give to the command, and that it writes and reads again.
//!
//! What must stay true: what a file says is a message that a control node can read; what was exported is read as it was.

use super::{json_readable, scratch, text_of, wire};
use crate::target::{Target, reached};
use muster_cli::audit_export::chain::follow;
use muster_cli::audit_export::file::{AuditFile, Next, Records};
use muster_cli::audit_export::{Line, Outgoing, SignedHead};
use muster_cli::commands::state;
use muster_cli::config::Config;
use muster_cli::demo::record;
use muster_cli::spec::job::JobText;
use muster_cli::spec::node::SimulatedNode;
use muster_cli::spec::{classes, pools, priority_classes, tenants, windows};
use muster_gpu_double::{FaultPlan, Fleet};
use std::path::PathBuf;

/// A file's name in messages.
const NAME: &str = "input";
const NOW_MS: u64 = 1_700_000_000_000;

/// See the module.
pub const TARGETS: &[Target] = &[
    Target {
        name: "job-file",
        what: "a job file: its jobs are messages that can be read, and are sent as they were",
        words: &[
            "tenant: ",
            "gpus: ",
            "tasks: ",
            "array: ",
            "env: {A: b}",
            "mig: 1g.10gb",
            "---\n",
            "command: [a]\n",
            "&a",
            "*a",
            "!!str",
            "\n",
            "  ",
            "- ",
            "{",
            "[",
        ],
        reaches: &["JobSpec", "valid job"],
        run: job_file,
    },
    Target {
        name: "tenant-file",
        what: "a tree of tenants: its edits are messages that can be read",
        words: &[
            "guarantee: ",
            "max: ",
            "teams:",
            "weight: ",
            "half-life: ",
            "{h100: 8}",
            "null",
            "anti-affinity: ",
            "run-as: ",
            "\n  ",
            "&a",
            "*a",
        ],
        reaches: &["TenantEdit", "valid edit"],
        run: tenant_file,
    },
    Target {
        name: "fleet-files",
        what: "pools, classes of devices and of priority, windows, nodes, the configuration",
        words: &[
            "name: ",
            "modes: ",
            "kind: maintenance",
            "start: now",
            "end: now+1h",
            "selector: ",
            "model: h100",
            "endpoints: ",
            "labels: ",
            "---\n",
            "\n",
        ],
        reaches: &["valid pool", "valid device class", "priority class", "valid window", "node", "configuration"],
        run: fleet_files,
    },
    Target {
        name: "audit-file",
        what: "an exported audit: records and signed heads are written as they were read, and a file is continued where it ends",
        words: &[
            "{\"number\":1,",
            "{\"signed_head\":",
            "\"time\":\"2023-11-14T22:13:20.001Z\"",
            "\"hash\":\"",
            "\"principal\":\"",
            "18446744073709551615",
            "\n",
            "\\u0000",
        ],
        reaches: &["record", "record that follows", "signed head", "signed head in its place", "torn line"],
        run: audit_file,
    },
    Target {
        name: "state-file",
        what: "a copy of the state: whole or refused",
        words: &["{\"muster_state\":1,", "\"objects\":", "\n"],
        reaches: &["copy"],
        run: state_file,
    },
    Target {
        name: "double-files",
        what: "fleet files, recordings and fault files of the double of NVML; lines of the demonstration's tasks",
        words: &["\"cards\":[", "\"driver_version\":", "\"rules\":[", "null", "{}", "start 1 0 1 0.5\n"],
        reaches: &["Fleet", "FaultPlan", "lines"],
        run: double_files,
    },
];

fn job_file(bytes: &[u8]) {
    const JOBS: usize = 20;
    let Some(text) = text_of(bytes) else { return };
    let Ok(jobs) = JobText::parse(text, NAME) else { return };
    for job in jobs.into_iter().take(JOBS) {
        let same = job.clone().overlaid(&JobText::default());
        assert_eq!(same, job, "flags that say nothing change a job");
        if let Some(message) = job.into_specs().ok().and_then(|specs| specs.into_iter().next()) {
            wire::job(message);
        }
    }
}

fn tenant_file(bytes: &[u8]) {
    let Some(text) = text_of(bytes) else { return };
    let Ok(tree) = tenants::parse(text, NAME) else { return };
    tree.edits.into_iter().for_each(wire::tenant_edit);
}

fn fleet_files(bytes: &[u8]) {
    let Some(text) = text_of(bytes) else { return };
    pools::parse(text, NAME).unwrap_or_default().into_iter().for_each(wire::pool);
    classes::parse(text, NAME).unwrap_or_default().into_iter().for_each(wire::device_class);
    priority_classes::parse(text, NAME).unwrap_or_default().into_iter().for_each(wire::priority_class);
    windows::parse(text, NAME, NOW_MS).unwrap_or_default().into_iter().for_each(|(window, _)| wire::window(window));
    if let Ok(node) = SimulatedNode::parse(text, NAME) {
        reached("node");
        assert_eq!(node.cards().len(), node.gpus as usize);
    }
    if Config::parse(text, NAME).is_ok() {
        reached("configuration");
    }
}

/// A file with these bytes, for parsers that take a path.
fn file_of(bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let folder = scratch();
    let path = folder.path().join("input");
    std::fs::write(&path, bytes).expect("a file");
    (folder, path)
}

fn audit_file(bytes: &[u8]) {
    for line in bytes.split(|byte| *byte == b'\n') {
        if let Ok(signed) = SignedHead::parse(line) {
            reached("signed head");
            let written = signed.outgoing().unwrap_or_else(|error| panic!("what was read cannot be written: {error}"));
            assert_eq!(SignedHead::parse(written.json.as_bytes()).ok(), Some(signed), "{}", written.json);
        }
        let Ok(record) = Line::parse(line) else { continue };
        reached("record");
        let written = Outgoing::new(&record).unwrap_or_else(|error| panic!("what was read cannot be written: {error}"));
        let again = Line::parse(written.json.as_bytes()).unwrap_or_else(|error| panic!("{}: {error}", written.json));
        assert_eq!(again, record, "{}", written.json);
    }
    let (_folder, path) = file_of(bytes);
    let mut records = Records::open(&path).expect("the file is there");
    let mut last = None;
    loop {
        match records.read() {
            Ok(Next::Record(record)) => {
                let Ok(head) = follow(last, &record) else { break };
                if last.is_some() {
                    reached("record that follows");
                }
                last = Some(head);
            }
            Ok(Next::Signed(signed)) if last == Some(signed.head) => reached("signed head in its place"),
            _ => break,
        }
    }
    if let Ok((file, head, torn)) = AuditFile::open(&path) {
        drop(file);
        if torn > 0 {
            reached("torn line");
        }
        let whole = std::fs::read(&path).expect("the file is there");
        assert_eq!(whole.len() as u64 + torn, bytes.len() as u64, "more was cut off than was said");
        assert!(bytes.starts_with(&whole) && (whole.is_empty() || whole.ends_with(b"\n")));
        let (_, again, torn) = AuditFile::open(&path).expect("it was opened before");
        assert_eq!((again, torn), (head, 0), "what is whole stays as it is");
    }
}

fn state_file(bytes: &[u8]) {
    let (_folder, path) = file_of(bytes);
    if let Ok(copy) = state::read(&path)
        && copy.objects(NAME).is_ok()
    {
        reached("copy");
    }
}

fn double_files(bytes: &[u8]) {
    json_readable::<Fleet>(bytes);
    json_readable::<FaultPlan>(bytes);
    if let Some(text) = text_of(bytes)
        && record::parse(text).is_ok()
    {
        reached("lines");
    }
}
