//! How cards and network cards of a host reach each other.

use crate::host::Host;
use muster_agent::gpu::GpuBackend;
use muster_gpu_double::Fleet;
use muster_model::GpuModel;
use muster_model::node_links::NodeLinks;

async fn links(fleet: &Fleet) -> NodeLinks {
    let host = Host::new(fleet);
    let links = host.gpus().node_links().await.expect("readable").expect("known");
    links.validate().expect("whole");
    links
}

fn words(links: &NodeLinks, gpu: usize) -> String {
    let columns = usize::from(links.gpus) + links.nics.len();
    (0..columns).map(|to| links.kind(gpu, to).expect("a way").to_string()).collect::<Vec<_>>().join(" ")
}

#[tokio::test]
async fn cards_behind_switches_and_their_network_cards() {
    let links = links(&Fleet::h100(8)).await;
    assert_eq!((links.cuda.as_str(), links.gpus, links.nics.len()), ("13.0", 8, 8));
    assert_eq!(words(&links, 0), "X NV18 NV18 NV18 NV18 NV18 NV18 NV18 PIX NODE NODE NODE SYS SYS SYS SYS");
    assert_eq!(words(&links, 5), "NV18 NV18 NV18 NV18 NV18 X NV18 NV18 SYS SYS SYS SYS NODE PIX NODE NODE");
    assert_eq!((links.nics[7].name.as_str(), links.nics[7].numa, links.nearest(7)), ("mlx5_7", 1, vec![7]));
}

#[tokio::test]
async fn cards_without_nvlink_reach_each_other_over_pcie() {
    let bridged = links(&Fleet::of(GpuModel::A100_80, 4).with_bridges(12, 3)).await;
    assert_eq!(words(&bridged, 0), "X NV12 NODE NODE PIX PIX NODE NODE");
    assert_eq!(bridged.nearest(0), [0, 1], "two cards share its switch");
    let alone = links(&Fleet::of(GpuModel::T4, 8)).await;
    assert!(words(&alone, 3).starts_with("NODE NODE NODE X SYS SYS SYS SYS"), "{}", words(&alone, 3));
}

#[tokio::test]
async fn a_link_that_is_down_is_not_counted() {
    let fleet = Fleet::h100(2).with_card(1, |card| card.links[0].is_active = false);
    assert!(words(&links(&fleet).await, 0).starts_with("X NV17"));
}
