//! Random quota trees and their edits.
//!
//! What must stay true: organisations guarantee no more than what is left of the fleet when a few nodes are lost, and no max is below its
//! guarantee or present use, so that whatever is refused or judged later is the cores' doing.

use crate::chance::Chance;
use muster_control_core::{Command, State};
use muster_model::tenant::TenantSpec;
use muster_model::{GpuModel, GpuUnits, Limits, ResourceVec, Tenant};

/// What organisations may guarantee together.
pub(crate) struct Budget {
    pub(crate) cards: Vec<(GpuModel, u64)>,
    pub(crate) cpu_milli: u64,
    pub(crate) memory_mib: u64,
}

/// Parents first.
pub(crate) fn random(chance: &mut Chance, budget: &Budget) -> Vec<TenantSpec> {
    let mut specs = Vec::new();
    let mut left = of_budget(budget);
    for n in 0..chance.within(2, 4) {
        let part = part_of(chance, &left);
        left = left.less(&part);
        below(chance, &format!("o{n}"), part, 1, &mut specs);
    }
    specs
}

fn of_budget(budget: &Budget) -> ResourceVec {
    let mut left = ResourceVec::of_host(budget.cpu_milli, budget.memory_mib);
    for (model, cards) in &budget.cards {
        left.set_gpu(*model, GpuUnits::cards(*cards));
    }
    left
}

/// A part of an amount: of GPUs in whole cards, and now and then none.
fn part_of(chance: &mut Chance, of: &ResourceVec) -> ResourceVec {
    let mut part = ResourceVec::default();
    for (model, units) in of.gpus() {
        if !chance.in_hundred(20) {
            let cards = units.0 / GpuUnits::CARD.0;
            part.set_gpu(model, GpuUnits::cards(chance.within(0, cards)));
        }
    }
    part.cpu_milli = if chance.in_hundred(60) { chance.within(0, of.cpu_milli / 1_000) * 1_000 } else { 0 };
    if of.memory_mib > 0 && chance.in_hundred(60) {
        part.memory_mib = chance.within(0, of.memory_mib / 16_384) * 16_384;
    }
    part
}

fn below(chance: &mut Chance, path: &str, guarantee: ResourceVec, depth: u32, specs: &mut Vec<TenantSpec>) {
    let max = random_max(chance, &guarantee);
    let weight = chance.within(1, 4) as u32;
    specs.push(spec(path, guarantee, max, weight));
    if depth >= 4 || !chance.in_hundred(65) {
        return;
    }
    let mut left = guarantee;
    for n in 0..chance.within(1, 3) {
        let part = part_of(chance, &left);
        left = left.less(&part);
        below(chance, &format!("{path}/t{n}"), part, depth + 1, specs);
    }
}

fn spec(path: &str, guarantee: ResourceVec, max: Limits, weight: u32) -> TenantSpec {
    TenantSpec { guarantee, max, weight, ..TenantSpec::usual(path) }
}

/// At least `least`; for some of the resources.
fn random_max(chance: &mut Chance, least: &ResourceVec) -> Limits {
    let mut max = Limits::default();
    for (model, units) in least.gpus() {
        if chance.in_hundred(30) {
            max.gpu.insert(model, GpuUnits(units.0 + chance.within(0, 12) * GpuUnits::CARD.0));
        }
    }
    if chance.in_hundred(10) {
        max.cpu_milli = Some(least.cpu_milli + chance.within(8, 64) * 1_000);
    }
    if least.memory_mib > 0 && chance.in_hundred(15) {
        max.memory_mib = Some(least.memory_mib + chance.within(4, 64) * 16_384);
    }
    max
}

/// One tenant's guarantee, max and weight anew, or a tenant more or less.
pub(crate) fn edit(chance: &mut Chance, state: &State, budget: &Budget) -> Option<Command> {
    let tenants: Vec<&Tenant> = state.tenants.values().collect();
    let tenant = *chance.pick(&tenants);
    if chance.in_hundred(10) {
        return Some(Command::DeleteTenant { path: tenant.path.clone() });
    }
    if chance.in_hundred(10) && tenant.path.matches('/').count() < 3 {
        let path = format!("{}/n{}", tenant.path, chance.within(0, 3));
        return Some(Command::ApplyTenants {
            tenants: vec![spec(&path, ResourceVec::default(), Limits::default(), 1)],
        });
    }
    let of = |parent| state.tenants.values().filter(move |other| other.parent == parent);
    let children = of(Some(tenant.id)).fold(ResourceVec::default(), |sum, child| sum.plus(&child.guarantee));
    let beside_it = of(tenant.parent).filter(|other| other.id != tenant.id);
    let beside_it = beside_it.fold(ResourceVec::default(), |sum, other| sum.plus(&other.guarantee));
    let whole = match tenant.parent {
        Some(parent) => state.tenants.get(&parent)?.guarantee,
        None => of_budget(budget),
    };
    let more = whole.less(&beside_it).less(&children);
    let guarantee = children.plus(&part_of(chance, &more));
    let used = state.capacity().tenants().get(&tenant.id)?.used;
    let mut least = guarantee;
    for (model, units) in used.gpus() {
        least.set_gpu(model, units.max(least.gpu(model)));
    }
    least.cpu_milli = least.cpu_milli.max(used.cpu_milli);
    least.memory_mib = least.memory_mib.max(used.memory_mib);
    let max = random_max(chance, &least);
    let weight = chance.within(1, 4) as u32;
    Some(Command::ApplyTenants { tenants: vec![spec(&tenant.path, guarantee, max, weight)] })
}
