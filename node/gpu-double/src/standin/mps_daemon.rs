//! The MPS control daemon: its servers, its commands, its logs.
//!
//! What must stay true: a server is a real process, which NVML lists on its cards and which ends with the daemon, however that ends; which
//! clients there are, and whether one has caused a fault, is in the fleet file, where tests change it; the logs tell of both.

use super::mps_folders::Folders;
use super::mps_log::log;
use crate::faults::Faults;
use crate::files::started_ticks;
use crate::state::card::{MIB, Process};
use crate::state::mps::{MpsServer, MpsStatus, bytes};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The argument of the binary that makes it a server.
pub(super) const SERVER: &str = "--server";

/// How often it looks for connections, faults and servers that have ended.
const LOOK: Duration = Duration::from_millis(10);

/// Who sends no command for this long is not waited for.
const COMMAND_MAX: Duration = Duration::from_secs(2);

/// Memory of the card that a server holds by itself.
const SERVER_MEMORY_MIB: u64 = 30;

struct Daemon<'a> {
    exe: &'a Path,
    folders: &'a Folders,
    faults: Faults,
    /// The servers' processes by id, with what was known of each.
    servers: BTreeMap<u32, (Child, MpsServer)>,
    thread_percentage: Option<String>,
    memory_limits: Vec<(u32, String)>,
    /// Its server takes clients of every user.
    is_for_all: bool,
}

