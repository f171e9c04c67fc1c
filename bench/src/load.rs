//! A closed loop of clients: each sends its next call when the last one is answered.
//!
//! What must stay true: every call is counted once, as an answer or as an error; latencies are of answered calls only.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What a load run found.
#[derive(Clone, Debug)]
pub struct Load {
    /// Answered calls in a second.
    pub per_second: f64,
    /// Answered calls.
    pub answered: u64,
    /// Failed calls.
    pub errors: u64,
    /// Latencies in microseconds, sorted.
    pub latencies_us: Vec<u64>,
}

/// Runs `clients` loops for `seconds`; `call` gets the client's number and the number of its call.
pub async fn closed_loop<F, Fut>(clients: u64, seconds: f64, call: F) -> Load
where
    F: Fn(u64, u64) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = bool> + Send,
{
    let call = Arc::new(call);
    let errors = Arc::new(AtomicU64::new(0));
    let begin = Instant::now();
    let until = begin + Duration::from_secs_f64(seconds);
    let mut loops = Vec::new();
    for client in 0..clients {
        let (call, errors) = (call.clone(), errors.clone());
        loops.push(tokio::spawn(async move {
            let mut latencies = Vec::new();
            let mut number = 0;
            while Instant::now() < until {
                let sent = Instant::now();
                if call(client, number).await {
                    latencies.push(sent.elapsed().as_micros() as u64);
                } else {
                    errors.fetch_add(1, Ordering::Relaxed);
                    // A refused client waits a little, as a real one would, instead of spinning on the refusal.
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                number += 1;
            }
            latencies
        }));
    }
    let mut latencies_us = Vec::new();
    for one in loops {
        latencies_us.extend(one.await.unwrap_or_default());
    }
    let elapsed = begin.elapsed().as_secs_f64();
    latencies_us.sort_unstable();
    let answered = latencies_us.len() as u64;
    Load { per_second: answered as f64 / elapsed, answered, errors: errors.load(Ordering::Relaxed), latencies_us }
}
