//! The simulated network does what both must do with identities.

mod transport;

use muster_runtime::Host;
use muster_runtime::sim::{SimWorld, run};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Hosts of one run; each name is used again with another number.
struct Simulated {
    world: SimWorld,
    booted: AtomicUsize,
}

impl transport::Fabric for Simulated {
    fn host(&self, name: &str) -> Host {
        let number = self.booted.fetch_add(1, Ordering::Relaxed);
        self.world.boot(&format!("{name}-{number}"))
    }

    fn listen(&self) -> &'static str {
        "0.0.0.0:1"
    }
}

fn suite(seed: u64) -> u64 {
    run(seed, |world| async move {
        world.keep_trace();
        transport::check_all(&Simulated { world: world.clone(), booted: AtomicUsize::new(0) }).await;
        let trace = world.take_trace();
        for kind in [" full", " resumed", "is refused"] {
            assert!(trace.iter().any(|line| line.contains("handshake") && line.contains(kind)), "none was{kind}");
        }
        world.trace_hash()
    })
}

#[test]
fn the_simulated_network_keeps_the_rules_of_identities() {
    for seed in 0..5 {
        suite(seed);
    }
}

#[test]
fn identities_follow_from_the_seed() {
    assert_eq!(suite(7), suite(7));
}
