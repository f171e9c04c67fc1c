//! Texts that people and machines write in one line: selectors, amounts, names, words.
//!
//! What must stay true: what is read is shown as a text that is read as the same.

use super::{read_again, text_of};
use crate::target::{Target, reached};
use muster_cli::audit_export::destination::Destination;
use muster_cli::output::neutral::{neutral, on_one_line};
use muster_cli::spec::{moment_at, names, needs::NeedsText};
use muster_cli::units;
use muster_model::array::{ARRAY_INDEX_MAX, ARRAY_TASKS_MAX};
use muster_model::bounds::JOIN_TOKEN_NAMES_MAX;
use muster_model::checkpoint::{self, NOTE_BYTES_MAX};
use muster_model::identity::{AccessMode, Enrolment, MachineRole, Role, Subject};
use muster_model::resources::Resource;
use muster_model::{
    DriverVersion, GpuModel, ImageRef, IndexSet, JobId, NumaPolicy, Principal, Selector, StopSignal, TopologyLevel,
    WorkloadClass, mig,
};
use muster_node_core::TaskKey;

/// See the module.
pub const TARGETS: &[Target] = &[
    Target {
        name: "selector",
        what: "a selector: shown and read again; also both of two",
        words: &[
            "device.model",
            "device.memory_mib",
            "device.driver",
            "device.cuda",
            "node.labels[\"",
            "\"]",
            "node.pool",
            "\"h100\"",
            "version(\"550.54\")",
            "==",
            "!=",
            "<=",
            "&&",
            "||",
            "!",
            "(",
            ")",
            "in",
            "in node.labels",
            "[\"a\", \"b\"]",
            "\\\"",
            "'",
        ],
        reaches: &["Selector", "both"],
        run: selector,
    },
    Target {
        name: "array",
        what: "indices of an array: sound, bounded, shown and read again",
        words: &[",", "-", ":", "0-9", "0-999999:100", "999999"],
        reaches: &["IndexSet"],
        run: array,
    },
    Target {
        name: "amount",
        what: "durations, sizes, CPUs, GPUs, moments: written exactly and read again; no sign",
        words: &[
            "h",
            "m",
            "s",
            "d",
            ":",
            "-",
            "Mi",
            "Gi",
            "KiB",
            "Ti",
            ".",
            "/7",
            " units",
            "now+",
            "2026-11-23",
            "T16:00",
            "Z",
            "+",
        ],
        reaches: &["duration", "size", "CPUs", "GPUs", "moment"],
        run: amount,
    },
    Target {
        name: "names",
        what: "ranges of names, one pattern a line: each name once, in order, bounded",
        words: &["[", "]", "-", "[001-100]", "gpu", "\n"],
        reaches: &["names"],
        run: name_ranges,
    },
    Target {
        name: "word",
        what: "words of closed lists, versions, signals, ids: shown and read again",
        words: &["h100", "a100-80", "gpu.h100", "SIGUSR1", "550.54.15", "leaf", "interactive", "12.3", "."],
        reaches: &["GpuModel", "DriverVersion", "StopSignal", "Resource", "TopologyLevel", "JobId", "TaskKey"],
        run: word,
    },
    Target {
        name: "principal",
        what: "who acts, and who is granted something: one text each",
        words: &["user:", "service:", "group:", "node:", "shard:", "member:", "/", ":", "anonymous", "system"],
        reaches: &["Principal", "Subject"],
        run: principal,
    },
    Target {
        name: "image-name",
        what: "names of images: no path that leads up or is not absolute",
        words: &["docker://", "oci:", "dir:", "@sha256:", "..", "/", ":", "docker.io/library/python:3.13"],
        reaches: &["path", "registry"],
        run: image_name,
    },
    Target {
        name: "mig-profile",
        what: "names of MIG profiles: the form that is kept means the same",
        words: &["1g.10gb", "3g.40gb", "+me", ".me", "nvidia.com/mig-", "MIG-", "g.", "gb"],
        reaches: &["profile"],
        run: mig_profile,
    },
    Target {
        name: "option",
        what: "needs of a job, destinations of an export",
        words: &[
            "memory=",
            "compute=",
            "isolation=strict",
            "bursty",
            ",",
            "file:",
            "syslog:",
            "https://",
            "http://127.0.0.1",
            "[::1]",
            ":601",
        ],
        reaches: &["needs", "destination"],
        run: option,
    },
    Target {
        name: "note",
        what: "what tasks say, as it is kept and shown: one line, bounded, nothing that a terminal obeys",
        words: &["\u{1b}[2J", "\u{202e}", "\r\n", "\u{9b}", "\0", " ", "\u{e9}"],
        reaches: &["note"],
        run: note,
    },
];

fn selector(bytes: &[u8]) {
    let Some(selector) = text_of(bytes).and_then(read_again::<Selector>) else { return };
    if let Ok(both) = selector.and(&selector) {
        reached("both");
        assert!(
            read_again::<Selector>(&both.to_string()).is_some(),
            "{both} was made of {selector} twice and is refused"
        );
    }
}

fn array(bytes: &[u8]) {
    let Some(set) = text_of(bytes).and_then(read_again::<IndexSet>) else { return };
    assert!(set.is_sound() && !set.is_empty() && set.len() <= ARRAY_TASKS_MAX, "{set}");
    assert!(set.iter().all(|index| index <= ARRAY_INDEX_MAX && set.contains(index)), "{set}");
}

