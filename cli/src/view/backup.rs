//! Backups as they are shown, and what a restored cluster asks of its operator.

use crate::args::backup::RestoreBackup;
use crate::output::{Block, Columns};
use muster_control_server::backup::{Head, Restored, Summary};
use muster_proto::v1;
use serde::Serialize;
use std::path::Path;

/// Jobs that a line names.
const JOBS_NAMED_MAX: usize = 8;

/// A backup.
#[derive(Clone, Debug, Serialize)]
pub struct BackupView {
    /// The file.
    pub file: String,
    /// Bytes of it.
    pub bytes: u64,
    /// Identity of the cluster.
    pub cluster: String,
    /// The history of the cluster that it is of.
    pub incarnation: u64,
    /// The last revision in it.
    pub revision: u64,
    /// The state's time, in ms since the Unix epoch.
    pub state_ms: u64,
    /// When it was made, in ms since the Unix epoch.
    pub made_ms: u64,
    /// The control node that made it.
    pub made_by: u64,
    /// Its version.
    pub version: String,
    /// The feature level of the state.
    pub feature_level: u32,
    /// Control nodes of the cluster, as ID=HOST:PORT.
    pub members: Vec<String>,
}

impl BackupView {
    /// Of a file that was read to its end.
    #[must_use]
    pub fn new(file: &Path, head: Head, summary: Summary) -> Self {
        let Head {
            cluster,
            incarnation,
            feature_level,
            term: _,
            revision,
            state_ms,
            made_ms,
            made_by,
            version,
            members,
        } = head;
        BackupView {
            file: file.display().to_string(),
            bytes: summary.bytes,
            cluster: format!("{cluster:016x}"),
            incarnation,
            revision,
            state_ms,
            made_ms,
            made_by,
            version,
            feature_level,
            members: members.into_iter().map(|(id, address)| format!("{id}={address}")).collect(),
        }
    }

    /// For people.
    #[must_use]
    pub fn blocks(&self) -> Vec<Block> {
        let made = muster_model::utc::show(self.made_ms);
        let text = format!(
            "{}: whole, {} bytes\ncluster {}, history {}, revision {}, feature level {}\nmade {made} by control node {} (muster {}); control nodes: {}",
            self.file,
            self.bytes,
            self.cluster,
            self.incarnation,
            self.revision,
            self.feature_level,
            self.made_by,
            self.version,
            self.members.join(", ")
        );
        vec![Block::Text(text)]
    }
}

/// A folder made from a backup.
#[derive(Clone, Debug, Serialize)]
pub struct RestoredView {
    /// The folder.
    pub data: String,
    /// The control node.
    pub id: u64,
    /// Identity of the cluster.
    pub cluster: String,
    /// The history that begins.
    pub incarnation: u64,
    /// The revision at which it begins.
    pub revision: u64,
    /// The number of the next job.
    pub next_job: u64,
    /// The state's time when the backup was made, in ms since the Unix epoch.
    pub state_ms: u64,
}

impl RestoredView {
    /// What was made.
    #[must_use]
    pub fn new(args: &RestoreBackup, Restored { head, incarnation, next_job, revision }: Restored) -> Self {
        RestoredView {
            data: args.data.display().to_string(),
            id: args.id,
            cluster: format!("{:016x}", head.cluster),
            incarnation,
            revision,
            next_job,
            state_ms: head.state_ms,
        }
    }

    /// For people.
    #[must_use]
    pub fn blocks(&self) -> Vec<Block> {
        let of = muster_model::utc::show(self.state_ms);
        vec![Block::Text(format!(
            "{}: control node {}, the only one of cluster {}, with the state of {of}\nhistory {}, from revision {}; the next job is {}\n\
             Sessions and tokens of before are void. What was acknowledged after the backup is lost.\n\
             Next: stop every old control node for good; start this one; `muster machine confirm --dry-run`; add the others.",
            self.data, self.id, self.cluster, self.incarnation, self.revision, self.next_job
        ))]
    }
}

