//! The layout of everything that is stored or sent between control nodes, form by form, as a text.
//!
//! A changed layout changes the text. What must stay true: the text of a form that a version of muster has written never changes. Whoever adds a
//! field or a variant names it in [`super::SINCE`] with the next form, and gives that form a text of its own.

use super::{NEWEST, OLDEST, since, since_in};
use crate::consensus::log::Identity;
use crate::consensus::peer::{Heartbeat, HeartbeatAnswer, Identified, PreVote, PreVoteAnswer};
use crate::consensus::snapshot::Frame;
use crate::consensus::types::{Batch, LogId, Member, Types, Vote};
use crate::consensus::{PeerRefusal, ProposeError};
use muster_control_core::authz::Denied;
use muster_control_core::{Command, Decided, Done, GrowthFault, Reject, VictimFault};
use muster_model::allocation::{AllocationState, EndCause};
use muster_model::identity::{
    AccessMode, AuditRecord, CredentialKind, MachineRole, MachineStanding, Principal, Role, Subject,
};
use muster_model::job::{JobPhase, Outcome};
use muster_model::mig::MigShape;
use muster_model::needs::{Isolation, Rule};
use muster_model::request::{DeviceRequest, SharingMode};
use muster_model::resources::Resource;
use muster_model::sharing::TimeSlice;
use muster_model::start::{DependencyKind, Holder};
use muster_model::task::{HoldMode, TaskEnd, TaskState};
use muster_model::tenant::{AntiAffinityLevel, Trust};
use muster_model::topology::{NumaPolicy, TopologyLevel};
use muster_model::workload::WorkloadClass;
use muster_model::{
    BurstTier, Change, GpuModel, Key, MoveFate, NodeHealth, Object, PreemptReason, QuotaClass, Selector, StopSignal,
    WindowKind,
};
use serde_reflection::{ContainerFormat, Format, Named, Registry, Samples, Tracer, TracerConfig, VariantFormat};
use std::collections::BTreeSet;
use std::fmt::Write as _;

const STACK_BYTES: usize = 256 << 20;

