//! The images of this node: each prepared once, however many tasks wait for it, and kept within bounds.
//!
//! | place below `images/` | what |
//! | --- | --- |
//! | `roots/DIGEST/root` | an unpacked image, by the digest of its manifest |
//! | `roots/DIGEST/image` | what it says about running it, and how large it is; its time of change is that of its last use |
//! | `names/HASH` | which digest a digest of a registry became: skopeo writes manifests of other kinds anew |
//! | `new/N` | what is being prepared; nothing of it counts, and a new agent removes it |
//!
//! What must stay true: what stands below `roots` is whole, since it was renamed there when it was; what a task uses is not removed; one digest is prepared by one
//! thread at a time; nothing here holds a lock over what others wait for but that.

use super::layout::{LayoutImage, hex};
use super::{ImageError, ImagesConfig, pull};
use crate::boottime;
use crate::sandbox::beneath;
use crate::task_folder::record::{Beneath, OfImage};
use crate::task_folder::{read_json, write_json};
use muster_model::{ImageRef, TaskImage};
use nix::sys::stat::futimens;
use nix::sys::time::TimeSpec;
use parking_lot::{ArcMutexGuard, Mutex, RawMutex};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::SystemTime;
use tokio::sync::watch;

/// An image that a task can run in. While it is held, it is not removed.
#[derive(Debug)]
pub(crate) struct Ready {
    /// Its root file system.
    pub(crate) at: Beneath,
    /// What it says about running it.
    pub(crate) of_image: OfImage,
    /// Keeps it there.
    pub(crate) kept: Option<Arc<Kept>>,
}

/// An unpacked image that somebody uses.
#[derive(Debug)]
pub(crate) struct Kept;

/// What is written down beside a root.
#[derive(Debug, Serialize, Deserialize)]
struct About {
    name: String,
    bytes: u64,
    of_image: OfImage,
}

type Outcome = Option<Result<Arc<Ready>, Arc<ImageError>>>;

/// See the module.
#[derive(Debug)]
pub(crate) struct Store {
    folder: PathBuf,
    config: ImagesConfig,
    /// By the name of the image and the folder that it is allowed in.
    under_way: Mutex<BTreeMap<(String, String), watch::Receiver<Outcome>>>,
    /// By digest: held by the thread that prepares it.
    digests: Mutex<BTreeMap<String, Arc<Mutex<()>>>>,
    used: Mutex<BTreeMap<String, Weak<Kept>>>,
    /// Distinguishes what this agent prepares from what another one has left, whose threads or programs may still be at work.
    own: String,
    last: AtomicU64,
}

impl Store {
    /// The store below a node's data folder. Nothing is touched.
    pub(crate) fn new(data: &Path, config: ImagesConfig) -> Self {
        Store {
            folder: data.join("images"),
            config,
            under_way: Mutex::default(),
            digests: Mutex::default(),
            used: Mutex::default(),
            own: format!("{}-{}", std::process::id(), boottime::now_ns().unwrap_or_default()),
            last: AtomicU64::new(0),
        }
    }

    pub(crate) fn config(&self) -> &ImagesConfig {
        &self.config
    }

