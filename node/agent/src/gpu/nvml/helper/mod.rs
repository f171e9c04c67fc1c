//! The helper process: the only part of Muster that has NVIDIA's driver open.
//!
//! A thread in a call that the driver never ends cannot be killed, so such calls are made in a process of their own. What must stay true:
//! - it is synchronous, knows its library and its standard streams, and keeps nothing that a restart would lose, but the last
//!   sample of each card's activity;
//! - NVML is loaded once; requests come as lines on the standard input and are answered on the standard output ([`super::wire`]);
//! - each card has a thread ([`worker`]) for its state and steps and another one for what is read again and again, so a call that hangs costs its card only;
//! - it ends when its input ends, whatever hangs.

mod activity;
mod driver;
mod events;
mod facts;
mod holders;
mod mig;
mod output;
mod readings;
mod record;
mod sampling;
mod steps;
mod taken;
mod threads;
mod worker;

use self::driver::Nvml;
use self::output::Output;
pub(super) use self::record::record;
use self::worker::Queue;
use super::wire::{About, Ask, Fault, FromHelper, ToHelper};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::io::BufRead;
use std::sync::Arc;

/// Threads: cards by address, twice, cards by index, and the host. No host has more GPUs than a third of this.
const WORKERS_MAX: usize = 256;

/// Does what the arguments behind `gpu-helper` say and leaves the process: serves the NVML library of that path until its input ends. `None` where they
/// do not name one. Call it before anything else has been started.
pub fn main_of(mut arguments: impl Iterator<Item = OsString>) -> Option<Infallible> {
    match (arguments.next(), arguments.next()) {
        (Some(library), None) => serve(&library),
        _ => None,
    }
}

fn serve(library: &OsStr) -> ! {
    let output = Output::default();
    let loaded = Nvml::load(library).and_then(|nvml| {
        let versions = nvml.versions().map_err(|fault| fault.to_string())?;
        Ok((nvml, versions))
    });
    let (nvml, versions): (&'static Nvml, _) = match loaded {
        Ok((nvml, versions)) => (Box::leak(Box::new(nvml)), versions),
        Err(why) => {
            output.say(&FromHelper::Failed(why));
            std::process::exit(1)
        }
    };
    output.say(&FromHelper::Ready(versions));
    let mut workers = Workers { nvml, output, queues: BTreeMap::new() };
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        match serde_json::from_str(&line) {
            Ok(ToHelper::Ask { number, about, ask }) => workers.give(number, about, ask),
            Ok(ToHelper::Forget(number)) => workers.queues.values().for_each(|queue| queue.forget(number)),
            Err(error) => eprintln!("muster gpu-helper: a line cannot be read: {error}"),
        }
    }
    // Threads that hang in the driver are not waited for.
    std::process::exit(0)
}

/// Cards that have ECC and do not use it, asked by this very process: for a command that ends right after.
pub(super) fn cards_without_ecc(library: &OsStr) -> Result<Vec<u32>, String> {
    let nvml: &'static Nvml = Box::leak(Box::new(Nvml::load(library)?));
    let count = nvml.count().map_err(|fault| fault.to_string())?;
    let is_off = |index: &u32| -> Result<bool, Fault> { Ok(nvml.by_index(*index)?.has_ecc_on()? == Some(false)) };
    let mut without = Vec::new();
    for index in 0..count {
        if is_off(&index).map_err(|fault| fault.to_string())? {
            without.push(index);
        }
    }
    Ok(without)
}

struct Workers {
    nvml: &'static Nvml,
    output: Output,
    queues: BTreeMap<String, Arc<Queue>>,
}

impl Workers {
    fn give(&mut self, number: u64, about: About, ask: Ask) {
        let key = match &about {
            About::Host => "host".to_owned(),
            About::Index(index) => format!("index {index}"),
            About::Card(card) if ask.is_polled() => format!("polled {}", card.pci),
            About::Card(card) => card.pci.clone(),
        };
        let answer = match self.queue(key) {
            Ok(queue) if queue.push(number, about, ask) => return,
            Ok(_) => Fault::Refused("the driver has not answered earlier requests; no more are taken".to_owned()),
            Err(fault) => fault,
        };
        self.output.say(&FromHelper::Answer { number, result: Err(answer) });
    }

    fn queue(&mut self, key: String) -> Result<Arc<Queue>, Fault> {
        if let Some(queue) = self.queues.get(&key) {
            return Ok(queue.clone());
        }
        if self.queues.len() >= WORKERS_MAX {
            return Err(Fault::Refused("the helper serves no more cards".to_owned()));
        }
        let queue = Arc::new(Queue::default());
        worker::start(self.nvml, queue.clone(), self.output.clone())?;
        self.queues.insert(key, queue.clone());
        Ok(queue)
    }
}
