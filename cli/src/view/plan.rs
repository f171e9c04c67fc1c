//! Plans of moves and conversions as they are shown.

use crate::output::{Block, Columns};
use crate::units::{show_moment, show_seconds};
use muster_model::GpuUnits;
use muster_proto::v1;
use serde::Serialize;
use std::collections::BTreeMap;

/// Places that one cell of a table names; the rest is a count. JSON and YAML have all.
const PLACES_MAX: usize = 3;

/// The plans of some cells.
#[derive(Debug, Serialize)]
pub struct PlanView {
    /// Each.
    pub cells: Vec<CellPlanView>,
    /// The clock by which losses were reckoned, RFC 3339.
    pub as_of: String,
    /// The state of the cluster it was made on.
    pub revision: u64,
}

/// The plan of one cell.
#[derive(Debug, Serialize)]
pub struct CellPlanView {
    /// Its name.
    pub cell: String,
    /// Jobs that may be moved.
    pub movable_jobs: u64,
    /// What they hold, in cards.
    pub movable_gpus: f64,
    /// The share of it that may be moved, in percent.
    pub share_percent: u32,
    /// What the plan moves, in cards.
    pub moved_gpus: f64,
    /// Places opened for gangs that wait.
    pub openings: Vec<OpeningView>,
    /// Cards emptied by packing.
    pub packings: Vec<PackingView>,
    /// Empty cards that would be driven otherwise.
    pub conversions: Vec<ConversionView>,
    /// Free slices that nothing that waits can use.
    pub unmatched: Vec<UnmatchedView>,
    /// What waits and is not helped.
    pub unhelped: Vec<UnhelpedView>,
    /// Jobs that have a place as things stand.
    pub starting: Vec<u64>,
    /// Everything was looked at.
    pub complete: bool,
    /// The state of the cluster it was made on.
    pub revision: u64,
}

/// A place opened for a gang.
#[derive(Debug, Serialize)]
pub struct OpeningView {
    /// The gang.
    pub job: u64,
    /// On this model.
    pub model: String,
    /// Its cards.
    pub cards: u64,
    /// Inside one of these.
    pub level: String,
    /// Islands opened.
    pub islands: u64,
    /// Where it would stand, rank by rank.
    pub tasks: Vec<PlacedView>,
    /// In the order in which they can be made.
    pub moves: Vec<MoveView>,
    /// No set of jobs of one place opens it for less.
    pub cheapest: bool,
    /// What the moves lose at most, in seconds of one card.
    pub lost_gpu_seconds: u64,
}

/// Cards emptied by packing.
#[derive(Debug, Serialize)]
pub struct PackingView {
    /// The model.
    pub model: String,
    /// The cards.
    pub cards: Vec<CardView>,
    /// In the order in which they can be made.
    pub moves: Vec<MoveView>,
    /// What the moves lose at most, in seconds of one card.
    pub lost_gpu_seconds: u64,
}

/// A job that stops here and starts there.
#[derive(Debug, Serialize)]
pub struct MoveView {
    /// The job.
    pub job: u64,
    /// What it holds, in cards.
    pub gpus: f64,
    /// Rank by rank.
    pub from: Vec<PlacedView>,
    /// Rank by rank.
    pub to: Vec<PlacedView>,
    /// Work that it loses at most, in seconds of all its cards.
    pub unsaved_s: u64,
    /// From its new start to useful work.
    pub restart_s: u64,
    /// Both, in seconds of one card.
    pub lost_gpu_seconds: u64,
}

/// A task on its node.
#[derive(Clone, Debug, Serialize, PartialEq, Eq)]
pub struct PlacedView {
    /// The node.
    pub node: String,
    /// Its cards.
    pub gpus: Vec<u32>,
}

/// A card.
#[derive(Debug, Serialize)]
pub struct CardView {
    /// Its node.
    pub node: String,
    /// Its index.
    pub gpu: u32,
    /// What would stand on it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub layout: String,
}

