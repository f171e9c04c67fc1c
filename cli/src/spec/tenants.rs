//! The quota tree as an operator writes it: nested as it is, GPUs in cards.
//!
//! ```yaml
//! half-life: 7d     # of past use, for the whole fleet; 0 turns it off
//! research:
//!   guarantee: {h100: 8}
//!   max: {h100: 16, cpus: 512, memory: 4Ti}
//!   weight: 2                             # or by resource: {default: 2, h100: 3}
//!   teams:
//!     nlp: {guarantee: {h100: 4}}
//!     vision: {max: {h100: 8}, trust: untrusted, lend: no, run-as: 5001}
//!   anti-affinity: {ads: node, search/ranking: card}    # or island; measured to disturb each other
//! ```
//!
//! What must stay true: a file changes what it names; `null` removes, and leaving out never does.

use crate::failure::Failure;
use crate::spec::scalar::Scalar;
use crate::spec::yaml;
use crate::units;
use muster_model::FieldError;
use muster_model::validate::bounds::TENANT_DEPTH_MAX;
use muster_proto::v1;
use serde::Deserialize;
use serde_yaml_ng::{Mapping, Value};

/// The keys of one tenant.
pub const KEYS: &[&str] =
    &["guarantee", "max", "weight", "trust", "lend", "run-as", "anti-affinity", "teams", "children"];

/// The key of the half-life of past use, beside the organisations. With anything but an amount of time it is the name of a tenant.
const HALF_LIFE: &str = "half-life";

/// What a file says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TreeFile {
    /// Every tenant with what changes of it, parents before their children.
    pub edits: Vec<v1::TenantEdit>,
    /// The half-life of past use, if it names one.
    pub half_life_s: Option<u64>,
}

/// Reads a file.
///
/// # Errors
/// Everything that is wrong, each named by the tenant's path and the key.
pub fn parse(text: &str, name: &str) -> Result<TreeFile, Failure> {
    let mut found = Vec::new();
    let mut half_life_s = None;
    let mut faults = Vec::new();
    for document in serde_yaml_ng::Deserializer::from_str(text) {
        let value = Value::deserialize(document).map_err(|error| Failure::from(vec![yaml::not_yaml(name, &error)]))?;
        match value {
            Value::Null => {}
            Value::Mapping(mut tree) => {
                if tree.get(HALF_LIFE).is_some_and(|value| !value.is_null() && !value.is_mapping()) {
                    half_life_s = tree.remove(HALF_LIFE).and_then(|written| half_life(&written, &mut faults));
                }
                walk(&tree, "", 1, &mut found, &mut faults);
            }
            _ => faults.push(FieldError::new(name, "is not a tree of tenants", "write `name: {guarantee: {h100: 8}}`")),
        }
    }
    if !faults.is_empty() {
        return Err(Failure::from(faults));
    }
    if found.is_empty() && half_life_s.is_none() {
        return Err(Failure::field(name, "has no tenant", "write at least `research: {}`"));
    }
    Ok(TreeFile { edits: found, half_life_s })
}

/// `7d`, or 0 or `off`.
fn half_life(written: &Value, faults: &mut Vec<FieldError>) -> Option<u64> {
    let text = Scalar::deserialize(written.clone()).map(|scalar| scalar.0).unwrap_or_default();
    if text == "0" || text == "off" {
        return Some(0);
    }
    let found = units::seconds(&text);
    found.map_err(|error| faults.push(FieldError::new(HALF_LIFE, error.problem, error.fix))).ok()
}

fn walk(tree: &Mapping, above: &str, level: usize, found: &mut Vec<v1::TenantEdit>, faults: &mut Vec<FieldError>) {
    for (key, value) in tree {
        let Some(name) = Scalar::deserialize(key.clone()).ok().map(|scalar| scalar.0) else {
            faults.push(FieldError::new(
                above.to_owned(),
                "has a tenant whose name is not text",
                "use letters, digits, '-', '_' and '.'",
            ));
            continue;
        };
        let path = if above.is_empty() { name } else { format!("{above}/{name}") };
        if level > TENANT_DEPTH_MAX {
            faults.push(FieldError::new(path, format!("is at level {level}"), "use at most 8 levels"));
            continue;
        }
        let body = match value {
            Value::Null => Mapping::new(),
            Value::Mapping(body) => body.clone(),
            _ => {
                faults.push(FieldError::new(
                    path,
                    "is not a tenant",
                    "write `{guarantee: {h100: 8}, max: {h100: 16}}`",
                ));
                continue;
            }
        };
        one(&path, body, level, found, faults);
    }
}

