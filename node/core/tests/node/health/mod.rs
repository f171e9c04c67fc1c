//! The health of cards: the table against the facts, the kernel's log, the rules one by one, and the laws against any events.

mod cases;
mod facts;
mod kmsg;
mod laws;
mod strategies;

use muster_model::mig::{MigPlacement, MigShape};
use muster_node_core::health::{
    CardHealth, Effect, EffectKind, GpuUuid, HealthEvent, Instance, Ledger, Mode, Scope, Verdict, VerdictKind, Xid,
    XidEvent, XidSource,
};

/// A Tuesday of 2026, in ms of Unix time.
const T0: u64 = 1_795_482_000_000;
const MINUTE: u64 = 60_000;

/// `1g` at these slices.
const FIRST: MigPlacement = MigPlacement { shape: MigShape::G1, start: 0 };
const SECOND: MigPlacement = MigPlacement { shape: MigShape::G1, start: 1 };

fn uuid() -> GpuUuid {
    GpuUuid("GPU-c43f0536-0000-0000-0000-000000000001".to_owned())
}

fn kernel(code: u16, instance: Option<Instance>, pid: Option<u32>, at_ms: u64) -> XidEvent {
    let process = pid.map(|_| "python".to_owned());
    let source = XidSource::Kernel { seq: None };
    XidEvent { xid: Xid(code), instance, source, at_ms, pid, process, text: "Ch 00000008".to_owned() }
}

fn in_slice(place: MigPlacement) -> Option<Instance> {
    Some(Instance { id: place.start + 7, place: Some(place) })
}

/// One card in a node of this boot.
struct Node {
    ledger: Ledger,
    now_ms: u64,
    mode: Mode,
}

impl Node {
    fn new() -> Self {
        let mut node = Node { ledger: Ledger::default(), now_ms: T0, mode: Mode::Enforce };
        node.boot("boot-1");
        node
    }

    fn boot(&mut self, id: &str) -> Vec<EffectKind> {
        kinds(self.ledger.booted(id, self.now_ms, self.mode))
    }

    fn tell(&mut self, event: HealthEvent) -> Vec<EffectKind> {
        kinds(self.ledger.observe(&uuid(), &event, self.now_ms, self.mode))
    }

    fn xid(&mut self, code: u16) -> Vec<EffectKind> {
        self.tell(HealthEvent::Xid(kernel(code, None, Some(123), self.now_ms)))
    }

    fn clear(&mut self) -> Vec<EffectKind> {
        self.clear_as_of(self.now_ms)
    }

    fn clear_as_of(&mut self, at_ms: u64) -> Vec<EffectKind> {
        self.tell(HealthEvent::Cleared { by: "alice".to_owned(), reason: "looked at it".to_owned(), at_ms })
    }

    fn pass(&mut self, ms: u64) {
        self.now_ms += ms;
    }

    fn card(&self) -> &CardHealth {
        &self.ledger.cards()[&uuid()]
    }

    fn verdict(&self, scope: Scope) -> Option<Verdict> {
        self.ledger.withheld(&uuid(), scope, self.mode)
    }

    fn kind(&self, scope: Scope) -> VerdictKind {
        self.verdict(scope).map_or(VerdictKind::Use, |verdict| verdict.kind)
    }
}

fn kinds(effects: Vec<Effect>) -> Vec<EffectKind> {
    effects.into_iter().map(|effect| effect.kind).collect()
}

/// Whose tasks end: scope and process.
fn ended(effects: &[EffectKind]) -> Vec<(Scope, Option<u32>)> {
    let end = |effect: &EffectKind| match effect {
        EffectKind::EndHolders { scope, process, .. } => Some((*scope, *process)),
        _ => None,
    };
    effects.iter().filter_map(end).collect()
}

fn recorded(effects: &[EffectKind]) -> usize {
    effects.iter().filter(|effect| matches!(effect, EffectKind::Record(_))).count()
}
