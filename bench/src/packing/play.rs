//! Runs a policy over the arrivals, and writes what happened.

use super::placement::Placement;
use super::policy::{self, Left, Policy};
use super::trace::{Node, Nodes, Pod};
use anyhow::Result;
use muster_scheduler_core::fractions::{Demand, NodeGroups, Room, Spot, make_room};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::Instant;

/// One event of the log, during the arrival of that index.
#[derive(Clone, Debug)]
pub enum Event {
    /// The arriving pod was placed: index of the node in the file, and its cards.
    Place(usize, usize, Vec<u16>),
    /// The arriving pod fits nowhere.
    Fail(usize),
    /// The pod of an earlier arrival was moved: its index, and where to.
    Move(usize, usize, usize, Vec<u16>),
}

/// Mean allocated percent by rounded arrived percent.
#[derive(Clone, Debug, Default)]
pub struct Curve {
    bins: BTreeMap<u32, (f64, u32)>,
}

impl Curve {
    /// Takes a sample, both in milli-GPU of `capacity`.
    pub fn sample(&mut self, arrived: u64, allocated: f64, capacity: u64) {
        let bin = (100.0 * arrived as f64 / capacity as f64).round() as u32;
        let cell = self.bins.entry(bin).or_default();
        cell.0 += 100.0 * allocated / capacity as f64;
        cell.1 += 1;
    }

    /// The cell of a bin, if anything fell into it.
    #[must_use]
    pub fn at(&self, percent: u32) -> Option<f64> {
        self.bins.get(&percent).map(|(sum, count)| sum / f64::from(*count))
    }
}

/// What a run came to.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// Everything that happened, in order.
    pub events: Vec<Event>,
    /// The curve.
    pub curve: Curve,
    /// Pods placed.
    pub placed: u64,
    /// Pods that fit nowhere.
    pub failed: u64,
    /// Moves made.
    pub moves: u64,
    /// Wall time.
    pub seconds: f64,
}

/// Decides every arrival. `order` says which node of the file stands at each position.
///
/// # Errors
/// When a shard cannot be asked so.
pub fn play(
    fleet: &Nodes,
    order: &[usize],
    pods: &[Pod],
    arrivals: &[usize],
    policy: Policy,
    moves_percent: f64,
) -> Result<Found> {
    let begun = Instant::now();
    let mut found = Found::default();
    let mut decider = Decider::new(policy, order.iter().map(|node| &fleet.nodes[*node]), pods)?;
    let (mut arrived, mut used) = (0, 0);
    for (arrival, pod) in arrivals.iter().enumerate() {
        let demand = &pods[*pod].demand;
        let budget = (found.moves + 1) as f64 <= moves_percent / 100.0 * found.placed as f64;
        let (moved, spot) = decider.decide(arrival as u64, demand, budget)?;
        if let Some(room) = moved {
            found.moves += 1;
            found.events.push(Event::Move(arrival, room.moved as usize, order[room.to.node as usize], room.to.cards));
        }
        arrived += demand.gpu_milli();
        found.events.push(match spot {
            Some(spot) => {
                found.placed += 1;
                used += demand.gpu_milli();
                Event::Place(arrival, order[spot.node as usize], spot.cards)
            }
            None => {
                found.failed += 1;
                Event::Fail(arrival)
            }
        });
        found.curve.sample(arrived, used as f64, fleet.capacity_milli());
    }
    found.seconds = begun.elapsed().as_secs_f64();
    Ok(found)
}

/// Whoever decides, with the state it decides by.
enum Decider {
    Muster(Box<NodeGroups>),
    Placement(Box<Placement>),
    Published(Box<Published>),
}

/// The score of a node's best way, higher is better, and the cards it takes.
type Scored = (f64, Vec<u16>);

struct Published {
    policy: Policy,
    nodes: Vec<Left>,
    versions: Vec<u64>,
    typical: Vec<(Demand, f64)>,
    /// Scores by demand and node, while the node's version is what it was.
    kept: BTreeMap<Demand, Vec<(u64, Option<Scored>)>>,
    rng: ChaCha8Rng,
}

