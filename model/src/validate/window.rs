//! What an operator may ask of a window. What must stay true: it begins before it ends; only a reservation has tenants, chooses nodes or is
//! flexible.

use super::{Faults, bounds};
use crate::field_error::FieldError;
use crate::window::{DRAIN_PREFIX, WINDOW_MS_MAX, WindowKind, WindowSpec};

impl WindowSpec {
    /// Checks it by itself.
    ///
    /// # Errors
    /// Everything that is wrong, each with its field and the fix.
    pub fn validate(&self) -> Result<(), Vec<FieldError>> {
        let mut faults = Faults::default();
        let kind = self.kind;
        if kind != WindowKind::Drain {
            faults.name("name", &self.name);
            let is_drain = self.name.starts_with(DRAIN_PREFIX);
            faults.when(is_drain, "name", || format!("begins with {DRAIN_PREFIX}"), "leave that to drains");
        }
        let many = self.nodes.len() > bounds::WINDOW_NODES_MAX;
        faults.when(many, "nodes", || format!("has {} nodes", self.nodes.len()), "make a window for each 10,000 nodes");
        let long = self.reason.len() > bounds::TEXT_BYTES_MAX;
        faults.when(long, "reason", || format!("has {} bytes", self.reason.len()), "use at most 512 bytes");
        self.check_times(&mut faults);
        self.check_who(&mut faults);
        faults.done(())
    }

    fn check_times(&self, faults: &mut Faults) {
        match self.end_ms {
            None => faults.when(
                self.kind != WindowKind::Drain,
                "end_ms",
                || "is missing".into(),
                "say when it ends; what has no end is a drain",
            ),
            Some(end_ms) => {
                let drain = self.kind == WindowKind::Drain;
                faults.when(drain, "end_ms", || "is set".into(), "leave it out: a drain ends with `muster undrain`");
                let never = end_ms <= self.start_ms;
                faults.when(never, "end_ms", || "is not after the start".into(), "let it end after its start");
                let long = end_ms.saturating_sub(self.start_ms) > WINDOW_MS_MAX;
                faults.when(long, "end_ms", || "is more than 366 days after the start".into(), "use a shorter time");
            }
        }
    }

    fn check_who(&self, faults: &mut Faults) {
        let chooses = self.gpus > 0;
        let model = self.model.is_some();
        if self.kind == WindowKind::Reservation {
            let fix = "name the tenants that may use it";
            faults.when(self.tenants.is_empty(), "tenants", || "is empty".into(), fix);
            let many = self.tenants.len() > bounds::CLASS_TENANTS_MAX;
            faults.when(many, "tenants", || format!("has {} tenants", self.tenants.len()), "name tenants above them");
            self.tenants.iter().for_each(|path| faults.path("tenants", path));
            let either = chooses == self.nodes.is_empty();
            faults.when(
                !either,
                "nodes",
                || "must be named, or chosen by gpus".into(),
                "give nodes, or gpus and model",
            );
            faults.when(chooses != model, "model", || "goes with gpus".into(), "give both, or neither");
        } else {
            faults.when(self.nodes.is_empty(), "nodes", || "is empty".into(), "name the nodes");
            let more = chooses || model || self.flex || !self.tenants.is_empty();
            faults.when(more, "kind", || format!("is {}", self.kind), "gpus, tenants and flex are for reservations");
        }
    }
}