fn amount(bytes: &[u8]) {
    const NOW_MS: u64 = 1_700_000_000_000;
    let Some(text) = text_of(bytes) else { return };
    if moment_at("begin", text, NOW_MS).is_ok() {
        reached("moment");
    }
    // Whoever sees a sign expects a difference.
    let without_sign = |what: &str| assert!(!text.contains('+'), "{text:?} is read as {what}");
    if let Ok(read) = units::seconds(text) {
        reached("duration");
        without_sign("a duration");
        assert_eq!(units::seconds(&units::show_seconds(read)), Ok(read), "{text:?}");
    }
    if let Ok(read) = units::mebibytes(text) {
        reached("size");
        without_sign("a size");
        assert_eq!(units::mebibytes(&units::exact_mebibytes(read)), Ok(read), "{text:?}");
    }
    if let Ok(read) = units::milli_cpus(text) {
        reached("CPUs");
        without_sign("CPUs");
        assert_eq!(units::milli_cpus(&format!("{read}m")), Ok(read), "{text:?}");
    }
    if let Ok(read) = units::gpu_units(text) {
        reached("GPUs");
        without_sign("GPUs");
        assert_eq!(units::gpu_units(&units::exact_cards(read.0)), Ok(read), "{text:?}");
    }
}

fn name_ranges(bytes: &[u8]) {
    let Some(text) = text_of(bytes) else { return };
    let written: Vec<String> = text.lines().map(str::to_owned).collect();
    if let Ok(all) = names::names("names", &written) {
        reached("names");
        assert!(all.len() <= JOIN_TOKEN_NAMES_MAX, "{} names", all.len());
        assert!(all.is_sorted_by(|one, next| one < next), "{text:?} has a name twice");
    }
}

fn word(bytes: &[u8]) {
    let Some(text) = text_of(bytes) else { return };
    read_again::<GpuModel>(text);
    read_again::<DriverVersion>(text);
    read_again::<StopSignal>(text);
    read_again::<Resource>(text);
    read_again::<TopologyLevel>(text);
    read_again::<NumaPolicy>(text);
    read_again::<WorkloadClass>(text);
    read_again::<Role>(text);
    read_again::<Enrolment>(text);
    read_again::<MachineRole>(text);
    read_again::<AccessMode>(text);
    read_again::<JobId>(text);
    if let Some(key) = read_again::<TaskKey>(text) {
        assert_eq!(key.to_string(), text, "a folder of tasks has one name");
    }
    if let Some(reported) = DriverVersion::reported(text) {
        assert!(read_again::<DriverVersion>(&reported.to_string()).is_some());
    }
}

fn principal(bytes: &[u8]) {
    let Some(text) = text_of(bytes) else { return };
    if let Some(read) = read_again::<Principal>(text) {
        assert_eq!(read.to_string(), text, "a principal has one text");
    }
    if let Some(read) = read_again::<Subject>(text) {
        assert_eq!(read.to_string(), text);
    }
}

fn image_name(bytes: &[u8]) {
    let Some(text) = text_of(bytes) else { return };
    match ImageRef::parse(text) {
        Ok(ImageRef::Folder { path } | ImageRef::Layout { path, .. }) => {
            reached("path");
            assert!(path.starts_with('/') && path.split('/').all(|part| part != ".."), "{path}");
        }
        // It is a word on the command line of another program.
        Ok(ImageRef::Registry { name, version }) => {
            reached("registry");
            let plain = |c: char| c.is_ascii_graphic();
            assert!(name.chars().chain(version.chars()).all(plain), "{name}{version}");
        }
        Err(_) => {}
    }
}

fn mig_profile(bytes: &[u8]) {
    let Some(text) = text_of(bytes) else { return };
    let kept = mig::canonical_profile(text);
    assert_eq!(mig::canonical_profile(&kept), kept, "{text:?}");
    for model in GpuModel::ALL {
        let shape = mig::parse_profile(model, text);
        assert_eq!(
            mig::parse_profile(model, &kept),
            shape,
            "{text:?} is kept as {kept:?}, which is another profile of {model}"
        );
        if shape.is_some() {
            reached("profile");
        }
        let shown = shape.and_then(|shape| mig::profile_name(model, shape));
        assert_eq!(shown.and_then(|name| mig::parse_profile(model, &name)), shape, "{text:?} on {model}");
    }
}

fn option(bytes: &[u8]) {
    let Some(text) = text_of(bytes) else { return };
    if text.parse::<NeedsText>().is_ok() {
        reached("needs");
    }
    if let Ok(destination) = Destination::parse(text) {
        reached("destination");
        assert!(!destination.name().is_empty(), "{text:?}");
    }
}

fn note(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let kept = checkpoint::note(&text);
    if !kept.is_empty() {
        reached("note");
    }
    assert!(kept.len() <= NOTE_BYTES_MAX && !kept.chars().any(char::is_control), "{kept:?}");
    assert_eq!(checkpoint::note(&kept), kept, "keeping it again changes it");
    let is_plain = |c: char| matches!(c, '\n' | '\t') || !c.is_control();
    assert!(neutral(&text).chars().all(is_plain), "{text:?}");
    assert!(!on_one_line(&text).contains(['\n', '\r', '\u{1b}']), "{text:?}");
}