    /// Removes what an agent before this one has not finished. Blocks.
    pub(crate) fn clean(&self) {
        let fresh = self.folder.join("new");
        if let Err(error) = std::fs::remove_dir_all(&fresh)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(folder = %fresh.display(), %error, "cannot remove images that were not finished");
        }
    }

    /// A hold on the image that a task of an earlier agent runs in, if it is one of these.
    pub(crate) fn hold(&self, root: &Path) -> Option<Arc<Kept>> {
        let digest = root.strip_prefix(self.folder.join("roots")).ok()?.components().next()?;
        Some(self.keep(digest.as_os_str().to_str()?))
    }

    fn keep(&self, digest: &str) -> Arc<Kept> {
        let mut used = self.used.lock();
        let kept = used.get(digest).and_then(Weak::upgrade).unwrap_or_else(|| Arc::new(Kept));
        used.insert(digest.to_owned(), Arc::downgrade(&kept));
        kept
    }

    /// Prepares an image, or waits for the one that does already.
    pub(crate) async fn ready(self: &Arc<Self>, image: &TaskImage) -> Result<Arc<Ready>, Arc<ImageError>> {
        let key = (image.image.clone(), image.below.clone());
        let mut outcome = {
            let mut under_way = self.under_way.lock();
            match under_way.get(&key) {
                Some(known) => known.clone(),
                None => {
                    let (tell, told) = watch::channel(None);
                    under_way.insert(key.clone(), told.clone());
                    let (store, image) = (self.clone(), image.clone());
                    tokio::task::spawn_blocking(move || {
                        let outcome = store.prepare(&image).map(Arc::new).map_err(Arc::new);
                        // Whoever comes now looks again: an image may have another content under the same name.
                        store.under_way.lock().remove(&key);
                        let _ = tell.send(Some(outcome));
                    });
                    told
                }
            }
        };
        let told = outcome.wait_for(Option::is_some).await.map(|told| told.clone());
        told.ok().flatten().unwrap_or_else(|| {
            self.under_way.lock().remove(&(image.image.clone(), image.below.clone()));
            let source = io::Error::other("the agent stopped");
            Err(Arc::new(ImageError::disk("preparing it", source)))
        })
    }

    /// Blocks.
    fn prepare(&self, image: &TaskImage) -> Result<Ready, ImageError> {
        if image.below.is_empty() {
            return Err(ImageError::NotAllowed);
        }
        let below = Path::new(&image.below);
        match ImageRef::parse(&image.image) {
            Ok(ImageRef::Folder { path }) => folder_image(below, Path::new(path)),
            Ok(ImageRef::Layout { path, tag }) => {
                let at = Beneath::of(below, Path::new(path)).ok_or(ImageError::NotAllowed)?;
                self.of_layout(&at, tag, &image.image)
            }
            Ok(ImageRef::Registry { name, version }) => self.of_registry(name, version, &image.image),
            Err(bad) => Err(ImageError::BadName { problem: bad.problem, fix: bad.fix }),
        }
    }

    fn of_layout(&self, at: &Beneath, tag: Option<&str>, name: &str) -> Result<Ready, ImageError> {
        let folder = beneath::open_folder(at).map_err(|error| missing(at, &error))?;
        let found = LayoutImage::find(folder, tag)?;
        self.unpacked(&found, name)
    }

    fn of_registry(&self, name: &str, version: &str, whole: &str) -> Result<Ready, ImageError> {
        let digest = match version.strip_prefix('@') {
            Some(digest) => digest.to_owned(),
            None => pull::digest_of(&self.config, whole)?,
        };
        let source = format!("docker://{name}@{digest}");
        let alias = self.folder.join("names").join(hex(&Sha256::digest(source.as_bytes())));
        let _only = self.only(&source);
        if let Ok(known) = std::fs::read_to_string(&alias)
            && let Some(ready) = self.known(known.trim())?
        {
            return Ok(ready);
        }
        let fresh = self.fresh()?;
        let layout = fresh.0.join("layout");
        pull::copy(&self.config, &source, &layout)?;
        let at = Beneath { below: layout, rest: PathBuf::new() };
        let folder = beneath::open_folder(&at).map_err(|error| missing(&at, &error))?;
        let found = LayoutImage::find(folder, None)?;
        let ready = self.unpacked(&found, whole)?;
        let noted = make_folder(&self.folder.join("names")).and_then(|()| std::fs::write(&alias, &found.digest));
        noted.map_err(|error| ImageError::disk("noting its digest", error))?;
        Ok(ready)
    }

    /// The lock on a digest, for as long as it is held.
    fn only(&self, digest: &str) -> ArcMutexGuard<RawMutex, ()> {
        let lock = {
            let mut digests = self.digests.lock();
            digests.retain(|_, lock| Arc::strong_count(lock) > 1);
            digests.entry(digest.to_owned()).or_default().clone()
        };
        Mutex::lock_arc(&lock)
    }

    fn unpacked(&self, image: &LayoutImage, name: &str) -> Result<Ready, ImageError> {
        let digest = &image.digest;
        let _only = self.only(digest);
        if let Some(ready) = self.known(digest)? {
            return Ok(ready);
        }
        let of_image = image.config()?;
        let fresh = self.fresh()?;
        let root = fresh.0.join("root");
        DirBuilder::new().mode(0o755).create(&root).map_err(|error| ImageError::disk("making its folder", error))?;
        tracing::info!(image = name, digest, "unpacking an image");
        let bytes = image.unpack(&root, self.config.bounds)?;
        let about = About { name: name.to_owned(), bytes, of_image };
        let finish = || -> io::Result<()> {
            write_json(&fresh.0.join("image"), &about)?;
            // A host that loses its power must not keep half of it under its name.
            nix::unistd::syncfs(File::open(&fresh.0)?)?;
            make_folder(&self.folder.join("roots"))?;
            std::fs::rename(&fresh.0, self.root(digest))
        };
        // Held before it can be seen, so that it is not the first to be removed.
        let _kept = self.keep(digest);
        finish().map_err(|error| ImageError::disk("keeping it", error))?;
        self.shrink();
        self.known(digest)?.ok_or_else(|| ImageError::disk("looking for it", io::ErrorKind::NotFound.into()))
    }

    fn root(&self, digest: &str) -> PathBuf {
        self.folder.join("roots").join(digest)
    }

    /// An image that is here already.
    fn known(&self, digest: &str) -> Result<Option<Ready>, ImageError> {
        let kept = self.keep(digest);
        let folder = self.root(digest);
        let path = folder.join("image");
        let about =
            read_json::<About>(&path).map_err(|error| ImageError::disk("reading what is known of it", error))?;
        let Some(about) = about else { return Ok(None) };
        // When it was used last. That this fails is no reason not to run.
        let _ = File::open(&path).map(|file| futimens(&file, &TimeSpec::UTIME_NOW, &TimeSpec::UTIME_NOW));
        let at = Beneath { below: folder, rest: PathBuf::from("root") };
        Ok(Some(Ready { at, of_image: about.of_image, kept: Some(kept) }))
    }

    /// A folder for what is being prepared; dropped with all that is in it.
    fn fresh(&self) -> Result<Fresh, ImageError> {
        let parent = self.folder.join("new");
        let path = parent.join(format!("{}-{}", self.own, self.last.fetch_add(1, Ordering::Relaxed)));
        let made = make_folder(&self.folder).and_then(|()| make_folder(&parent)).and_then(|()| make_folder(&path));
        made.map_err(|error| ImageError::disk(format!("making {}", path.display()), error))?;
        Ok(Fresh(path))
    }

    /// Removes what was not used for longest, until the rest is within the bounds or in use.
    fn shrink(&self) {
        let Ok(entries) = std::fs::read_dir(self.folder.join("roots")) else { return };
        let mut all: Vec<(SystemTime, u64, String)> = Vec::new();
        for name in entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()) {
            let path = self.root(&name).join("image");
            let bytes = read_json::<About>(&path).ok().flatten().map_or(0, |about| about.bytes);
            let used = std::fs::metadata(&path).and_then(|of| of.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
            all.push((used, bytes, name));
        }
        all.sort();
        let (mut count, mut bytes) = (all.len(), all.iter().map(|(_, bytes, _)| *bytes).sum::<u64>());
        for (_, its_bytes, digest) in all {
            if count <= self.config.store_images_max && bytes <= self.config.store_bytes_max {
                return;
            }
            if self.remove(&digest) {
                self.forget_names();
                (count, bytes) = (count - 1, bytes - its_bytes);
            }
        }
    }

    /// Forgets names of images that are gone.
    fn forget_names(&self) {
        let Ok(names) = std::fs::read_dir(self.folder.join("names")) else { return };
        for path in names.flatten().map(|entry| entry.path()) {
            let is_here = std::fs::read_to_string(&path).is_ok_and(|digest| self.root(digest.trim()).exists());
            if !is_here {
                let _ = std::fs::remove_file(path);
            }
        }
    }

    /// Removes an image that nobody uses. Says whether it is gone.
    fn remove(&self, digest: &str) -> bool {
        let Ok(fresh) = self.fresh() else { return false };
        let moved = {
            // Held while it is moved away, so that nobody can take it in between.
            let mut used = self.used.lock();
            if used.get(digest).is_some_and(|kept| kept.strong_count() > 0) {
                return false;
            }
            used.remove(digest);
            std::fs::rename(self.root(digest), fresh.0.join("old"))
        };
        match moved {
            Ok(()) => tracing::info!(digest, "removing an image that was not used for longest"),
            Err(error) => tracing::warn!(digest, %error, "cannot remove an image"),
        }
        true
    }
}

/// A folder that goes with this value, unless it was renamed.
struct Fresh(PathBuf);

impl Drop for Fresh {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A folder that only its owner may enter.
fn make_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// An unpacked root file system is used as it is.
fn folder_image(below: &Path, path: &Path) -> Result<Ready, ImageError> {
    let at = Beneath::of(below, path).ok_or(ImageError::NotAllowed)?;
    beneath::open_folder(&at).map_err(|error| missing(&at, &error))?;
    Ok(Ready { at, of_image: OfImage::default(), kept: None })
}

fn missing(at: &Beneath, error: &io::Error) -> ImageError {
    ImageError::NoSuchImage { why: format!("{}: {error}", at.path().display()) }
}
