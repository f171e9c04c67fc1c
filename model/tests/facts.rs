//! The catalogue against the collected facts of the hardware, where they are at hand: `MUSTER_FACTS` names their folder, `../shared/facts`
//! is looked at otherwise. Without them this test says so and passes; where `MUSTER_CI` is set it fails.

use muster_model::GpuModel;
use muster_model::mig::{MigPlacement, MigShape, is_maximal, legal_layouts, parse_profile, profile_name};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::PathBuf;

fn facts() -> Option<Value> {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/facts");
    let folder = std::env::var_os("MUSTER_FACTS").map_or_else(|| PathBuf::from(beside), PathBuf::from);
    let path = folder.join("mig_profiles.json");
    let Ok(text) = std::fs::read_to_string(&path) else {
        let missing = format!("{} is not there; set MUSTER_FACTS to the folder of the facts", path.display());
        assert!(std::env::var_os("MUSTER_CI").is_none(), "{missing}");
        println!("not tested: {missing}");
        return None;
    };
    Some(serde_json::from_str(&text).expect("JSON"))
}

/// The models of the catalogue that a card of the facts is.
const CARDS: [(&str, GpuModel); 9] = [
    ("A30-24GB", GpuModel::A30),
    ("A100-40GB (SXM4/PCIe)", GpuModel::A100_40),
    ("A100-80GB (SXM4/PCIe), A800-80GB", GpuModel::A100_80),
    ("H100-80GB SXM5", GpuModel::H100),
    ("H100-80GB PCIe", GpuModel::H100),
    ("H100-94GB (NVL/PCIe, SXM5)", GpuModel::H100_94),
    ("H100-96GB on GH200", GpuModel::GH200),
    ("H200-141GB (SXM5/NVL)", GpuModel::H200),
    ("B200-180GB", GpuModel::B200),
];

fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_else(|| panic!("{key} of {value}"))
}

/// `1g.10gb@4`, as the facts write it.
fn in_words(model: GpuModel, layout: &[MigPlacement]) -> BTreeSet<String> {
    layout
        .iter()
        .map(|place| format!("{}@{}", profile_name(model, place.shape).expect("a name"), place.start))
        .collect()
}

#[test]
fn every_card_of_the_facts_has_its_profiles_places_and_layouts() {
    let Some(facts) = facts() else { return };
    let cards = facts["gpus"].as_array().expect("cards");
    assert_eq!(cards.len(), CARDS.len(), "a card of the facts is in no test");
    for card in cards {
        let name = card["gpu"].as_str().expect("a name");
        let (_, model) = CARDS.into_iter().find(|(of, _)| *of == name).unwrap_or_else(|| panic!("unknown {name}"));
        let family = model.facts().mig.expect("MIG");
        let mut named = BTreeSet::new();
        for profile in card["profiles"].as_array().expect("profiles") {
            let profile_word = profile["name"].as_str().expect("a name");
            let shape = parse_profile(model, profile_word).unwrap_or_else(|| panic!("{profile_word} on {model}"));
            assert!(named.insert(shape), "{profile_word} on {model} is another profile too");
            assert_eq!(u64::from(shape.compute_slices()), number(profile, "compute_slices"), "{profile_word}");
            assert_eq!(u64::from(shape.memory_slices()), number(profile, "memory_slices"), "{profile_word}");
            let places = profile["placements"].as_array().expect("places");
            let starts: Vec<u64> = places.iter().map(|place| number(place, "start")).collect();
            assert_eq!(
                shape.starts(family).iter().map(|s| u64::from(*s)).collect::<Vec<_>>(),
                starts,
                "{profile_word}"
            );
        }
        let ours: BTreeSet<MigShape> =
            MigShape::ALL.into_iter().filter(|shape| !shape.starts(family).is_empty()).collect();
        assert_eq!(ours, named, "profiles of {model}");
        check_layouts(model, card);
    }
}

fn check_layouts(model: GpuModel, card: &Value) {
    let family = model.facts().mig.expect("MIG");
    let shapes = |keep: fn(MigShape) -> bool| -> Vec<MigShape> {
        MigShape::ALL.into_iter().filter(|shape| keep(*shape) && !shape.starts(family).is_empty()).collect()
    };
    let sets: [(&str, &str, Vec<MigShape>); 3] = [
        ("base_profiles_only", "maximal_layouts_base", shapes(MigShape::is_base)),
        ("with_double_memory_1g", "maximal_layouts_with_double_memory_1g", shapes(|shape| !shape.has_media())),
        ("all_profiles_with_me", "", shapes(|_| true)),
    ];
    for (counts, listed, shapes) in sets {
        let Some(counts) = card["layout_counts"].get(counts) else { continue };
        let legal = legal_layouts(family, &shapes);
        assert_eq!(legal.len() as u64, number(counts, "legal_incl_empty"), "{model}");
        let maximal: Vec<_> = legal.iter().filter(|layout| is_maximal(family, layout, &shapes)).collect();
        assert_eq!(maximal.len() as u64, number(counts, "maximal"), "{model}");
        if let Some(listed) = card[listed].as_array() {
            let words = |layout: &Value| -> BTreeSet<String> {
                layout.as_array().expect("a layout").iter().map(|p| p.as_str().expect("a place").to_owned()).collect()
            };
            let theirs: BTreeSet<BTreeSet<String>> = listed.iter().map(words).collect();
            let ours: BTreeSet<BTreeSet<String>> = maximal.iter().map(|layout| in_words(model, layout)).collect();
            assert_eq!(ours, theirs, "maximal layouts of {model}");
        }
    }
}
