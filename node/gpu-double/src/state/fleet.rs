//! The host: its driver and its cards, and the builders for tests.
//!
//! What must stay true: a card's *slot* is its place in the list and never changes; its *index* is its place among those that are there, as
//! NVML numbers them; two fleets of one seed are equal.

use super::card::{Card, Client, Fabric, Link, LinkRemote, PciAddress};
use super::catalogue::{Nic, card, nic};
use super::mps::MpsServer;
use super::refusal::{Answer, Refusal};
use super::uuid;
use muster_model::GpuModel;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The fleet file: one host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fleet {
    /// Driver version.
    pub driver_version: String,
    /// CUDA version of the driver: 1000 times the major one plus 10 times the minor one.
    pub cuda_version: i32,
    /// How often the host has booted.
    pub boot: u32,
    /// How many instances have been made; UUIDs and serials are made from it.
    pub made: u32,
    /// Two fleets of other seeds have other UUIDs.
    pub seed: u64,
    /// The driver resets a card by itself where a change of the MIG mode needs it.
    #[serde(default)]
    pub resets_cards: bool,
    /// The cards, in the order of their PCI addresses.
    pub cards: Vec<Card>,
    /// Network cards.
    #[serde(default)]
    pub nics: Vec<Nic>,
    /// MPS servers.
    #[serde(default)]
    pub mps: Vec<MpsServer>,
}

impl Fleet {
    /// A host with so many H100 SXM cards, joined by NVSwitches, each with a network card beside it.
    #[must_use]
    pub fn h100(cards: usize) -> Self {
        Self::of(GpuModel::H100, cards).with_switches(4, 18, 4).with_fabric([0; 16], 0)
    }

    /// A host with so many A100 80 GB SXM cards, joined by NVSwitches; two cards share a PCI switch.
    #[must_use]
    pub fn a100(cards: usize) -> Self {
        Self::of(GpuModel::A100_80, cards).with_switches(6, 12, 3)
    }

    /// A host with so many cards of a model, without NVLinks.
    #[must_use]
    pub fn of(model: GpuModel, cards: usize) -> Self {
        let mut fleet = Fleet {
            driver_version: "580.95.05".to_owned(),
            cuda_version: 13_000,
            boot: 1,
            made: 0,
            seed: 1,
            resets_cards: false,
            cards: (0..cards).map(|slot| card(model, slot)).collect(),
            nics: (0..cards).map(|slot| nic(model, slot)).collect(),
            mps: Vec::new(),
        };
        fleet.name_cards();
        fleet
    }

