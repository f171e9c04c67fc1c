//! Long work is done away from the tasks, bounded, and only while somebody waits for it.

use futures::FutureExt;
use muster_runtime::heavy::{BrokeOff, Full};
use muster_runtime::{Host, real};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

fn host() -> (tempfile::TempDir, Host) {
    let folder = tempfile::tempdir().expect("a folder");
    let host = real::host("h", folder.path());
    (folder, host)
}

/// On one thread: were the work done in place, the task that lets it go on would never run.
#[tokio::test(flavor = "current_thread")]
async fn tasks_run_while_long_work_is_done() {
    let (_folder, host) = host();
    let (let_go, wait) = mpsc::channel();
    let work = host.heavy(move || wait.recv().expect("a word")).expect("nothing waits");
    host.spawn(async move { let_go.send(7).expect("it waits") });
    assert_eq!(work.await, Ok(7));
}

#[tokio::test(flavor = "current_thread")]
async fn what_waits_is_bounded_and_done_in_order() {
    let (_folder, host) = host();
    let (let_go, wait) = mpsc::channel::<()>();
    let (begun, has_begun) = tokio::sync::oneshot::channel();
    let first = host.heavy(move || {
        let _ = begun.send(());
        wait.recv()
    });
    let first = first.expect("nothing waits");
    has_begun.await.expect("it begins");
    let done = Arc::new(AtomicUsize::new(0));
    let mut waiting = Vec::new();
    let full = loop {
        let done = done.clone();
        match host.heavy(move || done.fetch_add(1, Ordering::Relaxed)) {
            Ok(work) => waiting.push(work),
            Err(full) => break full,
        }
    };
    assert_eq!(full, Full { limit: waiting.len() });
    let_go.send(()).expect("it waits");
    assert_eq!(first.await, Ok(Ok(())));
    for (place, work) in waiting.into_iter().enumerate() {
        assert_eq!(work.await, Ok(place));
    }
}

#[tokio::test(flavor = "current_thread")]
async fn work_that_nobody_waits_for_is_not_begun() {
    let (_folder, host) = host();
    let (let_go, wait) = mpsc::channel::<()>();
    let first = host.heavy(move || wait.recv()).expect("nothing waits");
    let begun = Arc::new(AtomicUsize::new(0));
    for _ in 0..3 {
        let begun = begun.clone();
        drop(host.heavy(move || begun.fetch_add(1, Ordering::Relaxed)).expect("there is room"));
    }
    let last = host.heavy(|| ()).expect("there is room");
    let_go.send(()).expect("it waits");
    assert_eq!((first.await, last.await), (Ok(Ok(())), Ok(())));
    assert_eq!(begun.load(Ordering::Relaxed), 0);
}

#[tokio::test(flavor = "current_thread")]
async fn a_panic_breaks_off_its_own_work_alone() {
    let (_folder, host) = host();
    let bad = host.heavy(|| panic!("on purpose")).expect("nothing waits").map(|r: Result<(), _>| r);
    assert_eq!(bad.await, Err(BrokeOff));
    assert_eq!(host.heavy(|| 1).expect("nothing waits").await, Ok(1));
}