impl Decider {
    fn new<'a>(policy: Policy, nodes: impl Iterator<Item = &'a Node>, pods: &[Pod]) -> Result<Self> {
        if policy == Policy::Placement {
            return Ok(Decider::Placement(Box::new(Placement::over(nodes)?)));
        }
        if policy == Policy::Muster {
            let mut fleet = NodeGroups::default();
            for node in nodes {
                fleet.join(node.kind, vec![1_000; usize::from(node.cards)], node.cpu_milli, node.memory_mib);
            }
            return Ok(Decider::Muster(Box::new(fleet)));
        }
        let nodes: Vec<Left> = nodes.map(Left::of).collect();
        let versions = vec![1; nodes.len()];
        let rng = ChaCha8Rng::seed_from_u64(1);
        let typical = policy::typical(pods);
        let published = Published { policy, nodes, versions, typical, kept: BTreeMap::new(), rng };
        Ok(Decider::Published(Box::new(published)))
    }

    /// Places the demand, after one move when nothing else helps and a move is allowed.
    fn decide(&mut self, id: u64, demand: &Demand, may_move: bool) -> Result<(Option<Room>, Option<Spot>)> {
        let fleet = match self {
            Decider::Published(published) => return Ok((None, published.decide(demand))),
            Decider::Placement(placement) => return Ok((None, placement.decide(demand)?)),
            Decider::Muster(fleet) => fleet,
        };
        fleet.arrived(demand);
        if let Some(spot) = fleet.choose(demand) {
            let fits = fleet.place(id, demand, &spot);
            debug_assert!(fits, "what is chosen fits");
            return Ok((None, Some(spot)));
        }
        let Some(room) = may_move.then(|| make_room(fleet, demand)).flatten() else {
            return Ok((None, None));
        };
        let moved = fleet.relocate(room.moved, &room.to) && fleet.place(id, demand, &room.spot);
        debug_assert!(moved, "what is planned fits");
        let spot = room.spot.clone();
        Ok((Some(room), Some(spot)))
    }
}

impl Published {
    fn decide(&mut self, demand: &Demand) -> Option<Spot> {
        let (node, cards) = match self.policy {
            Policy::Random => policy::random(&self.nodes, demand, &mut self.rng)?,
            _ => self.first_best(demand)?,
        };
        self.nodes[node].take(demand, &cards);
        self.versions[node] += 1;
        Some(Spot { node: node as u32, cards })
    }

    fn first_best(&mut self, demand: &Demand) -> Option<(usize, Vec<u16>)> {
        let kept = self.kept.entry(*demand).or_default();
        kept.resize(self.nodes.len(), (0, None));
        let mut best: Option<(f64, usize)> = None;
        for (at, node) in self.nodes.iter().enumerate() {
            if kept[at].0 != self.versions[at] {
                let score = node.fits(demand).then(|| policy::score(self.policy, node, demand, &self.typical));
                kept[at] = (self.versions[at], score);
            }
            if let Some((score, _)) = &kept[at].1
                && best.is_none_or(|(found, _)| *score > found)
            {
                best = Some((*score, at));
            }
        }
        let (_, at) = best?;
        kept[at].1.as_ref().map(|(_, cards)| (at, cards.clone()))
    }
}

/// Writes the log that the referee reads: `arrival,event,pod,node,gpus`.
///
/// # Errors
/// When the file cannot be written.
pub fn write_log(path: &Path, found: &Found, fleet: &Nodes, pods: &[Pod], arrivals: &[usize]) -> Result<()> {
    let mut out = BufWriter::new(File::create(path)?);
    let name = |arrival: &usize| &pods[arrivals[*arrival]].name;
    let join = |cards: &[u16]| cards.iter().map(u16::to_string).collect::<Vec<_>>().join(";");
    writeln!(out, "arrival,event,pod,node,gpus")?;
    for event in &found.events {
        match event {
            Event::Place(at, node, cards) => {
                writeln!(out, "{at},place,{},{},{}", name(at), fleet.nodes[*node].name, join(cards))?;
            }
            Event::Fail(at) => writeln!(out, "{at},fail,{},,", name(at))?,
            Event::Move(at, moved, node, cards) => {
                writeln!(out, "{at},move,{moved},{},{}", fleet.nodes[*node].name, join(cards))?;
            }
        }
    }
    out.flush()?;
    Ok(())
}
