//! What every disk must do, real or simulated: the promises at the head of `muster_runtime::disk`, as one suite.
//!
//! A [`Machine`] gives the disk under test and can lose its power. A test file hands a fresh machine and a seed to [`check_all`].

use muster_runtime::disk::Pair;
use muster_runtime::{Batch, Disk, Files, Kv};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A machine whose power can fail.
pub(crate) trait Machine {
    /// Its disk, as it is now.
    fn disk(&self) -> Arc<dyn Disk>;
    /// Its small files, as they are now.
    fn files(&self) -> Arc<dyn Files>;
    /// Loses power: what was not synced may be lost. The caller holds no store any more.
    fn crash(&mut self);
}

const A: &str = "a";
const B: &str = "b";
const SPACES: [&str; 2] = [A, B];

/// Runs the whole suite; each part opens stores of its own.
pub(crate) async fn check_all(machine: &mut dyn Machine, seed: u64) {
    reads_and_ranges(machine);
    batches_are_in_order(machine);
    a_frozen_view_stays(machine).await;
    stores_are_listed_and_removed(machine).await;
    synced_survives(machine).await;
    files_are_replaced_whole(machine).await;
    a_crash_leaves_synced_writes_and_a_prefix(machine, seed).await;
}

fn open(machine: &dyn Machine, name: &str) -> Arc<dyn Kv> {
    machine.disk().open(name, &SPACES).expect("opens")
}

fn pair(key: &str, value: &str) -> Pair {
    (key.as_bytes().to_vec(), value.as_bytes().to_vec())
}

fn reads_and_ranges(machine: &mut dyn Machine) {
    let kv = open(machine, "ranges");
    let mut batch = Batch::default();
    for (key, value) in [("k1", "1"), ("k2", "2"), ("k3", "3"), ("k4", "4")] {
        batch.put(A, key, value);
    }
    batch.put(B, "k2", "other space");
    kv.write(&batch).expect("writes");
    assert_eq!(kv.get(A, b"k2").expect("reads"), Some(b"2".to_vec()));
    assert_eq!(kv.get(B, b"k2").expect("reads"), Some(b"other space".to_vec()), "spaces are apart");
    assert_eq!(kv.get(B, b"k1").expect("reads"), None);
    let check = |from: &str, to: Option<&str>, limit, reverse, expected: &[&str]| {
        let got = kv.scan(A, from.as_bytes(), to.map(str::as_bytes), limit, reverse).expect("scans");
        let keys: Vec<_> = got.iter().map(|(key, _)| String::from_utf8(key.clone()).expect("utf-8")).collect();
        assert_eq!(keys, expected, "from {from:?} to {to:?} limit {limit} reverse {reverse}");
    };
    check("", None, 10, false, &["k1", "k2", "k3", "k4"]);
    check("k2", None, 2, false, &["k2", "k3"]);
    check("k2", Some("k4"), 10, false, &["k2", "k3"]);
    check("k2", Some("k4"), 10, true, &["k3", "k2"]);
    check("", None, 2, true, &["k4", "k3"]);
    check("k15", Some("k25"), 10, false, &["k2"]);
    check("k15", Some("k25"), 10, true, &["k2"]);
    check("k3", Some("k3"), 10, false, &[]);
    check("k4", Some("k1"), 10, true, &[]);
    check("z", None, 10, false, &[]);
    check("", None, 0, false, &[]);
    assert_eq!(kv.scan(A, b"k4", None, 1, false).expect("scans"), vec![pair("k4", "4")]);
}

fn batches_are_in_order(machine: &mut dyn Machine) {
    let kv = open(machine, "batches");
    let mut batch = Batch::default();
    batch.put(A, "x", "1");
    batch.delete(A, "x");
    batch.put(A, "y1", "1");
    batch.put(A, "y2", "1");
    batch.delete_range(A, "y1", "y9");
    batch.put(A, "y2", "after the range");
    batch.delete(A, "never there");
    batch.delete_range(A, "z", "a");
    batch.put(A, "w", "1");
    batch.put(A, "w", "2");
    kv.write(&batch).expect("writes");
    let all = kv.scan(A, b"", None, 10, false).expect("scans");
    assert_eq!(all, vec![pair("w", "2"), pair("y2", "after the range")]);
    let mut batch = Batch::default();
    batch.delete_range(A, "w", "y2");
    kv.write(&batch).expect("writes");
    assert_eq!(
        kv.scan(A, b"", None, 10, false).expect("scans"),
        vec![pair("y2", "after the range")],
        "the end is excluded"
    );
}

async fn a_frozen_view_stays(machine: &mut dyn Machine) {
    let kv = open(machine, "frozen");
    let mut batch = Batch::default();
    batch.put(A, "k1", "old");
    batch.put(A, "k2", "old");
    kv.write(&batch).expect("writes");
    let view = kv.checkpoint().expect("freezes");
    let mut batch = Batch::default();
    batch.put(A, "k1", "new");
    batch.delete(A, "k2");
    batch.put(A, "k3", "new");
    kv.write(&batch).expect("writes");
    kv.sync().await.expect("syncs");
    assert_eq!(view.scan(A, b"", None, 10, false).expect("scans"), vec![pair("k1", "old"), pair("k2", "old")]);
    assert_eq!(view.get(A, b"k3").expect("reads"), None);
    drop(kv);
    assert_eq!(view.get(A, b"k1").expect("reads"), Some(b"old".to_vec()), "it outlives the store's handle");
}