/// Serves until it is told to quit.
pub(super) fn run(exe: &Path, folders: &Folders, is_for_all: bool) -> io::Result<()> {
    fs::create_dir_all(&folders.pipe)?;
    fs::create_dir_all(&folders.log)?;
    let socket = folders.socket();
    if socket.exists() {
        fs::remove_file(&socket)?;
    }
    let faults = Faults::open(&folders.double).map_err(io::Error::other)?;
    let pipe = folders.pipe.display().to_string();
    // Servers of an earlier daemon of this folder have ended with it.
    faults.change_servers(|servers| servers.retain(|server| server.pipe != pipe)).map_err(io::Error::other)?;
    let listener = UnixListener::bind(&socket)?;
    listener.set_nonblocking(true)?;
    fs::write(folders.pipe.join("nvidia-cuda-mps-control.pid"), std::process::id().to_string())?;
    let servers = BTreeMap::new();
    let (thread_percentage, memory_limits) = (None, Vec::new());
    let mut daemon = Daemon { exe, folders, faults, servers, thread_percentage, memory_limits, is_for_all };
    daemon.control(format_args!("Starting control daemon using socket {}", socket.display()))?;
    daemon
        .control(format_args!("To connect CUDA applications to this daemon, set env CUDA_MPS_PIPE_DIRECTORY={pipe}"))?;
    loop {
        match listener.accept() {
            Ok((connection, _)) => {
                daemon.control("Accepting connection...")?;
                if daemon.serve(connection)? {
                    break;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::sleep(LOOK),
            Err(error) => return Err(error),
        }
        daemon.look()?;
    }
    fs::remove_file(&socket)
}

impl Daemon<'_> {
    /// Carries out one command; says whether it was the last.
    fn serve(&mut self, connection: UnixStream) -> io::Result<bool> {
        connection.set_nonblocking(false)?;
        connection.set_read_timeout(Some(COMMAND_MAX))?;
        let mut line = String::new();
        if BufReader::new(&connection).read_line(&mut line).is_err() || line.trim().is_empty() {
            return Ok(false);
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        self.control(format_args!("NEW UI\nCmd:{}", words.join(" ")))?;
        let reply = self.command(&words)?;
        self.control("UI closed")?;
        // Who has gone without waiting for the answer has had its command carried out all the same.
        let _ = (&connection).write_all(reply.as_bytes());
        Ok(words[0] == "quit")
    }

    fn command(&mut self, words: &[&str]) -> io::Result<String> {
        self.look()?;
        let found = |daemon: &Self, pid: &str| {
            let pid = pid.parse::<u32>().ok();
            pid.and_then(|pid| daemon.servers.get(&pid)).map(|(_, server)| server.clone())
        };
        let lines = |pids: &mut dyn Iterator<Item = u32>| pids.map(|pid| format!("{pid}\n")).collect::<String>();
        Ok(match words {
            ["get_server_list"] => lines(&mut self.servers.keys().copied()),
            ["start_server", "-uid", uid] => match uid.parse() {
                Ok(uid) => self.start_server(uid)?,
                Err(_) => format!("Invalid user id {uid}\n"),
            },
            ["get_server_status", pid] => match found(self, pid) {
                Some(server) => format!("{}\n", server.status),
                None => no_server(pid),
            },
            ["get_client_list", pid] => match found(self, pid) {
                Some(server) => lines(&mut server.clients.into_iter()),
                None => no_server(pid),
            },
            ["terminate_client", pid, client] => match (found(self, pid), client.parse()) {
                (Some(server), Ok(client)) if self.terminate(&server, client)? => String::new(),
                (Some(_), _) => format!("Client {client} not found\n"),
                (None, _) => no_server(pid),
            },
            ["set_default_active_thread_percentage", percentage] => match percentage.parse::<f32>() {
                Ok(value) if value > 0.0 && value <= 100.0 => {
                    self.thread_percentage = Some(format!("{value:.1}"));
                    format!("{value:.1}\n")
                }
                _ => format!("Invalid percentage {percentage}\n"),
            },
            ["set_active_thread_percentage", pid, percentage] => match (found(self, pid), percentage.parse::<f32>()) {
                (Some(server), Ok(value)) if value > 0.0 && value <= 100.0 => {
                    let text = format!("{value:.1}");
                    self.change_server(server.pid, |server| server.thread_percentage = Some(text.clone()))?;
                    format!("{text}\n")
                }
                (Some(_), _) => format!("Invalid percentage {percentage}\n"),
                (None, _) => no_server(pid),
            },
            ["set_device_pinned_mem_limit", pid, device, limit] => {
                match (found(self, pid), device.parse::<u32>(), bytes(limit)) {
                    (Some(server), Ok(device), Some(_)) => {
                        let limit = (device, (*limit).to_owned());
                        self.change_server(server.pid, |server| {
                            server.memory_limits.retain(|(other, _)| *other != device);
                            server.memory_limits.push(limit);
                        })?;
                        String::new()
                    }
                    (Some(_), ..) => format!("Invalid limit {device} {limit}\n"),
                    (None, ..) => no_server(pid),
                }
            }
            ["get_default_active_thread_percentage"] => {
                format!("{}\n", self.thread_percentage.as_deref().unwrap_or("100.0"))
            }
            ["set_default_device_pinned_mem_limit", device, limit] => match (device.parse(), bytes(limit)) {
                (Ok(device), Some(_)) => {
                    self.memory_limits.retain(|(other, _)| *other != device);
                    self.memory_limits.push((device, (*limit).to_owned()));
                    String::new()
                }
                _ => format!("Invalid limit {device} {limit}\n"),
            },
            ["get_default_device_pinned_mem_limit", device] => {
                let limit = self.memory_limits.iter().find(|(of, _)| of.to_string() == **device);
                format!("{}\n", limit.map_or("", |(_, limit)| limit.as_str()))
            }
            ["quit"] => self.quit(None)?,
            ["quit", "-t", seconds] => self.quit(Some(Duration::from_secs(seconds.parse().unwrap_or(0))))?,
            _ => format!("Unrecognized command: {}\n", words.join(" ")),
        })
    }

    fn start_server(&mut self, uid: u32) -> io::Result<String> {
        // One server at a time: that of another user ends once its clients have gone, and until then the new one waits.
        if self.servers.values().any(|(_, server)| server.uid == uid || self.is_for_all || !server.clients.is_empty()) {
            return Ok(String::new());
        }
        self.end_servers()?;
        let mut command = Command::new(self.exe);
        let child = command.arg(SERVER).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let pid = child.id();
        self.control(format_args!("Starting new server {pid} for user {uid}"))?;
        let server = MpsServer {
            pipe: self.folders.pipe.display().to_string(),
            pid,
            uid,
            status: MpsStatus::Active,
            clients: Vec::new(),
            memory_limits: self.memory_limits.clone(),
            thread_percentage: self.thread_percentage.clone(),
            is_for_all: self.is_for_all,
            ..MpsServer::default()
        };
        let on_cards = self.open_cards(pid)?;
        self.server_log("Other", pid, "Startup")?;
        let socket = self.folders.socket();
        self.server_log("Other", pid, format_args!("Connecting to control daemon on socket: {}", socket.display()))?;
        self.server_log("Other", pid, "Initializing server process")?;
        for (device, name) in on_cards.iter().enumerate() {
            self.server_log("Server", pid, format_args!("Creating server context on device {device} ({name})"))?;
        }
        let percentage = server.thread_percentage.clone().unwrap_or_else(|| "100.0".to_owned());
        self.server_log("Server", pid, format_args!("Active Threads Percentage set to {percentage}"))?;
        for (device, limit) in &server.memory_limits {
            let limit = bytes(limit).unwrap_or_default();
            let text = format!("Device pinned memory limit for device {device} set to 0x{limit:x} bytes");
            self.server_log("Server", pid, text)?;
        }
        self.server_log("Server", pid, "Server has started")?;
        self.faults.change_servers(|servers| servers.push(server.clone())).map_err(io::Error::other)?;
        self.servers.insert(pid, (child, server));
        self.control(format_args!("NEW SERVER {pid}: Ready"))?;
        Ok(String::new())
    }

    /// Lists the server on the cards that its environment lets it see; gives their names.
    fn open_cards(&self, pid: u32) -> io::Result<Vec<String>> {
        let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
        let fleet = self.faults.fleet().map_err(io::Error::other)?;
        let mut names = Vec::new();
        for (index, (slot, card)) in fleet.present().enumerate() {
            let is_visible = |list: &String| list.split(',').any(|id| id == index.to_string() || id == card.uuid);
            if visible.as_ref().is_none_or(is_visible) {
                let memory_bytes = SERVER_MEMORY_MIB * MIB;
                let process =
                    Process { pid, name: "nvidia-cuda-mps-server".to_owned(), memory_bytes, ..Process::default() };
                self.faults.add_real_process(slot as u32, process).map_err(io::Error::other)?;
                names.push(card.name.clone());
            }
        }
        Ok(names)
    }

    fn change_server(&self, pid: u32, change: impl FnOnce(&mut MpsServer)) -> io::Result<()> {
        let change = |servers: &mut Vec<MpsServer>| servers.iter_mut().find(|server| server.pid == pid).map(change);
        self.faults.change_servers(change).map(|_| ()).map_err(io::Error::other)
    }

    fn terminate(&self, server: &MpsServer, client: u32) -> io::Result<bool> {
        let change = |servers: &mut Vec<MpsServer>| {
            let server = servers.iter_mut().find(|other| other.pid == server.pid);
            server.is_some_and(|server| server.leave(client))
        };
        self.faults.change_servers(change).map_err(io::Error::other)
    }

    /// Ends all servers, once their clients have gone or the time is up.
    fn quit(&mut self, within: Option<Duration>) -> io::Result<String> {
        let began = Instant::now();
        while self.servers.values().any(|(_, server)| !server.clients.is_empty())
            && within.is_none_or(|within| began.elapsed() < within)
        {
            std::thread::sleep(LOOK);
            self.look()?;
        }
        self.end_servers()?;
        self.control("Exit")?;
        Ok(String::new())
    }

    fn end_servers(&mut self) -> io::Result<()> {
        for (pid, (mut child, _)) in std::mem::take(&mut self.servers) {
            drop(child.stdin.take());
            child.wait()?;
            self.control(format_args!("Server {pid} exited with status 0"))?;
        }
        let pipe = self.folders.pipe.display().to_string();
        self.faults.change_servers(|servers| servers.retain(|server| server.pipe != pipe)).map_err(io::Error::other)
    }

    /// Notes what has become of the servers, and logs it.
    fn look(&mut self) -> io::Result<()> {
        let mut now = self.faults.fleet().map_err(io::Error::other)?.mps;
        if now.iter().any(|server| server.has_ended(started_ticks)) {
            let forget = |servers: &mut Vec<MpsServer>| {
                servers.iter_mut().for_each(|server| server.forget_ended(started_ticks));
                servers.clone()
            };
            now = self.faults.change_servers(forget).map_err(io::Error::other)?;
        }
        let mut ended = Vec::new();
        let mut told = Vec::new();
        for (pid, (child, known)) in &mut self.servers {
            if let Some(status) = child.try_wait()? {
                ended.push((*pid, status));
            }
            let Some(server) = now.iter().find(|server| server.pid == *pid) else { continue };
            for client in server.clients.iter().filter(|client| !known.clients.contains(client)) {
                told.push((*pid, format!("Client {{PID: {client}, Context ID: 0}} connected")));
            }
            for client in known.clients.iter().filter(|client| !server.clients.contains(client)) {
                told.push((*pid, format!("Client {{PID: {client}, Context ID: 0}} disconnected")));
            }
            if server.status != known.status {
                told.push((*pid, status_text(server.status).to_owned()));
            }
            known.clone_from(server);
        }
        for (pid, text) in told {
            self.server_log("Server", pid, text)?;
        }
        for (pid, status) in ended {
            self.servers.remove(&pid);
            self.faults
                .change_servers(|servers| servers.retain(|server| server.pid != pid))
                .map_err(io::Error::other)?;
            self.control(format_args!("Server {pid} exited with status {status}"))?;
        }
        Ok(())
    }

    fn control(&self, text: impl Display) -> io::Result<()> {
        log(&self.folders.log.join("control.log"), "Control", std::process::id(), text)
    }

    fn server_log(&self, who: &str, pid: u32, text: impl Display) -> io::Result<()> {
        log(&self.folders.log.join("server.log"), who, pid, text)
    }
}

const fn status_text(status: MpsStatus) -> &'static str {
    match status {
        MpsStatus::Fault => {
            "Server encountered a fatal GPU error; new clients are refused until all clients have exited"
        }
        MpsStatus::Active => "All clients have exited; server status is ACTIVE",
    }
}

fn no_server(pid: &str) -> String {
    format!("Server {pid} not found\n")
}
