//! Container images: what a task runs in instead of the host's own system (decision 0046).
//!
//! | file | what |
//! | --- | --- |
//! | [`store`] | the unpacked images of this node: each prepared once, kept within bounds |
//! | [`layout`] | reads an OCI layout, and checks its digests |
//! | [`unpack`], [`entries`], [`zstd`] | unpack layers, and nothing outside of the folder |
//! | [`pull`] | brings an image of a registry to this node, with skopeo |
//! | [`driver_files`], [`cdi`] | what of NVIDIA's driver an image needs, and how people see it |
//!
//! What must stay true: an image is data of a tenant, read here by root: nothing of it is executed, nothing is written outside of its own folder, and all that
//! is read is bounded. What is in the store is whole; what was not finished counts for nothing.

pub mod cdi;
pub mod driver_files;
mod entries;
#[doc(hidden)]
pub mod fuzzing;
mod layout;
pub(crate) mod pull;
pub(crate) mod store;
#[cfg(test)]
mod tests;
mod unpack;
mod zstd;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// How images are prepared on a node.
#[derive(Clone, Debug)]
pub struct ImagesConfig {
    /// The program that brings images from registries; it is looked for along `PATH` where it is no path.
    pub skopeo: PathBuf,
    /// How long bringing one may take.
    pub pull_within: Duration,
    /// Bounds of one image.
    pub bounds: Bounds,
    /// Bytes of all unpacked images.
    pub store_bytes_max: u64,
    /// Unpacked images.
    pub store_images_max: usize,
    /// Bytes of memory that the tasks of a sandbox may write over their image.
    pub upper_bytes_max: u64,
    /// Where NVIDIA's driver is installed; none: nothing of it is shown.
    pub driver_root: Option<PathBuf>,
}

/// What one image may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes of all its files, in all layers.
    pub bytes_max: u64,
    /// Entries of all its layers.
    pub entries_max: u64,
}

impl Default for ImagesConfig {
    /// The usual bounds: images of 64 GiB and two million files (the largest of machine learning have a third of that), 64 images and 256 GiB in all, half an hour
    /// to bring one, 1 GiB of memory over each.
    fn default() -> Self {
        ImagesConfig {
            skopeo: PathBuf::from("skopeo"),
            pull_within: Duration::from_secs(1_800),
            bounds: Bounds { bytes_max: 64 << 30, entries_max: 2_000_000 },
            store_bytes_max: 256 << 30,
            store_images_max: 64,
            upper_bytes_max: 1 << 30,
            driver_root: None,
        }
    }
}

/// Why an image cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The pool has no rule for it.
    #[error("the pool of this node does not allow it any more")]
    NotAllowed,
    /// Its name says nothing.
    #[error("{problem}: {fix}")]
    BadName {
        /// What is wrong.
        problem: String,
        /// What to write.
        fix: String,
    },
    /// There is none.
    #[error("{why}")]
    NoSuchImage {
        /// Why not.
        why: String,
    },
    /// It is not what an image has to be.
    #[error("{what}")]
    Damaged {
        /// What is wrong.
        what: String,
    },
    /// It is not what its name says.
    #[error("a digest is wrong: sha256:{got} instead of sha256:{expected}")]
    Digest {
        /// As it is named.
        expected: String,
        /// As it is.
        got: String,
    },
    /// An entry of a layer asks for what none may.
    #[error("entry {entry:?} is refused: {why}")]
    Hostile {
        /// Its path.
        entry: String,
        /// What it asks for.
        why: String,
    },
    /// It is larger than a node takes.
    #[error("it is larger than {} MiB or has more than {entries_max} files", bytes_max >> 20)]
    TooLarge {
        /// Bytes.
        bytes_max: u64,
        /// Files.
        entries_max: u64,
    },
    /// A layer cannot be read.
    #[error("a layer cannot be read: {source}")]
    Archive {
        /// Why.
        source: io::Error,
    },
    /// The registry, or the program that asks it.
    #[error("{said}")]
    Pull {
        /// What it said.
        said: String,
        /// It is this node's fault.
        by_node: bool,
    },
    /// This node's disk.
    #[error("{doing}: {source}")]
    Disk {
        /// What was being done.
        doing: String,
        /// What the disk said.
        source: io::Error,
    },
}

impl ImageError {
    fn disk(doing: impl Into<String>, source: io::Error) -> Self {
        ImageError::Disk { doing: doing.into(), source }
    }

    fn archive(source: io::Error) -> Self {
        ImageError::Archive { source }
    }

    /// Whether another node might do better: whatever the image is, this is the node's fault.
    #[must_use]
    pub fn is_by_node(&self) -> bool {
        match self {
            ImageError::Disk { .. } => true,
            ImageError::Pull { by_node, .. } => *by_node,
            ImageError::NotAllowed
            | ImageError::BadName { .. }
            | ImageError::NoSuchImage { .. }
            | ImageError::Damaged { .. }
            | ImageError::Digest { .. }
            | ImageError::Hostile { .. }
            | ImageError::TooLarge { .. }
            | ImageError::Archive { .. } => false,
        }
    }
}
