//! The quota tree with what each tenant is guaranteed, borrows, lends and waits for.

use super::tenants::Amounts;
use crate::output::{Block, Columns};
use crate::units::{show_cards, show_cpus, show_mebibytes};
use muster_proto::v1;
use serde::Serialize;
use std::collections::BTreeSet;

/// How one tenant stands, those below it included.
#[derive(Clone, Debug, Serialize)]
pub struct QuotaView {
    /// Names from the top.
    pub path: String,
    /// What it can always have.
    pub guarantee: Amounts,
    /// Its ceiling.
    pub max: Amounts,
    /// In use now.
    pub used: Amounts,
    /// In use within the guarantee.
    pub guaranteed: Amounts,
    /// In use above the guarantee.
    pub borrowed: Amounts,
    /// Idle guarantee that others use.
    pub lent: Amounts,
    /// What pending jobs ask for.
    pub waiting: Amounts,
    /// The part of the guarantee that the healthy hardware cannot meet.
    pub unmet: Amounts,
    /// Average burst use of the past, where a half-life is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub historic: Option<Amounts>,
}

impl QuotaView {
    /// From the message.
    #[must_use]
    pub fn new(tenant: &v1::Tenant) -> Self {
        let spec = tenant.spec.clone().unwrap_or_default();
        let quota = tenant.quota.clone().unwrap_or_default();
        QuotaView {
            path: spec.path,
            guarantee: Amounts::vec(spec.guarantee.as_ref()),
            max: Amounts::limits(spec.max.as_ref()),
            used: Amounts::vec(tenant.used.as_ref()),
            guaranteed: Amounts::vec(quota.guaranteed.as_ref()),
            borrowed: Amounts::vec(quota.borrowed.as_ref()),
            lent: Amounts::vec(quota.lent.as_ref()),
            waiting: Amounts::vec(quota.waiting.as_ref()),
            unmet: Amounts::vec(quota.unmet.as_ref()),
            historic: quota.historic.as_ref().map(|historic| Amounts::vec(Some(historic))),
        }
    }

    /// The amounts in the order of the columns.
    fn columns(&self) -> [&Amounts; 8] {
        let QuotaView { path: _, guarantee, max, used, guaranteed, borrowed, lent, waiting, unmet, historic: _ } = self;
        [guarantee, max, used, guaranteed, borrowed, lent, waiting, unmet]
    }

    /// GPU models of which there is any amount; CPUs and memory where the tenant has a guarantee or a max for them.
    fn resources(&self) -> Vec<Row> {
        let all = self.columns().into_iter().chain(&self.historic);
        let models: BTreeSet<&String> = all.flat_map(|amounts| amounts.units.keys()).collect();
        let mut rows: Vec<Row> = models.into_iter().map(|model| Row::Gpu(model.clone())).collect();
        let ruled = [&self.guarantee, &self.max];
        rows.extend(ruled.iter().any(|amounts| amounts.cpu_milli.is_some()).then_some(Row::Cpus));
        rows.extend(ruled.iter().any(|amounts| amounts.memory_mib.is_some()).then_some(Row::Memory));
        rows
    }
}

/// What a row of the table is about.
enum Row {
    Gpu(String),
    Cpus,
    Memory,
}

impl Row {
    fn name(&self) -> &str {
        match self {
            Row::Gpu(model) => model,
            Row::Cpus => "cpus",
            Row::Memory => "memory",
        }
    }

    fn of(&self, amounts: &Amounts) -> String {
        let shown = match self {
            Row::Gpu(model) => amounts.units.get(model).map(|units| show_cards(*units)),
            Row::Cpus => amounts.cpu_milli.map(show_cpus),
            Row::Memory => amounts.memory_mib.map(show_mebibytes),
        };
        shown.unwrap_or_else(|| "-".to_owned())
    }
}

/// The tree: one line for each tenant and resource.
#[must_use]
pub fn tree(tenants: &[QuotaView]) -> Vec<Block> {
    // Hardware is seldom lost: the column is there when it is.
    let unmet = tenants.iter().any(|tenant| tenant.columns()[7].units.values().any(|units| *units > 0));
    let mut heads = vec!["TENANT", "RESOURCE", "GUARANTEE", "MAX", "USED", "GUARANTEED", "BORROWED", "LENT", "WAITING"];
    let historic = tenants.iter().any(|tenant| tenant.historic.is_some());
    heads.extend(unmet.then_some("UNMET"));
    heads.extend(historic.then_some("HISTORIC"));
    let mut columns = Columns::new(&heads).right(&heads[2..]);
    for tenant in tenants {
        let (level, name) = match tenant.path.rsplit_once('/') {
            Some((above, name)) => (above.split('/').count(), name),
            None => (0, tenant.path.as_str()),
        };
        let name = format!("{}{name}", "  ".repeat(level));
        let resources = tenant.resources();
        if resources.is_empty() {
            let nothing = heads.iter().skip(1).map(|_| "-".to_owned());
            columns.row([name.clone()].into_iter().chain(nothing).collect());
        }
        for (index, resource) in resources.iter().enumerate() {
            // The name stands once.
            let name = if index == 0 { name.clone() } else { String::new() };
            let shown = if unmet { 8 } else { 7 };
            let amounts = tenant.columns().into_iter().take(shown).map(|amounts| resource.of(amounts));
            let before = || tenant.historic.as_ref().map_or_else(|| "-".to_owned(), |amounts| resource.of(amounts));
            let row = [name, resource.name().to_owned()].into_iter().chain(amounts);
            columns.row(row.chain(historic.then(before)).collect());
        }
    }
    vec![columns.block()]
}
