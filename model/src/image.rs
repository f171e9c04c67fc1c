//! Container images and mounts: what a job may name, and what a pool allows.
//!
//! What must stay true: nothing is allowed that no rule of the pool names; a rule allows whole components of a path or of a registry's name, so
//! `/srv/images` says nothing about `/srv/images-old`; a path has one spelling, so two texts never mean one folder here.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Mounts of one job, and rules of one pool: more than real launch lines need.
pub const MOUNTS_MAX: usize = 16;
/// Bytes of a reference to an image: a path of ordinary length, or a registry's name with a digest.
pub const IMAGE_BYTES_MAX: usize = 512;
/// Bytes of a path of a mount.
pub const MOUNT_BYTES_MAX: usize = 512;

/// Where the sandbox has folders of its own: nothing is mounted there, below them, or over them.
const OF_THE_SANDBOX: [&str; 4] = ["/proc", "/sys", "/dev", "/run/muster"];

/// A folder or file of the node that the tasks of a job see.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Mount {
    /// Its path on the node.
    pub source: String,
    /// Where the tasks see it.
    pub target: String,
    /// They cannot write there.
    pub read_only: bool,
}

impl fmt::Display for Mount {
    /// As on the command line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.source, self.target, if self.read_only { "ro" } else { "rw" })
    }
}

/// A rule of a pool: jobs may mount what lies there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MountRule {
    /// The folder itself, and all below it.
    pub path: String,
    /// Jobs may write there, as far as their user may.
    pub write: bool,
}

/// The image of a task, with the rule that allows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskImage {
    /// As the job names it.
    pub image: String,
    /// The folder of the rule, or the registry's part of it. Empty: the pool has no such rule any more.
    pub below: String,
}

/// A mount of a task, with the rule that allows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskMount {
    /// As the job names it.
    pub mount: Mount,
    /// The folder of the rule. Empty: the pool has no such rule any more.
    pub below: String,
}

/// Which image a text names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageRef<'a> {
    /// An unpacked root file system.
    Folder {
        /// Its path.
        path: &'a str,
    },
    /// An OCI layout on the node's disk.
    Layout {
        /// Its path.
        path: &'a str,
        /// Which of its images; the only one when absent.
        tag: Option<&'a str>,
    },
    /// An image of a registry.
    Registry {
        /// Registry and repository.
        name: &'a str,
        /// `:tag` or `@sha256:…` as it is written; may be empty.
        version: &'a str,
    },
}

/// What is wrong with a text, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadText {
    /// What is wrong.
    pub problem: String,
    /// What to write.
    pub fix: String,
}

fn bad(problem: impl Into<String>, fix: impl Into<String>) -> BadText {
    BadText { problem: problem.into(), fix: fix.into() }
}

impl<'a> ImageRef<'a> {
    /// Reads `dir:/path`, `oci:/path[:tag]` or `docker://registry/name[:tag|@sha256:…]`.
    ///
    /// # Errors
    /// What is wrong and how to write it.
    pub fn parse(text: &'a str) -> Result<Self, BadText> {
        if text.len() > IMAGE_BYTES_MAX {
            return Err(bad(format!("has {} bytes", text.len()), "use at most 512 bytes"));
        }
        if let Some(path) = text.strip_prefix("dir:") {
            return check_path(path).map(|()| ImageRef::Folder { path });
        }
        if let Some(rest) = text.strip_prefix("oci:") {
            let (path, tag) = match rest.rsplit_once(':') {
                Some((path, tag)) if !tag.contains('/') => (path, Some(tag)),
                _ => (rest, None),
            };
            check_path(path)?;
            return match tag.filter(|tag| !is_tag(tag)) {
                Some(tag) => Err(bad(format!("{tag:?} is not a tag"), "write oci:/path:tag, or leave the tag out")),
                None => Ok(ImageRef::Layout { path, tag }),
            };
        }
        match text.strip_prefix("docker://") {
            Some(rest) => registry(rest),
            None => {
                let fix = format!(
                    "write docker://REGISTRY/{} with the registry's name, oci:/path[:tag] for an OCI layout on the node, or dir:/path for an \
                     unpacked root file system",
                    text.chars().take(64).collect::<String>()
                );
                Err(bad("does not say where the image is", fix))
            }
        }
    }
}

