//! Container images, which tenants make and root unpacks.
//!
//! What must stay true: whatever an image says, nothing beside its own folder is made, changed, linked or removed.

use super::{scratch, text_of};
use crate::target::{Target, reached};
use muster_agent::image::fuzzing::{layout, unpack};
use muster_agent::image::{Bounds, ImageError};
use sha2::{Digest, Sha256};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use tar::{EntryType, Header};
use tempfile::TempDir;

/// See the module.
pub const TARGETS: &[Target] = &[
    Target {
        name: "layer",
        what: "entries of a layer, one a line: KIND, MODE, PATH, LINK, CONTENT, with tabs between",
        words: &[
            "file\t644\t",
            "folder\t755\t",
            "symlink\t777\t",
            "hardlink\t644\t",
            "pax\t0\t",
            "../",
            "/",
            ".wh.",
            ".wh..wh..opq",
            "\t",
            "\n",
            "outside",
            "a/b",
        ],
        reaches: &["unpacked", "hostile"],
        run: layer,
    },
    Target {
        name: "layer-archive",
        what: "a layer's archive as bytes; checksums of headers are put right",
        words: &[
            "ustar\x0000",
            "0000644\0",
            "00000000000\0",
            "../",
            "20 path=a/b/c/d/e/f\n",
            "30 size=18446744073709551615\n",
            "x",
            "L",
            "1",
            "2",
            "5",
        ],
        reaches: &["unpacked", "another fault"],
        run: archive,
    },
    Target {
        name: "image-layout",
        what: "an OCI layout: index, manifest and configuration, one a line; $MANIFEST and the like stand for digests and sizes",
        words: &[
            "\"manifests\":[",
            "\"digest\":\"$MANIFEST\"",
            "\"size\":$MANIFEST_SIZE",
            "\"layers\":[",
            "\"digest\":\"$LAYER\"",
            "\"Env\":[\"A=b\"]",
            "\"Cmd\":",
            "sha512:",
            "null",
        ],
        reaches: &["unpacked", "damaged"],
        run: image_layout,
    },
];

const BLOCK: usize = 512;
const BOUNDS: Bounds = Bounds { bytes_max: 1 << 20, entries_max: 1_000 };

/// An image's folder beside something that is none of its business.
struct Beside {
    folder: TempDir,
}

impl Beside {
    fn new() -> Self {
        let folder = scratch();
        for name in ["root", "outside"] {
            std::fs::create_dir(folder.path().join(name)).expect("made");
        }
        let beside = Beside { folder };
        std::fs::write(beside.secret(), "secret").expect("written");
        beside
    }

    fn root(&self) -> PathBuf {
        self.folder.path().join("root")
    }

    fn secret(&self) -> PathBuf {
        self.folder.path().join("outside/secret")
    }

    fn is_as_it_was(&self) {
        let names = |path: PathBuf| {
            let entries = std::fs::read_dir(path).expect("the folder is there");
            let mut names: Vec<String> =
                entries.map(|entry| entry.expect("a name").file_name().to_string_lossy().into_owned()).collect();
            names.sort();
            names
        };
        assert_eq!(names(self.folder.path().to_owned()), ["outside", "root"]);
        assert_eq!(names(self.folder.path().join("outside")), ["secret"]);
        assert_eq!(std::fs::read_to_string(self.secret()).ok().as_deref(), Some("secret"));
        let secret = std::fs::symlink_metadata(self.secret()).expect("it is there");
        assert!(secret.is_file() && secret.nlink() == 1, "it is linked from inside");
    }
}

