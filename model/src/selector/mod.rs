//! Selectors: which cards will do, in CEL's syntax, kept as a small tree.
//!
//! `device.model == "h100" && device.memory_mib >= 40000 && node.labels["tier"] in ["gold", "silver"]` is parsed once, where it enters
//! (`parse.rs`), into comparisons joined by *and*, *or* and *not*. The tree is what is logged and evaluated. What must stay true: no
//! loop, no call, no arithmetic, so evaluation takes one step per comparison and always ends; depth, comparisons and text are
//! bounded, also of a tree that is read from storage or a peer; the text of a tree parses back to the same tree.
//!
//! A full CEL has comprehensions and can run for minutes on 300 bytes; and it counts a missing map key as an error, where here a
//! comparison with a label that a node does not have is simply not true.

mod parse;
mod show;
mod stored;

pub use parse::{BadSelector, bounds};

use crate::driver::DriverVersion;
use crate::gpu::GpuModel;
use crate::node::{Gpu, Node};
use serde::{Deserialize, Serialize};

/// A selector that has passed the parser and its bounds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Selector(Expr);

/// One part of the tree. Its variants stand in `stored.rs` too, in the same order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
enum Expr {
    /// Every one of two or more.
    All(Vec<Expr>),
    /// At least one of two or more.
    Any(Vec<Expr>),
    Not(Box<Expr>),
    /// The model is one of these.
    Model(Vec<GpuModel>),
    /// The card's memory in MiB.
    Memory(Order, u64),
    /// The node's driver.
    Driver(Order, DriverVersion),
    /// A word about the node is one of these.
    Word(Word, Vec<String>),
    /// The node has the label, whatever its value.
    HasLabel(String),
    /// The newest CUDA that the node's driver serves.
    Cuda(Order, DriverVersion),
}

/// How a number stands to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
enum Order {
    Equal,
    Below,
    AtMost,
    Above,
    AtLeast,
}

/// Words about a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
enum Word {
    Name,
    Pool,
    Region,
    Zone,
    Block,
    Leaf,
    Label(String),
}

/// An answer when not everything is known. Ordered, so that *and* is the least and *or* the greatest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Truth {
    /// Whatever the unknown is, no.
    No,
    /// It depends on what is not known.
    Maybe,
    /// Whatever the unknown is, yes.
    Yes,
}

impl Truth {
    fn of(yes: bool) -> Self {
        if yes { Truth::Yes } else { Truth::No }
    }

    fn not(self) -> Self {
        match self {
            Truth::No => Truth::Yes,
            Truth::Maybe => Truth::Maybe,
            Truth::Yes => Truth::No,
        }
    }
}

/// What is known of a card and its node.
#[derive(Clone, Copy, Debug)]
pub struct Known<'a> {
    /// The model.
    pub model: GpuModel,
    /// Memory in MiB: the least and the most it can be.
    pub memory_mib: (u64, u64),
    /// The node's driver: not known at all, or what it reports, which may be unreadable.
    pub driver: Option<Option<DriverVersion>>,
    /// The newest CUDA that it serves, in the same way; a node without cards of NVIDIA says none.
    pub cuda: Option<Option<DriverVersion>>,
    /// The node's pool.
    pub pool: Option<&'a str>,
    /// The node.
    pub node: Option<&'a Node>,
}

/// A card reports up to this share less memory than its data sheet says: what firmware and ECC keep (an H100 reports 81,559 of
/// 81,920 MiB, a T4 with ECC 15,360 of 16,384).
const REPORTED_MEMORY_PERCENT_MIN: u64 = 90;

impl<'a> Known<'a> {
    /// A card of `model` on some node.
    #[must_use]
    pub fn of_model(model: GpuModel) -> Self {
        let most = model.memory_mib();
        let least = most * REPORTED_MEMORY_PERCENT_MIN / 100;
        Known { model, memory_mib: (least, most), driver: None, cuda: None, pool: None, node: None }
    }

    /// Any card of `model` on `node`; none when it has no such card.
    #[must_use]
    pub fn on_node(model: GpuModel, node: &'a Node) -> Option<Self> {
        let memories = || node.spec.gpus.iter().filter(|gpu| gpu.model == model).map(|gpu| gpu.memory_mib);
        Some(Known::of(model, (memories().min()?, memories().max()?), node))
    }

