//! Job, tenant, pool, node and configuration files: what is taken, and that each mistake is named with its mend.

use muster_cli::config::Config;
use muster_cli::failure::Failure;
use muster_cli::spec::job::{JobText, KEYS};
use muster_cli::spec::node::{SimulatedNode, Tiling};
use muster_cli::spec::{pools, tenants};
use muster_proto::v1;
use muster_proto::v1::device_request::Kind;
use std::fmt::Debug;

const JOB: &str = "\
tenant: research/nlp
name: pretrain
gpus: 8
tasks: 4
model: [h100, h200]
cpus: 0.5
memory: 64Gi
topology: leaf
prefer: node
time: 4h
grace: 1m
disconnect-grace: 10m
retries: 2
priority: -5
class: training
pool: big
env: {NCCL_DEBUG: INFO, STEPS: 100}
workdir: /data
command: [torchrun, train.py]
";

fn specs(text: &str) -> Result<Vec<v1::JobSpec>, Failure> {
    let mut specs = Vec::new();
    for job in JobText::parse(text, "job.yaml")? {
        specs.extend(job.into_specs()?);
    }
    Ok(specs)
}

/// The refusal has each of `expected`, in order, one a line.
fn refused<T: Debug>(result: Result<T, Failure>, expected: &[&str]) {
    let failure = result.expect_err("must be refused");
    assert_eq!(failure.code(), 2, "{failure}");
    let text = failure.to_string();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), expected.len(), "{text}");
    for (line, expected) in lines.iter().zip(expected) {
        assert!(line.contains(expected), "{line:?} has no {expected:?}");
    }
}

#[test]
fn a_whole_job_file() {
    let specs = specs(JOB).expect("a job");
    let [spec] = &specs[..] else { panic!("one job") };
    let request = spec.request.clone().expect("a request");
    assert_eq!((request.cpu_milli, request.memory_mib), (500, 65_536));
    let devices = request.devices.expect("devices");
    assert_eq!(devices.models, ["h100", "h200"]);
    assert_eq!(devices.kind, Some(Kind::Whole(v1::WholeGpus { count: 8 })));
    assert_eq!((spec.tenant.as_str(), spec.name.as_str(), spec.tasks), ("research/nlp", "pretrain", 4));
    let topology = spec.topology.clone().expect("topology");
    assert_eq!((topology.required.as_str(), topology.preferred.as_str()), ("leaf", "node"));
    assert_eq!((spec.time_limit_s, spec.grace_s, spec.disconnect_grace_s), (Some(14_400), Some(60), Some(600)));
    assert_eq!((spec.max_retries, spec.priority), (2, -5));
    assert_eq!(spec.env["STEPS"], "100");
    assert_eq!(spec.command, ["torchrun", "train.py"]);
}

#[test]
fn every_key_is_known_to_both_sides() {
    for key in KEYS {
        let value = match *key {
            "env" => "{}",
            "command" => "[x]",
            "time-slice" => "false",
            _ => "1",
        };
        let text = format!("{key}: {value}\n");
        let result = JobText::parse(&text, "job.yaml");
        let text = result.as_ref().err().map(ToString::to_string).unwrap_or_default();
        // Words want a string; what matters is that the key itself is taken.
        assert!(!text.contains("is not a key") && !text.contains("unknown field"), "{key}: {text}");
    }
}

#[test]
fn short_jobs_get_the_usual_values() {
    let specs = specs("tenant: a\ncommand: [/opt/bin/train.sh, -v]\n").expect("a job");
    let request = specs[0].request.clone().expect("a request");
    assert_eq!((specs[0].name.as_str(), specs[0].tasks, request.cpu_milli), ("train.sh", 1, 1_000));
    assert_eq!(request.devices.expect("devices").kind, None);
}

