//! The answer to a what-if question as it is shown.

use crate::output::{Block, Columns};
use crate::units::{counted, show_moment, show_seconds};
use muster_twin::what_if::{Answer, Evicted, JobLine, ModelState, Start, TenantLine};
use serde::Serialize;

/// Jobs that one table shows; JSON and YAML have all.
const ROWS_MAX: usize = 50;

/// The answer, with where the copy came from.
#[derive(Debug, Serialize)]
pub struct WhatIfView {
    /// The state of the cluster that it starts from.
    pub revision: u64,
    /// When the copy was made, RFC 3339.
    pub as_of: String,
    /// The answer itself.
    #[serde(flatten)]
    pub answer: Answer,
}

impl WhatIfView {
    /// Of an answer about the state of this revision.
    #[must_use]
    pub fn new(answer: Answer, revision: u64) -> Self {
        WhatIfView { revision, as_of: show_moment(answer.as_of_ms), answer }
    }

    /// For people; `all` shows also what stays the same.
    #[must_use]
    pub fn table(&self, all: bool) -> Vec<Block> {
        let answer = &self.answer;
        let mut blocks = vec![Block::Text(format!(
            "what if: {}\nfrom revision {} ({}), {} ahead\nassumed: {}\n",
            answer.edits.join("; "),
            self.revision,
            self.as_of,
            show_seconds(answer.horizon_s),
            answer.basis.join(";\n         ")
        ))];
        let line = format!(
            "{} earlier, {} later, {} evicted; {} at the end",
            counted(answer.gains.len(), "job"),
            answer.loses.len(),
            answer.evicted.len(),
            match answer.waiting.len() {
                0 => "no job waits".to_owned(),
                1 => "1 job waits".to_owned(),
                jobs => format!("{jobs} jobs wait"),
            }
        );
        blocks.push(Block::Text(line));
        self.models(&mut blocks);
        self.tenants(&mut blocks, all);
        evicted(&mut blocks, "EVICTED", &answer.evicted);
        evicted(&mut blocks, "SPARED", &answer.spared);
        self.jobs(&mut blocks, all);
        blocks
    }

    fn models(&self, blocks: &mut Vec<Block>) {
        let heads = ["MODEL", "CHANGE", "GPUS", "IN USE NOW", "NEEDED", "ALLOCATED", "UTILIZED"];
        let mut columns = Columns::new(&heads).right(&["GPUS", "IN USE NOW", "NEEDED", "ALLOCATED", "UTILIZED"]);
        let row = |model: &str, change: &str, in_use: String, state: &ModelState| {
            let share = |cards: f64| match state.cards {
                0 => format!("{cards}"),
                all => format!("{cards} ({:.0} %)", 100.0 * cards / all as f64),
            };
            let (allocated, used) = (share(state.allocated), share(state.used));
            let [cards, needed] = [state.cards, state.needed].map(|number| number.to_string());
            vec![model.to_owned(), change.to_owned(), cards, in_use, needed, allocated, used]
        };
        for line in &self.answer.models {
            columns.row(row(&line.model, "without", line.in_use.to_string(), &line.before));
            columns.row(row("", "with", String::new(), &line.after));
        }
        put(blocks, columns);
    }

    fn tenants(&self, blocks: &mut Vec<Block>, all: bool) {
        let shown = |line: &&TenantLine| all || line.before != line.after;
        let lines: Vec<&TenantLine> = self.answer.tenants.iter().filter(shown).collect();
        if lines.is_empty() {
            return;
        }
        let heads = ["TENANT", "GPU-HOURS", "STARTS", "WAITING", "EVICTED", "UNMET"];
        let mut columns = Columns::new(&heads).right(&heads[1..]);
        for line in lines {
            let (was, is) = (&line.before, &line.after);
            columns.row(vec![
                line.tenant.clone(),
                changed(was.gpu_hours, is.gpu_hours),
                changed(was.starts, is.starts),
                changed(was.waiting, is.waiting),
                changed(was.evicted, is.evicted),
                changed(was.unmet, is.unmet),
            ]);
        }
        put(blocks, columns);
    }

