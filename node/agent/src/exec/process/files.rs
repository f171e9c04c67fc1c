//! What a task sees of files: its image, what of the host is mounted for it, and the driver.
//!
//! What must stay true: preparing waits in a task of its own, and nothing of the agent waits for it; who is told to stop meanwhile never starts; what cannot be
//! prepared ends the task with the image and the cause.

use super::{Entry, Inner};
use crate::exec::Launch;
use crate::image::driver_files;
use crate::image::store::Kept;
use crate::sandbox;
use crate::task_folder::record::{Beneath, Bind, End, ExitRecord, ImageRoot, LaunchRecord, OfImage};
use muster_model::TaskMount;
use muster_model::validate::bounds::REASON_BYTES_MAX;
use muster_model::validate::clipped;
use muster_node_core::{Stopping, TaskKey, TaskSpec, TaskUsers};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What is there for a task.
#[derive(Debug, Default)]
pub(super) struct Files {
    pub(super) root: Option<ImageRoot>,
    pub(super) binds: Vec<Bind>,
    pub(super) of_image: Option<OfImage>,
    /// Folders of the driver's libraries, behind what was said of them.
    pub(super) library_path: Option<String>,
    kept: Option<Arc<Kept>>,
}

/// Why there is none.
struct NoFiles {
    reason: String,
    by_node: bool,
}

impl Inner {
    /// Prepares what the task sees, and starts it, unless it was told to stop meanwhile.
    pub(super) async fn prepare_and_run(self: Arc<Self>, launch: Launch) {
        let key = launch.spec.key;
        let Some(told) = self.tasks.lock().get(&key).map(|entry| entry.told_to_stop.clone()) else { return };
        let files = tokio::select! {
            biased;
            () = told.cancelled() => return self.never_started(key, End::Stopped),
            files = self.files(&launch.spec) => files,
        };
        match files {
            Ok(files) => {
                let record = match self.connected(launch, files) {
                    None => return self.never_started(key, End::Stopped),
                    Some(Ok(record)) => record,
                    Some(Err(reason)) => return self.cannot_start(key, reason),
                };
                let deadline_ns = self.tasks.lock().get(&key).map_or(0, |entry| entry.deadline_ns);
                self.run(Arc::new(record), deadline_ns).await;
            }
            Err(NoFiles { reason, by_node }) => {
                let reason = clipped(reason, REASON_BYTES_MAX);
                tracing::warn!(task = %key, job = %launch.spec.job, reason, "cannot start a task");
                self.never_started(key, End::StartFailed { reason, by_node });
            }
        }
    }

    /// The record of a task that may start now; none where it was told to stop.
    fn connected(&self, launch: Launch, mut files: Files) -> Option<Result<LaunchRecord, String>> {
        {
            let mut tasks = self.tasks.lock();
            let entry = tasks.get_mut(&launch.spec.key).filter(|entry| entry.stopping == Stopping::No)?;
            entry.kept = files.kept.take();
        }
        Some(self.record(launch, files))
    }

    /// By the node's fault.
    pub(super) fn cannot_start(&self, key: TaskKey, reason: String) {
        tracing::warn!(task = %key, reason, "cannot start a task");
        let reason = clipped(reason, REASON_BYTES_MAX);
        self.never_started(key, End::StartFailed { reason, by_node: true });
    }

    /// By the job's: what it asks for is not here. Were it the node's fault, whoever asks for the impossible could have nodes quarantined.
    pub(super) fn refuse(&self, key: TaskKey, reason: String) {
        tracing::info!(task = %key, reason, "a task asks for what the node does not have");
        let reason = clipped(reason, REASON_BYTES_MAX);
        self.never_started(key, End::StartFailed { reason, by_node: false });
    }

    fn never_started(&self, key: TaskKey, end: End) {
        self.over(key, &ExitRecord { end, started_ns: None, ended_ns: self.now_ns(), dropped_bytes: 0 });
    }