/// A node that is not clear yet.
#[derive(Clone, Debug, Serialize)]
pub struct NodeReviewView {
    /// Its name.
    pub name: String,
    /// Its agent has connected since the restore.
    pub is_back: bool,
    /// An operator has confirmed it.
    pub confirmed: bool,
    /// Another agent asks to be it, and is kept out while tasks of the one in the backup may run.
    pub has_rival: bool,
    /// Jobs that go on there.
    pub kept: Vec<u64>,
    /// Jobs that are stopped there: the backup does not know them.
    pub unknown: Vec<u64>,
    /// Jobs whose attempt there ends: their tasks are gone.
    pub gone: Vec<u64>,
}

/// What confirming does, or has done.
#[derive(Clone, Debug, Serialize)]
pub struct ReviewView {
    /// Nodes that were not clear.
    pub nodes: Vec<NodeReviewView>,
    /// Shards that were not confirmed.
    pub shards: Vec<String>,
    /// Nodes that are enrolled and not in the fleet.
    pub enrolled: Vec<String>,
    /// Grants of the backup.
    pub grants: u64,
    /// Nothing was changed.
    pub dry_run: bool,
}

impl ReviewView {
    /// What the control plane answered.
    #[must_use]
    pub fn new(reply: v1::ConfirmReply, dry_run: bool) -> Self {
        let node = |v1::NodeReview { name, is_back, confirmed, has_rival, kept, unknown, gone }| NodeReviewView {
            name,
            is_back,
            confirmed,
            has_rival,
            kept,
            unknown,
            gone,
        };
        let nodes = reply.nodes.into_iter().map(node).collect();
        ReviewView { nodes, shards: reply.shards, enrolled: reply.enrolled, grants: reply.grants, dry_run }
    }

    /// For people.
    #[must_use]
    pub fn blocks(&self) -> Vec<Block> {
        if self.nodes.is_empty() && self.shards.is_empty() && self.enrolled.is_empty() {
            return vec![Block::Text("nothing waits to be confirmed".to_owned())];
        }
        let mut columns = Columns::new(&["NODE", "BACK", "GO ON", "STOPPED (UNKNOWN)", "LOST (NOT THERE)"]);
        for node in &self.nodes {
            let back = match (node.is_back, node.has_rival, node.confirmed) {
                (true, false, _) => "yes",
                (true, true, _) => "yes, and another agent of that name",
                (false, true, _) => "no, but another agent of that name",
                (false, false, true) => "no, confirmed",
                (false, false, false) => "no",
            };
            columns.row(vec![
                node.name.clone(),
                back.to_owned(),
                jobs(&node.kept),
                jobs(&node.unknown),
                jobs(&node.gone),
            ]);
        }
        let shards = match self.shards.as_slice() {
            [] => String::new(),
            shards => format!("shards: {}\n", shards.join(", ")),
        };
        let enrolled = match self.enrolled.as_slice() {
            [] => String::new(),
            nodes => format!("enrolled, not in the fleet: {}\n", nodes.join(", ")),
        };
        let grants = match self.grants {
            0 => String::new(),
            grants => format!(
                "Grants that were revoked after the backup are there again: look through all {grants} (`muster grant list`).\n"
            ),
        };
        let rivals = match self.nodes.iter().any(|node| node.has_rival && !node.is_back) {
            false => "",
            true => {
                "If a host was installed anew since the backup, say that the one before is gone (`muster machine confirm --gone node:NAME`), and its new agent is let in.\n"
            }
        };
        let end = match self.dry_run {
            true => format!(
                "{shards}{enrolled}{grants}{rivals}Suspend what does not belong to the fleet (`muster machine suspend`), then `muster machine confirm --all`."
            ),
            false => format!("{shards}confirmed; nodes take work when all are back and what is stopped has ended"),
        };
        vec![columns.block(), Block::Text(end)]
    }
}

fn jobs(ids: &[u64]) -> String {
    let named: Vec<String> = ids.iter().take(JOBS_NAMED_MAX).map(u64::to_string).collect();
    match ids.len().saturating_sub(JOBS_NAMED_MAX) {
        _ if ids.is_empty() => "-".to_owned(),
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}
