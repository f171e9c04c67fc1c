//! The quota tree with what each tenant is guaranteed, borrows, lends and waits for; and its floor accounts.

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
    /// Its floor account, if it has one: the part of the guarantee that it has not handed down.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub account: Option<AccountView>,
}

/// A floor account.
#[derive(Clone, Debug, Serialize)]
pub struct AccountView {
    /// What it holds.
    pub size: Amounts,
    /// Charged to it.
    pub busy: Amounts,
    /// What hardware can meet and nobody is charged for.
    pub idle: Amounts,
    /// The part of the idle one that burst uses.
    pub lent: Amounts,
    /// What healthy hardware cannot meet.
    pub unmet: Amounts,
}

impl AccountView {
    fn new(account: &v1::FloorAccount) -> Self {
        AccountView {
            size: Amounts::vec(account.size.as_ref()),
            busy: Amounts::vec(account.busy.as_ref()),
            idle: Amounts::vec(account.idle.as_ref()),
            lent: Amounts::vec(account.lent.as_ref()),
            unmet: Amounts::vec(account.unmet.as_ref()),
        }
    }

    /// The amounts in the order of the columns.
    fn columns(&self) -> [&Amounts; 5] {
        [&self.size, &self.busy, &self.idle, &self.lent, &self.unmet]
    }
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
            account: tenant.account.as_ref().map(AccountView::new),
        }
    }

    /// The amounts in the order of the columns.
    fn columns(&self) -> [&Amounts; 8] {
        let QuotaView { guarantee, max, used, guaranteed, borrowed, lent, waiting, unmet, .. } = self;
        [guarantee, max, used, guaranteed, borrowed, lent, waiting, unmet]
    }

    /// Its name, indented as it stands in the tree.
    fn name(&self) -> String {
        let (level, name) = match self.path.rsplit_once('/') {
            Some((above, name)) => (above.split('/').count(), name),
            None => (0, self.path.as_str()),
        };
        format!("{}{name}", "  ".repeat(level))
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
    /// Every resource of which one of the amounts has something.
    fn of_all(amounts: &[&Amounts]) -> Vec<Row> {
        let models: BTreeSet<&String> = amounts.iter().flat_map(|amounts| amounts.units.keys()).collect();
        let mut rows: Vec<Row> = models.into_iter().map(|model| Row::Gpu(model.clone())).collect();
        rows.extend(amounts.iter().any(|amounts| amounts.cpu_milli.is_some()).then_some(Row::Cpus));
        rows.extend(amounts.iter().any(|amounts| amounts.memory_mib.is_some()).then_some(Row::Memory));
        rows
    }

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
    let unmet = tenants.iter().any(|tenant| !tenant.unmet.is_nothing());
    let mut heads = vec!["TENANT", "RESOURCE", "GUARANTEE", "MAX", "USED", "GUARANTEED", "BORROWED", "LENT", "WAITING"];
    let historic = tenants.iter().any(|tenant| tenant.historic.is_some());
    heads.extend(unmet.then_some("UNMET"));
    heads.extend(historic.then_some("HISTORIC"));
    let mut columns = Columns::new(&heads).right(&heads[2..]);
    for tenant in tenants {
        let name = tenant.name();
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

/// The floor accounts: one line for each tenant that has one, and resource.
#[must_use]
pub fn accounts(tenants: &[QuotaView]) -> Vec<Block> {
    let heads = ["TENANT", "RESOURCE", "SIZE", "BUSY", "IDLE", "LENT", "UNMET"];
    let mut columns = Columns::new(&heads).right(&heads[2..]);
    for tenant in tenants {
        let mut name = tenant.name();
        let Some(account) = &tenant.account else {
            let nothing = heads.iter().skip(1).map(|_| "-".to_owned());
            columns.row([name].into_iter().chain(nothing).collect());
            continue;
        };
        for resource in Row::of_all(&account.columns()) {
            let amounts = account.columns().into_iter().map(|amounts| resource.of(amounts));
            // The name stands once.
            let row = [std::mem::take(&mut name), resource.name().to_owned()].into_iter().chain(amounts);
            columns.row(row.collect());
        }
    }
    vec![columns.block()]
}
