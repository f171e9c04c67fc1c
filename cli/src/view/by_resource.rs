//! Weights and lending that differ by resource, in the words of the tree's file: `h100`, `cpus`, `memory`.

use std::collections::BTreeMap;

/// The word of the file for a resource of the API.
#[must_use]
pub fn word(resource: &str) -> &str {
    match resource {
        "cpu_milli" => "cpus",
        "memory_mib" => "memory",
        model => model.strip_prefix("gpu.").unwrap_or(model),
    }
}

/// Values by the word of their resource.
#[must_use]
pub fn by_word<'a, T: Copy + 'a>(values: impl IntoIterator<Item = (&'a String, &'a T)>) -> BTreeMap<String, T> {
    values.into_iter().map(|(resource, value)| (word(resource).to_owned(), *value)).collect()
}

/// The usual value, then those that differ: `2, h100 3`.
#[must_use]
pub fn words<T: Copy>(usual: T, of: &BTreeMap<String, T>, show: impl Fn(T) -> String) -> String {
    let own = of.iter().map(|(resource, value)| format!("{resource} {}", show(*value)));
    [show(usual)].into_iter().chain(own).collect::<Vec<_>>().join(", ")
}

/// `yes` or `no`.
#[must_use]
pub fn yes_no(value: bool) -> String {
    if value { "yes".to_owned() } else { "no".to_owned() }
}
