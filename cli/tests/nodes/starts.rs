//! How an agent is started: where its data lies, and what its node is called.

use crate::site::Site;

#[test]
fn a_relative_data_folder_works_like_an_absolute_one() {
    let site = Site::start();
    let _agent = site.agent("relative", &["--data", "data"]);
    let id = site.submit(&["--gpus", "1", "--", "true"]);
    site.until_job(&id, "completed");
    assert!(site.path("data").is_dir());
}

#[test]
fn a_node_file_without_a_name_gives_the_node_the_name_of_its_host() {
    let site = Site::start();
    std::fs::write(site.path("node.yaml"), "model: h100\ngpus: 4\n").expect("a file");
    let _agent = site.agent("unnamed", &["--data", "data", "--spec", "node.yaml"]);
    let host = nix::unistd::gethostname().expect("this host has a name").into_string().expect("text");
    site.until_node(&host, "ready");
}

#[test]
fn a_disconnect_grace_that_can_never_work_is_refused_with_the_shortest_that_does() {
    let site = Site::start();
    let refused =
        site.muster(&["submit", "--tenant", "research", "--gpus", "1", "--disconnect-grace", "1s", "--", "true"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && said.contains("disconnect_grace_s: is 1 s; use at least 10 seconds"),
        "{said}"
    );
}
