//! How the cards and network cards of a host reach each other, as `nvidia-smi topo -m` shows it.
//!
//! What must stay true: between cards the driver says it (common ancestors, and NVLinks by what they lead to); to network cards the paths in sysfs say it; a
//! card that cannot be read makes the whole unknown, and is asked again by nobody: it is for people.

use super::wire::{Answer, Ask, Facts};
use super::{Inner, Presence};
use crate::gpu::GpuError;
use muster_model::node_links::{LinkKind, Nic, NodeLinks};
use std::path::{Path, PathBuf};

const DOING: &str = "reading its links";

impl Inner {
    /// The links inside the host.
    pub(super) async fn node_links(&self) -> Result<NodeLinks, GpuError> {
        self.listed.get_or_try_init(|| self.list()).await?;
        let slots = self.slots.lock().clone();
        let versions = self.link.versions().await.map_err(|error| GpuError::Host { why: error.to_string() })?;
        let cuda = format!("{}.{}", versions.cuda / 1_000, versions.cuda % 1_000 / 10);
        let root = &self.config.driver_root;
        let nics = nics(root);
        let mut matrix = Vec::new();
        for (card, (slot, presence)) in (0_u16..).zip(&slots) {
            let facts = &slot.facts;
            let ancestors = match presence {
                Presence::Here => self.ancestors(card).await?,
                Presence::Unread(_) | Presence::Missing(_) => Vec::new(),
            };
            for (other, _) in &slots {
                matrix.push(between(facts, &other.facts, &ancestors).code());
            }
            let (own, numa) = (device(root, &facts.card.pci), self.numa(&facts.card.pci));
            matrix.extend(nics.iter().map(|(nic, path)| by_path(own.as_deref(), numa, path, nic.numa).code()));
        }
        Ok(NodeLinks { cuda, gpus: slots.len() as u16, nics: nics.into_iter().map(|(nic, _)| nic).collect(), matrix })
    }

    async fn ancestors(&self, card: u16) -> Result<Vec<(String, u32)>, GpuError> {
        match self.ask(card, Ask::Ancestors, DOING).await? {
            Answer::Ancestors(ancestors) => Ok(ancestors),
            _ => Err(self.unexpected(card, DOING)),
        }
    }
}

fn between(one: &Facts, other: &Facts, ancestors: &[(String, u32)]) -> LinkKind {
    if one.card == other.card {
        return LinkKind::Own;
    }
    let nvlinks = nvlinks(one, other);
    if nvlinks > 0 {
        return LinkKind::NvLink(nvlinks);
    }
    match ancestors.iter().find(|(pci, _)| *pci == other.card.pci).map(|(_, level)| *level) {
        // A card of two chips: its chips share a bridge.
        Some(0 | 10) => LinkKind::Pix,
        Some(20) => LinkKind::Pxb,
        Some(30) => LinkKind::Phb,
        Some(40) => LinkKind::Node,
        // What the driver does not say is not near.
        _ => LinkKind::Sys,
    }
}

/// NVLinks from one card to another: direct ones, or through switches that both reach.
fn nvlinks(one: &Facts, other: &Facts) -> u8 {
    let direct = one.links.iter().filter(|link| !link.is_switch && link.pci == other.card.pci).count();
    let through = |from: &Facts, to: &Facts| {
        from.links.iter().filter(|link| link.is_switch && to.links.iter().any(|far| far == *link)).count()
    };
    let links = if direct > 0 { direct } else { through(one, other).min(through(other, one)) };
    u8::try_from(links).unwrap_or(127).min(127)
}

/// The network cards with their paths, by name.
fn nics(root: &Path) -> Vec<(Nic, PathBuf)> {
    let found = std::fs::read_dir(root.join("sys/class/infiniband")).into_iter().flatten().flatten();
    let mut nics: Vec<(Nic, PathBuf)> = found
        .filter_map(|entry| {
            let path = entry.path().join("device").canonicalize().ok()?;
            let numa = std::fs::read_to_string(path.join("numa_node")).unwrap_or_default();
            let numa = numa.trim().parse::<i32>().ok().and_then(|numa| u8::try_from(numa).ok()).unwrap_or_default();
            Some((Nic { name: entry.file_name().to_string_lossy().into_owned(), numa }, path))
        })
        .collect();
    let number = |name: &str| name.trim_start_matches(|letter: char| !letter.is_ascii_digit()).len();
    nics.sort_by(|(one, _), (other, _)| (number(&one.name), &one.name).cmp(&(number(&other.name), &other.name)));
    nics.truncate(muster_model::bounds::NICS_PER_NODE_MAX);
    nics
}

fn device(root: &Path, pci: &str) -> Option<PathBuf> {
    root.join("sys/bus/pci/devices").join(pci).canonicalize().ok()
}

/// From the parts of two paths below `sys/devices`: host bridge, bridges, device.
fn by_path(one: Option<&Path>, numa: u8, other: &Path, other_numa: u8) -> LinkKind {
    let parts = |path: &Path| -> Vec<String> {
        let parts: Vec<String> = path.iter().map(|part| part.to_string_lossy().into_owned()).collect();
        let first = parts.iter().position(|part| part.starts_with("pci")).unwrap_or(parts.len());
        parts[first..].to_vec()
    };
    let (one, other) = (one.map(parts).unwrap_or_default(), parts(other));
    let shared = one.iter().zip(&other).take_while(|(a, b)| a == b).count();
    match shared {
        0 if numa == other_numa => LinkKind::Node,
        0 => LinkKind::Sys,
        1 => LinkKind::Phb,
        // Below the shared bridge: at most a port of it, and the device.
        shared if one.len() - shared <= 2 && other.len() - shared <= 2 => LinkKind::Pix,
        _ => LinkKind::Pxb,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(one: &str, other: &str, numa: (u8, u8), expected: LinkKind) {
        let one = PathBuf::from("/sys/devices").join(one);
        assert_eq!(by_path(Some(&one), numa.0, &PathBuf::from("/sys/devices").join(other), numa.1), expected);
    }

    #[test]
    fn paths_say_how_near_a_network_card_is() {
        let gpu = "pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:00.0/0000:13:00.0";
        check(gpu, "pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:01.0/0000:14:00.0", (0, 0), LinkKind::Pix);
        check(gpu, "pci0000:10/0000:10:01.0/0000:11:01.0/0000:15:00.0/0000:16:00.0", (0, 0), LinkKind::Pxb);
        check(gpu, "pci0000:10/0000:10:02.0/0000:21:00.0", (0, 0), LinkKind::Phb);
        check(gpu, "pci0000:20/0000:20:02.0/0000:21:00.0", (0, 0), LinkKind::Node);
        check(gpu, "pci0000:80/0000:80:02.0/0000:81:00.0", (0, 1), LinkKind::Sys);
    }
}
