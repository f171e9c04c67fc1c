//! The quota tree as an operator writes it: nested as it is, GPUs in cards.
//!
//! ```yaml
//! research:
//!   guarantee: {h100: 8}
//!   max: {h100: 16, cpus: 512, memory: 4Ti}
//!   weight: 2
//!   teams:
//!     nlp: {guarantee: {h100: 4}}
//!     vision: {max: {h100: 8}, trust: untrusted}
//!   apart-from: {ads: node, search/ranking: card}    # or island; measured to disturb each other
//! ```

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
pub const KEYS: &[&str] = &["guarantee", "max", "weight", "trust", "apart-from", "teams", "children"];

/// Every tenant of a file, parents before their children.
///
/// # Errors
/// Everything that is wrong, each named by the tenant's path and the key.
pub fn parse(text: &str, name: &str) -> Result<Vec<v1::TenantSpec>, Failure> {
    let mut found = Vec::new();
    let mut faults = Vec::new();
    for document in serde_yaml_ng::Deserializer::from_str(text) {
        let value = Value::deserialize(document)
            .map_err(|error| Failure::field(name, format!("is not YAML: {error}"), "mend the line that is named"))?;
        match value {
            Value::Null => {}
            Value::Mapping(tree) => walk(&tree, "", 1, &mut found, &mut faults),
            _ => faults.push(FieldError::new(name, "is not a tree of tenants", "write `name: {guarantee: {h100: 8}}`")),
        }
    }
    if !faults.is_empty() {
        return Err(Failure::from(faults));
    }
    if found.is_empty() {
        return Err(Failure::field(name, "has no tenant", "write at least `research: {}`"));
    }
    Ok(found)
}

fn walk(tree: &Mapping, above: &str, level: usize, found: &mut Vec<v1::TenantSpec>, faults: &mut Vec<FieldError>) {
    for (key, value) in tree {
        let Some(name) = Scalar::deserialize(key.clone()).ok().map(|scalar| scalar.0) else {
            faults.push(FieldError::new(above.to_owned(), "has a tenant whose name is not a word", "use a plain name"));
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

fn one(path: &str, mut body: Mapping, level: usize, found: &mut Vec<v1::TenantSpec>, faults: &mut Vec<FieldError>) {
    let unknown: Vec<FieldError> = body.keys().filter_map(|key| yaml::unknown_key(key, "a tenant", KEYS)).collect();
    if !unknown.is_empty() {
        faults.extend(unknown.into_iter().map(|fault| fault.under(path)));
        return;
    }
    let children: Vec<Value> = ["teams", "children"].iter().filter_map(|key| body.remove(*key)).collect();
    let mut fault =
        |key: &str, problem: String, fix: &str| faults.push(FieldError::new(format!("{path}.{key}"), problem, fix));
    let weight = match body.get("weight").map(|value| value.as_u64().and_then(|weight| u32::try_from(weight).ok())) {
        Some(None) => {
            fault("weight", "is not a number from 1 to 1,000,000".to_owned(), "write `weight: 2`");
            None
        }
        Some(weight) => weight,
        None => None,
    };
    let trust = match body.get("trust").map(Value::as_str) {
        Some(None) => {
            fault("trust", "is not a word".to_owned(), "write trusted or untrusted");
            ""
        }
        Some(Some(word)) => word,
        None => "",
    };
    let mut mapping = |key: &str| match body.get(key) {
        Some(Value::Mapping(amounts)) => amounts.clone(),
        None | Some(Value::Null) => Mapping::new(),
        Some(_) => {
            let (problem, fix) = if key == "apart-from" {
                ("is not a list of tenants", "write `{ads: node}`")
            } else {
                ("is not a list of amounts", "write `{h100: 8}`")
            };
            fault(key, problem.to_owned(), fix);
            Mapping::new()
        }
    };
    let apart = mapping("apart-from");
    let (guarantee, max) = (mapping("guarantee"), mapping("max"));
    let apart_from = apart_from(path, &apart, faults);
    let guarantee = amounts(path, "guarantee", &guarantee, faults);
    let max = amounts(path, "max", &max, faults);
    found.push(v1::TenantSpec {
        path: path.to_owned(),
        guarantee: Some(v1::ResourceVec {
            gpu_units: guarantee.gpu_units,
            cpu_milli: guarantee.cpu_milli.unwrap_or(0),
            memory_mib: guarantee.memory_mib.unwrap_or(0),
        }),
        max: Some(max),
        weight,
        trust: trust.to_owned(),
        apart_from,
    });
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

/// `{ads: node, search/ranking: card}`.
fn apart_from(path: &str, written: &Mapping, faults: &mut Vec<FieldError>) -> Vec<v1::ApartFrom> {
    let mut others = Vec::new();
    for (tenant, level) in written {
        match (tenant.as_str(), level.as_str()) {
            (Some(tenant), Some(level)) => {
                others.push(v1::ApartFrom { tenant: tenant.to_owned(), level: level.to_owned() });
            }
            _ => faults.push(FieldError::new(
                format!("{path}.apart-from"),
                "has an entry that is not a tenant and a level",
                "write {ads: node}: card, node or island is what the two may not share",
            )),
        }
    }
    others
}

/// `{h100: 8, cpus: 512, memory: 4Ti}`.
fn amounts(path: &str, key: &str, written: &Mapping, faults: &mut Vec<FieldError>) -> v1::Limits {
    let mut limits = v1::Limits::default();
    for (resource, amount) in written {
        let words =
            Scalar::deserialize(resource.clone()).and_then(|name| Ok((name.0, Scalar::deserialize(amount.clone())?.0)));
        let Ok((name, text)) = words else {
            let fix = "write a number of cards by model: {h100: 8}";
            faults.push(FieldError::new(format!("{path}.{key}"), "has an amount that is not a number", fix));
            continue;
        };
        let fault = match name.as_str() {
            "cpus" => units::milli_cpus(&text).map(|milli| limits.cpu_milli = Some(milli)),
            "memory" => units::mebibytes(&text).map(|mib| limits.memory_mib = Some(mib)),
            model => units::gpu_units(&text).map(|units| {
                limits.gpu_units.insert(model.to_owned(), units.0);
            }),
        };
        if let Err(error) = fault {
            faults.push(FieldError::new(format!("{path}.{key}.{name}"), error.problem, error.fix));
        }
    }
    limits
}
