//! Every command of the guides is run as it is printed, against a cluster of `muster dev`.
//!
//! What a fenced block is stands in its first line: `console` (lines with `$` are run, the others are what was printed), `sh` (every line is
//! run), `yaml file=NAME` (the file that later commands read), `cel` (a selector that a
//! submission takes), `output`, or a language with `not-run: reason`. What is not run must still be
//! a command line that the binary understands, and there is a bound on how much that is.

use crate::common::{Dev, path_with, signal};
use crate::waiting::PATIENCE;
use clap::Parser;
use clap::error::ErrorKind;
use muster_cli::args::Cli;
use nix::sys::signal::Signal;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Blocks of the three guides that may stay without a run: what needs several hosts, or builds the workspace.
const NOT_RUN_MAX: usize = 10;
/// How long a command that follows something is followed.
const FOLLOWED: Duration = Duration::from_secs(3);
/// What the guides submit beside programs that every machine has.
const PROGRAMS: [(&str, &str); 2] = [("torchrun", WORK), ("serve", WORK)];
const WORK: &str = "#!/bin/sh\necho rank $RANK\nexec sleep 600\n";

/// A fenced block.
struct Fence {
    line: usize,
    info: String,
    text: String,
}

impl Fence {
    fn all(guide: &str) -> Vec<Fence> {
        let mut fences: Vec<Fence> = Vec::new();
        let mut open = false;
        for (number, line) in guide.lines().enumerate() {
            match line.strip_prefix("```") {
                Some(_) if open => open = false,
                Some(info) => {
                    fences.push(Fence { line: number + 1, info: info.trim().to_owned(), text: String::new() });
                    open = true;
                }
                None if open => fences.last_mut().expect("an open one").text.push_str(&format!("{line}\n")),
                None => {}
            }
        }
        assert!(!open, "the last block has no end");
        fences
    }

    /// Its commands, each with what is printed below it.
    fn commands(&self) -> Vec<(String, String)> {
        let prompted = self.info.starts_with("console");
        let mut commands: Vec<(String, String)> = Vec::new();
        let mut goes_on = false;
        for line in self.text.lines() {
            let said =
                if prompted { line.strip_prefix("$ ") } else { Some(line).filter(|line| !line.trim().is_empty()) };
            match (said, commands.last_mut()) {
                (_, Some((command, _))) if goes_on => *command = format!("{command}\n{line}"),
                (Some(said), _) => commands.push((said.to_owned(), String::new())),
                (None, Some((_, printed))) => printed.push_str(&format!("{line}\n")),
                (None, None) => {}
            }
            goes_on = line.ends_with('\\');
        }
        commands
    }
}

/// One guide with its cluster, as a reader has it: a folder, a shell, programs to submit.
struct Reader {
    dev: Dev,
    guide: &'static str,
    /// `export` lines so far.
    exports: Vec<String>,
    /// What the guide calls a job, and its id here.
    ids: BTreeMap<String, String>,
    /// Roles that the guide has started.
    roles: Vec<Child>,
}

impl Reader {
    fn new(guide: &'static str) -> Self {
        let dev = Dev::start_with_programs(&[], &PROGRAMS);
        std::fs::create_dir(dev.path("reader")).expect("a folder");
        Reader { dev, guide, exports: Vec::new(), ids: BTreeMap::new(), roles: Vec::new() }
    }

    fn here(&self) -> std::path::PathBuf {
        self.dev.path("reader")
    }

    fn shell(&self, command: &str) -> Command {
        let mut shell = Command::new("bash");
        shell.arg("-c").arg(format!("{}\n{command}", self.exports.join("\n"))).current_dir(self.here());
        for name in ["MUSTER_ENDPOINTS", "MUSTER_USER", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"] {
            shell.env_remove(name);
        }
        shell
            .env("PATH", path_with(&self.dev.path("bin")))
            .env("HOME", self.here())
            .env("MUSTER_CONFIG", self.dev.path("dev/config.yaml"));
        shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        shell
    }

    fn read(&mut self, fence: &Fence) {
        let info = fence.info.as_str();
        if info.contains("not-run: ") {
            fence.commands().iter().for_each(|(command, _)| understood(command, fence.line));
        } else if let Some((_, name)) = info.split_once("file=") {
            std::fs::write(self.here().join(name), &fence.text).expect("a file");
        } else if info == "console" || info == "sh" {
            for (command, printed) in fence.commands() {
                self.run(&command, &printed, fence.line);
            }
        } else if info == "cel" {
            let selector = fence.text.trim().replace('\'', "'\\''");
            self.run(&format!("muster submit --gpus 1 --selector '{selector}' -- true"), "", fence.line);
        } else {
            assert_eq!(info, "output", "{}:{}: the block does not say what it is", self.guide, fence.line);
        }
    }

