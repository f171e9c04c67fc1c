//! Selectors: what is understood, what it says of cards, what is refused and where.

use muster_model::node::NodeSpec;
use muster_model::selector::{Known, Selector, Truth, bounds};
use muster_model::{CellId, Gpu, GpuModel, Node, NodeId, Place};
use proptest::prelude::*;

fn node(driver: &str, labels: &[(&str, &str)]) -> Node {
    let gpu = |index, model, memory_mib| Gpu { memory_mib, ..Gpu::usual("n1", index, model) };
    let mut spec = NodeSpec::usual("n1", vec![gpu(0, GpuModel::H100, 81_559), gpu(1, GpuModel::T4, 15_360)]);
    spec.place = Place { region: "north".into(), zone: "z".into(), block: "b".into(), leaf: "l".into(), ..spec.place };
    spec.driver = driver.to_owned();
    spec.labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    Node::usual(NodeId(1), CellId(1), spec)
}

fn read(text: &str) -> Selector {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[test]
fn a_selector_says_which_cards_will_do() {
    let node = node("550.54.15", &[("tier", "gold"), ("odd\"key", "x")]);
    let check = |text: &str, h100: bool, t4: bool| {
        let selector = read(text);
        let got = [0, 1].map(|index| selector.admits(&node.spec.gpus[index], &node));
        assert_eq!(got, [h100, t4], "{text} read as {selector}");
        assert_eq!(read(&selector.to_string()), selector, "{text} written as {selector}");
        let bytes = postcard::to_allocvec(&selector).expect("encoded");
        assert_eq!(postcard::from_bytes::<Selector>(&bytes).expect("decoded"), selector, "{text} stored");
        let json = serde_json::to_string(&selector).expect("encoded");
        assert_eq!(serde_json::from_str::<Selector>(&json).expect("decoded"), selector, "{json}");
    };
    check(r#"device.model == "H100" && device.memory_mib >= 40000 && device.driver >= version("550")"#, true, false);
    check(r#"device.model != "h100""#, false, true);
    check(r#"device.model in ["h100", 't4']"#, true, true);
    check(r#"!(device.model in ["h100"])"#, false, true);
    check("device.memory_mib < 16000", false, true);
    check("16000 > device.memory_mib", false, true);
    check("device.memory_mib == 81559", true, false);
    check("device.memory_mib != 81559", false, true);
    check(r#"device.driver >= version("550.54.16")"#, false, false);
    check(r#"version("550.54.9") < device.driver"#, true, true);
    check(r#"node.labels["tier"] == "gold""#, true, true);
    check(r#"node.labels["tier"] in ["silver", "gold"]"#, true, true);
    check(r#"node.labels["rack"] == "r1""#, false, false);
    check(r#"node.labels["rack"] != "r1""#, true, true);
    check(r#""tier" in node.labels && !("rack" in node.labels)"#, true, true);
    check(r#"node.labels["odd\"key"] == 'x'"#, true, true);
    check(r#"node.name == "n1" && node.pool == "default" && node.region == "north""#, true, true);
    check(r#"node.region == "south" || node.zone == "y""#, false, false);
    check(r#"node.zone == "z""#, true, true);
    // && binds more than ||, and ! more than both.
    check(r#"device.model == "t4" || device.model == "h100" && device.memory_mib < 1"#, false, true);
    check(r#"(device.model == "t4" || device.model == "h100") && device.memory_mib < 1"#, false, false);
    check(r#"!device.model == "t4" || device.model == "t4""#, true, true);
    check(r#"(((device.model == "h100")))"#, true, false);
}

#[test]
fn a_driver_that_cannot_be_read_satisfies_no_comparison() {
    // Nor does a node that has not said which CUDA its driver serves.
    let node = node("unknown", &[]);
    for field in ["device.driver", "device.cuda"] {
        for text in [format!(r#"{field} >= version("1")"#), format!(r#"{field} < version("999")"#)] {
            assert!(!read(&text).admits(&node.spec.gpus[0], &node), "{text}");
        }
    }
}

#[test]
fn cards_are_chosen_by_the_cuda_that_their_driver_serves() {
    let mut node = node("550.54.15", &[]);
    node.notes.links.cuda = "12.4".to_owned();
    let check = |text: &str, expected: bool| {
        let selector = read(text);
        assert_eq!(selector.admits(&node.spec.gpus[0], &node), expected, "{text}");
        assert_eq!(selector.admits_all(GpuModel::H100, &node), expected, "{text}");
        assert_eq!(read(&selector.to_string()), selector, "{text} written as {selector}");
        let bytes = postcard::to_allocvec(&selector).expect("encoded");
        assert_eq!(postcard::from_bytes::<Selector>(&bytes).expect("decoded"), selector, "{text} stored");
    };
    check(r#"device.cuda >= version("12.4")"#, true);
    check(r#"version("12") <= device.cuda && device.driver >= version("550")"#, true);
    check(r#"device.cuda >= version("12.10")"#, false);
    check(r#"device.cuda != version("12.4")"#, false);
}

#[test]
fn what_the_model_alone_decides_is_decided_and_the_rest_is_not() {
    let check = |text: &str, model, expected| {
        assert_eq!(read(text).on(&Known::of_model(model)), expected, "{text} on {model}");
    };
    check(r#"device.model == "h100""#, GpuModel::H100, Truth::Yes);
    check(r#"device.model == "h100""#, GpuModel::T4, Truth::No);
    check("device.memory_mib >= 40000", GpuModel::H100, Truth::Yes);
    check("device.memory_mib >= 40000", GpuModel::T4, Truth::No);
    // An H100 reports 81,559 MiB of its 81,920: nobody knows before the node says.
    check("device.memory_mib >= 81700", GpuModel::H100, Truth::Maybe);
    check("device.memory_mib == 81559", GpuModel::H100, Truth::Maybe);
    check(r#"device.driver >= version("550")"#, GpuModel::H100, Truth::Maybe);
    check(r#"device.cuda >= version("12.4")"#, GpuModel::H100, Truth::Maybe);
    check(r#"device.model == "t4" && device.driver >= version("550")"#, GpuModel::H100, Truth::No);
    check(r#"device.model == "h100" || node.name == "n1""#, GpuModel::H100, Truth::Yes);
    check(r#"!(device.model == "h100" || node.name == "n1")"#, GpuModel::H100, Truth::No);
    check(r#"node.labels["a"] == "b""#, GpuModel::H100, Truth::Maybe);
}

#[test]
fn a_fault_names_its_place_and_the_fix() {
    let check = |text: &str, at: usize, fix: &str| {
        let error = text.parse::<Selector>().expect_err(text);
        assert_eq!(error.at, at, "{text}: {error}");
        assert!(error.fix.contains(fix), "{text}: {error}");
    };
    check("", 1, "compare a field");
    check("device.model", 13, "compare with");
    check("device.model == h100", 17, "device.model");
    check(r#"device.model == "h101""#, 1, "h100");
    check(r#"device.color == "red""#, 1, "device.memory_mib");
    check(r#"device.memory_mib >= "40000""#, 1, "in MiB");
    check(r#"device.driver >= "550""#, 1, "version(\"550\")");
    check(r#"device.cuda >= "12.4""#, 1, "version(\"12.4\")");
    check(r#"device.driver >= version("new")"#, 26, "version(\"550\")");
    check(r#"device.model == "h100" device.model == "t4""#, 24, "&&");
    check(r#"(device.model == "h100""#, 24, "close the bracket");
    check(r#"device.model == "h100"#, 17, "close the quotes");
    check(r#"device.model in ["h100""#, 24, "close the list");
    check(r#"node.labels["a" == "b""#, 17, "close the label");
    check(r#"node.labels == "b""#, 1, "node.labels[");
    check("device.memory_mib >= 99999999999999999999", 22, "MiB");
    check("1 == 1", 1, "compare a field");
    // No comprehensions, calls or arithmetic.
    check(r#"[1,2].all(x, x > 0)"#, 2, "quotes");
    check("device.model.size() > 2", 1, "device.model");
}

/// Shards read the text again: what is accepted and not readable would hide its job from them.
#[test]
fn the_deepest_selector_can_be_read_again() {
    let one = r#"device.model == "h100""#;
    let negated = |times: usize, inner: &str| "!".repeat(times) + inner;
    let join = format!("({one} && !({one} || {one}))");
    for text in [negated(bounds::DEPTH_MAX - 1, one), negated(9, one), negated(bounds::DEPTH_MAX - 4, &join)] {
        let selector = read(&text);
        assert_eq!(read(&selector.to_string()), selector, "{text} written as {selector}");
    }
}

#[test]
fn a_stored_selector_is_no_deeper_than_a_text_can_make_it() {
    let deepest = read(&("!".repeat(bounds::DEPTH_MAX - 1) + r#"device.model == "h100""#));
    let bytes = postcard::to_allocvec(&deepest).expect("encoded");
    assert_eq!(postcard::from_bytes::<Selector>(&bytes).expect("decoded"), deepest);
    // Its first byte is a negation: as many more as one likes.
    for more in [1, 100_000] {
        let deeper = [vec![bytes[0]; more], bytes.clone()].concat();
        assert!(postcard::from_bytes::<Selector>(&deeper).is_err(), "{more} more");
        assert_eq!(postcard::from_bytes::<Selector>(&bytes).expect("decoded"), deepest, "after a fault");
    }
}

#[test]
fn size_is_bounded_before_it_costs_anything() {
    let one = r#"device.model == "h100""#;
    let check = |text: String, good: bool| {
        assert_eq!(text.parse::<Selector>().is_ok(), good, "{} bytes", text.len());
    };
    check(vec![one; bounds::PARTS_MAX - 1].join("&&"), true);
    check(vec![one; bounds::PARTS_MAX].join("&&"), false);
    check("!".repeat(bounds::DEPTH_MAX - 1) + one, true);
    check("!".repeat(bounds::DEPTH_MAX) + one, false);
    check("(".repeat(4_000), false);
    check("!".repeat(4_000), false);
    check(" ".repeat(bounds::TEXT_BYTES_MAX) + one, false);
    check(format!(r#"node.name == "{}""#, "x".repeat(bounds::WORD_BYTES_MAX)), true);
    check(format!(r#"node.name == "{}""#, "x".repeat(bounds::WORD_BYTES_MAX + 1)), false);
    let large = read(&vec![one; 40].join("||"));
    assert!(large.and(&read(one)).is_ok());
    assert!(large.and(&large).is_err());
    let long = |letter: &str| {
        let word = format!(r#"node.name == "{}""#, letter.repeat(bounds::WORD_BYTES_MAX));
        read(&vec![word; 10].join("||"))
    };
    // Each can be read; both together are a text that could not be.
    assert!(long("x").and(&long("y")).is_err());
    assert_eq!(
        read(one).and(&read("device.memory_mib > 1")).ok(),
        Some(read(&format!("{one} && device.memory_mib > 1")))
    );
}

fn text() -> impl Strategy<Value = String> {
    let word = "[a-z\"'\\\\ é]{0,6}".prop_map(|word| format!("{word:?}").replace("\\'", "'"));
    let leaf = prop_oneof![
        prop::sample::select(GpuModel::ALL.to_vec()).prop_map(|model| format!("device.model == \"{model}\"")),
        (prop::sample::select(vec!["==", "!=", "<", "<=", ">", ">="]), 0..200_000_u64)
            .prop_map(|(sign, number)| format!("device.memory_mib {sign} {number}")),
        (prop::sample::select(vec!["==", "<", ">="]), 400..600_u32)
            .prop_map(|(sign, number)| format!("version(\"{number}\") {sign} device.driver")),
        (prop::sample::select(vec!["!=", ">", "<="]), 9..14_u32)
            .prop_map(|(sign, number)| format!("device.cuda {sign} version(\"{number}\")")),
        (word.clone(), word.clone()).prop_map(|(label, word)| format!("node.labels[{label}] in [{word}, \"x\"]")),
        word.prop_map(|label| format!("{label} in node.labels")),
    ];
    leaf.prop_recursive(4, 24, 3, |inner| {
        prop_oneof![
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("{a} && ({b})")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a}) || {b}")),
            inner.prop_map(|a| format!("!({a})")),
        ]
    })
}

proptest! {
    /// What is written of a tree is the same tree.
    #[test]
    fn a_selector_survives_its_text(text in text()) {
        if let Ok(selector) = text.parse::<Selector>() {
            prop_assert_eq!(selector.to_string().parse::<Selector>(), Ok(selector));
        }
    }

    /// What is said of a model holds for every card of it; what is said of a node for each of its cards.
    #[test]
    fn knowing_more_never_turns_an_answer(text in text(), driver in 400..600_u32) {
        let Ok(selector) = text.parse::<Selector>() else { return Ok(()) };
        let node = node(&driver.to_string(), &[("x", "x")]);
        for gpu in &node.spec.gpus {
            let exact = if selector.admits(gpu, &node) { Truth::Yes } else { Truth::No };
            let of_model = selector.on(&Known::of_model(gpu.model));
            prop_assert!(of_model == Truth::Maybe || of_model == exact);
            prop_assert_eq!(selector.admits_all(gpu.model, &node), exact == Truth::Yes);
        }
    }

    /// No text makes the parser panic.
    #[test]
    fn any_text_is_read_or_refused(text in "\\PC{0,60}") {
        let _ = text.parse::<Selector>();
    }
}