/// Empty cards that would be driven otherwise.
#[derive(Debug, Serialize)]
pub struct ConversionView {
    /// Their pool.
    pub pool: String,
    /// Their model.
    pub model: String,
    /// What they become.
    pub to: String,
    /// The pool's rules do not allow that yet.
    pub needs_rule: bool,
    /// The cards.
    pub cards: Vec<CardView>,
    /// The jobs that would start.
    pub jobs: Vec<u64>,
    /// How long all cards together cannot be used for it.
    pub gpu_seconds: u64,
    /// The layout that the pool keeps on them, which would have to go.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub pinned: String,
}

/// Free slices that nothing matches.
#[derive(Debug, Serialize)]
pub struct UnmatchedView {
    /// The pool.
    pub pool: String,
    /// The model.
    pub model: String,
    /// The profile; empty: slices in which none can stand.
    pub profile: String,
    /// How many.
    pub count: u64,
    /// On so many cards.
    pub cards: u64,
    /// Jobs that hold such a profile now.
    pub running: u64,
}

/// A gang that is not helped.
#[derive(Debug, Serialize)]
pub struct UnhelpedView {
    /// The gang.
    pub job: u64,
    /// Why.
    #[serde(flatten)]
    pub why: WhyView,
}

/// Why there is no plan.
#[derive(Debug, Serialize)]
pub struct WhyView {
    /// A stable word.
    pub code: String,
    /// For people.
    pub text: String,
}

fn cards(units: u64) -> f64 {
    (GpuUnits(units).as_cards() * 100.0).round() / 100.0
}

fn placed(tasks: &[v1::PlacedTask]) -> Vec<PlacedView> {
    let one = |task: &v1::PlacedTask| PlacedView {
        node: task.node.clone(),
        gpus: task.devices.iter().map(|hold| hold.gpu).collect(),
    };
    tasks.iter().map(one).collect()
}

fn planned(cards: &[v1::PlannedCard]) -> Vec<CardView> {
    let one = |card: &v1::PlannedCard| CardView { node: card.node.clone(), gpu: card.gpu, layout: card.layout.clone() };
    cards.iter().map(one).collect()
}

impl MoveView {
    fn new(made: &v1::JobMove) -> Self {
        MoveView {
            job: made.job_id,
            gpus: cards(made.gpu_units),
            from: placed(&made.from),
            to: placed(&made.to),
            unsaved_s: made.unsaved_s,
            restart_s: made.restart_s,
            lost_gpu_seconds: made.lost_card_seconds,
        }
    }

    /// For people.
    #[must_use]
    pub fn text(&self) -> String {
        let (from, to) = (places(&self.from), places(&self.to));
        format!(
            "job {} from {from} to {to}; it loses at most {} of GPU time",
            self.job,
            show_seconds(self.lost_gpu_seconds)
        )
    }
}

impl OpeningView {
    /// From the message.
    #[must_use]
    pub fn new(one: &v1::Opening) -> Self {
        OpeningView {
            job: one.job_id,
            model: one.model.clone(),
            cards: one.cards,
            level: one.level.clone(),
            islands: one.islands,
            tasks: placed(&one.tasks),
            moves: one.moves.iter().map(MoveView::new).collect(),
            cheapest: one.cheapest,
            lost_gpu_seconds: one.lost_card_seconds,
        }
    }

    /// For people.
    #[must_use]
    pub fn text(&self) -> String {
        let claim = if self.cheapest { " (no cheaper moves exist)" } else { "" };
        format!(
            "{} to make room for its {} {} on {}; at most {} of GPU time is lost{claim}",
            counted(self.moves.len() as u64, "move"),
            self.cards,
            self.model,
            places(&self.tasks),
            show_seconds(self.lost_gpu_seconds)
        )
    }
}

impl WhyView {
    /// From the message.
    #[must_use]
    pub fn new(why: v1::NoPlan) -> Self {
        WhyView { code: why.code, text: why.text }
    }
}

impl PlanView {
    /// From the reply.
    #[must_use]
    pub fn new(reply: &v1::PlanMovesReply) -> Self {
        PlanView {
            cells: reply.cells.iter().map(CellPlanView::new).collect(),
            as_of: show_moment(reply.now_ms),
            revision: reply.revision,
        }
    }