#[test]
fn shares_and_slices() {
    let kind = |text: &str| {
        let specs = specs(&format!("tenant: a\ncommand: [x]\n{text}")).expect("a job");
        specs[0].request.clone().and_then(|request| request.devices).and_then(|devices| devices.kind)
    };
    assert_eq!(kind("mig: 1g.10gb\n"), Some(Kind::Mig(v1::MigInstance { profile: "1g.10gb".into() })));
    assert_eq!(kind("mps: 30\ngpu-memory: 20Gi\n"), Some(Kind::Mps(v1::MpsShare { percent: 30, memory_mib: 20_480 })));
    assert_eq!(
        kind("time-slice: true\ngpu-memory: 8Gi\n"),
        Some(Kind::TimeSlice(v1::TimeSliceShare { memory_mib: 8_192 }))
    );
}

#[test]
fn several_documents_are_several_jobs_and_count_repeats_one() {
    let text = "tenant: a\ncommand: [x]\n---\ntenant: a\ncommand: [y]\ncount: 3\n---\n";
    let names: Vec<String> = specs(text).expect("jobs").into_iter().map(|spec| spec.name).collect();
    assert_eq!(names, ["x", "y", "y", "y"]);
}

#[test]
fn flags_go_before_the_file_and_replace_a_way_of_sharing() {
    let file = JobText::parse("tenant: a\nmig: 1g.10gb\nenv: {A: 1, B: 2}\ncommand: [x]\n", "job.yaml").expect("a job");
    let flags = JobText::parse("gpus: 2\nenv: {B: 3}\ntasks: 5\n", "flags").expect("flags");
    let text = file[0].clone().overlaid(&flags[0]);
    let spec = text.into_specs().expect("a spec").remove(0);
    let devices = spec.request.and_then(|request| request.devices).expect("devices");
    assert_eq!(devices.kind, Some(Kind::Whole(v1::WholeGpus { count: 2 })));
    assert_eq!((spec.env["A"].as_str(), spec.env["B"].as_str(), spec.tasks), ("1", "3", 5));
}

#[test]
fn bad_jobs_are_named() {
    for (text, expected) in [
        ("tenant: a\ngpu: 8\ncommand: [x]\n", &["job.yaml: gpu: is not a key of a job; did you mean gpus?"][..]),
        (
            "tenant: a\nfoo: 8\nbar: 1\ncommand: [x]\n",
            &["foo: is not a key of a job; known keys: tenant", "bar: is not a key"],
        ),
        ("tenant: a\ntime_limit: 4h\ncommand: [x]\n", &["time_limit: is not a key"]),
        ("tenant: a\ntasks: many\ncommand: [x]\n", &["tasks: \"many\" is not a number of tasks"]),
        ("tenant: a\ntasks: -1\ncommand: [x]\n", &["tasks: \"-1\" is not a number of tasks"]),
        ("tenant: a\nenv: [A]\ncommand: [x]\n", &["job.yaml: env: invalid type"]),
        (
            "tenant: a\ncommand: torchrun train.py\n",
            &["command: is one string, \"torchrun train.py\", which no shell splits into words"],
        ),
        ("tenant: a\n", &["command: is missing"]),
        ("command: [x]\n", &["tenant: is missing"]),
        ("tenant: a\ncommand: []\ngpus: 1\nmig: 1g.10gb\n", &["command: is missing", "mig: conflicts with gpus"]),
        ("tenant: a\ncommand: [x]\nmps: 30\n", &["gpu-memory: is missing"]),
        ("tenant: a\ncommand: [x]\nneeds: {memory: 8Gi}\ngpu-memory: 8Gi\n", &["gpu-memory: conflicts with needs"]),
        (
            "tenant: a\ncommand: [x]\ntime: 4x\nmemory: 80\n",
            &["memory: \"80\" has no unit", "time: \"4x\" is not a duration"],
        ),
        ("tenant: a\ncommand: [x]\ncount: 0\n", &["count: is 0"]),
        ("tenant: a\ncommand: [x]\ncount: 1001\n", &["count: is 1001"]),
        ("", &["job.yaml: has no job"]),
        ("- a\n- b\n", &["job.yaml: is not a job"]),
        ("tenant: [\n", &["job.yaml: is not YAML"]),
        ("tenant: a\ncommand: [x]\n---\ntenant: a\nrank: 1\n", &["job.yaml, document 2: rank: is not a key"]),
    ] {
        refused(specs(text), expected);
    }
}