fn registry(rest: &str) -> Result<ImageRef<'_>, BadText> {
    let fix = "write docker://REGISTRY/NAME[:TAG], such as docker://docker.io/library/python:3.13";
    let (name, version) = match rest.split_once('@') {
        Some((name, _)) => (name, &rest[name.len()..]),
        None => match rest.rsplit_once(':') {
            Some((name, tag)) if !tag.contains('/') && name.contains('/') => (name, &rest[name.len()..]),
            _ => (rest, ""),
        },
    };
    let digest = |text: &str| text.len() == 64 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let is_version = match (version.strip_prefix("@sha256:"), version.strip_prefix(':')) {
        (Some(hex), _) => digest(hex),
        (None, Some(tag)) => is_tag(tag),
        (None, None) => version.is_empty(),
    };
    if !is_version {
        return Err(bad(format!("{version:?} is no tag and no digest"), "write :TAG, or @sha256: and 64 digits"));
    }
    let (host, repository) = name.split_once('/').ok_or_else(|| bad("names no registry", fix))?;
    if !is_host(host) {
        return Err(bad(format!("{host:?} is not the name of a registry"), fix));
    }
    if !repository.split('/').all(is_repository_part) {
        return Err(bad(format!("{repository:?} is not the name of an image"), fix));
    }
    Ok(ImageRef::Registry { name, version })
}

fn is_tag(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    (1..=128).contains(&text.len()) && text.bytes().all(plain) && !text.starts_with(['.', '-'])
}

/// A registry has a dot or a port in its name, or is this host: anything else is a folder of some default registry.
fn is_host(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b':');
    (text == "localhost" || text.contains(['.', ':'])) && text.bytes().all(plain) && !text.starts_with(['.', '-', ':'])
}

fn is_repository_part(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'.' | b'-' | b'_');
    !text.is_empty() && text.bytes().all(plain) && !text.starts_with(['.', '-'])
}

/// An absolute path with one spelling, which is not the root.
fn check_path(path: &str) -> Result<(), BadText> {
    let short = || path.chars().take(64).collect::<String>();
    let Some(rest) = path.strip_prefix('/') else {
        return Err(bad(format!("{:?} is relative", short()), "give an absolute path"));
    };
    if path.len() > MOUNT_BYTES_MAX {
        return Err(bad(format!("has {} bytes", path.len()), "use at most 512 bytes"));
    }
    if rest.is_empty() {
        return Err(bad("is the whole file system", "name a folder below /"));
    }
    if path.contains(char::is_control) {
        return Err(bad("has control characters", "use a path without them"));
    }
    match rest.split('/').find(|part| matches!(*part, "" | "." | "..")) {
        Some(part) => {
            let problem = format!("{:?} has the part {part:?}", short());
            Err(bad(problem, "write the path without '.', '..', '//' and a '/' at its end"))
        }
        None => Ok(()),
    }
}

/// Whether `text` is `prefix` or lies below it, by whole components.
fn lies_below(text: &str, prefix: &str) -> bool {
    let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
    text.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl Mount {
    /// What is wrong with it, by field.
    pub(crate) fn fault(&self) -> Option<(&'static str, BadText)> {
        if let Err(problem) = check_path(&self.source) {
            return Some(("source", problem));
        }
        if let Err(problem) = check_path(&self.target) {
            return Some(("target", problem));
        }
        let taken = |own: &&&str| lies_below(&self.target, own) || lies_below(own, &self.target);
        let own = OF_THE_SANDBOX.iter().find(taken)?;
        Some(("target", bad(format!("{:?} is in the place of {own}", self.target), "choose another target")))
    }
}

impl MountRule {
    /// What is wrong with it.
    pub(crate) fn fault(&self) -> Option<BadText> {
        check_path(without_slash(&self.path)).err()
    }
}

fn without_slash(path: &str) -> &str {
    path.strip_suffix('/').filter(|rest| !rest.is_empty()).unwrap_or(path)
}

/// What is wrong with a rule for images: `dir:/path/`, `oci:/path/` or `docker://registry[/path/]`.
pub(crate) fn fault_of_image_rule(rule: &str) -> Option<BadText> {
    let fix = "write dir:/path/, oci:/path/, or docker://REGISTRY/PATH/";
    if let Some(path) = rule.strip_prefix("dir:").or_else(|| rule.strip_prefix("oci:")) {
        return check_path(without_slash(path)).err();
    }
    let name = match rule.strip_prefix("docker://") {
        Some(name) => without_slash(name),
        None => return Some(bad("does not say where images are", fix)),
    };
    let mut parts = name.split('/');
    let fine = parts.next().is_some_and(is_host) && parts.all(is_repository_part);
    (!fine).then(|| bad(format!("{name:?} is not a registry with a part of a name"), fix))
}

/// The part of the rule that allows an image: a folder, or a registry with a part of a name.
pub(crate) fn rule_for_image<'a>(rules: &'a [String], image: &str) -> Option<&'a str> {
    let (scheme, of) = match ImageRef::parse(image).ok()? {
        ImageRef::Folder { path } => ("dir:", path),
        ImageRef::Layout { path, .. } => ("oci:", path),
        ImageRef::Registry { name, .. } => ("docker://", name),
    };
    let rules = rules.iter().filter_map(|rule| rule.strip_prefix(scheme)).map(without_slash);
    rules.filter(|rule| lies_below(of, rule)).max_by_key(|rule| rule.len())
}