fn one(path: &str, mut body: Mapping, level: usize, found: &mut Vec<v1::TenantEdit>, faults: &mut Vec<FieldError>) {
    let unknown: Vec<FieldError> = body.keys().filter_map(|key| yaml::unknown_key(key, "a tenant", KEYS)).collect();
    if !unknown.is_empty() {
        faults.extend(unknown.into_iter().map(|fault| fault.under(path)));
        return;
    }
    let children: Vec<Value> = ["teams", "children"].iter().filter_map(|key| body.remove(*key)).collect();
    let weight = weight(path, body.get("weight"), faults);
    let trust = trust(path, body.get("trust"), faults);
    let lend = lend(path, body.get("lend"), faults);
    let run_as = run_as(path, body.get("run-as"), faults);
    let weights = (weight.clear || !weight.of.is_empty()).then(|| v1::WeightsEdit {
        clear: weight.clear,
        weights: weight.of.into_iter().map(|(resource, weight)| v1::ResourceWeight { resource, weight }).collect(),
    });
    let lends = (lend.clear || !lend.of.is_empty()).then(|| v1::LendsEdit {
        clear: lend.clear,
        lends: lend.of.into_iter().map(|(resource, lend)| v1::ResourceLend { resource, lend }).collect(),
    });
    let mut edit = v1::TenantEdit {
        path: path.to_owned(),
        weight: weight.usual.map(|weight| v1::WeightEdit { weight }),
        weights,
        trust,
        lend: lend.usual.map(|lend| v1::LendEdit { lend }),
        lends,
        run_as,
        ..v1::TenantEdit::default()
    };
    for (key, place) in [("guarantee", &mut edit.guarantee), ("max", &mut edit.max)] {
        *place = match body.get(key) {
            None => None,
            Some(Value::Null) => Some(v1::AmountsEdit { clear: true, ..v1::AmountsEdit::default() }),
            Some(Value::Mapping(written)) => Some(amounts(path, key, written, faults)),
            Some(_) => {
                let fix = "write `{h100: 8}`, or null to remove it";
                faults.push(FieldError::new(format!("{path}.{key}"), "is not a list of amounts", fix));
                None
            }
        };
    }
    edit.anti_affinity = match body.get("anti-affinity") {
        None => None,
        Some(Value::Null) => Some(v1::AntiAffinityEdit { clear: true, ..v1::AntiAffinityEdit::default() }),
        Some(Value::Mapping(written)) => Some(anti_affinity(path, written, faults)),
        Some(_) => {
            let fix = "write `{ads: node}`, or null to remove it";
            faults.push(FieldError::new(format!("{path}.anti-affinity"), "is not a list of tenants", fix));
            None
        }
    };
    found.push(edit);
    for child in children {
        match child {
            Value::Null => {}
            Value::Mapping(tree) => walk(&tree, path, level + 1, found, faults),
            _ => faults.push(FieldError::new(
                format!("{path}.teams"),
                "is not a tree of tenants",
                "write `nlp: {}` below it",
            )),
        }
    }
}

/// `2`, or by resource: `{default: 2, h100: 3, cpus: null}`.
fn weight(path: &str, written: Option<&Value>, faults: &mut Vec<FieldError>) -> Written<u32> {
    let number = |value: &Value| value.as_u64().and_then(|weight| u32::try_from(weight).ok());
    let fix = "write `weight: 2`, or null for the default 1";
    let field = format!("{path}.weight");
    by_resource(&field, written, number, ("is not a number from 1 to 1,000,000", fix), faults)
}

fn trust(path: &str, written: Option<&Value>, faults: &mut Vec<FieldError>) -> Option<v1::TrustEdit> {
    match written? {
        Value::Null => Some(v1::TrustEdit { trust: None }),
        Value::String(word) => Some(v1::TrustEdit { trust: Some(word.clone()) }),
        _ => {
            let fix = "write trusted or untrusted";
            faults.push(FieldError::new(format!("{path}.trust"), "is not trusted or untrusted", fix));
            None
        }
    }
}

fn run_as(path: &str, written: Option<&Value>, faults: &mut Vec<FieldError>) -> Option<v1::RunAsEdit> {
    let user = match written? {
        Value::Null => None,
        value => {
            let number = value.as_u64().and_then(|user| u32::try_from(user).ok());
            if number.is_none() {
                let fix = "write the number of a user of the nodes, such as run-as: 5001, or null to remove it";
                faults.push(FieldError::new(format!("{path}.run-as"), "is not the number of a user", fix));
                return None;
            }
            number
        }
    };
    Some(v1::RunAsEdit { user })
}

