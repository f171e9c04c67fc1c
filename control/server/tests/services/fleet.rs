//! Nodes, cards, cells, pools and tenants as operators see them.

use super::common::*;
use super::shards::bind;
use muster_model::Pool;
use muster_proto::v1;
use tonic::Code;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_fleet_is_listed_drained_and_shrunk() {
    let control = Control::start().await;
    control.tenant("research").await;
    let mut agents = Vec::new();
    for index in 1..=3 {
        agents.push(Agent::join(&control, node_spec(&format!("n{index}")), None).await);
    }
    let id = control.submit("a", vec![gpu_job(2)]).await[0];
    bind(&control, id, 1, &[0, 5]).await;

    let mut fleet = control.fleet();
    let mut request = v1::ListNodesRequest { page_size: 2, ..v1::ListNodesRequest::default() };
    let first = fleet.list_nodes(request.clone()).await.expect("nodes").into_inner();
    assert_eq!((first.nodes.len(), first.nodes[0].gpus_free, first.nodes[0].tasks), (2, 6, 1));
    request.page_token = first.next_page_token;
    let second = fleet.list_nodes(request).await.expect("nodes").into_inner();
    assert_eq!((second.nodes.len(), second.next_page_token.as_str()), (1, ""));

    let mut request = v1::ListGpusRequest { page_size: 7, ..v1::ListGpusRequest::default() };
    let (mut cards, mut held) = (0, 0);
    loop {
        let page = fleet.list_gpus(request.clone()).await.expect("cards").into_inner();
        cards += page.gpus.len();
        held += page.gpus.iter().filter(|gpu| gpu.mode == "whole" && gpu.jobs == [id]).count();
        if page.next_page_token.is_empty() {
            break;
        }
        request.page_token = page.next_page_token;
    }
    assert_eq!((cards, held), (24, 2));
    let only = v1::ListGpusRequest { node: "n2".to_owned(), ..v1::ListGpusRequest::default() };
    assert_eq!(fleet.list_gpus(only).await.expect("cards").into_inner().gpus.len(), 8);

    let cells = fleet.list_cells(v1::ListCellsRequest::default()).await.expect("cells").into_inner().cells;
    assert_eq!((cells.len(), cells[0].nodes, cells[0].gpus, cells[0].gpus_free), (1, 3, 24, 22));

    let drain = |node: &str| v1::SetDrainedRequest {
        node: node.to_owned(),
        drained: true,
        reason: String::new(),
        by_ms: None,
        force: false,
    };
    fleet.set_drained(drain("n1")).await.expect("drained");
    nothing_of_a_drained_node_is_free(&mut fleet).await;
    let status = fleet.set_drained(drain("n9")).await.expect_err("no such node");
    assert_eq!(status.code(), Code::NotFound);
    let remove = |node: &str| v1::RemoveNodeRequest { node: node.to_owned() };
    let status = fleet.remove_node(remove("n1")).await.expect_err("something runs there");
    assert_eq!(status.code(), Code::FailedPrecondition);
    fleet.remove_node(remove("n3")).await.expect("nothing runs there");
    let reason = agents[2].until("a refusal", |said| match said {
        Said::Refused(refused) => Some(refused.reason),
        _ => None,
    });
    assert!(reason.await.contains("removed"));
}

