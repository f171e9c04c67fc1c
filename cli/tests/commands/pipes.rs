//! Readers that go away: a command ends quietly, and a server does not mind.

use crate::common::{Dev, MUSTER, alone};
use crate::pages::get;
use crate::waiting::{PATIENCE, wait_for};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

/// Runs a shell line with `muster` in its path; standard error of all of it.
fn shell(line: &str, home: &std::path::Path) -> String {
    let folder = std::path::Path::new(MUSTER).parent().expect("a folder").display().to_string();
    let path = format!("{folder}:{}", std::env::var("PATH").unwrap_or_default());
    let output = Command::new("sh").args(["-c", line]).env("PATH", path).env("HOME", home).output().expect("sh");
    String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout)
}

#[test]
fn a_cluster_whose_output_nobody_reads_ends_quietly_and_leaves_nothing() {
    let home = tempfile::tempdir().expect("a folder");
    let data = home.path().join("dev");
    let said =
        shell(&format!("muster dev --nodes 1 --data {} 2>&1 | head -n 1; echo ended", data.display()), home.path());
    assert!(said.contains("muster dev: starting"), "{said}");
    assert!(said.ends_with("ended\n") && !said.contains("panicked"), "{said}");
    let name = data.display().to_string();
    wait_for("no process is left", || {
        let all = std::fs::read_dir("/proc").expect("/proc").flatten();
        let lines = all.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
        !lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " ")).any(|line| line.contains(&name))
    });
}

#[test]
fn long_output_may_be_cut_by_its_reader() {
    let home = tempfile::tempdir().expect("a folder");
    for command in
        ["--help", "completions bash", "submit --help", "bench decisions --nodes 8 --decisions 10 --mix whole"]
    {
        let line = format!("(muster {command}; echo status $? >&2) | head -n 1 > /dev/null");
        let said = shell(&line, home.path());
        assert!(said.contains("status 0") && !said.contains("panicked"), "{command}: {said}");
    }
}

#[test]
fn a_role_whose_log_nobody_reads_goes_on() {
    let home = tempfile::tempdir().expect("a folder");
    let port = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("its address");
    let endpoint = port.to_string();
    let data = home.path().join("control").display().to_string();
    let member = format!("1={endpoint}");
    let args = ["control", "--id", "1", "--data", &data, "--listen", &endpoint, "--bootstrap", &member];
    let mut role = alone(&args, home.path()).stderr(Stdio::piped()).spawn().expect("muster control");
    let mut log = BufReader::new(role.stderr.take().expect("its log"));
    let mut line = String::new();
    log.read_line(&mut line).expect("its first line");
    drop(log);
    let run = |args: &[&str]| {
        let timeout = format!("{}s", PATIENCE.as_secs());
        let all = [&["--endpoints", &endpoint, "--timeout", &timeout], args].concat();
        alone(&all, home.path()).output().expect("muster")
    };
    // Each of these is logged.
    let tree = home.path().join("tree.yaml");
    for path in ["a", "b", "c"] {
        std::fs::write(&tree, format!("{path}: {{}}\n")).expect("a file");
        let output = run(&["tenants", "apply", "-f", &tree.display().to_string()]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    assert!(role.try_wait().expect("its state").is_none(), "it lives");
    role.kill().expect("killed");
    let _ = role.wait();
}

#[test]
fn every_metric_of_every_role_says_what_it_means() {
    let dev = Dev::start(&["--nodes", "1"]);
    let job = dev.ok(&["submit", "--gpus", "1", "--", "true"]);
    dev.until(&job, &["completed"]);
    for role in dev.roles() {
        let page = get(role.http.as_deref().expect("a page"), "/metrics").expect("it is served");
        let named = |mark: &str| -> Vec<String> {
            let lines = page.lines().filter_map(|line| line.strip_prefix(mark));
            lines.filter_map(|line| line.split(' ').next().map(str::to_owned)).collect()
        };
        let (types, helps) = (named("# TYPE "), named("# HELP "));
        assert!(!types.is_empty(), "{} records something: {page}", role.name);
        assert_eq!(types, helps, "{}", role.name);
    }
}

#[test]
fn a_benchmark_is_one_document() {
    let home = tempfile::tempdir().expect("a folder");
    // A gang of 512 cards makes a second table.
    let args = ["bench", "decisions", "--nodes", "2000", "--decisions", "20", "--mix", "all", "--json"];
    let output = alone(&args, home.path()).output().expect("muster");
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one document");
    let tables = found.as_array().expect("a list of tables");
    assert_eq!(tables.len(), 2, "{found}");
    assert!(tables.iter().all(|table| table["rows"].as_array().is_some_and(|rows| !rows.is_empty())), "{found}");
}
