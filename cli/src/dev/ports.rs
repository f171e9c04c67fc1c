//! The ports of a development cluster: a hundred in a row, chosen once and kept, since voters know each other by them.
//!
//! What must stay true: two clusters that live at one time never share a port; a folder keeps its ports for ever.

use crate::args::roles::{DEV_FOLDER, Dev};
use crate::dev::folder::Folder;
use crate::dev::settings::Settings;
use crate::failure::Failure;
use nix::fcntl::{Flock, FlockArg};
use std::fs::File;
use std::net::TcpListener;
use std::path::Path;

/// The ports of the usual folder.
const USUAL: u16 = 7_400;
/// Ports of one cluster.
const BLOCK: u16 = 100;
/// Other folders get one of these blocks, below the range from which the kernel gives ports to clients.
const BLOCKS: (u16, u16) = (100, 310);

/// The ports, held against other clusters on this machine.
pub struct Ports {
    base: u16,
    _held: Flock<File>,
}

impl Ports {
    /// Takes the ports that the settings name, or chooses some and names them there.
    ///
    /// # Errors
    /// When they are taken.
    pub fn claim(settings: &mut Settings, args: &Dev, known: bool, folder: &Folder) -> Result<Self, Failure> {
        if known && settings.port > 0 {
            if args.port.is_some_and(|port| port != settings.port) {
                let problem = format!("is not {}, the port that the cluster in this folder uses", settings.port);
                return Err(Failure::field("port", problem, "leave it out, or give another --data"));
            }
            return Self::hold(settings.port).ok_or_else(|| taken(settings.port));
        }
        let usual = args.data == Path::new(DEV_FOLDER);
        let wanted = args.port.or(usual.then_some(USUAL));
        if let Some(port) = wanted
            && let Some(ports) = Self::hold(port).filter(|ports| ports.free(settings))
        {
            settings.port = port;
            return Ok(ports);
        }
        if let Some(port) = args.port {
            return Err(taken(port));
        }
        let count = BLOCKS.1 - BLOCKS.0;
        let first = hash(folder.root()) % u64::from(count);
        for step in 0..count {
            let block = BLOCKS.0 + (u16::try_from(first).unwrap_or(0) + step) % count;
            if let Some(ports) = Self::hold(block * BLOCK).filter(|ports| ports.free(settings)) {
                settings.port = ports.base;
                return Ok(ports);
            }
        }
        Err(Failure::Refused("this machine has no 100 free ports in a row; stop another `muster dev`".to_owned()))
    }

    fn hold(base: u16) -> Option<Self> {
        let path = std::env::temp_dir().join(format!("muster-dev-ports-{base}.lock"));
        let file = File::options().create(true).append(true).open(path).ok()?;
        let held = Flock::lock(file, FlockArg::LockExclusiveNonblock).ok()?;
        Some(Ports { base, _held: held })
    }

    /// Whether nothing else on this machine listens on them.
    fn free(&self, settings: &Settings) -> bool {
        let controls = (1..=settings.voters).map(|id| self.control(id));
        let pages = (1..=settings.voters).map(|id| self.control_http(id));
        let machines = (1..=settings.voters).map(|id| self.control_machines(id));
        controls.chain(pages).chain(machines).all(|port| TcpListener::bind(("127.0.0.1", port)).is_ok())
    }

    /// Where control node `id` (from 1) serves.
    #[must_use]
    pub fn control(&self, id: u32) -> u16 {
        self.base + id as u16 - 1
    }

    /// Where it serves machines, if they prove who they are.
    #[must_use]
    pub fn control_machines(&self, id: u32) -> u16 {
        self.base + 4 + id as u16
    }

    /// Its health page.
    #[must_use]
    pub fn control_http(&self, id: u32) -> u16 {
        self.base + 9 + id as u16
    }

    /// The health page of shard `number` (from 1, up to 20).
    #[must_use]
    pub fn shard_http(&self, number: u32) -> u16 {
        self.base + 19 + number as u16
    }

    /// The health page of agent process `number` (from 1, up to 40).
    #[must_use]
    pub fn agent_http(&self, number: u32) -> u16 {
        self.base + 49 + number as u16
    }
}

fn taken(port: u16) -> Failure {
    Failure::Refused(format!(
        "ports {port} to {} are in use on this machine; stop the programs that use them, or give another --port",
        port + BLOCK - 1
    ))
}

/// FNV-1a: the same block for a folder whenever it is free.
fn hash(path: &Path) -> u64 {
    let bytes = path.as_os_str().as_encoded_bytes();
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}