/// An archive of the entries, as they stand: libraries would refuse most of the hostile ones.
#[must_use]
pub fn archive_of(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for line in text.lines() {
        let mut parts = line.splitn(5, '\t');
        let mut part = || parts.next().unwrap_or_default();
        let (kind, mode, path, link, content) = (part(), part(), part(), part(), part());
        let mut header = Header::new_gnu();
        header.set_entry_type(match kind {
            "file" => EntryType::Regular,
            "folder" => EntryType::Directory,
            "symlink" => EntryType::Symlink,
            "hardlink" => EntryType::Link,
            "pax" => EntryType::XHeader,
            "long-name" => EntryType::GNULongName,
            "long-link" => EntryType::GNULongLink,
            "pipe" => EntryType::Fifo,
            _ => EntryType::Char,
        });
        // An extension is written with its line's end.
        let content = if kind == "pax" { format!("{content}\n") } else { content.to_owned() };
        header.set_mode(u32::from_str_radix(mode, 8).unwrap_or(0o644));
        header.set_size(content.len() as u64);
        let old = header.as_old_mut();
        copy_into(&mut old.name, path);
        copy_into(&mut old.linkname, link);
        header.set_cksum();
        bytes.extend(header.as_bytes());
        bytes.extend(content.as_bytes());
        bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
    }
    bytes.resize(bytes.len() + 2 * BLOCK, 0);
    bytes
}

fn copy_into(field: &mut [u8], text: &str) {
    let length = text.len().min(field.len());
    field[..length].copy_from_slice(&text.as_bytes()[..length]);
}

/// Notes how far an image got.
fn judge<T>(unpacked: Result<T, ImageError>) -> Option<T> {
    reached(match &unpacked {
        Ok(_) => "unpacked",
        Err(ImageError::Hostile { .. }) => "hostile",
        Err(ImageError::Damaged { .. }) => "damaged",
        Err(_) => "another fault",
    });
    unpacked.ok()
}

fn layer(bytes: &[u8]) {
    let Some(text) = text_of(bytes) else { return };
    let beside = Beside::new();
    judge(unpack(archive_of(text).as_slice(), &beside.root(), BOUNDS));
    beside.is_as_it_was();
}

/// Puts the checksums of all headers right, as far as the sizes lead from one to the next.
fn with_checksums(mut bytes: Vec<u8>) -> Vec<u8> {
    let mut at = 0;
    while let Some(block) = bytes.get_mut(at..at + BLOCK) {
        if block.iter().any(|byte| *byte != 0) {
            let mut header = Header::from_byte_slice(block).clone();
            header.set_cksum();
            block.copy_from_slice(header.as_bytes());
            let size =
                header.entry_size().ok().and_then(|size| usize::try_from(size).ok()).filter(|size| *size <= 1 << 20);
            at += size.unwrap_or(0).next_multiple_of(BLOCK);
        }
        at += BLOCK;
    }
    bytes
}

fn archive(bytes: &[u8]) {
    let beside = Beside::new();
    judge(unpack(with_checksums(bytes.to_vec()).as_slice(), &beside.root(), BOUNDS));
    beside.is_as_it_was();
}

fn image_layout(bytes: &[u8]) {
    let Some(text) = text_of(bytes) else { return };
    let mut lines = text.lines().map(str::to_owned);
    let mut line = || lines.next().unwrap_or_default();
    let (mut index, mut manifest, config) = (line(), line(), line());
    let beside = Beside::new();
    let folder = scratch();
    let blobs = folder.path().join("blobs/sha256");
    std::fs::create_dir_all(&blobs).expect("made");
    let add = |content: &[u8]| {
        let digest: String = Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect();
        std::fs::write(blobs.join(&digest), content).expect("written");
        (format!("sha256:{digest}"), content.len().to_string())
    };
    let layer = archive_of("file\t644\ta\t\tcontent\nsymlink\t777\tup\t../outside/secret\t");
    for (name, content) in [("LAYER", layer.as_slice()), ("CONFIG", config.as_bytes())] {
        let (digest, size) = add(content);
        // The longer word first: it begins with the other.
        manifest = manifest.replace(&format!("${name}_SIZE"), &size).replace(&format!("${name}"), &digest);
    }
    let (digest, size) = add(manifest.as_bytes());
    index = index.replace("$MANIFEST_SIZE", &size).replace("$MANIFEST", &digest);
    std::fs::write(folder.path().join("index.json"), index).expect("written");
    if let Some(says) = judge(layout(folder.path(), None, &beside.root(), BOUNDS)) {
        assert!(says.workdir.is_none_or(|path| path.starts_with('/')) && !says.env.contains_key(""));
    }
    beside.is_as_it_was();
}