/// `no`, or by resource: `{h100: no}`. `yes` and `no` are text in YAML 1.2.
fn lend(path: &str, written: Option<&Value>, faults: &mut Vec<FieldError>) -> Written<bool> {
    let flag = |value: &Value| match value {
        Value::Bool(lend) => Some(*lend),
        Value::String(word) if word == "yes" => Some(true),
        Value::String(word) if word == "no" => Some(false),
        _ => None,
    };
    let fix = "write `lend: no`, or null for the default yes";
    by_resource(&format!("{path}.lend"), written, flag, ("is not yes or no", fix), faults)
}

/// A value for all resources, and values for some.
struct Written<T> {
    /// Of those that are not named; the inner one is none where it is removed.
    usual: Option<Option<T>>,
    /// Values of single resources are removed first.
    clear: bool,
    /// By the API's word of the resource.
    of: Vec<(String, Option<T>)>,
}

/// The key of the value for all resources that are not named.
const DEFAULT: &str = "default";

/// One value is for all resources: none keeps one of its own. A list changes what it names.
fn by_resource<T>(
    field: &str,
    written: Option<&Value>,
    read: impl Fn(&Value) -> Option<T>,
    (problem, fix): (&str, &str),
    faults: &mut Vec<FieldError>,
) -> Written<T> {
    let mut found = Written { usual: None, clear: false, of: Vec::new() };
    let mut value = |field: String, value: &Value| {
        if value.is_null() {
            return Some(None);
        }
        let read = read(value);
        if read.is_none() {
            faults.push(FieldError::new(field, problem, fix));
        }
        read.map(Some)
    };
    match written {
        None => {}
        Some(Value::Mapping(list)) => {
            for (name, written) in list {
                let name = Scalar::deserialize(name.clone()).map(|name| name.0).unwrap_or_default();
                let Some(read) = value(format!("{field}.{name}"), written) else { continue };
                match name.as_str() {
                    DEFAULT => found.usual = Some(read),
                    "cpus" => found.of.push(("cpu_milli".to_owned(), read)),
                    "memory" => found.of.push(("memory_mib".to_owned(), read)),
                    model => found.of.push((format!("gpu.{model}"), read)),
                }
            }
        }
        Some(written) => {
            found.usual = value(field.to_owned(), written);
            found.clear = found.usual.is_some();
        }
    }
    found
}

/// `{ads: node, search/ranking: card, old: null}`.
fn anti_affinity(path: &str, written: &Mapping, faults: &mut Vec<FieldError>) -> v1::AntiAffinityEdit {
    let mut edit = v1::AntiAffinityEdit::default();
    for (tenant, level) in written {
        let level = if level.is_null() { Some("") } else { level.as_str() };
        match (tenant.as_str(), level) {
            (Some(tenant), Some(level)) => drop(edit.levels.insert(tenant.to_owned(), level.to_owned())),
            _ => faults.push(FieldError::new(
                format!("{path}.anti-affinity"),
                "has an entry that is not a tenant and a level",
                "write {ads: node}: the two tenants may not share a card, node or island; null removes the rule",
            )),
        }
    }
    edit
}

/// `{h100: 8, cpus: 512, memory: null}`.
fn amounts(path: &str, key: &str, written: &Mapping, faults: &mut Vec<FieldError>) -> v1::AmountsEdit {
    let mut edit = v1::AmountsEdit::default();
    for (resource, amount) in written {
        let text = if amount.is_null() { Ok(None) } else { Scalar::deserialize(amount.clone()).map(Some) };
        let words = Scalar::deserialize(resource.clone()).and_then(|name| Ok((name.0, text?)));
        let Ok((name, text)) = words else {
            let fix = "write a number of GPUs by model: {h100: 8}, or null to remove it";
            faults.push(FieldError::new(format!("{path}.{key}"), "has an amount that is not a number", fix));
            continue;
        };
        let parsed = match (&text, name.as_str()) {
            (None, _) => Ok(None),
            (Some(text), "cpus") => units::milli_cpus(&text.0).map(Some),
            (Some(text), "memory") => units::mebibytes(&text.0).map(Some),
            (Some(text), _) => units::gpu_units(&text.0).map(|units| Some(units.0)),
        };
        match parsed {
            Ok(amount) => match name.as_str() {
                "cpus" => edit.cpu_milli = Some(v1::AmountEdit { amount }),
                "memory" => edit.memory_mib = Some(v1::AmountEdit { amount }),
                model => edit.gpus.push(v1::GpuEdit { model: model.to_owned(), units: amount }),
            },
            Err(error) => faults.push(FieldError::new(format!("{path}.{key}.{name}"), error.problem, error.fix)),
        }
    }
    edit
}