/// The folder of the rule that allows a mount.
pub(crate) fn rule_for_mount<'a>(rules: &'a [MountRule], mount: &Mount) -> Option<&'a str> {
    let rules = rules.iter().filter(|rule| mount.read_only || rule.write);
    let paths = rules.map(|rule| without_slash(&rule.path)).filter(|path| lies_below(&mount.source, path));
    paths.max_by_key(|path| path.len())
}

#[cfg(test)]
mod tests {
    use super::{ImageRef, Mount, MountRule, fault_of_image_rule, rule_for_image, rule_for_mount};

    #[test]
    fn an_image_says_where_it_is() {
        let digest = format!("docker://r.example/a@sha256:{}", "0".repeat(64));
        for good in [
            "dir:/srv/images/a",
            "oci:/srv/a",
            "oci:/srv/a:v1",
            "oci:/srv/a:b/c",
            "docker://r.example/ml/torch:2.9",
            "docker://localhost:5000/a",
            "docker://r.example/a/b",
            &digest,
        ] {
            assert!(ImageRef::parse(good).is_ok(), "{good}");
        }
        for wrong in [
            "ubuntu:24.04",
            "docker://ubuntu",
            "docker://library/ubuntu",
            "docker://r.example/",
            "docker://r.example/a:",
            "docker://r.example/a@sha256:12",
            "docker://r.example/a --insecure",
            "dir:srv",
            "dir:/",
            "dir:/a/../b",
            "dir:/a//b",
            "dir:/a/",
            "oci:/a:-x",
            "oci:/a\nb",
        ] {
            assert!(ImageRef::parse(wrong).is_err(), "{wrong}");
        }
        let Err(said) = ImageRef::parse("ubuntu:24.04") else { panic!("a bare name is refused") };
        assert!(said.fix.starts_with("write docker://REGISTRY/ubuntu:24.04"), "{}", said.fix);
    }

    #[test]
    fn rules_allow_whole_components() {
        let images = ["dir:/srv/images/", "docker://r.example/ml"].map(str::to_owned).to_vec();
        let mounts = vec![
            MountRule { path: "/data".into(), write: false },
            MountRule { path: "/data/out/".into(), write: true },
        ];
        for (image, by) in [
            ("dir:/srv/images/a", Some("/srv/images")),
            ("dir:/srv/images", Some("/srv/images")),
            ("dir:/srv/images-old/a", None),
            ("oci:/srv/images/a", None),
            ("docker://r.example/ml/torch:2", Some("r.example/ml")),
            ("docker://r.example/mlx/torch:2", None),
            ("docker://r.example.evil/ml/torch", None),
        ] {
            assert_eq!(rule_for_image(&images, image), by, "{image}");
        }
        let mount = |source: &str, read_only| Mount { source: source.into(), target: "/x".into(), read_only };
        for (source, read_only, by) in [
            ("/data/a", true, Some("/data")),
            ("/data/a", false, None),
            ("/data/out/a", true, Some("/data/out")),
            ("/data/out/a", false, Some("/data/out")),
            ("/data2", true, None),
        ] {
            assert_eq!(rule_for_mount(&mounts, &mount(source, read_only)), by, "{source} {read_only}");
        }
        assert_eq!(rule_for_mount(&[], &mount("/data", true)), None, "nothing unless it is said");
    }

    #[test]
    fn targets_leave_the_sandbox_its_own() {
        let at = |target: &str| Mount { source: "/a".into(), target: target.into(), read_only: true }.fault();
        for taken in ["/proc", "/proc/self", "/dev/shm", "/run", "/run/muster/1.0", "/sys", "/", "rel", "/a/.."] {
            assert!(at(taken).is_some(), "{taken}");
        }
        assert!(at("/data").is_none() && at("/run/data").is_none() && at("/process").is_none());
    }

    #[test]
    fn a_rule_for_images_names_a_place() {
        for (rule, is_fine) in [
            ("dir:/srv/", true),
            ("oci:/srv", true),
            ("docker://r.example", true),
            ("docker://r.example/ml/", true),
            ("dir:/", false),
            ("/srv", false),
            ("docker://ml", false),
            ("docker://r.example/ml:tag", false),
        ] {
            assert_eq!(fault_of_image_rule(rule).is_none(), is_fine, "{rule}");
        }
    }
}