/// Layouts are followed by recursion, which in a build for tests takes more than a test's stack.
fn on_a_large_stack(test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(test).expect("a thread");
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Selectors that have every kind of part between them.
const SELECTORS: [&str; 3] = [
    "device.model == \"h100\" && device.memory_mib == 1 && device.memory_mib < 2 && device.memory_mib <= 3 && device.memory_mib > 4",
    "device.driver >= version(\"550.54\") || !(node.name in [\"a\"]) || node.pool == \"b\" || node.region == \"c\" || node.zone == \"d\"",
    "node.block == \"e\" && node.leaf == \"f\" && node.labels[\"g\"] == \"h\" && \"i\" in node.labels && device.cuda >= version(\"12.4\")",
];

/// Every layout that there is now, and the names of those that are stored or sent by themselves.
fn registry() -> (Registry, Vec<String>) {
    // Texts that are read back as something are names of models.
    let config = TracerConfig::default().default_string_value(GpuModel::H100.to_string());
    let mut tracer = Tracer::new(config);
    let mut samples = Samples::new();
    // A selector is a tree, which cannot be followed to its end: these have every kind of part.
    for selector in SELECTORS {
        let selector: Selector = selector.parse().expect("a selector");
        tracer.trace_value(&mut samples, &selector).expect("a selector is stored");
    }
    let mut whole = Vec::new();
    macro_rules! trace {
        ($($type:ty),* $(,)?) => {
            $(
                let (format, _) = tracer.trace_type::<$type>(&samples).expect(stringify!($type));
                named(&format, &mut whole);
            )*
        };
    }
    trace!(
        Object,
        Change,
        Command,
        Batch,
        Decided,
        openraft::EntryPayload<Types>,
        LogId,
        Vote,
        Member,
        Identity,
        Frame
    );
    trace!(Heartbeat, HeartbeatAnswer, PreVote, PreVoteAnswer, Identified, PeerRefusal, ProposeError);
    // Not its request: it holds an `Entry` of openraft around one of ours, and layouts are known by their names.
    trace!(openraft::raft::AppendEntriesResponse<u64>);
    trace!(openraft::raft::VoteRequest<u64>, openraft::raft::VoteResponse<u64>);
    trace!(openraft::SnapshotMeta<u64, Member>, openraft::StoredMembership<u64, Member>);
    let roots = std::mem::take(&mut whole);
    // An enum inside of others shows one variant only, unless it is asked for by itself.
    trace!(
        AllocationState,
        AntiAffinityLevel,
        BurstTier,
        DependencyKind,
        DeviceRequest,
        Done,
        Holder,
        HoldMode,
        Isolation,
        JobPhase,
        Key,
        MigShape,
        NodeHealth,
        NumaPolicy
    );
    trace!(EndCause, GrowthFault, MoveFate, Outcome, PreemptReason, QuotaClass, Reject, Resource, Result<Done, Reject>, Rule, SharingMode, StopSignal, TaskEnd, TaskState, TimeSlice, TopologyLevel, Trust, VictimFault, WindowKind, WorkloadClass);
    trace!(AccessMode, AuditRecord, CredentialKind, Denied, MachineRole, MachineStanding, Principal, Role, Subject);
    // Not `Edit`, which is one layout for each thing that can be edited.
    let missing = tracer.registry_unchecked();
    (missing.into_iter().filter(|(name, _)| name != "Edit").collect(), roots)
}

/// Adds the names of the layouts that a format is made of.
fn named(format: &Format, names: &mut Vec<String>) {
    match format {
        Format::TypeName(name) => names.push(name.clone()),
        Format::Option(inner) | Format::Seq(inner) | Format::TupleArray { content: inner, .. } => named(inner, names),
        Format::Map { key, value } => [key, value].into_iter().for_each(|one| named(one, names)),
        Format::Tuple(all) => all.iter().for_each(|one| named(one, names)),
        _ => {}
    }
}

/// The layouts that can occur in a form: what came later is not among them, so that it does not change the form's text.
fn reached(registry: &Registry, roots: &[String], form: u8) -> BTreeSet<String> {
    let (mut found, mut next) = (BTreeSet::new(), roots.to_vec());
    while let Some(name) = next.pop() {
        let Some(container) = registry.get(&name).filter(|_| found.insert(name.clone())) else { continue };
        match container {
            ContainerFormat::UnitStruct => {}
            ContainerFormat::NewTypeStruct(inner) => named(inner, &mut next),
            ContainerFormat::TupleStruct(all) => all.iter().for_each(|one| named(one, &mut next)),
            ContainerFormat::Struct(fields) => {
                fields
                    .iter()
                    .filter(|field| since(&name, &field.name) <= form)
                    .for_each(|field| named(&field.value, &mut next));
            }
            ContainerFormat::Enum(variants) => {
                for variant in variants.values().filter(|variant| since(&name, &variant.name) <= form) {
                    match &variant.value {
                        VariantFormat::NewType(inner) => named(inner, &mut next),
                        VariantFormat::Tuple(all) => all.iter().for_each(|one| named(one, &mut next)),
                        VariantFormat::Struct(fields) => fields
                            .iter()
                            .filter(|field| since_in(&name, &variant.name, &field.name) <= form)
                            .for_each(|field| named(&field.value, &mut next)),
                        _ => {}
                    }
                }
            }
        }
    }
    found
}

/// The layouts in one form.
fn text((registry, roots): &(Registry, Vec<String>), form: u8) -> String {
    let mut out = String::new();
    let reached = reached(registry, roots, form);
    for (name, container) in registry.iter().filter(|(name, _)| reached.contains(*name)) {
        let _ = match container {
            ContainerFormat::UnitStruct => writeln!(out, "{name}: nothing"),
            ContainerFormat::NewTypeStruct(inner) => writeln!(out, "{name}: {}", show(inner)),
            ContainerFormat::TupleStruct(all) => writeln!(out, "{name}: ({})", list(all)),
            ContainerFormat::Struct(fields) => {
                let _ = writeln!(out, "{name}:");
                show_fields(&mut out, "  ", fields, |field| since(name, field) <= form);
                Ok(())
            }
            ContainerFormat::Enum(variants) => {
                let _ = writeln!(out, "{name}: one of");
                for (index, variant) in variants {
                    if since(name, &variant.name) <= form {
                        show_variant(&mut out, name, *index, variant, form);
                    }
                }
                Ok(())
            }
        };
    }
    out
}

fn show_variant(out: &mut String, of: &str, index: u32, variant: &Named<VariantFormat>, form: u8) {
    let name = &variant.name;
    let _ = match &variant.value {
        VariantFormat::Unit => writeln!(out, "  {index} {name}"),
        VariantFormat::NewType(inner) => writeln!(out, "  {index} {name}: {}", show(inner)),
        VariantFormat::Tuple(all) => writeln!(out, "  {index} {name}: ({})", list(all)),
        VariantFormat::Struct(fields) => {
            let _ = writeln!(out, "  {index} {name}:");
            show_fields(out, "    ", fields, |field| since_in(of, name, field) <= form);
            Ok(())
        }
        VariantFormat::Variable(_) => writeln!(out, "  {index} {name}: ?"),
    };
}

fn show_fields(out: &mut String, indent: &str, fields: &[Named<Format>], has: impl Fn(&str) -> bool) {
    for field in fields.iter().filter(|field| has(&field.name)) {
        let _ = writeln!(out, "{indent}{}: {}", field.name, show(&field.value));
    }
}

fn list(all: &[Format]) -> String {
    all.iter().map(show).collect::<Vec<_>>().join(", ")
}

fn show(format: &Format) -> String {
    match format {
        Format::TypeName(name) => name.clone(),
        Format::Option(inner) => format!("{}?", show(inner)),
        Format::Seq(inner) => format!("[{}]", show(inner)),
        Format::Map { key, value } => format!("{{{}: {}}}", show(key), show(value)),
        Format::Tuple(all) => format!("({})", list(all)),
        Format::TupleArray { content, size } => format!("[{}; {size}]", show(content)),
        plain => format!("{plain:?}").to_lowercase(),
    }
}

#[test]
fn the_layout_of_a_form_never_changes() {
    on_a_large_stack(|| {
        let registry = registry();
        for form in OLDEST..=NEWEST {
            insta::with_settings!({
                description => "A form that has been written stays as it is: name what is new in forms::SINCE instead of accepting a change.",
                omit_expression => true,
            }, {
                insta::assert_snapshot!(format!("form-{form}"), text(&registry, form));
            });
        }
    });
}

#[test]
fn what_is_named_exists() {
    on_a_large_stack(|| {
        let (registry, _) = registry();
        for (of, name, form) in super::SINCE {
            assert!(exists(&registry, of, name), "{of}.{name} of form {form} is not stored or sent at all");
            assert!((OLDEST + 1..=NEWEST).contains(form), "{of}.{name}: there is no form {form}");
        }
    });
}

fn exists(registry: &Registry, of: &str, name: &str) -> bool {
    let (container, variant) = of.split_once("::").map_or((of, None), |(of, variant)| (of, Some(variant)));
    let has = |fields: &[Named<Format>]| fields.iter().any(|field| field.name == name);
    match registry.get(container) {
        Some(ContainerFormat::Struct(fields)) => has(fields),
        Some(ContainerFormat::Enum(variants)) => variants.values().any(|known| match (&known.value, variant) {
            (VariantFormat::Struct(fields), Some(variant)) => known.name == variant && has(fields),
            (_, None) => known.name == name,
            _ => false,
        }),
        _ => false,
    }
}