#[test]
fn a_tenant_tree() {
    let text = "\
research:
  guarantee: {h100: 8}
  max: {h100: 16, cpus: 512, memory: 4Ti}
  weight: 2
  teams:
    nlp: {guarantee: {h100: 0.5}}
    vision: {trust: untrusted, lend: no, children: {lab: {}}}
ops:
";
    let tenants = tenants::parse(text, "tree.yaml").expect("tenants").edits;
    let paths: Vec<&str> = tenants.iter().map(|tenant| tenant.path.as_str()).collect();
    assert_eq!(paths, ["research", "research/nlp", "research/vision", "research/vision/lab", "ops"]);
    let amount = |amount| v1::AmountEdit { amount: Some(amount) };
    let gpu = |units| vec![v1::GpuEdit { model: "h100".to_owned(), units }];
    let max = tenants[0].max.clone().expect("max");
    assert_eq!((max.gpus, max.clear), (gpu(Some(112_000)), false));
    assert_eq!((max.cpu_milli, max.memory_mib), (Some(amount(512_000)), Some(amount(4_194_304))));
    assert_eq!(tenants[1].guarantee.clone().expect("guarantee").gpus, gpu(Some(3_500)));
    assert_eq!((tenants[0].weight, tenants[1].weight), (Some(v1::WeightEdit { weight: Some(2) }), None));
    assert_eq!(tenants[2].trust, Some(v1::TrustEdit { trust: Some("untrusted".to_owned()) }));
    assert_eq!((tenants[1].lend, tenants[2].lend), (None, Some(v1::LendEdit { lend: Some(false) })));
    assert_eq!(tenants[4], v1::TenantEdit { path: "ops".to_owned(), ..Default::default() }, "what is not named stays");
}

#[test]
fn null_removes_and_leaving_out_does_not() {
    let text = "a: {max: null, weight: null, trust: null, lend: null, anti-affinity: null, guarantee: {h100: null, cpus: 4}}\nb: {max: {}}\n";
    let tenants = tenants::parse(text, "tree.yaml").expect("tenants").edits;
    let (a, b) = (&tenants[0], &tenants[1]);
    assert!(a.max.as_ref().is_some_and(|max| max.clear) && a.anti_affinity.as_ref().is_some_and(|apart| apart.clear));
    assert_eq!(
        (a.weight, a.trust.clone(), a.lend),
        (Some(v1::WeightEdit { weight: None }), Some(v1::TrustEdit { trust: None }), Some(v1::LendEdit { lend: None }))
    );
    let guarantee = a.guarantee.clone().expect("guarantee");
    assert_eq!((guarantee.clear, guarantee.gpus), (false, vec![v1::GpuEdit { model: "h100".to_owned(), units: None }]));
    assert_eq!(guarantee.cpu_milli, Some(v1::AmountEdit { amount: Some(4_000) }));
    assert_eq!(b.max, Some(v1::AmountsEdit::default()), "names nothing, removes nothing");
}

#[test]
fn a_half_life_stands_beside_the_organisations() {
    let half_life = |text: &str| tenants::parse(text, "tree.yaml").map(|tree| (tree.edits.len(), tree.half_life_s));
    assert_eq!(half_life("half-life: 7d\nresearch: {}\n").expect("a tree"), (1, Some(604_800)));
    assert_eq!(half_life("half-life: 0\n").expect("off alone"), (0, Some(0)));
    assert_eq!(half_life("research: {}\n").expect("as it is"), (1, None));
    assert_eq!(half_life("half-life: {weight: 2}\n").expect("a tenant of that name"), (1, None));
    refused(tenants::parse("half-life: 7\n", "tree.yaml"), &["half-life: \"7\" has no unit"]);
    refused(tenants::parse("half-life: [1d]\n", "tree.yaml"), &["half-life: \"\" is not a duration"]);
}

