//! The simulated disk keeps the promises of every disk: the same suite that the real one passes.

mod conformance;

use conformance::Machine;
use muster_runtime::sim::{SimWorld, run};
use muster_runtime::{Disk, Files, Host};
use std::sync::Arc;

struct Simulated {
    world: SimWorld,
    host: Host,
}

impl Machine for Simulated {
    fn disk(&self) -> Arc<dyn Disk> {
        self.host.disk.clone()
    }

    fn files(&self) -> Arc<dyn Files> {
        self.host.files.clone()
    }

    fn crash(&mut self) {
        drop(self.world.cut_power("machine"));
        self.host = self.world.boot("machine");
    }
}

#[test]
fn the_simulated_disk_conforms() {
    for seed in 0..200 {
        run(seed, move |world| async move {
            let host = world.boot("machine");
            conformance::check_all(&mut Simulated { world, host }, seed).await;
        });
    }
}