    fn jobs(&self, blocks: &mut Vec<Block>, all: bool) {
        let answer = &self.answer;
        let heads = ["JOB", "TENANT", "NAME", "GPUS", "WITHOUT", "WITH", "EFFECT", "WHY IT WAITS"];
        let mut columns = Columns::new(&heads).right(&["GPUS"]).cut(&[("WHY IT WAITS", 30), ("NAME", 8)]);
        let gains = answer.gains.iter().map(|line| (line, "gains"));
        let loses = answer.loses.iter().map(|line| (line, "waits longer"));
        let told = |line: &&JobLine| !answer.gains.contains(line) && !answer.loses.contains(line);
        let waiting = answer.waiting.iter().filter(told).map(|line| (line, "still waits"));
        let same = |line: &&JobLine| all && line.after != Start::Waits;
        let unchanged = answer.unchanged.iter().filter(same).map(|line| (line, "same"));
        let (mut rows, mut left) = (0, 0);
        for (line, effect) in gains.chain(loses).chain(waiting).chain(unchanged) {
            if rows == ROWS_MAX && !all {
                left += 1;
                continue;
            }
            rows += 1;
            columns.row(vec![
                id(line),
                line.tenant.clone(),
                line.name.clone(),
                line.gpus.to_string(),
                start(&line.before),
                start(&line.after),
                effect.to_owned(),
                line.why.as_ref().map(|why| why.text.clone()).unwrap_or_default(),
            ]);
        }
        if rows > 0 {
            put(blocks, columns);
        }
        if left > 0 {
            blocks.push(Block::Text(format!("and {left} more; --all shows them")));
        }
    }
}

fn evicted(blocks: &mut Vec<Block>, head: &'static str, lines: &[Evicted]) {
    if lines.is_empty() {
        return;
    }
    let heads = [head, "TENANT", "NAME", "GPUS", "IN", "FOR JOB", "OF TENANT", "WHY", "GPU TIME LOST", "STARTS AGAIN"];
    let mut columns = Columns::new(&heads).right(&["GPUS"]);
    for line in lines.iter().take(ROWS_MAX) {
        columns.row(vec![
            id(&line.job),
            line.job.tenant.clone(),
            line.job.name.clone(),
            line.job.gpus.to_string(),
            show_seconds(line.in_s),
            line.for_job.clone(),
            line.for_tenant.clone(),
            line.reason.clone(),
            show_seconds(line.lost_gpu_seconds),
            line.again_in_s.map_or_else(|| "not by then".to_owned(), |in_s| format!("in {}", show_seconds(in_s))),
        ]);
    }
    put(blocks, columns);
    if lines.len() > ROWS_MAX {
        blocks.push(Block::Text(format!("and {} more; -o json shows them", lines.len() - ROWS_MAX)));
    }
}

fn id(line: &JobLine) -> String {
    let job = match (line.job, line.workload) {
        (Some(id), _) => id.to_string(),
        (None, Some(number)) => format!("+{number}"),
        (None, None) => String::new(),
    };
    line.array_index.map_or(job.clone(), |index| format!("{job}_{index}"))
}

fn start(start: &Start) -> String {
    match start {
        Start::Running => "running".to_owned(),
        Start::Starts { in_s: 0 } => "at once".to_owned(),
        Start::Starts { in_s } => format!("in {}", show_seconds(*in_s)),
        Start::Waits => "waits".to_owned(),
        Start::Ended => "ended".to_owned(),
        Start::Refused { .. } => "refused".to_owned(),
        Start::Absent => "-".to_owned(),
    }
}

fn changed<T: PartialEq + ToString>(was: T, is: T) -> String {
    if was == is { was.to_string() } else { format!("{} -> {}", was.to_string(), is.to_string()) }
}

fn put(blocks: &mut Vec<Block>, columns: Columns) {
    blocks.push(Block::Text(String::new()));
    blocks.push(columns.block());
}
