//! Disks and files of simulated hosts: what a crash keeps, what a failing or lying disk says.

use super::*;

fn put(store: &Arc<dyn Kv>, number: u8) {
    let mut batch = Batch::default();
    batch.put("a", [number], [number]);
    batch.put("b", [number], [number]);
    store.write(&batch).expect("a working disk");
}

fn numbers(store: &Arc<dyn Kv>, space: &'static str) -> Vec<u8> {
    store.scan(space, &[], None, 1_000, false).expect("a working disk").into_iter().map(|(key, _)| key[0]).collect()
}

#[test]
fn a_crash_keeps_the_synced_and_a_prefix_of_the_rest() {
    let mut kept = Vec::new();
    for seed in 0..40 {
        kept.push(run(seed, |world| async move {
            let host = world.boot("host");
            let store = host.disk.open("log", SPACES).expect("a new store");
            assert!(host.disk.open("log", SPACES).is_err(), "open once");
            (0..5).for_each(|number| put(&store, number));
            store.sync().await.expect("a working disk");
            (5..9).for_each(|number| put(&store, number));
            assert_eq!(numbers(&store, "a").len(), 9, "a write can be read at once");
            // A sync covers what was written before it was asked for, even when it is never waited for.
            drop(store.sync());
            world.crash("host").await;
            assert!(store.get("a", &[0]).is_err() && store.sync().await.is_err(), "a handle dies with its host");

            let host = world.boot("host");
            assert_eq!(host.disk.list().expect("a working disk"), ["log"]);
            let store = host.disk.open("log", SPACES).expect("a store");
            let found = numbers(&store, "a");
            assert_eq!(found, numbers(&store, "b"), "no half batch");
            assert_eq!(found, (0..found.len() as u8).collect::<Vec<_>>(), "a prefix");
            assert!(found.len() >= 5, "what was synced is there");
            found.len()
        }));
    }
    assert!(kept.contains(&5) && kept.contains(&9), "the prefix differs from run to run: {kept:?}");
}

#[test]
fn a_checkpoint_is_frozen_and_scans_keep_their_range() {
    run(9, |world| async move {
        let store = world.boot("host").disk.open("state", SPACES).expect("a new store");
        (0..6).for_each(|number| put(&store, number));
        let frozen = store.checkpoint().expect("a working disk");
        let mut batch = Batch::default();
        batch.delete_range("a", [1], [3]);
        batch.delete("a", [5]);
        batch.delete_range("a", [4], [4]);
        store.write(&batch).expect("a working disk");
        assert_eq!(numbers(&store, "a"), [0, 3, 4]);
        assert_eq!(frozen.scan("a", &[], None, 100, false).expect("frozen").len(), 6);
        let keys = |to, limit, reverse| {
            let pairs = frozen.scan("a", &[1], to, limit, reverse).expect("frozen");
            pairs.into_iter().map(|(key, _)| key[0]).collect::<Vec<_>>()
        };
        assert_eq!(keys(Some([4].as_slice()), 2, false), [1, 2]);
        assert_eq!(keys(Some([4].as_slice()), 2, true), [3, 2]);
        assert_eq!(keys(None, 100, true), [5, 4, 3, 2, 1]);
        assert_eq!(keys(Some([1].as_slice()), 9, false), [] as [u8; 0]);
        assert!(store.get("c", &[0]).is_err(), "a space that was not asked for");
    });
}

#[test]
fn a_stalled_disk_waits_and_a_failing_one_says_so() {
    run(10, |world| async move {
        let host = world.boot("host");
        let store = host.disk.open("log", SPACES).expect("a new store");
        put(&store, 1);
        world.stall_disk("host", Duration::from_secs(9));
        let before = Instant::now();
        store.sync().await.expect("a slow disk");
        assert!(before.elapsed() >= Duration::from_secs(9));
        put(&store, 2);
        world.fail_disk("host", true);
        assert!(store.sync().await.is_err());
        assert!(host.files.write("f", vec![1]).await.is_err());
    });
}

#[test]
fn a_lying_disk_forgets_what_it_said_was_synced() {
    run(13, |world| async move {
        let host = world.boot("host");
        let store = host.disk.open("log", SPACES).expect("a new store");
        world.plant_lying_disk("host");
        (0..100).for_each(|number| put(&store, number));
        store.sync().await.expect("it says so");
        world.crash("host").await;
        let store = world.boot("host").disk.open("log", SPACES).expect("a store");
        assert!(numbers(&store, "a").len() < 100);
    });
}

#[test]
fn a_file_is_old_or_new_after_a_crash() {
    let mut found = Vec::new();
    for seed in 0..20 {
        found.push(run(seed, |world| async move {
            let host = world.boot("host");
            host.files.write("f", vec![1]).await.expect("a working disk");
            let files = host.files.clone();
            host.spawn(async move { files.write("f", vec![2]).await });
            tokio::task::yield_now().await;
            world.crash("host").await;
            world.boot("host").files.read("f").expect("a working disk")
        }));
    }
    assert!(found.iter().all(|content| [Some(vec![1]), Some(vec![2])].contains(content)), "{found:?}");
    assert!(found.contains(&Some(vec![1])) && found.contains(&Some(vec![2])), "{found:?}");
}