#[test]
fn bad_tenants_are_named() {
    for (text, expected) in [
        (
            "research: {guarante: {h100: 8}}\n",
            &["research.guarante: is not a key of a tenant; did you mean guarantee?"][..],
        ),
        ("research:\n  teams:\n    nlp: {maxx: 1}\n", &["research/nlp.maxx: is not a key"]),
        ("research: 8\n", &["research: is not a tenant"]),
        ("research: {guarantee: {h100: lots}}\n", &["research.guarantee.h100: \"lots\" is not a whole number"]),
        ("research: {guarantee: {h100: 0.3333}}\n", &["research.guarantee.h100: \"0.3333\" is not a whole number"]),
        ("research: {max: {memory: 4}}\n", &["research.max.memory: \"4\" has no unit"]),
        ("research: {max: {h100: [1]}}\n", &["research.max: has an amount that is not a number"]),
        ("research: {weight: heavy}\n", &["research.weight: is not a number"]),
        ("research: {lend: 3}\n", &["research.lend: is not yes or no"]),
        ("research: {teams: [nlp]}\n", &["research.teams: is not a tree"]),
        ("[1]\n", &["tree.yaml: is not a tree of tenants"]),
        ("", &["tree.yaml: has no tenant"]),
        ("a: {\n", &["tree.yaml: is not YAML"]),
        (
            "a: {teams: {b: {teams: {c: {teams: {d: {teams: {e: {teams: {f: {teams: {g: {teams: {h: {teams: {i: {}}}}}}}}}}}}}}}}}\n",
            &["a/b/c/d/e/f/g/h/i: is at level 9"],
        ),
    ] {
        refused(tenants::parse(text, "tree.yaml"), expected);
    }
}

#[test]
fn pools_say_what_differs_from_the_standard_one() {
    let found = pools::parse("name: notebooks\nmodes: [mig]\n", "pools.yaml").expect("a pool");
    assert_eq!(
        (found[0].modes.clone(), found[0].workload_classes.len(), found[0].mps_clients),
        (vec!["mig".to_owned()], 4, 8)
    );
    refused(
        pools::parse("mode: [mig]\nname: x\n", "pools.yaml"),
        &["mode: is not a key of a pool; did you mean modes?"],
    );
    let pinned =
        "name: serving\nmig-layouts:\n  - {model: h100, cards-per-node: 4, slices: {3g.40gb: 1, 1g.10gb: 3}}\n";
    let layouts = &pools::parse(pinned, "pools.yaml").expect("a pool")[0].mig_layouts;
    assert_eq!(
        (layouts[0].model.as_str(), layouts[0].cards_per_node, layouts[0].slices["1g.10gb"]),
        ("h100", Some(4), 3)
    );
    refused(pools::parse("modes: [mig]\n", "pools.yaml"), &["pools.yaml: missing field `name`"]);
}