    /// For people.
    #[must_use]
    pub fn table(&self) -> Vec<Block> {
        let mut blocks = Vec::new();
        for (at, cell) in self.cells.iter().enumerate() {
            if at > 0 {
                blocks.push(Block::Text(String::new()));
            }
            blocks.extend(cell.table());
        }
        if blocks.is_empty() {
            blocks.push(Block::Text("the cluster has no cells yet".to_owned()));
        }
        blocks
    }
}

impl CellPlanView {
    fn new(plan: &v1::CellPlan) -> Self {
        let packing = |one: &v1::Packing| PackingView {
            model: one.model.clone(),
            cards: planned(&one.cards),
            moves: one.moves.iter().map(MoveView::new).collect(),
            lost_gpu_seconds: one.lost_card_seconds,
        };
        let conversion = |one: &v1::Conversion| ConversionView {
            pool: one.pool.clone(),
            model: one.model.clone(),
            to: one.to.clone(),
            needs_rule: one.needs_rule,
            cards: planned(&one.cards),
            jobs: one.jobs.clone(),
            gpu_seconds: one.card_seconds,
            pinned: one.pinned.clone(),
        };
        let unmatched = |one: &v1::UnmatchedSlices| UnmatchedView {
            pool: one.pool.clone(),
            model: one.model.clone(),
            profile: one.profile.clone(),
            count: one.count,
            cards: one.cards,
            running: one.running,
        };
        let unhelped = |one: &v1::Unhelped| UnhelpedView {
            job: one.job_id,
            why: WhyView::new(one.why.clone().unwrap_or_default()),
        };
        CellPlanView {
            cell: plan.cell.clone(),
            movable_jobs: plan.movable_jobs,
            movable_gpus: cards(plan.movable_gpu_units),
            share_percent: plan.share_percent,
            moved_gpus: cards(plan.moved_gpu_units),
            openings: plan.openings.iter().map(OpeningView::new).collect(),
            packings: plan.packings.iter().map(packing).collect(),
            conversions: plan.conversions.iter().map(conversion).collect(),
            unmatched: plan.unmatched.iter().map(unmatched).collect(),
            unhelped: plan.unhelped.iter().map(unhelped).collect(),
            starting: plan.starting.clone(),
            complete: plan.complete,
            revision: plan.revision,
        }
    }

    fn table(&self) -> Vec<Block> {
        let mut head = format!(
            "{}: {} with {} GPUs; the plan moves {} of these GPUs (limit {} %)",
            self.cell,
            counted(self.movable_jobs, "movable job"),
            self.movable_gpus,
            self.moved_gpus,
            self.share_percent
        );
        if !self.complete {
            head.push_str("; the search reached its limit: there may be more moves");
        }
        let mut blocks = vec![Block::Text(head)];
        self.moves_table(&mut blocks);
        self.brings_table(&mut blocks);
        self.conversions_table(&mut blocks);
        if !self.unmatched.is_empty() {
            let heads = ["UNMATCHED", "POOL", "MODEL", "FREE", "GPUS", "RUNNING"];
            let mut columns = Columns::new(&heads).right(&["FREE", "GPUS", "RUNNING"]);
            for one in &self.unmatched {
                let profile = if one.profile.is_empty() { "unusable slices".to_owned() } else { one.profile.clone() };
                let numbers = [one.count, one.cards, one.running].map(|number| number.to_string());
                columns.row([profile, one.pool.clone(), one.model.clone()].into_iter().chain(numbers).collect());
            }
            put(&mut blocks, columns);
        }
        if !self.unhelped.is_empty() {
            let mut columns = Columns::new(&["PENDING", "WHY NO MOVES HELP"]).right(&["PENDING"]);
            for one in &self.unhelped {
                columns.row(vec![one.job.to_string(), one.why.text.clone()]);
            }
            put(&mut blocks, columns);
        }
        if !self.starting.is_empty() {
            blocks.push(Block::Text(format!(
                "{} will start without any moves",
                counted(self.starting.len() as u64, "job")
            )));
        }
        blocks
    }

