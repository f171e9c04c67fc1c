//! An OCI layout on disk: what it holds, with every digest checked.
//!
//! What must stay true: nothing is read that lies outside of the layout's folder, whatever it has links to; a document is used only after its digest was found right, a layer
//! is unpacked while its digest is being computed and counts for nothing before it was found right; documents are small.

use super::unpack::Unpacking;
use super::zstd::Zstd;
use super::{Bounds, ImageError};
use crate::task_folder::record::OfImage;
use flate2::read::MultiGzDecoder;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use oci_spec::image::{Descriptor, ImageConfiguration, ImageIndex, ImageManifest, MediaType, Os};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;

/// Bytes of an index, a manifest or a configuration: registries accept no more.
const DOCUMENT_BYTES_MAX: u64 = 4 << 20;
/// Layers of one image: what builders make has at most 127.
const LAYERS_MAX: usize = 128;
/// An index may name another one, as those for several architectures do; deeper ones exist only to keep somebody busy.
const INDEXES_MAX: usize = 3;

/// An image of a layout.
pub(super) struct LayoutImage {
    folder: OwnedFd,
    /// Digest of its manifest, in hexadecimal.
    pub(super) digest: String,
    manifest: ImageManifest,
}

fn damaged(what: impl Into<String>) -> ImageError {
    ImageError::Damaged { what: what.into() }
}

impl LayoutImage {
    /// Finds the image of that tag, or the only one.
    pub(super) fn find(folder: OwnedFd, tag: Option<&str>) -> Result<Self, ImageError> {
        let index = document(&folder, "index.json", None)?;
        let mut index: ImageIndex = parsed("index.json", &index)?;
        for _ in 0..INDEXES_MAX {
            let chosen = choose(&index, tag)?;
            let digest = hex_of(chosen)?;
            let bytes = document(&folder, &blob(&digest), Some((&digest, chosen.size())))?;
            if *chosen.media_type() == MediaType::ImageIndex {
                index = parsed("an index", &bytes)?;
                continue;
            }
            let manifest: ImageManifest = parsed("the manifest", &bytes)?;
            if manifest.layers().len() > LAYERS_MAX {
                return Err(damaged(format!(
                    "it has {} layers; at most {LAYERS_MAX} are unpacked",
                    manifest.layers().len()
                )));
            }
            return Ok(LayoutImage { folder, digest, manifest });
        }
        Err(damaged("its indexes name each other"))
    }

    /// What it says about running it.
    pub(super) fn config(&self) -> Result<OfImage, ImageError> {
        let about = self.manifest.config();
        let digest = hex_of(about)?;
        let bytes = document(&self.folder, &blob(&digest), Some((&digest, about.size())))?;
        let config: ImageConfiguration = parsed("the configuration", &bytes)?;
        let Some(config) = config.config() else { return Ok(OfImage::default()) };
        let pair = |text: &String| text.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
        let words = [config.entrypoint(), config.cmd()].into_iter().flatten().flatten();
        let workdir = config.working_dir().clone().filter(|path| path.starts_with('/'));
        Ok(OfImage {
            env: config.env().iter().flatten().filter_map(pair).filter(|(name, _)| !name.is_empty()).collect(),
            command: words.cloned().collect(),
            workdir,
        })
    }

    /// Unpacks its layers into a folder that is there and empty. Says how many bytes its files have.
    pub(super) fn unpack(&self, into: &std::path::Path, bounds: Bounds) -> Result<u64, ImageError> {
        let mut unpacking = Unpacking::into(into, bounds)?;
        for layer in self.manifest.layers() {
            self.layer(layer, &mut unpacking)?;
        }
        Ok(unpacking.bytes())
    }

    fn layer(&self, layer: &Descriptor, unpacking: &mut Unpacking) -> Result<(), ImageError> {
        let digest = hex_of(layer)?;
        let file = open_in(&self.folder, &blob(&digest), Some(layer.size()))?;
        let hashed = Hashed { input: file, hash: Sha256::new(), at: 0, size: layer.size() };
        let kind = layer.media_type().to_string();
        let mut hashed = if kind.ends_with("gzip") {
            unpacking.layer(MultiGzDecoder::new(hashed))?.into_inner()
        } else if kind.ends_with("zstd") {
            unpacking.layer(Zstd::new(hashed))?.into_input()
        } else if kind.ends_with("tar") {
            unpacking.layer(hashed)?
        } else {
            return Err(damaged(format!("layer {digest} is of kind {kind}, which this version does not know")));
        };
        io::copy(&mut hashed, &mut io::sink()).map_err(ImageError::archive)?;
        let got = hex(&hashed.hash.finalize());
        if got == digest { Ok(()) } else { Err(ImageError::Digest { expected: digest, got }) }
    }
}

