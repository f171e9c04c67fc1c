//! Reads the experiment's files: nodes, pods, arrivals.

use anyhow::{Context, Result, ensure};
use flate2::read::GzDecoder;
use muster_scheduler_core::fractions::{CARD_MILLI, Demand, Kinds};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// A node of the fleet, empty.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its name, for the log.
    pub name: String,
    /// CPU in milli-cores.
    pub cpu_milli: u64,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// Cards.
    pub cards: u16,
    /// Index of their model.
    pub kind: u8,
}

/// The nodes and what their cards are called.
#[derive(Clone, Debug, Default)]
pub struct Nodes {
    /// In the order of the file.
    pub nodes: Vec<Node>,
    /// Models by index.
    pub models: Vec<String>,
}

impl Nodes {
    /// GPU capacity in milli-GPU.
    #[must_use]
    pub fn capacity_milli(&self) -> u64 {
        self.nodes.iter().map(|node| u64::from(node.cards) * u64::from(CARD_MILLI)).sum()
    }

    /// The index of a model, which is made when it is new.
    fn kind(&mut self, model: &str) -> Result<u8> {
        let at = self.models.iter().position(|known| known == model).unwrap_or_else(|| {
            self.models.push(model.to_owned());
            self.models.len() - 1
        });
        ensure!(at < 63, "more than 63 models of cards");
        Ok(at as u8)
    }
}

/// A pod as it is asked for.
#[derive(Clone, Debug)]
pub struct Pod {
    /// Its name, for the log.
    pub name: String,
    /// What it asks for.
    pub demand: Demand,
}

/// Reads `sn,cpu_milli,memory_mib,gpu,model`.
///
/// # Errors
/// When the file cannot be read or a cell is no number.
pub fn nodes(path: &Path) -> Result<Nodes> {
    let mut found = Nodes::default();
    for row in rows(path)? {
        let node = Node {
            name: row.text("sn")?.to_owned(),
            cpu_milli: row.number("cpu_milli")?,
            memory_mib: row.number("memory_mib")?,
            cards: row.number("gpu")?.try_into()?,
            kind: found.kind(row.text("model")?)?,
        };
        found.nodes.push(node);
    }
    Ok(found)
}

/// Reads the pods: a fraction is of one card, several cards are whole ones. A model that no node has is a kind of its own, so that
/// a pod that asks for it alone fits nowhere.
///
/// # Errors
/// When the file cannot be read or a cell is no number.
pub fn pods(path: &Path, fleet: &Nodes) -> Result<Vec<Pod>> {
    let mut found = Vec::new();
    for row in rows(path)? {
        let cards: u16 = row.number("num_gpu")?.try_into()?;
        let spec = if cards > 0 { row.text("gpu_spec").unwrap_or_default() } else { "" };
        let known = |model: &str| fleet.models.iter().position(|there| there == model).unwrap_or(63) as u8;
        let demand = Demand {
            cards,
            milli: if cards > 0 { row.number("gpu_milli")?.min(u64::from(CARD_MILLI)) as u16 } else { 0 },
            kinds: Kinds::of(spec.split('|').filter(|model| !model.is_empty()).map(known)),
            cpu_milli: row.number("cpu_milli")?,
            memory_mib: row.number("memory_mib")?,
        };
        found.push(Pod { name: row.text("name")?.to_owned(), demand });
    }
    Ok(found)
}

/// Reads the arrivals of `seed`: indices into `pods`.
///
/// # Errors
/// When the file cannot be read, names an unknown pod, or has none for the seed.
pub fn arrivals(path: &Path, seed: u64, pods: &[Pod]) -> Result<Vec<usize>> {
    let index: BTreeMap<&str, usize> = pods.iter().enumerate().map(|(at, pod)| (pod.name.as_str(), at)).collect();
    let mut found = Vec::new();
    for row in reader(path, false)?.into_records() {
        let row = row.with_context(|| format!("reading {}", path.display()))?;
        if row.get(0) == Some(seed.to_string().as_str()) {
            let name = row.get(1).with_context(|| format!("{}: a row without a pod", path.display()))?;
            found.push(*index.get(name).with_context(|| format!("{}: unknown pod {name}", path.display()))?);
        }
    }
    ensure!(!found.is_empty(), "{} has no arrivals of seed {seed}", path.display());
    Ok(found)
}

/// The seeds that an arrivals file has.
///
/// # Errors
/// When it cannot be read.
pub fn seeds(path: &Path) -> Result<Vec<u64>> {
    let mut found = std::collections::BTreeSet::new();
    for row in reader(path, false)?.into_records() {
        found.extend(row?.get(0).and_then(|seed| seed.parse::<u64>().ok()));
    }
    Ok(found.into_iter().collect())
}

/// In which order the nodes are known: position to index in the file.
#[must_use]
pub fn order(nodes: usize, seed: Option<u64>) -> Vec<usize> {
    let mut order: Vec<usize> = (0..nodes).collect();
    if let Some(seed) = seed {
        order.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
    }
    order
}

/// What a trace is called: the end of its pods file's name.
#[must_use]
pub fn name_of(pods: &Path) -> String {
    let stem = pods.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    stem.rsplit_once("pod_list_").map_or(stem.clone(), |(_, name)| name.to_owned())
}

fn reader(path: &Path, headers: bool) -> Result<csv::Reader<Box<dyn Read>>> {
    let file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
    let zipped = path.extension().is_some_and(|end| end == "gz");
    let read: Box<dyn Read> = if zipped { Box::new(GzDecoder::new(file)) } else { Box::new(file) };
    Ok(csv::ReaderBuilder::new().has_headers(headers).flexible(true).from_reader(read))
}

/// A row with its header.
pub(super) struct Cells {
    cells: BTreeMap<String, String>,
    at: String,
}

impl Cells {
    pub(super) fn text(&self, column: &str) -> Result<&str> {
        self.cells.get(column).map(String::as_str).with_context(|| format!("{}: no column {column}", self.at))
    }

    fn number(&self, column: &str) -> Result<u64> {
        let text = self.text(column)?;
        text.parse().with_context(|| format!("{}: {column} {text:?} is no number", self.at))
    }
}

pub(super) fn rows(path: &Path) -> Result<Vec<Cells>> {
    let mut reader = reader(path, true)?;
    let header = reader.headers().with_context(|| format!("reading {}", path.display()))?.clone();
    let mut found = Vec::new();
    for (line, row) in reader.records().enumerate() {
        let row = row.with_context(|| format!("reading {}", path.display()))?;
        let cells = header.iter().zip(row.iter()).map(|(name, cell)| (name.to_owned(), cell.to_owned())).collect();
        found.push(Cells { cells, at: format!("{} line {}", path.display(), line + 2) });
    }
    Ok(found)
}