    fn run(&mut self, command: &str, printed: &str, line: usize) {
        let mut command = command.split("   #").next().unwrap_or_default().trim().to_owned();
        for (theirs, ours) in &self.ids {
            let words: Vec<&str> = command.split(' ').map(|word| if word == theirs { ours } else { word }).collect();
            command = words.join(" ");
        }
        let at = format!("{}:{line}: {command}", self.guide);
        if command.starts_with("export ") {
            return self.exports.push(command);
        }
        match command.split(' ').nth(1) {
            Some("dev") => return self.role(&command, "ready in", &at),
            Some("node") if !command.ends_with(" doctor") => return self.role(&command, "agents started", &at),
            _ => {}
        }
        let follows = command.contains(" -f") && command.contains("muster logs")
            || command.contains("--watch")
            || command.contains("--follow");
        let mut child = self.shell(&format!("exec {command}")).spawn().expect("a shell");
        let until = Instant::now() + if follows { FOLLOWED } else { PATIENCE };
        while child.try_wait().expect("its state").is_none() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
        }
        let ended = child.try_wait().expect("its state").is_some();
        signal(&child, Signal::SIGKILL);
        let output = child.wait_with_output().expect("its output");
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(if ended { output.status.success() } else { follows }, "{at}\n{out}{err}");
        assert!(!err.contains("error") && !err.contains("warning"), "{at}\n{err}");
        let number = |text: &str| text.trim().parse::<u64>().ok().map(|id| id.to_string());
        if let (Some(theirs), Some(ours)) = (number(printed), number(&out)) {
            self.ids.insert(theirs, ours);
        }
    }

    /// Something that runs until the reader ends it.
    fn role(&mut self, command: &str, ready: &str, at: &str) {
        let log = std::fs::File::create(self.here().join("role.log")).expect("a log");
        let mut shell = self.shell(&format!("exec {command}"));
        shell.stdout(log.try_clone().expect("a log")).stderr(log);
        self.roles.push(shell.spawn().expect("a role"));
        let until = Instant::now() + PATIENCE;
        loop {
            let said = std::fs::read_to_string(self.here().join("role.log")).expect("a log");
            if said.contains(ready) {
                return;
            }
            assert!(Instant::now() < until, "{at}\n{said}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        for role in &mut self.roles {
            signal(role, Signal::SIGTERM);
            let _ = role.wait();
        }
    }
}

/// A command that is not run is a command line all the same: flags and words exist.
fn understood(command: &str, line: usize) {
    let command = command.replace("\\\n", " ");
    let command = command.split(" | ").next().and_then(|first| first.split("   ").next()).unwrap_or_default();
    let words: Vec<&str> = command.split_whitespace().map(|word| word.trim_matches('\'')).collect();
    if words.first() != Some(&"muster") {
        return;
    }
    match Cli::try_parse_from(&words).map_err(|error| error.kind()) {
        // A command is named, not written out.
        Ok(_)
        | Err(
            ErrorKind::MissingRequiredArgument
            | ErrorKind::MissingSubcommand
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
            | ErrorKind::DisplayHelp
            | ErrorKind::DisplayVersion,
        ) => {}
        Err(kind) => panic!("line {line}: {command}: {kind:?}"),
    }
}

/// Commands that stand in a sentence or a table, between backticks.
fn inline(guide: &str) {
    let mut fenced = false;
    for (number, line) in guide.lines().enumerate() {
        fenced ^= line.starts_with("```");
        let spans = line.split('`').skip(1).step_by(2);
        for span in spans.filter(|span| !fenced && span.starts_with("muster ")) {
            understood(span, number + 1);
        }
    }
}

fn check(name: &'static str) -> usize {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name);
    let guide = std::fs::read_to_string(path).expect("the guide");
    inline(&guide);
    let mut reader = Reader::new(name);
    let fences = Fence::all(&guide);
    for fence in &fences {
        reader.read(fence);
    }
    fences.iter().filter(|fence| fence.info.contains("not-run: ")).count()
}

#[test]
fn every_command_of_the_readme_runs() {
    assert!(check("README.md") <= 1);
}

#[test]
fn every_command_of_the_guide_for_tenants_runs() {
    assert!(check("docs/TENANTS.md") <= 1);
}

#[test]
fn every_command_of_the_guide_for_operators_runs() {
    assert!(check("docs/OPERATORS.md") <= NOT_RUN_MAX);
}

#[test]
fn every_command_of_the_guide_to_isolation_runs() {
    assert_eq!(check("docs/SECURITY.md"), 0);
}

#[test]
#[should_panic(expected = "does not say what it is")]
fn a_block_that_says_nothing_is_found() {
    let fences = Fence::all("text\n```\n$ muster jobs\n```\n");
    let mut reader = Reader::new("here");
    reader.read(&fences[0]);
}

#[test]
#[should_panic(expected = "UnknownArgument")]
fn a_flag_that_does_not_exist_is_found() {
    inline("Say `muster jobs --watched`.");
}
