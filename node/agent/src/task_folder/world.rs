//! The file in which a worker of an elastic gang finds the gang's present size and its own place: JSON, replaced whole at each change.
//!
//! What must stay true: the file is there before the worker starts; a reader sees the old content or the new one; a worker that is sent a signal
//! finds the new one.

use super::{TaskFolder, read_json};
use muster_model::World;
use muster_node_core::TaskSpec;
use serde::{Deserialize, Serialize};
use std::io;

/// What is in the file. Names are those of the variables that a worker starts with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct WorldFile {
    generation: u64,
    workers: u32,
    workers_min: u32,
    workers_max: u32,
    rank: u32,
    local_rank: u32,
    local_workers: u32,
    node_rank: u32,
    master_addr: String,
    master_port: u16,
}

/// Replaces the file.
///
/// # Errors
/// When the disk refuses.
pub(crate) fn write(folder: &TaskFolder, spec: &TaskSpec, world: &World) -> io::Result<()> {
    let World { generation, workers, rank, local_rank, local_workers, node_rank, workers_min, workers_max, signal: _ } =
        *world;
    let (master_addr, master_port) = (spec.master_addr.clone(), spec.master_port);
    let file = WorldFile {
        generation,
        workers,
        workers_min,
        workers_max,
        rank,
        local_rank,
        local_workers,
        node_rank,
        master_addr,
        master_port,
    };
    folder.write_json(&folder.world(), &file)
}

/// The generation that is in the file; none where there is no such file.
pub(crate) fn generation(folder: &TaskFolder) -> Option<u64> {
    let file: WorldFile = read_json(&folder.world()).ok().flatten()?;
    Some(file.generation)
}
