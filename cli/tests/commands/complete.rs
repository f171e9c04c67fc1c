//! What shells complete: names and ids of the cluster, and words of the command line.

use crate::common::Dev;

/// What a shell that speaks fish's way gets for a line whose last word is being typed: values, without explanations and flags.
fn completed(dev: &Dev, line: &[&str]) -> Vec<String> {
    let mut command = dev.command(&[&["--", "muster"], line].concat());
    let output = command.env("MUSTER_COMPLETE", "fish").output().expect("muster");
    assert!(output.status.success() && output.stderr.is_empty(), "{line:?}: {output:?}");
    let text = String::from_utf8(output.stdout).expect("text");
    let values = text.lines().map(|line| line.split('\t').next().unwrap_or_default().to_owned());
    values.filter(|value| !value.starts_with("--")).collect()
}

#[test]
fn shells_complete_ids_and_names_of_the_cluster_and_known_words() {
    let dev = Dev::start(&["--nodes", "2"]);
    let tree = dev.file("tree.yaml", "research: {teams: {nlp: {}}}\n");
    dev.ok(&["tenants", "apply", "-f", &tree]);
    let id = dev.ok(&["submit", "--gpus", "1", "--name", "train", "--", "sleep", "600"]);
    let ended = dev.ok(&["submit", "--gpus", "1", "--", "true"]);
    dev.until(&ended, &["completed"]);
    dev.until(&id, &["running"]);

    let check = |line: &[&str], expected: &[&str]| assert_eq!(completed(&dev, line), expected, "{line:?}");
    check(&["cancel", ""], &[&id]);
    check(&["job", ""], &[&ended, &id]);
    check(&["submit", "--tenant", "rese"], &["research", "research/nlp"]);
    check(&["tenants", "delete", "research/"], &["research/nlp"]);
    check(&["drain", "node-"], &["node-0000", "node-0001"]);
    check(&["nodes", "--cell", ""], &["cell-0"]);
    check(&["submit", "--pool", ""], &["default"]);
    check(&["submit", "--topology", "b"], &["block"]);
    check(&["submit", "--spread", ""], &["node", "leaf", "block", "region"]);
    check(&["submit", "--model", "h100,a100-8"], &["h100,a100-80"]);
    check(&["jobs", "--state", "pend"], &["pending"]);
    check(&["jobs", "--sort", "wai"], &["waited"]);

    // Nobody answers: nothing, and soon.
    let output = dev
        .command(&["--", "muster", "cancel", ""])
        .env("MUSTER_COMPLETE", "bash")
        .env("_CLAP_COMPLETE_INDEX", "2")
        .env("MUSTER_ENDPOINTS", "127.0.0.1:9")
        .output()
        .expect("muster");
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    assert!(!String::from_utf8_lossy(&output.stdout).contains(&id));
}

#[test]
fn bash_completes_with_the_script_that_is_printed() {
    let dev = Dev::start_with_programs(&["--nodes", "1"], &[]);
    let id = dev.ok(&["submit", "--gpus", "1", "--", "sleep", "600"]);
    let script = "source <(muster completions bash); COMP_WORDS=(muster cancel ''); COMP_CWORD=2; COMP_TYPE=9; \
                  _clap_complete_muster muster '' cancel; printf '%s\\n' \"${COMPREPLY[@]}\"";
    let output = std::process::Command::new("bash")
        .args(["-c", script])
        .env("PATH", crate::common::path_with(&dev.path("bin")))
        .env("HOME", dev.path(""))
        .env("MUSTER_CONFIG", dev.path("dev/config.yaml"))
        .output()
        .expect("bash");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.lines().any(|line| line.trim() == id), "{output:?}");
}
