//! A development cluster and the command that talks to it.

use crate::shared::open_to_all;
use crate::waiting::wait_for;
use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// The binary under test.
pub(crate) const MUSTER: &str = env!("CARGO_BIN_EXE_muster");

/// A cluster in a temporary folder; it ends with the value.
pub(crate) struct Dev {
    temporary: tempfile::TempDir,
    supervisor: Child,
}

/// What a command printed, and its exit status.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl From<Output> for Said {
    fn from(output: Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Said { code: output.status.code().unwrap_or(-1), out: text(&output.stdout), err: text(&output.stderr) }
    }
}

impl Said {
    /// What it printed as JSON.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {:?} {:?}", self.out, self.err))
    }
}

impl Dev {
    /// Starts `muster dev` with these arguments and waits until it is ready.
    pub(crate) fn start(args: &[&str]) -> Self {
        Dev::start_with_programs(args, &[])
    }

    /// The same with programs that its tasks and its users find, each a shell script; and `muster` itself.
    pub(crate) fn start_with_programs(args: &[&str], programs: &[(&str, &str)]) -> Self {
        let temporary = tempfile::tempdir().expect("a folder");
        open_to_all(temporary.path());
        let bin = temporary.path().join("bin");
        std::fs::create_dir(&bin).expect("a folder");
        // Tasks of other users may not reach the folder that it was built in.
        let muster = bin.join("muster");
        std::fs::hard_link(MUSTER, &muster).or_else(|_| std::fs::copy(MUSTER, &muster).map(drop)).expect("a program");
        for (name, text) in programs {
            std::fs::write(bin.join(name), text).expect("a program");
            std::fs::set_permissions(bin.join(name), Permissions::from_mode(0o755)).expect("a program");
        }
        let log = File::create(temporary.path().join("dev.log")).expect("a log");
        let supervisor = Command::new(MUSTER)
            .env("PATH", path_with(&bin))
            .env("MUSTER_TASK_WRITES", temporary.path())
            .arg("dev")
            .args(args)
            .arg("--data")
            .arg(temporary.path().join("dev"))
            .stdin(Stdio::null())
            .stderr(log.try_clone().expect("a log"))
            .stdout(log)
            .spawn()
            .expect("muster dev");
        let dev = Dev { temporary, supervisor };
        wait_for("ready", || std::fs::read_to_string(dev.path("dev.log")).is_ok_and(|log| log.contains("ready in")));
        dev
    }

    /// A path below the temporary folder; the cluster's data is in `dev`.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.temporary.path().join(name)
    }

    /// The command, pointed at the cluster by its configuration file and with a home of its own.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = alone(args, self.temporary.path());
        command.env("MUSTER_CONFIG", self.path("dev/config.yaml"));
        command
    }

    /// Runs a command.
    pub(crate) fn run(&self, args: &[&str]) -> Said {
        self.command(args).output().expect("muster").into()
    }

    /// Runs a command that must succeed; what it printed.
    pub(crate) fn ok(&self, args: &[&str]) -> String {
        let said = self.run(args);
        assert_eq!(said.code, 0, "{args:?}: {}{}", said.out, said.err);
        said.out.trim_end().to_owned()
    }

    /// Runs a command that must end with `code` and print `words` to standard error; all that it printed there.
    pub(crate) fn refused(&self, args: &[&str], code: i32, words: &[&str]) -> String {
        let said = self.run(args);
        assert_eq!(said.code, code, "{args:?}: {}{}", said.out, said.err);
        for word in words {
            assert!(said.err.contains(word), "{args:?} does not say {word:?}: {}", said.err);
        }
        said.err
    }

    /// Writes a file below the temporary folder; its path.
    pub(crate) fn file(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        std::fs::write(&path, text).expect("a file");
        path.display().to_string()
    }

    /// Writes a token where nobody else reads it; its path.
    pub(crate) fn private_file(&self, name: &str, token: &str) -> String {
        let path = self.file(name, token);
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("a private file");
        path
    }

    /// Runs a command with the token in this file.
    pub(crate) fn run_with(&self, token: impl AsRef<Path>, args: &[&str]) -> Said {
        self.command(args).env("MUSTER_TOKEN_FILE", token.as_ref()).output().expect("muster").into()
    }

    /// The processes of the cluster.
    pub(crate) fn roles(&self) -> Vec<muster_cli::dev::file::RunningRole> {
        muster_cli::dev::file::DevFile::read(&self.path("dev/dev.json")).expect("dev.json").roles
    }

    /// Where its control nodes serve.
    pub(crate) fn endpoints(&self) -> Vec<String> {
        self.roles().into_iter().filter_map(|role| role.endpoint).collect()
    }

    /// The state of a job.
    pub(crate) fn state(&self, id: &str) -> String {
        self.run(&["job", id, "-o", "json"]).json()["state"].as_str().unwrap_or_default().to_owned()
    }

    /// Waits until a job is in one of these states.
    pub(crate) fn until(&self, id: &str, states: &[&str]) {
        wait_for(&format!("job {id} {states:?}"), || states.contains(&self.state(id).as_str()));
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        signal(&self.supervisor, nix::sys::signal::Signal::SIGTERM);
        let _ = self.supervisor.wait();
    }
}

/// The search path with a folder before it.
pub(crate) fn path_with(folder: &Path) -> String {
    format!("{}:{}", folder.display(), std::env::var("PATH").unwrap_or_default())
}

/// The command with nothing of this user's configuration, its home in `home`.
pub(crate) fn alone(args: &[&str], home: &Path) -> Command {
    let mut command = Command::new(MUSTER);
    command.args(args).stdin(Stdio::null()).env("HOME", home);
    for name in [
        "MUSTER_ENDPOINTS",
        "MUSTER_CONFIG",
        "MUSTER_ROOTS_FILE",
        "MUSTER_TOKEN_FILE",
        "MUSTER_USER",
        "XDG_CONFIG_HOME",
        "XDG_CACHE_HOME",
        "COLUMNS",
    ] {
        command.env_remove(name);
    }
    command
}

/// Sends a signal to a child that may have ended.
pub(crate) fn signal(child: &Child, signal: nix::sys::signal::Signal) {
    if let Ok(pid) = i32::try_from(child.id()) {
        let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal);
    }
}
