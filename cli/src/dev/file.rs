//! `dev.json`: the processes that run now, for people and for tests that kill them.

use crate::dev::folder::Folder;
use crate::dev::plan::RolePlan;
use crate::failure::Failure;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::{Arc, Mutex};

/// What the file says.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct DevFile {
    /// The supervisor's process.
    pub pid: u32,
    /// Control endpoints.
    pub endpoints: Vec<String>,
    /// Live children.
    pub roles: Vec<RunningRole>,
}

/// A live child.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunningRole {
    /// `control-1`, `shard-2`, `agent-1`.
    pub name: String,
    /// `control`, `shard` or `agent`.
    pub role: String,
    /// Its process.
    pub pid: i32,
    /// Where it serves, for control nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// Its metrics and health page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<String>,
    /// The simulated hosts it is, for agents.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
}

impl DevFile {
    /// Reads it.
    ///
    /// # Errors
    /// When it is not there, or half written by something else.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        Ok(serde_json::from_slice(&std::fs::read(path)?)?)
    }
}

/// Keeps the file in step with the children.
#[derive(Clone)]
pub struct Registry {
    folder: Folder,
    content: Arc<Mutex<DevFile>>,
}

impl Registry {
    /// With no child yet.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn new(folder: Folder, endpoints: Vec<String>) -> Result<Self, Failure> {
        let content = DevFile { pid: std::process::id(), endpoints, roles: Vec::new() };
        let registry = Registry { folder, content: Arc::new(Mutex::new(content)) };
        registry.change(|_| ())?;
        Ok(registry)
    }

    /// A child runs.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn started(&self, plan: &RolePlan, pid: i32) -> Result<(), Failure> {
        self.change(|roles| {
            roles.push(RunningRole {
                name: plan.name.clone(),
                role: plan.role.to_owned(),
                pid,
                endpoint: plan.endpoint.clone(),
                http: Some(plan.http.clone()),
                nodes: plan.nodes.clone(),
            });
            roles.sort_by(|a, b| a.name.cmp(&b.name));
        })
    }

    /// A child has ended.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn ended(&self, plan: &RolePlan) -> Result<(), Failure> {
        self.change(|roles| roles.retain(|role| role.name != plan.name))
    }

    /// The cluster has stopped.
    pub fn clear(&self) {
        // A stale file misleads nobody who looks at its processes.
        let _ = std::fs::remove_file(self.folder.dev_json());
    }

    fn change(&self, change: impl FnOnce(&mut Vec<RunningRole>)) -> Result<(), Failure> {
        let mut content = self.content.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        change(&mut content.roles);
        let text = serde_json::to_vec_pretty(&*content).map_err(|error| Failure::Role(error.into()))?;
        self.folder.replace(&self.folder.dev_json(), &text)
    }
}