    /// Why the node's driver cannot serve a task, by what its job and its image say. What the job says counts before the image.
    pub(super) fn driver_lacks(&self, spec: &TaskSpec, image: Option<&OfImage>) -> Option<String> {
        let driver = self.config.driver.as_ref().filter(|_| !spec.devices.is_empty())?;
        let of_image = image.iter().flat_map(|image| &image.env).filter(|(name, _)| !spec.env.contains_key(*name));
        driver.lacks(spec.env.iter().chain(of_image).map(|(name, value)| (name.as_str(), value.as_str())))
    }

    async fn files(&self, spec: &TaskSpec) -> Result<Files, NoFiles> {
        let isolates = self.config.isolation.as_ref().is_some_and(|isolation| isolation.users != TaskUsers::Agent);
        if !isolates {
            let reason = "this node cannot give a task an image or mounts: they need full isolation, with an agent that runs as root (see `muster node doctor`)";
            return Err(NoFiles { reason: reason.to_owned(), by_node: true });
        }
        let mounts = spec.mounts.clone();
        let binds = tokio::task::spawn_blocking(move || binds_of(&mounts)).await.map_err(|_| agent_stopped())??;
        let mut files = Files { binds, ..Files::default() };
        let Some(image) = &spec.image else { return Ok(files) };
        let ready = self.images.ready(image).await.map_err(|error| NoFiles {
            reason: format!("image {}: {error}", image.image),
            by_node: error.is_by_node(),
        })?;
        if spec.command.is_empty() && ready.of_image.command.is_empty() {
            let reason = format!("image {} names no program, and the job gives no command: add one", image.image);
            return Err(NoFiles { reason, by_node: false });
        }
        if let Some(reason) = self.driver_lacks(spec, Some(&ready.of_image)) {
            return Err(NoFiles { reason: format!("image {}: {reason}", image.image), by_node: false });
        }
        let config = self.images.config();
        files.root = Some(ImageRoot { at: ready.at.clone(), upper_bytes_max: config.upper_bytes_max });
        files.kept.clone_from(&ready.kept);
        files.of_image = Some(ready.of_image.clone());
        if let Some(root) = config.driver_root.as_deref().filter(|_| !spec.devices.is_empty()) {
            let root = root.to_owned();
            let found = tokio::task::spawn_blocking(move || driver_files::find(&root)).await;
            let found = found.map_err(|_| agent_stopped())?;
            let said =
                spec.env.get(driver_files::LIBRARY_PATH).or_else(|| ready.of_image.env.get(driver_files::LIBRARY_PATH));
            files.library_path = found.library_path(said.map(String::as_str));
            // First, so that none of their places is made in a folder that the job mounts.
            files.binds.splice(0..0, found.binds());
        }
        Ok(files)
    }
}

impl Entry {
    /// Its image may go once nobody else uses it.
    pub(super) fn lets_go(&mut self) {
        self.kept = None;
    }
}

fn agent_stopped() -> NoFiles {
    NoFiles { reason: "the agent stopped".to_owned(), by_node: true }
}

/// What of the host the job wants to see. Blocks.
fn binds_of(mounts: &[TaskMount]) -> Result<Vec<Bind>, NoFiles> {
    let bind = |of: &TaskMount| {
        let refused = |why: &str| NoFiles { reason: format!("mount {}: {why}", of.mount), by_node: false };
        if of.below.is_empty() {
            return Err(refused("the pool of this node does not allow it any more"));
        }
        let source = Beneath::of(Path::new(&of.below), Path::new(&of.mount.source));
        let source = source.ok_or_else(|| refused("it does not lie in the folder that the pool allows"))?;
        // Before anything is started, so that the cause is the job's and not the node's.
        sandbox::beneath::look(&source).map_err(|error| refused(&error.to_string()))?;
        Ok(Bind { source, target: PathBuf::from(&of.mount.target), read_only: of.mount.read_only })
    };
    mounts.iter().map(bind).collect()
}
