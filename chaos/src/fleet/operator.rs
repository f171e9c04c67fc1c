//! An operator: drains nodes, lets them in again and takes them out of the fleet, while everything else goes wrong. After the last fault it
//! only lets in, so that the run can come to rest.

use super::client::{ANSWER_MAX, Client};
use super::servers::{NODES, Servers};
use muster_proto::v1;
use muster_proto::v1::fleet_client::FleetClient;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// Between two looks once the faults are over.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// Goes on for ever; of what it says nothing is expected, as nodes may be gone and control nodes silent.
pub(super) async fn operate(client: &Client, servers: &Servers, end: Instant) {
    while Instant::now() < end {
        client.pause(8_000).await;
        let node = format!("node-{}", client.chance.between(0, NODES as u64));
        match client.chance.between(0, 4) {
            0 | 1 => drain(client, &node, true).await,
            2 => drain(client, &node, false).await,
            _ => remove(client, servers, &node).await,
        }
    }
    loop {
        for number in 0..NODES {
            drain(client, &format!("node-{number}"), false).await;
        }
        sleep(LOOK_AGAIN).await;
    }
}

async fn drain(client: &Client, node: &str, drained: bool) {
    let request = v1::SetDrainedRequest { node: node.to_owned(), drained, reason: "new cables".to_owned() };
    let _ = timeout(ANSWER_MAX, FleetClient::new(client.channel()).set_drained(request)).await;
}

async fn remove(client: &Client, servers: &Servers, node: &str) {
    // Whether or not it is answered, its stream of usage may end here.
    servers.history().lost_usage.insert(node.to_owned());
    let request = v1::RemoveNodeRequest { node: node.to_owned() };
    let _ = timeout(ANSWER_MAX, FleetClient::new(client.channel()).remove_node(request)).await;
}
