//! How the GPUs and network cards of nodes reach each other, for people and for scripts.

use crate::output::Block;
use muster_model::node_links::NodeLinks;
use muster_proto::v1;
use serde::Serialize;

/// The ways inside one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LinksView {
    /// Its name.
    pub node: String,
    /// Version of the driver.
    pub driver: String,
    /// The newest CUDA that the driver serves.
    pub cuda: String,
    /// Network cards.
    pub nics: Vec<NicView>,
    /// A row for each GPU: the way to each GPU and then to each network card, as `nvidia-smi topo -m` writes it.
    pub rows: Vec<Vec<String>>,
}

/// A network card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NicView {
    /// Its name.
    pub name: String,
    /// NUMA node.
    pub numa: u8,
    /// The GPUs that it is nearest to.
    pub nearest: Vec<u16>,
}

impl LinksView {
    /// Of a node whose agent has said them.
    #[must_use]
    pub fn of_node(node: &v1::Node) -> Option<Self> {
        let spec = node.spec.clone().unwrap_or_default();
        let links = NodeLinks::try_from(node.notes.as_ref()?.links.clone()?).ok()?;
        let devices = usize::from(links.gpus) + links.nics.len();
        let way = |gpu: usize, to: usize| links.kind(gpu, to).map_or_else(|| "?".to_owned(), |kind| kind.to_string());
        let row = |gpu: u16| (0..devices).map(|to| way(usize::from(gpu), to)).collect();
        let nic = |(at, nic): (usize, &muster_model::node_links::Nic)| NicView {
            name: nic.name.clone(),
            numa: nic.numa,
            nearest: links.nearest(at),
        };
        Some(LinksView {
            node: spec.name,
            driver: spec.driver,
            rows: (0..links.gpus).map(row).collect(),
            nics: links.nics.iter().enumerate().map(nic).collect(),
            cuda: links.cuda,
        })
    }
}

/// A table for each node, and what its network cards are near to.
#[must_use]
pub fn links_tables(nodes: &[LinksView]) -> Vec<Block> {
    if nodes.is_empty() {
        return vec![Block::Text("no agent has told how its GPUs reach each other".to_owned())];
    }
    nodes.iter().map(|node| Block::Text(words(node))).collect()
}

fn words(node: &LinksView) -> String {
    let gpus = (0..node.rows.len()).map(|gpu| format!("GPU{gpu}"));
    let heads: Vec<String> = gpus.clone().chain(node.nics.iter().map(|nic| nic.name.clone())).collect();
    let wide = heads.iter().chain(node.rows.iter().flatten()).map(String::len).max().unwrap_or_default();
    let line = |first: &str, cells: &[String]| {
        let cells: Vec<String> = cells.iter().map(|cell| format!("{cell:<wide$}")).collect();
        format!("{first:<6}{}", cells.join("  ")).trim_end().to_owned()
    };
    let mut lines = vec![format!("{}: driver {}, CUDA {}", node.node, node.driver, node.cuda), line("", &heads)];
    lines.extend(gpus.zip(&node.rows).map(|(gpu, row)| line(&gpu, row)));
    lines.extend(node.nics.iter().map(|nic| {
        let near: Vec<String> = nic.nearest.iter().map(|gpu| format!("GPU{gpu}")).collect();
        format!("{}: NUMA node {}, nearest to {}", nic.name, nic.numa, near.join(", "))
    }));
    lines.join(
        "
",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_shown_as_nvidia_smi_does() {
        let links = v1::NodeLinks {
            cuda: "13.0".to_owned(),
            nics: vec![v1::Nic { name: "mlx5_0".to_owned(), numa: 1 }],
            gpus: 2,
            matrix: vec![0, 146, 1, 146, 0, 5],
        };
        let notes = v1::NodeNotes { links: Some(links), ..v1::NodeNotes::default() };
        let spec = v1::NodeSpec { name: "n1".to_owned(), driver: "580.95".to_owned(), ..v1::NodeSpec::default() };
        let node = v1::Node { notes: Some(notes), spec: Some(spec), ..v1::Node::default() };
        let view = LinksView::of_node(&node).expect("it was told");
        let expected = [
            "n1: driver 580.95, CUDA 13.0",
            "      GPU0    GPU1    mlx5_0",
            "GPU0  X       NV18    PIX",
            "GPU1  NV18    X       SYS",
            "mlx5_0: NUMA node 1, nearest to GPU0",
        ]
        .join("\n");
        assert_eq!(words(&view), expected);
        assert_eq!(LinksView::of_node(&v1::Node::default()), None);
    }
}
