//! An operator of identities, in runs with certificates: pins the keys of all machines, has the cluster take no others, keeps join tokens for machines whose
//! folder is lost, suspends machines and resumes them, while everything else goes wrong. After the last fault every machine is taken at its word again.
//!
//! What must stay true: no control node is suspended, since the cluster refuses that; what this operator has not done is undone at the end.

use super::client::{ANSWER_MAX, Client};
use super::servers::{NODES, SHARDS, Servers};
use muster_proto::v1;
use muster_proto::v1::machines_client::MachinesClient;
use muster_runtime::Transport;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// Between two looks once the faults are over.
const LOOK_AGAIN: Duration = Duration::from_secs(2);
const TOKEN_TTL_S: u64 = 3_600;

/// Goes on for ever.
pub(super) async fn operate(client: &Client, servers: &Servers, end: Instant) {
    if servers.identities.transport() == Transport::Plain {
        return std::future::pending().await;
    }
    let mut required = false;
    while Instant::now() < end {
        if !required {
            required = pin(client, servers).await && require(client).await;
        }
        let machine = match client.chance.between(0, 4) {
            0 => format!("shard:{}", SHARDS[client.chance.between(0, SHARDS.len() as u64) as usize]),
            _ => format!("node:node-{}", client.chance.between(0, NODES as u64)),
        };
        match client.chance.between(0, 5) {
            0 => suspend(client, &machine).await,
            1 | 2 => resume(client, &machine).await,
            // A machine that has lost its folder and had no token has another key.
            3 => drop(pin(client, servers).await),
            _ => make_tokens(client, servers).await,
        }
        client.pause(5_000).await;
    }
    loop {
        pin(client, servers).await;
        for number in 0..NODES {
            resume(client, &format!("node:node-{number}")).await;
        }
        for shard in SHARDS {
            resume(client, &format!("shard:{shard}")).await;
        }
        sleep(LOOK_AGAIN).await;
    }
}

async fn pin(client: &Client, servers: &Servers) -> bool {
    let request = v1::PinRequest { keys: servers.identities.keys(), replace: true };
    matches!(timeout(ANSWER_MAX, MachinesClient::new(client.channel()).pin(request)).await, Ok(Ok(_)))
}

async fn require(client: &Client) -> bool {
    let request = v1::SetEnrolmentRequest { enrolment: "required".to_owned() };
    matches!(timeout(ANSWER_MAX, MachinesClient::new(client.channel()).set_enrolment(request)).await, Ok(Ok(_)))
}

async fn suspend(client: &Client, machine: &str) {
    let request = v1::SuspendRequest { name: machine.to_owned(), reason: "it may have been stolen".to_owned() };
    let _ = timeout(ANSWER_MAX, MachinesClient::new(client.channel()).suspend(request)).await;
}

async fn resume(client: &Client, machine: &str) {
    let request = v1::ResumeRequest { name: machine.to_owned() };
    let _ = timeout(ANSWER_MAX, MachinesClient::new(client.channel()).resume(request)).await;
}

async fn make_tokens(client: &Client, servers: &Servers) {
    for node in servers.identities.without_token() {
        let request = v1::CreateJoinTokenRequest {
            role: "node".to_owned(),
            names: vec![node.clone()],
            enrolled: None,
            ttl_s: TOKEN_TTL_S,
            rejoin: true,
        };
        let made = timeout(ANSWER_MAX, MachinesClient::new(client.channel()).create_join_token(request)).await;
        let Ok(Ok(reply)) = made else { return };
        servers.identities.keep_token(&node, reply.into_inner());
    }
}
