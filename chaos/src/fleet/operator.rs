//! An operator: drains nodes, lets them in again and takes them out of the fleet, changes limits and trust of tenants and the rules of
//! the pool, while everything else goes wrong. After the last fault all is set back, so that the run can come to rest.

use super::client::{ANSWER_MAX, Client};
use super::servers::{NODES, Servers};
use crate::specs;
use muster_model::request::SharingMode;
use muster_model::tenant::{TenantSpec, Trust};
use muster_model::{GpuUnits, Pool, ResourceVec};
use muster_proto::v1;
use muster_proto::v1::fleet_client::FleetClient;
use muster_proto::v1::tenants_client::TenantsClient;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// Between two looks once the faults are over.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// Goes on for ever. No answer is expected of it: nodes may be gone, control nodes silent, and what is held may forbid a change.
pub(super) async fn operate(client: &Client, servers: &Servers, end: Instant) {
    while Instant::now() < end {
        client.pause(6_000).await;
        let node = format!("node-{}", client.chance.between(0, NODES as u64));
        match client.chance.between(0, 8) {
            0 | 1 => drain(client, &node, true).await,
            2 => drain(client, &node, false).await,
            3 => remove(client, servers, &node).await,
            4 | 5 => apply(client, &other_tenants(client)).await,
            _ => put_pool(client, &other_pool(client)).await,
        }
    }
    loop {
        apply(client, &specs::tenants_with_floors()).await;
        put_pool(client, &Pool::standard()).await;
        for number in 0..NODES {
            drain(client, &format!("node-{number}"), false).await;
        }
        sleep(LOOK_AGAIN).await;
    }
}

async fn drain(client: &Client, node: &str, drained: bool) {
    let request = v1::SetDrainedRequest {
        node: node.to_owned(),
        drained,
        reason: "new cables".to_owned(),
        by_ms: None,
        force: false,
    };
    let _ = timeout(ANSWER_MAX, FleetClient::new(client.channel()).set_drained(request)).await;
}

async fn remove(client: &Client, servers: &Servers, node: &str) {
    // Whether or not it is answered, its stream of usage may end here.
    {
        let mut history = servers.history();
        history.lost_usage.insert(node.to_owned());
        *history.removals.entry(node.to_owned()).or_default() += 1;
    }
    let request = v1::RemoveNodeRequest { node: node.to_owned() };
    let _ = timeout(ANSWER_MAX, FleetClient::new(client.channel()).remove_node(request)).await;
}

async fn apply(client: &Client, tenants: &[TenantSpec]) {
    let tenants = tenants.iter().map(Into::into).collect();
    let request = v1::ApplyTenantsRequest { tenants, ..Default::default() };
    let _ = timeout(ANSWER_MAX, TenantsClient::new(client.channel()).apply(request)).await;
}

async fn put_pool(client: &Client, pool: &Pool) {
    let request = v1::PutPoolRequest { pool: Some(pool.into()) };
    let _ = timeout(ANSWER_MAX, FleetClient::new(client.channel()).put_pool(request)).await;
}

/// One of the tenants has another max, perhaps below what it uses, another guarantee, perhaps more than there is, another weight, or another trust.
fn other_tenants(client: &Client) -> Vec<TenantSpec> {
    let mut tenants = specs::tenants_with_floors();
    let which = client.chance.between(0, tenants.len() as u64) as usize;
    let tenant = &mut tenants[which];
    match client.chance.between(0, 4) {
        3 => tenant.guarantee = ResourceVec::of_gpu(specs::MODEL, GpuUnits::cards(client.chance.between(0, 10))),
        0 => drop(tenant.max.gpu.insert(specs::MODEL, GpuUnits::cards(client.chance.between(1, 8)))),
        1 => tenant.weight = client.chance.between(1, 5) as u32,
        _ if tenant.trust == Trust::Trusted => tenant.trust = Trust::Untrusted,
        _ => tenant.trust = Trust::Trusted,
    }
    tenants
}

/// The pool that all nodes are in, with one sharing mode less or fewer sharers on a card.
fn other_pool(client: &Client) -> Pool {
    let mut pool = Pool::standard();
    match client.chance.between(0, 4) {
        0 => drop(pool.modes.remove(&SharingMode::TimeSlice)),
        1 => drop(pool.modes.remove(&SharingMode::Mps)),
        2 => drop(pool.modes.remove(&SharingMode::Mig)),
        _ => (pool.time_slice_replicas, pool.mps_clients) = (2, 2),
    }
    pool
}
