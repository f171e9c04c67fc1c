//! A panic is told, and ends what it must and nothing more.

use muster_runtime::{Host, real};
use std::time::Duration;

fn host() -> (tempfile::TempDir, Host) {
    let folder = tempfile::tempdir().expect("a folder");
    let host = real::host("h", folder.path());
    (folder, host)
}

#[tokio::test]
async fn a_panic_of_a_task_that_the_host_needs_is_told_to_all_who_wait() {
    let (_folder, host) = host();
    let (tasks, before) = (host.tasks.clone(), host.tasks.clone());
    let waiting = tokio::spawn(async move { before.panicked().await });
    tokio::task::yield_now().await;
    let task = host.spawn(async { panic!("on {}", "purpose") });
    let lost: Result<(), _> = task.await;
    assert!(lost.expect_err("it panicked").is_panic());
    assert_eq!(waiting.await.expect("no panic"), "on purpose");
    // Also to whoever asks afterwards, and to the process.
    assert_eq!(tasks.panicked().await, "on purpose");
    assert_eq!(real::panicked().await, "on purpose");
}

#[tokio::test]
async fn a_panic_of_a_task_for_one_caller_is_that_callers_alone() {
    let (_folder, host) = host();
    let task = host.spawn_for_one(async { panic!("on purpose") });
    let lost: Result<(), _> = task.await;
    assert!(lost.expect_err("it panicked").is_panic());
    let told = tokio::time::timeout(Duration::from_millis(100), host.tasks.panicked()).await;
    assert!(told.is_err(), "the host goes on: {told:?}");
}
