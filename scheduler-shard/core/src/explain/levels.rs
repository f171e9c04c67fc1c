//! What a wider level would cost a gang that requires a tight one, in bandwidth, and whether it would start there.
//!
//! What must stay true: whether it starts is asked of the search that places; the figures are the catalogue's, with their source there.

use super::words::word as model_words;
use crate::search::{Ask, Steps, place};
use crate::view::View;
use muster_model::links::Link;
use muster_model::{GpuModel, TopologyLevel};

/// One wider level, on one model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wider {
    /// The model.
    pub model: GpuModel,
    /// What the gang requires.
    pub required: TopologyLevel,
    /// The wider level.
    pub level: TopologyLevel,
    /// The slowest way between its cards where it requires, if known.
    pub now: Option<Link>,
    /// The slowest way between its cards at the wider level, if known.
    pub then: Option<Link>,
    /// It would start at once.
    pub starts: bool,
}

impl Wider {
    /// In words: `node instead of island: 64 GB/s (PCIe) instead of 450 GB/s (NVLink) for each GPU (14 %); it would start at once`.
    #[must_use]
    pub fn text(&self) -> String {
        let cost = match (self.now, self.then) {
            (Some(now), Some(then)) if now == then => format!("{now} for each GPU, as before"),
            (Some(now), Some(then)) => {
                let percent = then.mb_s * 100 / now.mb_s.max(1);
                format!("{then} instead of {now} for each GPU ({percent} %)")
            }
            _ => format!("the bandwidth between nodes with {} is not known", model_words(Some(self.model))),
        };
        let starts = if self.starts { "it would start at once" } else { "it would still be pending" };
        format!("{} instead of {}: {cost}; {starts}", self.level, self.required)
    }
}

/// Whether some node of the cell has cards of the model in more than one island.
fn islands_are_parts(view: &View, ask: &Ask<'_>, model: GpuModel) -> bool {
    let nodes = view.fleet.capacity.nodes().values().map(|there| &there.node).filter(|node| node.cell == ask.cell);
    let mut islands = nodes.map(|node| node.spec.gpus.iter().filter(|gpu| gpu.model == model).map(|gpu| gpu.island));
    islands.any(|mut islands| islands.next().is_some_and(|first| islands.any(|other| other != first)))
}

/// The wider levels of a gang of several cards that requires one; none for others.
pub(super) fn wider(view: &View, ask: &Ask<'_>) -> Vec<Wider> {
    let (Some(model), Some(required)) = (ask.model, ask.class.topology.required) else { return Vec::new() };
    if ask.class.cards() < 2 || ask.class.request.devices.mode() != Some(muster_model::request::SharingMode::Whole) {
        return Vec::new();
    }
    // A single task lies on one node whatever it allows.
    let widest = if ask.class.tasks == 1 { TopologyLevel::Node } else { TopologyLevel::Region };
    let levels = TopologyLevel::ALL.into_iter().filter(|level| *level > required && *level <= widest);
    // Where every node is one island, a node is no wider.
    let levels = levels.filter(|level| *level != TopologyLevel::Node || islands_are_parts(view, ask, model));
    let at = |level| {
        let class = ask.class.with(ask.class.tasks, Some(level));
        let starts = place(&view.fleet, &Ask { class: &class, ..*ask }, &mut Steps::default()).is_some();
        Wider { model, required, level, now: model.link_at(required), then: model.link_at(level), starts }
    };
    levels.map(at).collect()
}
