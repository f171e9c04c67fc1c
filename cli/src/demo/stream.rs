//! Submissions that go on while things are killed. Each is repeated with its request id until it is acknowledged.

use crate::client::Client;
use crate::commands::now_ms;
use crate::commands::submit::submit;
use crate::failure::Failure;
use muster_proto::v1;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::task::JoinHandle;

/// Clients that submit side by side.
const CLIENTS: usize = 4;
/// Between two submissions of one client: the stream then lasts through all the kills.
const PACE: Duration = Duration::from_millis(1_000);

type Waiting = Arc<Mutex<VecDeque<(String, Vec<v1::JobSpec>)>>>;

/// The stream.
pub struct Stream {
    clients: Vec<JoinHandle<Result<Vec<u64>, Failure>>>,
    acknowledged: Arc<AtomicUsize>,
}

impl Stream {
    /// Begins: submissions with one gang each at once, the rest at its pace.
    #[must_use]
    pub fn start(client: &Client, submissions: Vec<(String, Vec<v1::JobSpec>)>) -> Self {
        let waiting: Waiting = Arc::new(Mutex::new(submissions.into()));
        let acknowledged = Arc::new(AtomicUsize::new(0));
        let one = || tokio::spawn(run(client.clone(), waiting.clone(), acknowledged.clone()));
        Stream { clients: (0..CLIENTS).map(|_| one()).collect(), acknowledged }
    }

    /// Jobs so far.
    #[must_use]
    pub fn acknowledged(&self) -> usize {
        self.acknowledged.load(Ordering::Relaxed)
    }

    /// Waits for the last acknowledgement; every id.
    ///
    /// # Errors
    /// When a submission was refused, or never answered.
    pub async fn finish(self) -> Result<Vec<u64>, Failure> {
        let mut ids = Vec::new();
        for client in self.clients {
            ids.extend(client.await.map_err(|error| Failure::Role(error.into()))??);
        }
        Ok(ids)
    }
}

async fn run(client: Client, waiting: Waiting, acknowledged: Arc<AtomicUsize>) -> Result<Vec<u64>, Failure> {
    let mut ids = Vec::new();
    loop {
        let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let Some((request_id, specs)) = next else { return Ok(ids) };
        let several = specs.len() > 1;
        let reply = submit(&client, &request_id, now_ms(), specs).await?;
        acknowledged.fetch_add(reply.job_ids.len(), Ordering::Relaxed);
        ids.extend(reply.job_ids);
        if several {
            tokio::time::sleep(PACE).await;
        }
    }
}