    /// With other UUIDs and serial numbers: for hosts that are tested together.
    #[must_use]
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self.name_cards();
        self
    }

    /// With this driver and CUDA version, such as `"570.86.15"` and 12080.
    #[must_use]
    pub fn with_driver(mut self, version: &str, cuda_version: i32) -> Self {
        (self.driver_version, self.cuda_version) = (version.to_owned(), cuda_version);
        self
    }

    /// The driver resets an idle card by itself when its MIG mode is changed.
    #[must_use]
    pub fn with_driver_resets(mut self) -> Self {
        self.resets_cards = true;
        self
    }

    /// In MIG mode from the start, all cards that have it.
    #[must_use]
    pub fn with_mig(mut self) -> Self {
        for card in self.cards.iter_mut().filter(|card| card.has_mig()) {
            (card.mig.is_on, card.mig.is_on_pending) = (true, true);
        }
        self
    }

    /// Every card has `links` NVLinks of this version, spread over so many NVSwitches.
    #[must_use]
    pub fn with_switches(mut self, switches: u32, links: u32, version: u32) -> Self {
        for card in &mut self.cards {
            let to = |link| PciAddress { domain: card.pci.domain, bus: 0xc0 + link % switches, device: 0 };
            let link = |link| Link { is_active: true, version, remote: LinkRemote::Switch(to(link)) };
            card.links = (0..links).map(link).collect();
        }
        self
    }

    /// Cards are joined in pairs (0 and 1, 2 and 3) by so many NVLinks.
    #[must_use]
    pub fn with_bridges(mut self, links: usize, version: u32) -> Self {
        let addresses: Vec<PciAddress> = self.cards.iter().map(|card| card.pci).collect();
        for (slot, card) in self.cards.iter_mut().enumerate() {
            let other = addresses.get(slot ^ 1).copied();
            let link = |other| Link { is_active: true, version, remote: LinkRemote::Card(other) };
            card.links = other.map(|other| vec![link(other); links]).unwrap_or_default();
        }
        self
    }

    /// All cards are in this clique of this NVLink cluster; a cluster of zeros is one that ends at the host.
    #[must_use]
    pub fn with_fabric(mut self, cluster_uuid: [u8; 16], clique: u32) -> Self {
        for card in &mut self.cards {
            card.fabric = Some(Fabric { cluster_uuid, clique, state: 3, status: 0, health_mask: 0 });
        }
        self
    }

    /// With one card changed.
    #[must_use]
    pub fn with_card(mut self, slot: usize, change: impl FnOnce(&mut Card)) -> Self {
        if let Some(card) = self.cards.get_mut(slot) {
            change(card);
        }
        self
    }

    fn name_cards(&mut self) {
        for (slot, card) in self.cards.iter_mut().enumerate() {
            card.uuid = uuid::opaque("GPU", self.seed, slot as u64);
            card.serial = format!("165{:04}{:06}", self.seed % 10_000, slot);
        }
    }

    /// The card in a slot.
    ///
    /// # Errors
    /// There is none.
    pub fn card(&self, slot: usize) -> Answer<&Card> {
        self.cards.get(slot).ok_or(Refusal::InvalidArgument)
    }

    /// The card in a slot, to be changed.
    ///
    /// # Errors
    /// There is none.
    pub fn card_mut(&mut self, slot: usize) -> Answer<&mut Card> {
        self.cards.get_mut(slot).ok_or(Refusal::InvalidArgument)
    }

    /// The cards that are there, with their slots, in the order of their indexes.
    pub fn present(&self) -> impl Iterator<Item = (usize, &Card)> {
        self.cards.iter().enumerate().filter(|(_, card)| !card.is_absent)
    }

    /// A serial number for an instance, never given before.
    pub fn next_serial(&mut self) -> u32 {
        self.made += 1;
        self.made
    }

    /// The UUID of the instance with this serial number.
    #[must_use]
    pub fn mig_uuid(&self, serial: u32) -> String {
        uuid::opaque("MIG", self.seed, u64::from(serial) + (1 << 32))
    }

    /// Notes that a process has NVML open on a card; says whether that is new.
    pub fn add_client(&mut self, slot: usize, client: &Client) -> bool {
        let Ok(card) = self.card_mut(slot) else { return false };
        let is_new = !card.clients.contains(client);
        if is_new {
            card.clients.push(client.clone());
        }
        is_new
    }

    /// Notes that a process has closed NVML.
    pub fn remove_client(&mut self, pid: u32) {
        for card in &mut self.cards {
            card.clients.retain(|client| client.pid != pid);
        }
    }

    /// The real processes that are named, as (id, start): whether they live must be asked.
    #[must_use]
    pub fn real_processes(&self) -> BTreeSet<(u32, u64)> {
        let named = self.cards.iter().flat_map(|card| {
            let clients = card.clients.iter().map(|client| (client.pid, client.started_ticks));
            clients.chain(card.processes.iter().map(|process| (process.pid, process.started_ticks)))
        });
        named.filter_map(|(pid, started)| Some((pid, started?))).collect()
    }

    /// Removes real processes that have ended.
    pub fn remove_ended(&mut self, ended: &BTreeSet<(u32, u64)>) {
        let stays = |pid: u32, started: Option<u64>| started.is_none_or(|started| !ended.contains(&(pid, started)));
        for card in &mut self.cards {
            card.clients.retain(|client| stays(client.pid, client.started_ticks));
            card.processes.retain(|process| stays(process.pid, process.started_ticks));
        }
    }
}