/// n1 of three is drained, with a job on two of its cards.
async fn nothing_of_a_drained_node_is_free(fleet: &mut v1::fleet_client::FleetClient<tonic::transport::Channel>) {
    let nodes = fleet.list_nodes(v1::ListNodesRequest::default()).await.expect("nodes").into_inner().nodes;
    let free = |node: &v1::NodeView| (node.gpus_free, node.cpu_free_milli, node.memory_free_mib);
    assert_eq!(free(&nodes[0]), (0, 0, 0));
    assert_eq!(free(&nodes[1]), (8, 96_000, 786_432));
    let only = v1::ListGpusRequest { node: "n1".to_owned(), ..v1::ListGpusRequest::default() };
    let gpus = fleet.list_gpus(only).await.expect("cards").into_inner().gpus;
    let modes: Vec<&str> = gpus.iter().map(|gpu| gpu.mode.as_str()).collect();
    assert_eq!(modes.iter().filter(|mode| **mode == "unavailable").count(), 6, "{modes:?}");
    assert_eq!(modes.iter().filter(|mode| **mode == "whole").count(), 2, "{modes:?}");
    assert!(gpus.iter().all(|gpu| gpu.unavailable == "the node is drained"), "{gpus:?}");
    let cells = fleet.list_cells(v1::ListCellsRequest::default()).await.expect("cells").into_inner().cells;
    let cell = &cells[0];
    assert_eq!((cell.nodes, cell.nodes_ready, cell.nodes_drained, cell.nodes_silent, cell.gpus_free), (3, 2, 1, 0, 16));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_are_listed_by_name_however_they_came() {
    let control = Control::start().await;
    let mut agents = Vec::new();
    for name in ["n3", "n1.a", "n2", "n1"] {
        agents.push(Agent::join(&control, node_spec(name), None).await);
    }
    let mut fleet = control.fleet();
    let mut request = v1::ListNodesRequest { page_size: 1, ..v1::ListNodesRequest::default() };
    let mut names = Vec::new();
    loop {
        let page = fleet.list_nodes(request.clone()).await.expect("nodes").into_inner();
        names.extend(page.nodes.into_iter().filter_map(|view| Some(view.node?.spec?.name)));
        if page.next_page_token.is_empty() {
            break;
        }
        request.page_token = page.next_page_token;
    }
    assert_eq!(names, ["n1", "n1.a", "n2", "n3"]);
    let mut request = v1::ListGpusRequest { page_size: 5, ..v1::ListGpusRequest::default() };
    let mut cards = Vec::new();
    loop {
        let page = fleet.list_gpus(request.clone()).await.expect("cards").into_inner();
        cards.extend(page.gpus.into_iter().map(|gpu| (gpu.node, gpu.index)));
        if page.next_page_token.is_empty() {
            break;
        }
        request.page_token = page.next_page_token;
    }
    assert_eq!(cards.len(), 32);
    assert!(cards.is_sorted(), "{cards:?}");
    drop(agents);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pools_come_and_go() {
    let control = Control::start().await;
    let mut fleet = control.fleet();
    // The standard pool is there with its rules before anybody has described it.
    let standard = v1::Pool::from(&Pool::standard());
    let pools = fleet.list_pools(v1::ListPoolsRequest::default()).await.expect("pools").into_inner().pools;
    assert_eq!(pools, std::slice::from_ref(&standard));
    let status = fleet.delete_pool(v1::DeletePoolRequest { name: "default".to_owned() }).await.expect_err("standard");
    assert!(status.message().contains("pool default is built in"), "{}", status.message());
    let changed = v1::Pool { mps_clients: 3, ..standard.clone() };
    fleet.put_pool(v1::PutPoolRequest { pool: Some(changed.clone()) }).await.expect("a good pool");
    let pools = fleet.list_pools(v1::ListPoolsRequest::default()).await.expect("pools").into_inner().pools;
    assert_eq!(pools, [changed]);
    fleet.delete_pool(v1::DeletePoolRequest { name: "default".to_owned() }).await.expect("it has no nodes");

    let pool = v1::Pool {
        name: "a-training".to_owned(),
        modes: vec!["whole".to_owned()],
        workload_classes: vec!["training".to_owned()],
        time_slice_replicas: 1,
        mps_clients: 1,
        time_slice: "medium".to_owned(),
        compute_tolerance_percent: Some(10),
        mig_layouts: vec![],
        cool_down_s: 0,
        preemptions_max: None,
        checkpoint_mib_per_s: None,
        moves_per_hour: 0,
        moves_lost_gpu_hours_per_day: 0,
        images: vec!["dir:/srv/images/".to_owned()],
        mounts: vec![v1::MountRule { path: "/data".to_owned(), write: true }],
        isolation: "limits".to_owned(),
        network: "host".to_owned(),
        memory_limit_mib: Some(4_096),
        withheld_max_percent: Some(20),
        withheld_max_gpus: None,
    };
    fleet.put_pool(v1::PutPoolRequest { pool: Some(pool.clone()) }).await.expect("a good pool");
    let pools = fleet.list_pools(v1::ListPoolsRequest::default()).await.expect("pools").into_inner().pools;
    assert_eq!(pools, [pool.clone(), standard]);
    fleet.delete_pool(v1::DeletePoolRequest { name: pool.name.clone() }).await.expect("unused");
    let status = fleet.delete_pool(v1::DeletePoolRequest { name: pool.name }).await.expect_err("gone");
    assert_eq!(status.code(), Code::NotFound);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pinned_layouts_are_kept_shown_and_refused_when_not_legal() {
    let control = Control::start().await;
    let mut fleet = control.fleet();
    let layout = |slices: &[(&str, u32)]| v1::PinnedLayout {
        model: "h100".to_owned(),
        slices: slices.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect(),
        cards_per_node: Some(2),
    };
    let pool = |slices: &[(&str, u32)]| v1::Pool {
        name: "serving".to_owned(),
        modes: vec!["whole".to_owned(), "mig".to_owned()],
        workload_classes: vec!["inference".to_owned()],
        time_slice_replicas: 1,
        mps_clients: 1,
        time_slice: "medium".to_owned(),
        compute_tolerance_percent: Some(10),
        cool_down_s: 0,
        preemptions_max: None,
        checkpoint_mib_per_s: None,
        moves_per_hour: 0,
        moves_lost_gpu_hours_per_day: 0,
        images: vec!["dir:/srv/images/".to_owned()],
        mounts: vec![v1::MountRule { path: "/data".to_owned(), write: true }],
        isolation: "none".to_owned(),
        network: String::new(),
        memory_limit_mib: None,
        withheld_max_percent: None,
        withheld_max_gpus: Some(8),
        mig_layouts: vec![layout(slices)],
    };
    let legal = pool(&[("3g.40gb", 1), ("2g.20gb", 1), ("1g.10gb", 2)]);
    fleet.put_pool(v1::PutPoolRequest { pool: Some(legal.clone()) }).await.expect("a legal layout");
    let pools = fleet.list_pools(v1::ListPoolsRequest::default()).await.expect("pools").into_inner().pools;
    assert!(pools.contains(&legal), "{pools:?}");
    let refused = pool(&[("3g.40gb", 2), ("1g.10gb", 1)]);
    let status = fleet.put_pool(v1::PutPoolRequest { pool: Some(refused) }).await.expect_err("not legal");
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().contains("mig_layouts[h100].slices"), "{}", status.message());
    assert!(status.message().contains("use a layout that fits, such as 3g.40gb x2"), "{}", status.message());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tenants_are_listed_as_a_tree_with_their_use() {
    let control = Control::start().await;
    for path in ["b", "a", "a/y", "a/x", "a-b"] {
        control.tenant(path).await;
    }
    let _agent = Agent::join(&control, node_spec("n1"), None).await;
    let id = control.submit("a", vec![v1::JobSpec { tenant: "a/x".to_owned(), ..gpu_job(3) }]).await[0];
    bind(&control, id, 1, &[0, 1, 2]).await;
    let mut tenants = control.tenants();
    let listed = tenants.list(v1::ListTenantsRequest::default()).await.expect("tenants").into_inner().tenants;
    let paths: Vec<_> = listed.iter().map(|tenant| tenant.spec.as_ref().unwrap().path.as_str()).collect();
    assert_eq!(paths, ["a", "a/x", "a/y", "a-b", "b"]);
    let used = |index: usize| listed[index].used.as_ref().unwrap().gpu_units.get("h100").copied().unwrap_or(0);
    assert_eq!([used(0), used(1), used(2), used(4)], [21_000, 21_000, 0, 0]);
    let under = v1::ListTenantsRequest { under: "a".to_owned(), ..Default::default() };
    assert_eq!(tenants.list(under).await.expect("tenants").into_inner().tenants.len(), 3);
    let under = v1::ListTenantsRequest { under: "nobody".to_owned(), ..Default::default() };
    assert_eq!(tenants.list(under).await.expect_err("none").code(), Code::NotFound);
    for (path, code) in [("a", Code::FailedPrecondition), ("a/x", Code::FailedPrecondition), ("zz", Code::NotFound)] {
        let status = tenants.delete(v1::DeleteTenantRequest { path: path.to_owned() }).await.expect_err(path);
        assert_eq!(status.code(), code, "{path}");
    }
    tenants.delete(v1::DeleteTenantRequest { path: "a/y".to_owned() }).await.expect("unused");
}

/// Pages of tenants and of their usage: each bounded, together everything once, in the order of the tree.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tenants_and_usage_come_in_pages() {
    let control = Control::start().await;
    let tenant = |path: String| v1::TenantSpec { path, ..v1::TenantSpec::default() };
    let teams = ["a", "a-b", "b"].map(str::to_owned).into_iter();
    let users = (0..3_000).map(|number| format!("a/user-{number:04}-{}", "x".repeat(100)));
    let apply = v1::ApplyTenantsRequest { tenants: teams.chain(users).map(tenant).collect(), ..Default::default() };
    control.tenants().apply(apply).await.expect("good tenants");
    let mut expected = vec!["a".to_owned()];
    expected.extend((0..3_000).map(|number| format!("a/user-{number:04}-{}", "x".repeat(100))));
    let below_a = expected.clone();
    expected.extend(["a-b", "b"].map(str::to_owned));

    for (under, expected) in [("", &expected), ("a", &below_a)] {
        for page_size in [0, 7, 1_000] {
            let mut request = v1::ListTenantsRequest { under: under.to_owned(), page_size, ..Default::default() };
            let mut found: Vec<String> = Vec::new();
            loop {
                let reply = control.tenants().list(request.clone()).await.expect("a page").into_inner();
                assert!(reply.tenants.len() <= if page_size == 0 { 100 } else { page_size as usize });
                found.extend(reply.tenants.into_iter().filter_map(|tenant| Some(tenant.spec?.path)));
                request.page_token = reply.next_page_token;
                if request.page_token.is_empty() {
                    break;
                }
            }
            assert!(found == *expected, "under {under:?} by {page_size}: {} of {}", found.len(), expected.len());
            let mut usage = v1::usage_client::UsageClient::new(control.channel());
            let mut request = v1::GetUsageRequest { under: under.to_owned(), page_size, ..Default::default() };
            let mut found: Vec<String> = Vec::new();
            loop {
                let reply = usage.get(request.clone()).await.expect("a page").into_inner();
                found.extend(reply.tenants.into_iter().map(|tenant| tenant.path));
                request.page_token = reply.next_page_token;
                if request.page_token.is_empty() {
                    break;
                }
            }
            assert!(found == *expected, "usage under {under:?} by {page_size}: {} of {}", found.len(), expected.len());
        }
    }
    let other = v1::ListTenantsRequest { under: "a".to_owned(), page_size: 7, ..Default::default() };
    let token = control.tenants().list(other).await.expect("a page").into_inner().next_page_token;
    let question = v1::ListTenantsRequest { under: "b".to_owned(), page_token: token, ..Default::default() };
    let status = control.tenants().list(question).await.expect_err("a token of another question");
    assert_eq!(refused_fields(&status)[0].field, "page_token");
}

/// Tenants may be kept apart from many others by long paths: a page of them is cut by its bytes, below what clients take by default.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_tenants_come_in_pages_that_every_client_takes() {
    let control = Control::start().await;
    let long = |number: usize| format!("{}/{}-{number:03}", "o".repeat(120), "x".repeat(120));
    let mut others = vec![v1::TenantSpec { path: "o".repeat(120), ..v1::TenantSpec::default() }];
    others.extend((0..64).map(|number| v1::TenantSpec { path: long(number), ..v1::TenantSpec::default() }));
    control.tenants().apply(v1::ApplyTenantsRequest { tenants: others, ..Default::default() }).await.expect("tenants");
    let apart = |number| v1::AntiAffinity { tenant: long(number), level: "card".to_owned() };
    let anti_affinity: Vec<v1::AntiAffinity> = (0..64).map(apart).collect();
    let large = |number| v1::TenantSpec {
        path: format!("team-{number:03}"),
        anti_affinity: anti_affinity.clone(),
        ..v1::TenantSpec::default()
    };
    for part in 0..4 {
        let tenants = (part * 80..part * 80 + 80).map(large).collect();
        control.tenants().apply(v1::ApplyTenantsRequest { tenants, ..Default::default() }).await.expect("tenants");
    }
    let mut request = v1::ListTenantsRequest { page_size: 1_000, ..Default::default() };
    let (mut pages, mut found) = (0, 0);
    loop {
        // The client's own bound is the usual one: 4 MiB.
        let reply = control.tenants().list(request.clone()).await.expect("a page").into_inner();
        (pages, found) = (pages + 1, found + reply.tenants.len());
        request.page_token = reply.next_page_token;
        if request.page_token.is_empty() {
            break;
        }
    }
    assert!(pages > 1 && found == 65 + 320, "{found} tenants in {pages} pages");
}