    /// Every move in its order.
    fn moves_table(&self, blocks: &mut Vec<Block>) {
        let of_openings =
            self.openings.iter().flat_map(|one| one.moves.iter().map(move |made| (made, format!("job {}", one.job))));
        let packed = |one: &PackingView| counted(one.cards.len() as u64, "free GPU");
        let of_packings = self.packings.iter().flat_map(|one| one.moves.iter().map(move |made| (made, packed(one))));
        let mut columns =
            Columns::new(&["MOVE", "GPUS", "FROM", "TO", "GPU TIME LOST", "FOR"]).right(&["MOVE", "GPUS"]);
        let mut any = false;
        for (made, for_whom) in of_openings.chain(of_packings) {
            any = true;
            columns.row(vec![
                made.job.to_string(),
                made.gpus.to_string(),
                places(&made.from),
                places(&made.to),
                show_seconds(made.lost_gpu_seconds),
                for_whom,
            ]);
        }
        if any {
            put(blocks, columns);
        }
    }

    /// What would start.
    fn brings_table(&self, blocks: &mut Vec<Block>) {
        if self.openings.is_empty() {
            return;
        }
        let heads = ["STARTS JOB", "GPUS", "MODEL", "LEVEL", "ON", "ISLANDS", "MOVES", "GPU TIME LOST", "CHEAPEST"];
        let mut columns = Columns::new(&heads).right(&["STARTS JOB", "GPUS", "ISLANDS", "MOVES"]);
        for one in &self.openings {
            columns.row(vec![
                one.job.to_string(),
                one.cards.to_string(),
                one.model.clone(),
                one.level.clone(),
                places(&one.tasks),
                one.islands.to_string(),
                one.moves.len().to_string(),
                show_seconds(one.lost_gpu_seconds),
                if one.cheapest { "yes" } else { "not known" }.to_owned(),
            ]);
        }
        put(blocks, columns);
    }

    fn conversions_table(&self, blocks: &mut Vec<Block>) {
        if self.conversions.is_empty() {
            return;
        }
        let heads = ["CONVERT", "POOL", "MODEL", "TO", "LAYOUTS", "STARTS", "GPU TIME LOST", "RULES"];
        let mut columns = Columns::new(&heads).right(&["CONVERT", "STARTS"]);
        for one in &self.conversions {
            let mut layouts: BTreeMap<&str, u64> = BTreeMap::new();
            one.cards.iter().for_each(|card| *layouts.entry(card.layout.as_str()).or_default() += 1);
            let layouts: Vec<String> =
                layouts.into_iter().map(|(layout, count)| format!("{count} of [{layout}]")).collect();
            let rules = match (one.needs_rule, one.pinned.as_str()) {
                (false, _) => "allowed".to_owned(),
                (true, "") => format!("allow {} in pool {}", one.to, one.pool),
                (true, pinned) => format!("remove {pinned} from pool {}", one.pool),
            };
            columns.row(vec![
                one.cards.len().to_string(),
                one.pool.clone(),
                one.model.clone(),
                one.to.clone(),
                layouts.join(", "),
                counted(one.jobs.len() as u64, "job"),
                show_seconds(one.gpu_seconds),
                rules,
            ]);
        }
        put(blocks, columns);
    }
}

fn put(blocks: &mut Vec<Block>, columns: Columns) {
    blocks.push(Block::Text(String::new()));
    blocks.push(columns.block());
}

fn counted(count: u64, word: &str) -> String {
    if count == 1 { format!("1 {word}") } else { format!("{count} {word}s") }
}

/// Nodes with their cards, the first few.
fn places(tasks: &[PlacedView]) -> String {
    let mut by_node: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
    for task in tasks {
        by_node.entry(&task.node).or_default().extend(&task.gpus);
    }
    let more = by_node.len().saturating_sub(PLACES_MAX);
    let one = |(node, gpus): (&str, Vec<u32>)| {
        let gpus: Vec<String> = gpus.iter().map(ToString::to_string).collect();
        format!("{node}[{}]", gpus.join(","))
    };
    let mut words: Vec<String> = by_node.into_iter().take(PLACES_MAX).map(one).collect();
    if more > 0 {
        words.push(format!("{more} more"));
    }
    words.join(" ")
}