async fn stores_are_listed_and_removed(machine: &mut dyn Machine) {
    let disk = machine.disk();
    for name in ["removed-1", "removed-2"] {
        let kv = open(machine, name);
        let mut batch = Batch::default();
        batch.put(A, "k", "v");
        kv.write(&batch).expect("writes");
        kv.sync().await.expect("syncs");
    }
    let mine = |names: Vec<String>| names.into_iter().filter(|name| name.starts_with("removed-")).collect::<Vec<_>>();
    assert_eq!(mine(disk.list().expect("lists")), ["removed-1", "removed-2"]);
    disk.remove("removed-1").expect("removes");
    disk.remove("removed-1").expect("removing what is not there changes nothing");
    drop(disk);
    machine.crash();
    assert_eq!(mine(machine.disk().list().expect("lists")), ["removed-2"], "the removal is durable");
    let again = open(machine, "removed-1");
    assert_eq!(again.get(A, b"k").expect("reads"), None, "a new store of that name is empty");
}

async fn synced_survives(machine: &mut dyn Machine) {
    let kv = open(machine, "synced");
    let mut batch = Batch::default();
    batch.put(A, "k", "v");
    batch.put(B, "k", "v");
    kv.write(&batch).expect("writes");
    kv.sync().await.expect("syncs");
    drop(kv);
    machine.crash();
    let kv = open(machine, "synced");
    assert_eq!(kv.get(A, b"k").expect("reads"), Some(b"v".to_vec()));
    assert_eq!(kv.get(B, b"k").expect("reads"), Some(b"v".to_vec()));
}

async fn files_are_replaced_whole(machine: &mut dyn Machine) {
    let files = machine.files();
    assert_eq!(files.read("a-file").expect("reads"), None);
    files.write("a-file", b"first, and longer".to_vec()).await.expect("writes");
    files.write("a-file", b"second".to_vec()).await.expect("writes");
    assert_eq!(files.read("a-file").expect("reads"), Some(b"second".to_vec()));
    drop(files);
    machine.crash();
    assert_eq!(machine.files().read("a-file").expect("reads"), Some(b"second".to_vec()), "durable when write returned");
}

type Content = BTreeMap<(&'static str, Vec<u8>), Vec<u8>>;

fn content(kv: &dyn Kv) -> Content {
    let mut all = Content::new();
    for space in SPACES {
        for (key, value) in kv.scan(space, b"", None, usize::MAX, false).expect("scans") {
            all.insert((space, key), value);
        }
    }
    all
}

/// Random batches, syncs and crashes against a model. After a crash the store holds what it held after some write that is not older
/// than the last sync.
async fn a_crash_leaves_synced_writes_and_a_prefix(machine: &mut dyn Machine, seed: u64) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut model = Content::new();
    for crash in 0..CRASHES {
        let kv = open(machine, "random");
        assert_eq!(content(kv.as_ref()), model, "seed {seed}, after crash {crash}");
        let mut may_survive = vec![model.clone()];
        for _ in 0..rng.gen_range(0..WRITES) {
            let batch = random_batch(&mut rng, &mut model);
            kv.write(&batch).expect("writes");
            assert_eq!(content(kv.as_ref()), model, "seed {seed}, crash {crash}: a write can be read when it returns");
            may_survive.push(model.clone());
            if rng.gen_bool(0.2) {
                kv.sync().await.expect("syncs");
                may_survive = vec![model.clone()];
            }
        }
        drop(kv);
        machine.crash();
        let survived = content(open(machine, "random").as_ref());
        assert!(
            may_survive.contains(&survived),
            "seed {seed}, crash {crash}: what survived is no prefix that holds every synced write: {survived:?}"
        );
        model = survived;
    }
}

const CRASHES: u32 = 12;
const WRITES: u32 = 20;

fn random_batch(rng: &mut ChaCha8Rng, model: &mut Content) -> Batch {
    let mut batch = Batch::default();
    for _ in 0..rng.gen_range(1..5) {
        let space = SPACES[rng.gen_range(0..SPACES.len())];
        let key = vec![rng.gen_range(0..16_u8)];
        match rng.gen_range(0..10) {
            0..=6 => {
                let value: Vec<u8> = (0..rng.gen_range(0..40)).map(|_| rng.r#gen()).collect();
                batch.put(space, key.clone(), value.clone());
                model.insert((space, key), value);
            }
            7..=8 => {
                batch.delete(space, key.clone());
                model.remove(&(space, key));
            }
            _ => {
                let to = vec![key[0].saturating_add(rng.gen_range(0..4))];
                batch.delete_range(space, key.clone(), to.clone());
                model.retain(|(s, k), _| *s != space || *k < key || *k >= to);
            }
        }
    }
    batch
}