#[test]
fn nodes_and_their_tiling() {
    let node = SimulatedNode::parse("name: gpu\nmodel: a100-80\ngpus: 4\nmemory: 1Ti\n", "node.yaml").expect("a node");
    assert_eq!((node.model.to_string().as_str(), node.cards().len(), node.memory_mib), ("a100-80", 4, 1_048_576));
    let numa: Vec<u8> = node.cards().iter().map(|card| card.numa).collect();
    assert_eq!(numa, [0, 0, 1, 1]);
    refused(
        SimulatedNode::parse("model: h1000\ngpus: 99\n", "node.yaml"),
        &["model: unknown GPU model", "gpus: is 99"],
    );

    let tiling = Tiling { nodes_per_leaf: 8, leaves_per_block: 4, nodes_per_nvlink_domain: None, cells: 2 };
    let places: Vec<String> = [0, 7, 8, 31, 32, 63]
        .map(|index| {
            let node = tiling.node(&node, index, 64);
            format!("{} {} {} {}", node.name, node.place.block, node.place.leaf, node.cell)
        })
        .to_vec();
    assert_eq!(
        places,
        [
            "gpu-0000 block-0 leaf-0 cell-0",
            "gpu-0007 block-0 leaf-0 cell-0",
            "gpu-0008 block-0 leaf-1 cell-0",
            "gpu-0031 block-0 leaf-3 cell-0",
            "gpu-0032 block-1 leaf-4 cell-1",
            "gpu-0063 block-1 leaf-7 cell-1",
        ]
    );

    let racks = Tiling { nodes_per_leaf: 36, leaves_per_block: 4, nodes_per_nvlink_domain: Some(18), cells: 1 };
    let domains = [0, 17, 18, 35, 36].map(|index| {
        let place = racks.node(&node, index, 72).place;
        format!("{}/{}", place.leaf, place.nvlink_domain)
    });
    assert_eq!(domains, ["leaf-0/nvl-0", "leaf-0/nvl-0", "leaf-0/nvl-1", "leaf-0/nvl-1", "leaf-1/nvl-0"]);
    let one = SimulatedNode::parse("leaf: leaf-7\nnvlink-domain: nvl-3\n", "node.yaml").expect("a node");
    assert_eq!(one.place.nvlink_domain, "nvl-3");

    let named = |text: &str, host: &str| {
        SimulatedNode::parse(text, "node.yaml").and_then(|node| node.on_host(host)).map(|node| node.name)
    };
    assert_eq!(named("gpus: 4\n", "gpu-host-7.site").expect("the host's"), "gpu-host-7.site");
    assert_eq!(named("name: gpu\n", "gpu-host-7").expect("its own"), "gpu");
    refused(
        named("gpus: 4\n", "gpu host"),
        &["name: is missing, and the host name \"gpu host\" is not a valid node name"],
    );
    assert_eq!(tiling.node(&SimulatedNode::default(), 3, 8).name, "node-0003");
}

#[test]
fn what_stands_apart() {
    let one = |text: &str| specs(&format!("tenant: t\ncommand: [x]\ngpus: 1\ntasks: 4\n{text}"));
    let spread = |text: &str| one(text).expect("a job").remove(0).topology.expect("topology").spread;
    let expected = |tasks_max, required| Some(v1::Spread { level: "leaf".to_owned(), tasks_max, required });
    assert_eq!(spread("spread: leaf\n"), expected(None, true));
    assert_eq!(spread("prefer-spread: leaf\nspread-most: 2\n"), expected(Some(2), false));
    assert_eq!(spread(""), None);
    refused(one("spread: leaf\nprefer-spread: node\n"), &["prefer-spread: conflicts with spread"]);
    refused(one("spread-most: 2\n"), &["spread-most: is given without spread or prefer-spread"]);
    let flags = JobText { prefer_spread: Some("node".to_owned()), ..JobText::default() };
    let file = JobText { spread: Some("leaf".to_owned()), spread_most: Some(3), ..JobText::default() };
    let both = file.overlaid(&flags);
    assert_eq!((both.spread, both.prefer_spread.as_deref(), both.spread_most), (None, Some("node"), Some(3)));

    let found = tenants::parse("ads: {}\nnlp: {anti-affinity: {ads: node}}\n", "tenants.yaml").expect("tenants").edits;
    let levels = found[1].anti_affinity.clone().expect("apart").levels;
    assert_eq!(levels.get("ads").map(String::as_str), Some("node"));
    refused(tenants::parse("nlp: {anti-affinity: {ads: 3}}\n", "tenants.yaml"), &["nlp.anti-affinity: has an entry"]);
    refused(
        tenants::parse("nlp: {anti-affinity: ads}\n", "tenants.yaml"),
        &["nlp.anti-affinity: is not a list of tenants"],
    );
}

#[test]
fn configuration() {
    let config = Config::parse("endpoints: [a:1, b:2]\ntenant: research\noutput: json\n", "config.yaml")
        .expect("a configuration");
    assert_eq!((config.endpoints.len(), config.tenant.as_deref()), (2, Some("research")));
    assert_eq!(Config::parse("", "config.yaml").expect("empty"), Config::default());
    refused(
        Config::parse("endpoint: a:1\n", "config.yaml"),
        &["endpoint: is not a key of a configuration; did you mean endpoints?"],
    );
}