/// Which entry of an index is meant.
fn choose<'a>(index: &'a ImageIndex, tag: Option<&str>) -> Result<&'a Descriptor, ImageError> {
    const TAG: &str = "org.opencontainers.image.ref.name";
    let tag_of = |entry: &Descriptor| entry.annotations().as_ref().and_then(|all| all.get(TAG).cloned());
    let tags: Vec<String> = index.manifests().iter().filter_map(tag_of).collect();
    let is_tagged = |entry: &&Descriptor| tag.is_none() || tags.is_empty() || tag_of(entry).as_deref() == tag;
    let arch = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let runs_here = |entry: &&Descriptor| {
        let platform = entry.platform().as_ref();
        platform.is_none_or(|of| *of.os() == Os::Linux && of.architecture().to_string() == arch)
    };
    let found: Vec<&Descriptor> = index.manifests().iter().filter(is_tagged).filter(runs_here).collect();
    match found[..] {
        [one] => Ok(one),
        [] => Err(ImageError::NoSuchImage {
            why: format!(
                "the layout has no image {} for linux/{arch}",
                tag.map_or(String::new(), |tag| format!("with tag {tag:?}"))
            ),
        }),
        _ => Err(ImageError::NoSuchImage {
            why: format!("the layout has several images; name one by its tag: {}", tags.join(", ")),
        }),
    }
}

/// A digest in hexadecimal, if it is one that is checked here.
fn hex_of(about: &Descriptor) -> Result<String, ImageError> {
    let digest = about.digest().to_string();
    let hex = digest.strip_prefix("sha256:").filter(|hex| hex.len() == 64);
    let hex = hex.filter(|hex| hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')));
    hex.map(str::to_owned).ok_or_else(|| damaged(format!("{digest:?} is no sha256 digest")))
}

fn blob(hex: &str) -> String {
    format!("blobs/sha256/{hex}")
}

fn parsed<T: serde::de::DeserializeOwned>(what: &str, bytes: &[u8]) -> Result<T, ImageError> {
    serde_json::from_slice(bytes).map_err(|error| damaged(format!("{what}: {error}")))
}

/// A file of the layout, of so many bytes.
fn open_in(folder: &OwnedFd, path: &str, size: Option<u64>) -> Result<File, ImageError> {
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => damaged(format!("{path} is missing")),
        _ => match error.raw_os_error() {
            Some(libc::ELOOP | libc::EXDEV) => damaged(format!("{path} is a link")),
            _ => ImageError::disk(format!("reading {path}"), error),
        },
    };
    let resolve = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS;
    // A pipe in the place of a file does not make this wait.
    let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
    let file = openat2(folder, path, OpenHow::new().flags(flags).resolve(resolve));
    let file = File::from(file.map_err(|error| failed(error.into()))?);
    let there = file.metadata().map_err(failed)?;
    if !there.is_file() {
        return Err(damaged(format!("{path} is no file")));
    }
    match size {
        Some(size) if size != there.len() => {
            Err(damaged(format!("{path} has {} bytes instead of {size}", there.len())))
        }
        _ => Ok(file),
    }
}

/// A whole document, and where its digest is known, one that has it.
fn document(folder: &OwnedFd, path: &str, known: Option<(&str, u64)>) -> Result<Vec<u8>, ImageError> {
    let file = open_in(folder, path, known.map(|(_, size)| size))?;
    let mut bytes = Vec::new();
    let read = file.take(DOCUMENT_BYTES_MAX + 1).read_to_end(&mut bytes);
    read.map_err(|error| ImageError::disk(format!("reading {path}"), error))?;
    if bytes.len() as u64 > DOCUMENT_BYTES_MAX {
        return Err(damaged(format!("{path} is larger than {DOCUMENT_BYTES_MAX} bytes")));
    }
    match known.map(|(expected, _)| (expected.to_owned(), hex(&Sha256::digest(&bytes)))) {
        Some((expected, got)) if expected != got => Err(ImageError::Digest { expected, got }),
        _ => Ok(bytes),
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Computes a digest of what is read through it, and reads no more than was announced.
struct Hashed {
    input: File,
    hash: Sha256,
    at: u64,
    size: u64,
}

impl Read for Hashed {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.size - self.at).unwrap_or(usize::MAX).min(into.len());
        let read = self.input.read(&mut into[..most])?;
        self.hash.update(&into[..read]);
        self.at += read as u64;
        Ok(read)
    }
}