    fn of(model: GpuModel, memory_mib: (u64, u64), node: &'a Node) -> Self {
        let (driver, cuda) = (&node.spec.driver, &node.notes.links.cuda);
        let [driver, cuda] = [driver, cuda].map(|said| Some(DriverVersion::reported(said)));
        Known { model, memory_mib, driver, cuda, pool: Some(&node.spec.pool), node: Some(node) }
    }
}

impl Selector {
    /// Whether this very card will do.
    #[must_use]
    pub fn admits(&self, gpu: &Gpu, node: &Node) -> bool {
        self.on(&Known::of(gpu.model, (gpu.memory_mib, gpu.memory_mib), node)) == Truth::Yes
    }

    /// Whether every card of `model` on `node` will do.
    #[must_use]
    pub fn admits_all(&self, model: GpuModel, node: &Node) -> bool {
        Known::on_node(model, node).is_some_and(|known| self.on(&known) == Truth::Yes)
    }

    /// The answer for what is known.
    #[must_use]
    pub fn on(&self, known: &Known<'_>) -> Truth {
        self.0.on(known)
    }

    /// Both this and `other`.
    ///
    /// # Errors
    /// When the two together pass the bounds.
    pub fn and(&self, other: &Selector) -> Result<Selector, BadSelector> {
        let parts = |selector: &Selector| match &selector.0 {
            Expr::All(parts) => parts.clone(),
            one => vec![one.clone()],
        };
        let both = parse::bounded(Expr::All([parts(self), parts(other)].concat())).map(Selector)?;
        // The text is what travels: one that could not be read again would hide the job from its shard.
        parse::short_enough(both.to_string().len())?;
        Ok(both)
    }
}

impl Expr {
    fn on(&self, known: &Known<'_>) -> Truth {
        match self {
            Expr::All(parts) => parts.iter().map(|part| part.on(known)).min().unwrap_or(Truth::Yes),
            Expr::Any(parts) => parts.iter().map(|part| part.on(known)).max().unwrap_or(Truth::No),
            Expr::Not(part) => part.on(known).not(),
            Expr::Model(models) => Truth::of(models.contains(&known.model)),
            Expr::Memory(order, limit) => {
                let (least, most) = known.memory_mib;
                let (at_least, at_most) = (order.holds(least, *limit), order.holds(most, *limit));
                let between = *order == Order::Equal && least < *limit && *limit < most;
                if at_least == at_most && !between { Truth::of(at_least) } else { Truth::Maybe }
            }
            Expr::Driver(order, limit) => order.on(known.driver, *limit),
            Expr::Cuda(order, limit) => order.on(known.cuda, *limit),
            Expr::Word(word, any_of) => match word.of(known) {
                None => Truth::Maybe,
                Some(said) => Truth::of(said.is_some_and(|said| any_of.iter().any(|known| known == said))),
            },
            Expr::HasLabel(label) => match known.node {
                None => Truth::Maybe,
                Some(node) => Truth::of(node.spec.labels.contains_key(label)),
            },
        }
    }
}

impl Order {
    /// Whether a version holds that may be unknown, or unreadable.
    fn on(self, version: Option<Option<DriverVersion>>, limit: DriverVersion) -> Truth {
        match version {
            None => Truth::Maybe,
            Some(said) => Truth::of(said.is_some_and(|said| self.holds(said, limit))),
        }
    }

    fn holds<T: Ord>(self, value: T, limit: T) -> bool {
        match self {
            Order::Equal => value == limit,
            Order::Below => value < limit,
            Order::AtMost => value <= limit,
            Order::Above => value > limit,
            Order::AtLeast => value >= limit,
        }
    }
}

impl Word {
    /// What the node says of it; the outer none: not known.
    fn of<'a>(&self, known: &Known<'a>) -> Option<Option<&'a str>> {
        if *self == Word::Pool {
            return known.pool.map(Some);
        }
        let spec = &known.node?.spec;
        Some(
            match self {
                Word::Name => Some(&spec.name),
                Word::Pool => Some(&spec.pool),
                Word::Region => Some(&spec.place.region),
                Word::Zone => Some(&spec.place.zone),
                Word::Block => Some(&spec.place.block),
                Word::Leaf => Some(&spec.place.leaf),
                Word::Label(label) => return Some(spec.labels.get(label).map(String::as_str)),
            }
            .map(String::as_str),
        )
    }
}