#[test]
fn how_cards_are_described() {
    let one = |text: &str| specs(&format!("tenant: t\ncommand: [x]\n{text}")).expect("a job").remove(0);
    let spec = one("gpus: 8\ntasks: 4\nsegment: 2\nnuma: restricted\ndriver-min: \"550.10\"\n");
    assert_eq!(spec.topology.expect("topology").segment_tasks, 2);
    assert_eq!((spec.numa.as_str(), spec.driver_min.as_str()), ("restricted", "550.10"));
    let spec =
        one("gpus: 1\nselector: device.memory_mib >= 40000\ndevice-class: big\ngpu-memory: 60Gi\ndriver-min: 550\n");
    assert_eq!((spec.selector.as_str(), spec.device_class.as_str()), ("device.memory_mib >= 40000", "big"));
    assert_eq!((spec.gpu_memory_mib, spec.driver_min.as_str()), (Some(61_440), "550"));
    let expected = v1::Needs {
        memory_mib: 8_192,
        compute_percent: 15,
        isolation: "strict".to_owned(),
        bursty: true,
        latency_critical: false,
        models: vec!["h100".to_owned()],
    };
    let spec = one("needs: {memory: 8Gi, compute: 15, isolation: strict, bursty: true}\nmodel: h100\n");
    assert_eq!(spec.needs, Some(expected.clone()));
    assert_eq!(spec.request.expect("a request").devices.and_then(|devices| devices.kind), None);
    // The flag says the same, and replaces another way of the file.
    let flags = JobText { needs: "memory=8Gi,compute=15%,isolation=strict,bursty".parse().ok(), ..JobText::default() };
    let file = JobText::parse("tenant: t\ngpus: 4\nmodel: h100\ncommand: [x]\n", "job.yaml").expect("a job").remove(0);
    assert_eq!(file.overlaid(&flags).into_specs().expect("a job")[0].needs, Some(expected));
    assert!(
        "memory=8Gi,fast".parse::<muster_cli::spec::needs::NeedsText>().is_err_and(|error| error.contains("bursty"))
    );

    let wrong = |text: &str, expected: &[&str]| refused(specs(&format!("tenant: t\ncommand: [x]\n{text}")), expected);
    wrong("gpus: 2\nmps: 30\ngpu-memory: 1Gi\n", &["use only one of"]);
    wrong("gpus: 1\nneeds: {memory: 8Gi}\n", &["needs: conflicts with gpus"]);
    wrong("needs: {compute: 15}\n", &["needs.memory: is missing"]);
    wrong("needs: {memory: 8Gi}\ngpu-memory: 8Gi\n", &["needs.memory"]);
    wrong("gpus: 1\ndriver-min: 570.10\n", &["in quotes"]);
}

#[test]
fn what_may_be_moved() {
    let one = |text: &str| specs(&format!("tenant: t\ncommand: [x]\ngpus: 1\n{text}")).expect("a job").remove(0);
    assert_eq!(one("").movable, None);
    let spec = one("movable: true\ncheckpoint-every: 30m\nrestart-time: 90s\n");
    assert_eq!(spec.movable, Some(v1::Movable { checkpoint_every_s: Some(1_800), restart_s: Some(90) }));
    assert_eq!(one("movable: true\n").movable, Some(v1::Movable::default()));
    let wrong = "tenant: t\ncommand: [x]\ngpus: 1\ncheckpoint-every: 30m\n";
    refused(specs(wrong), &["checkpoint-every: needs movable"]);
}

#[test]
fn device_class_files() {
    let text = "name: big\nselector: device.memory_mib >= 80000\ntenants: [research]\n---\nname: any\nselector: device.memory_mib > 0\n";
    let read = muster_cli::spec::classes::parse(text, "classes.yaml").expect("two classes");
    assert_eq!(read.iter().map(|class| class.tenants.len()).collect::<Vec<_>>(), [1, 0]);
    refused(muster_cli::spec::classes::parse("name: big\n", "classes.yaml"), &["selector"]);
    refused(muster_cli::spec::classes::parse("name: big\nselecter: x\n", "classes.yaml"), &["did you mean selector"]);
}
