//! Telling the workers of an elastic gang its size.
//!
//! What must stay true: a worker is told each size once, by the file first and then by the signal; the lock on the tasks is not held across the disk.

use super::{Entry, Inner};
use crate::task_folder::world;
use muster_model::World;
use muster_node_core::{Stopping, TaskKey};

impl Entry {
    /// An earlier agent told it this generation; the rest of it comes again with the desired state.
    pub(super) fn was_told(&mut self, generation: Option<u64>) {
        if let (Some(world), Some(generation)) = (&mut self.world, generation) {
            world.generation = generation;
        }
        self.told_generation = generation;
    }
}

impl Inner {
    /// The gang has another size.
    pub(super) fn set_world(&self, key: TaskKey, world: World) {
        if let Some(entry) = self.tasks.lock().get_mut(&key) {
            entry.world = Some(world);
        }
        self.tell_world(key);
    }

    /// Replaces the world file of a worker that has a shim and has not been told of its gang's present size, and has it signalled.
    pub(super) fn tell_world(&self, key: TaskKey) {
        let (spec, world, shim) = {
            let mut tasks = self.tasks.lock();
            let Some(entry) = tasks.get_mut(&key) else { return };
            let (Some(world), Some(shim)) = (entry.world, entry.shim.clone()) else { return };
            if entry.told_generation == Some(world.generation) || entry.stopping != Stopping::No {
                return;
            }
            entry.told_generation = Some(world.generation);
            (entry.spec.clone(), world, shim)
        };
        match world::write(&self.folder(key), &spec, &world) {
            Ok(()) => world.signal.into_iter().for_each(|signal| shim.process.send_signal_order(signal)),
            Err(error) => tracing::error!(task = %key, %error, "cannot tell a task the size of its gang"),
        }
    }
}
