//! Device classes as an operator writes them: one document each.
//!
//! ```yaml
//! name: large-memory
//! selector: device.memory_mib >= 80000 && device.driver >= version("550")
//! tenants: [research, ads/ranking]
//! ```

use crate::failure::Failure;
use crate::spec::yaml;
use muster_proto::v1;
use serde::Deserialize;

/// The keys of a device class.
pub const KEYS: &[&str] = &["name", "selector", "tenants"];

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct ClassText {
    name: String,
    selector: String,
    tenants: Option<Vec<String>>,
}

/// Every device class of a file; without tenants, all may use it.
///
/// # Errors
/// When it is not a file of device classes, with the document and the key.
pub fn parse(text: &str, name: &str) -> Result<Vec<v1::DeviceClass>, Failure> {
    let texts: Vec<ClassText> = yaml::documents(text, name, "a device class", KEYS)?;
    if texts.is_empty() {
        return Err(Failure::field(name, "has no device class", "write `name:` and `selector:`"));
    }
    let class = |text: ClassText| v1::DeviceClass {
        name: text.name,
        selector: text.selector,
        tenants: text.tenants.unwrap_or_default(),
    };
    Ok(texts.into_iter().map(class).collect())
}
