//! Mounts as people write them: `SOURCE:TARGET[:ro|:rw]` on the command line, a map in a job file.

use muster_model::FieldError;
use muster_proto::v1;
use serde::Deserialize;

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum MountText {
    /// `SOURCE:TARGET[:ro|:rw]`.
    Line(String),
    /// In a job file.
    Map(MountMap),
}

/// One mount of a job file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MountMap {
    source: String,
    target: String,
    #[serde(default = "yes")]
    read_only: bool,
}

fn yes() -> bool {
    true
}

pub(super) fn to_wire(mounts: &[MountText], faults: &mut Vec<FieldError>) -> Vec<v1::Mount> {
    let mut wire = Vec::new();
    for (index, mount) in mounts.iter().enumerate() {
        match mount {
            MountText::Map(MountMap { source, target, read_only }) => {
                wire.push(v1::Mount { source: source.clone(), target: target.clone(), writable: !read_only });
            }
            MountText::Line(line) => match of_line(line) {
                Some(mount) => wire.push(mount),
                None => faults.push(FieldError::new(
                    format!("mounts[{index}]"),
                    format!("{line:?} is not a mount"),
                    "write SOURCE:TARGET, and :rw behind it to write there, such as /data/sets:/data",
                )),
            },
        }
    }
    wire
}

fn of_line(line: &str) -> Option<v1::Mount> {
    let parts: Vec<&str> = line.split(':').collect();
    let (source, target, writable) = match parts[..] {
        [source, target] | [source, target, "ro"] => (source, target, false),
        [source, target, "rw"] => (source, target, true),
        _ => return None,
    };
    Some(v1::Mount { source: source.to_owned(), target: target.to_owned(), writable })
}

#[cfg(test)]
mod tests {
    use super::{MountText, to_wire};

    #[test]
    fn mounts_are_read_only_unless_they_say_otherwise() {
        let line = |text: &str| MountText::Line(text.to_owned());
        let texts = [line("/a:/b"), line("/a:/b:ro"), line("/a:/b:rw"), line("/a"), line("/a:/b:wr"), line("a:b:c:d")];
        let mut faults = Vec::new();
        let writable: Vec<bool> = to_wire(&texts, &mut faults).iter().map(|mount| mount.writable).collect();
        assert_eq!((writable, faults.len()), (vec![false, false, true], 3));
        assert_eq!(faults[0].field, "mounts[3]");
    }
}
