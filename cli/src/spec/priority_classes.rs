//! Priority classes as an operator writes them: one document each.
//!
//! ```yaml
//! name: production
//! priority: 1000
//! preempts: [batch, default]
//! tenants: [product]
//! ```

use crate::failure::Failure;
use crate::spec::yaml;
use muster_proto::v1;
use serde::Deserialize;

/// The keys of a priority class.
pub const KEYS: &[&str] = &["name", "priority", "preempts", "tenants"];

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct ClassText {
    name: String,
    priority: i32,
    preempts: Option<Vec<String>>,
    tenants: Option<Vec<String>>,
}

/// Every priority class of a file; without tenants, all may use it.
///
/// # Errors
/// When it is not a file of priority classes, with the document and the key.
pub fn parse(text: &str, name: &str) -> Result<Vec<v1::PriorityClass>, Failure> {
    let texts: Vec<ClassText> = yaml::documents(text, name, "a priority class", KEYS)?;
    if texts.is_empty() {
        return Err(Failure::field(name, "has no priority class", "write `name:` and `priority:`"));
    }
    let class = |text: ClassText| v1::PriorityClass {
        name: text.name,
        priority: text.priority,
        preempts: text.preempts.unwrap_or_default(),
        tenants: text.tenants.unwrap_or_default(),
    };
    Ok(texts.into_iter().map(class).collect())
}
