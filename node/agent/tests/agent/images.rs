//! Tasks in container images, under real shims: what they see, what they cannot do, and who prepares what. Images are made here, of the host's own programs. Only as
//! root: without it there are no images.

use crate::bench::{Bench, S, key, spec};
use crate::sandbox::{Site, alone, site};
use flate2::Compression;
use flate2::write::GzEncoder;
use muster_agent::exec::process::ProcessConfig;
use muster_agent::exec::{DeviceNode, Executor, Stream};
use muster_model::{DeviceHold, HoldMode, Mount, TaskImage, TaskMount, TaskState};
use muster_node_core::{Driver, Phase, TaskSpec};
use sha2::{Digest, Sha256};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const FAR: u64 = 3_600 * S;

fn full_site() -> Option<Site> {
    site().filter(Site::is_full)
}

/// A root file system of the host's shell and a few programs, with an os-release of its own.
fn root_at(root: &Path) {
    for folder in ["etc", "bin", "tmp"] {
        std::fs::create_dir_all(root.join(folder)).expect("made");
    }
    for name in ["sh", "cat", "id", "ls", "touch", "env", "sleep", "grep"] {
        let found =
            ["/usr/bin", "/bin"].map(|folder| Path::new(folder).join(name)).into_iter().find(|path| path.exists());
        let program = std::fs::canonicalize(found.expect("a usual program")).expect("there");
        std::fs::copy(&program, root.join("bin").join(name)).expect("copied");
        let said = std::process::Command::new("ldd").arg(&program).output().expect("ldd");
        for word in String::from_utf8_lossy(&said.stdout).split_whitespace().filter(|word| word.starts_with('/')) {
            let into = root.join(word.trim_start_matches('/'));
            std::fs::create_dir_all(into.parent().expect("a folder")).expect("made");
            if !into.exists() {
                std::fs::copy(word, into).expect("copied");
            }
        }
    }
    std::fs::write(root.join("etc/os-release"), "ID=of-the-image\n").expect("written");
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A layout of these layers, gzipped; each is an archive.
pub(crate) fn layout_at(at: &Path, layers: &[Vec<u8>], config: &serde_json::Value) {
    let blobs = at.join("blobs/sha256");
    std::fs::create_dir_all(&blobs).expect("made");
    let put = |bytes: &[u8], kind: &str| {
        std::fs::write(blobs.join(hex(bytes)), bytes).expect("written");
        serde_json::json!({"mediaType": kind, "digest": format!("sha256:{}", hex(bytes)), "size": bytes.len()})
    };
    let layers: Vec<serde_json::Value> = layers
        .iter()
        .map(|layer| {
            let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
            packed.write_all(layer).expect("packed");
            put(&packed.finish().expect("packed"), "application/vnd.oci.image.layer.v1.tar+gzip")
        })
        .collect();
    let whole = serde_json::json!({
        "architecture": "amd64", "os": "linux", "config": config, "rootfs": {"type": "layers", "diff_ids": []},
    });
    let config = put(&serde_json::to_vec(&whole).expect("JSON"), "application/vnd.oci.image.config.v1+json");
    let manifest = serde_json::json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "config": config, "layers": layers,
    });
    let manifest = put(&serde_json::to_vec(&manifest).expect("JSON"), "application/vnd.oci.image.manifest.v1+json");
    let index = serde_json::json!({"schemaVersion": 2, "manifests": [manifest]});
    std::fs::write(at.join("index.json"), serde_json::to_vec(&index).expect("JSON")).expect("written");
    std::fs::write(at.join("oci-layout"), "{\"imageLayoutVersion\":\"1.0.0\"}").expect("written");
}

/// An archive of a folder.
fn packed(root: &Path) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    builder.follow_symlinks(false);
    builder.append_dir_all("", root).expect("packed");
    builder.into_inner().expect("packed")
}

/// An archive of a few files: path, content, mode.
fn files(files: &[(&str, &str, u32)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (path, content, mode) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(*mode);
        header.set_cksum();
        builder.append_data(&mut header, path, content.as_bytes()).expect("packed");
    }
    builder.into_inner().expect("packed")
}

fn folder_image(site: &Site) -> TaskImage {
    let root = site.path("images/one");
    root_at(&root);
    TaskImage { image: format!("dir:{}", root.display()), below: site.path("images").display().to_string() }
}

fn layout_image(site: &Site) -> TaskImage {
    let root = site.path("packed");
    root_at(&root);
    std::fs::create_dir_all(root.join("opt/old")).expect("made");
    std::fs::write(root.join("opt/old/a"), "a").expect("written");
    std::fs::write(root.join("opt/b"), "b").expect("written");
    let second = files(&[
        ("opt/.wh.b", "", 0o644),
        ("opt/old/new", "new", 0o600),
        ("opt/old/.wh..wh..opq", "", 0o644),
        ("bin/raise", "#!/bin/sh\nid -u\n", 0o4755),
        ("home/here/.keep", "", 0o644),
    ]);
    let config = serde_json::json!({
        "User": "0", "Env": ["PATH=/bin", "COLOUR=green", "SHAPE=round"], "WorkingDir": "/home/here",
        "Entrypoint": ["/bin/sh", "-c"], "Cmd": ["echo of the image: $COLOUR"],
    });
    layout_at(&site.path("layouts/one"), &[packed(&root), second], &config);
    let at = site.path("layouts/one");
    TaskImage { image: format!("oci:{}", at.display()), below: site.path("layouts").display().to_string() }
}

fn in_image(id: u64, image: &TaskImage, script: &str) -> TaskSpec {
    TaskSpec { image: Some(image.clone()), ..alone(id, script) }
}

fn mount(site: &Site, source: &Path, target: &str, read_only: bool) -> TaskMount {
    let mount = Mount { source: source.display().to_string(), target: target.to_owned(), read_only };
    TaskMount { mount, below: site.path("shared").display().to_string() }
}

async fn said(bench: &Bench, task: TaskSpec) -> String {
    let key = bench.start(task, FAR);
    let state = bench.over(key).await.0;
    assert!(!matches!(state, TaskState::StartFailed { .. }), "{state:?}");
    let (out, _) = bench.output(key, Stream::Stdout).await;
    let (err, _) = bench.output(key, Stream::Stderr).await;
    assert_eq!(state, TaskState::Exited { code: 0 }, "{out}{err}");
    out
}

/// Why a task could not be started, and whether that is the node's fault.
async fn refused(bench: &Bench, task: TaskSpec) -> (String, bool) {
    match bench.over(bench.start(task, FAR)).await.0 {
        TaskState::StartFailed { reason, by_node } => (reason, by_node),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_task_sees_its_image_and_nothing_of_the_host() {
    let Some(site) = full_site() else { return };
    let bench = site.open().await;
    let secret = site.path("secret");
    std::fs::write(&secret, "of the host").expect("written");
    let script = format!(
        "cat /etc/os-release; id -u; [ -e {hidden} ] && echo sees the host; ls /home /root /usr/share 2>/dev/null; \
         : > /tmp/a && echo tmp; : > $HOME/a && echo home; (: > /etc/os-release) 2>/dev/null && echo etc; \
         (: > /sys/kernel/x) 2>/dev/null && echo sys; ls /proc | grep -c '^1$'; pwd; [ -s /etc/hosts ] && echo hosts",
        hidden = "/usr/bin/ldd",
    );
    let image = folder_image(&site);
    let out = said(&bench, in_image(1, &image, &script)).await;
    assert_eq!(out, "ID=of-the-image\n2000000003\ntmp\nhome\n1\n/run/muster/1.0/work\nhosts\n");
    let root = site.path("images/one");
    assert_eq!(std::fs::read_to_string(root.join("etc/os-release")).expect("there"), "ID=of-the-image\n");
    assert!(!root.join("run").exists() && !root.join("proc").exists(), "the image itself is not touched");
}

#[tokio::test]
async fn layers_lie_over_each_other_and_the_image_says_what_the_job_does_not() {
    let Some(site) = full_site() else { return };
    let bench = site.open().await;
    let image = layout_image(&site);
    let own = TaskSpec { command: Vec::new(), ..in_image(1, &image, "") };
    assert_eq!(said(&bench, own).await, "of the image: green\n");
    let script = "ls /opt /opt/old; cat /opt/old/new; echo; pwd; echo $COLOUR $SHAPE; raise; id -u; echo $HOME";
    let task = TaskSpec { env: [("SHAPE".to_owned(), "square".to_owned())].into(), ..in_image(2, &image, script) };
    assert_eq!(
        said(&bench, task).await,
        "/opt:\nold\n\n/opt/old:\nnew\nnew\n/home/here\ngreen square\n2000000003\n2000000003\n/run/muster/2.0/work\n"
    );
    let roots: Vec<PathBuf> =
        std::fs::read_dir(site.path("data/images/roots")).expect("there").map(|e| e.expect("entry").path()).collect();
    assert_eq!(roots.len(), 1, "unpacked once");
    let raise = std::fs::metadata(roots[0].join("root/bin/raise")).expect("there");
    assert_eq!(raise.permissions().mode() & 0o7777, 0o755, "nothing changes its user");
    assert_eq!(std::fs::read_dir(site.path("data/images/new")).expect("there").count(), 0, "nothing is left over");
}

#[tokio::test]
async fn mounts_are_read_only_unless_they_say_otherwise_and_no_link_leads_out() {
    let Some(site) = full_site() else { return };
    let bench = site.open().await;
    let shared = site.path("shared");
    std::fs::create_dir_all(shared.join("in")).expect("made");
    std::fs::create_dir_all(shared.join("out")).expect("made");
    for folder in ["in", "out"] {
        std::fs::set_permissions(shared.join(folder), PermissionsExt::from_mode(0o777)).expect("its own");
    }
    std::fs::write(shared.join("in/data"), "42\n").expect("written");
    let mounts = vec![
        mount(&site, &shared.join("in"), "/data", true),
        mount(&site, &shared.join("out"), "/deep/er/out", false),
        mount(&site, &shared.join("in/data"), "/etc/number", true),
    ];
    let script =
        "cat /data/data /etc/number; (: > /data/x) 2>/dev/null && echo written; echo 7 > /deep/er/out/x && echo kept";
    let image = folder_image(&site);
    let task = TaskSpec { mounts: mounts.clone(), ..in_image(1, &image, script) };
    assert_eq!(said(&bench, task).await, "42\n42\nkept\n");
    assert_eq!(std::fs::read_to_string(shared.join("out/x")).expect("there"), "7\n");
    // Without an image the target has to be there, or be made where the sandbox has memory.
    let task = TaskSpec {
        mounts: vec![mount(&site, &shared.join("in"), "/tmp/data", true)],
        ..alone(2, "cat /tmp/data/data")
    };
    assert_eq!(said(&bench, task).await, "42\n");

    symlink("/etc", shared.join("etc")).expect("made");
    symlink("../secret", shared.join("up")).expect("made");
    symlink("/proc/1/root", shared.join("root")).expect("made");
    std::fs::write(site.path("secret"), "of the host").expect("written");
    for (id, source) in [(3, "etc/shadow"), (4, "up"), (5, "root"), (6, "etc")] {
        let task =
            TaskSpec { mounts: vec![mount(&site, &shared.join(source), "/data", true)], ..in_image(id, &image, ":") };
        let (reason, by_node) = refused(&bench, task).await;
        assert!(!by_node && reason.starts_with(&format!("mount {}", shared.join(source).display())), "{reason}");
        assert!(reason.contains("leads out of the folder that its pool allows"), "{reason}");
    }
    let not_allowed = TaskMount { below: String::new(), ..mounts[0].clone() };
    let task = TaskSpec { mounts: vec![not_allowed], ..in_image(7, &image, ":") };
    assert!(refused(&bench, task).await.0.contains("does not allow it any more"));
    let elsewhere = mount(&site, Path::new("/etc"), "/data", true);
    let task = TaskSpec { mounts: vec![elsewhere], ..in_image(8, &image, ":") };
    assert!(refused(&bench, task).await.0.contains("does not lie in the folder"));
}

/// What the image has in the places of the sandbox, or on the way to a mount.
#[tokio::test]
async fn links_of_an_image_lead_to_nothing_of_the_host_and_onto_nothing_of_the_sandbox() {
    let Some(site) = full_site() else { return };
    let bench = site.open().await;
    let image = folder_image(&site);
    let root = site.path("images/one");
    std::fs::create_dir_all(site.path("shared/out")).expect("made");
    for (to, name) in [("/etc", "proc"), ("../../../..", "run"), ("/data", "dev"), ("/dev", "trap")] {
        symlink(to, root.join(name)).expect("made");
    }
    symlink("/etc/shadow", root.join("etc/stolen")).expect("made");
    symlink("../run/systemd/resolve/stub-resolv.conf", root.join("etc/resolv.conf")).expect("made");
    let script = "[ -c /dev/null ] && echo own dev; ls /proc | grep -c '^1$'; cat /etc/stolen 2>/dev/null; [ -e /run/muster ] && echo own run; \
                  [ -f /etc/resolv.conf ] && echo resolves";
    let task = TaskSpec {
        mounts: vec![mount(&site, &site.path("shared/out"), "/data", false)],
        ..in_image(1, &image, script)
    };
    assert_eq!(said(&bench, task).await, "own dev\n1\nown run\nresolves\n");
    assert_eq!(std::fs::read_dir(site.path("shared/out")).expect("there").count(), 0, "no device was made there");
    let task = TaskSpec {
        mounts: vec![mount(&site, &site.path("shared/out"), "/trap/sub", false)],
        ..in_image(2, &image, ":")
    };
    let (reason, by_node) = refused(&bench, task).await;
    assert!(!by_node && reason.contains("a symbolic link is in its place"), "{reason}");
    // Nothing is made in a folder of the host either, though root could.
    let nested = vec![
        mount(&site, &site.path("shared/out"), "/data", false),
        mount(&site, &site.path("shared/out"), "/data/sub/er", true),
    ];
    let (reason, by_node) = refused(&bench, TaskSpec { mounts: nested, ..in_image(4, &image, ":") }).await;
    assert!(!by_node && reason.contains("none can be made"), "{reason}");
    assert_eq!(std::fs::read_dir(site.path("shared/out")).expect("there").count(), 0);
    // An image that is a link out of its folder is none.
    symlink("/", site.path("images/host")).expect("made");
    let host = TaskImage { image: format!("dir:{}", site.path("images/host").display()), ..image };
    let (reason, by_node) = refused(&bench, in_image(3, &host, "cat /etc/shadow")).await;
    assert!(!by_node && reason.contains("leads out of the folder"), "{reason}");
}

/// Some images keep their configuration elsewhere. Nobody shall be able to have nodes quarantined by such an image.
#[tokio::test]
async fn an_image_whose_etc_is_a_link_runs_and_keeps_its_own() {
    let Some(site) = full_site() else { return };
    let bench = site.open().await;
    let image = folder_image(&site);
    let root = site.path("images/one");
    std::fs::rename(root.join("etc"), root.join("etc-of-image")).expect("renamed");
    symlink("etc-of-image", root.join("etc")).expect("made");
    assert_eq!(
        said(&bench, in_image(1, &image, "cat /etc/os-release; ls /etc")).await,
        "ID=of-the-image\nos-release\n"
    );
}

#[tokio::test]
async fn an_image_that_is_not_there_not_allowed_or_not_whole_is_told_with_its_cause() {
    let Some(site) = full_site() else { return };
    let bench = site.open().await;
    let image = layout_image(&site);
    let gone = TaskImage { image: format!("{}-gone", image.image), ..image.clone() };
    let not_allowed = TaskImage { below: String::new(), ..image.clone() };
    for (id, image, cause) in [(1, &gone, "No such file"), (2, &not_allowed, "does not allow it any more")] {
        let (reason, by_node) = refused(&bench, in_image(id, image, ":")).await;
        assert!(!by_node && reason.contains(&image.image) && reason.contains(cause), "{reason}");
    }
    let blobs = std::fs::read_dir(site.path("layouts/one/blobs/sha256")).expect("there");
    let largest =
        blobs.map(|entry| entry.expect("entry").path()).max_by_key(|path| path.metadata().expect("there").len());
    let largest = largest.expect("a layer");
    let mut bytes = std::fs::read(&largest).expect("there");
    let last = bytes.len() - 9;
    bytes[last] ^= 1;
    std::fs::write(&largest, bytes).expect("written");
    let (reason, by_node) = refused(&bench, in_image(3, &image, ":")).await;
    assert!(!by_node && (reason.contains("digest is wrong") || reason.contains("cannot be read")), "{reason}");
    assert!(!site.path("data/images/roots").exists(), "nothing of it is kept");
    let folder = folder_image(&site);
    let silent = TaskSpec { command: Vec::new(), ..in_image(4, &folder, "") };
    assert!(refused(&bench, silent).await.0.contains("names no program"));
}

/// A fake of skopeo: it knows one image, says how often it was asked to bring it, and takes its time.
fn fake_skopeo(site: &Site, seconds: &str) -> PathBuf {
    layout_image(site);
    let program = site.path("skopeo");
    let digest = "a".repeat(64);
    let script = format!(
        "#!/bin/sh\ncase \"$1 $*\" in\n*absent*) echo 'manifest unknown' >&2; exit 1;;\ninspect*) echo sha256:{digest};;\n\
         copy*) echo pulled >> {log}; sleep {seconds}; for to; do :; done; to=${{to#oci:}}; cp -r {layout} ${{to%:image}};;\nesac\n",
        log = site.path("pulled").display(),
        layout = site.path("layouts/one").display(),
    );
    std::fs::write(&program, script).expect("written");
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).expect("its own");
    program
}

fn of_registry(name: &str) -> TaskImage {
    TaskImage { image: format!("docker://r.example/ml/{name}:1"), below: "r.example/ml".to_owned() }
}

#[tokio::test]
async fn ranks_share_one_preparation_and_later_tasks_what_is_there() {
    let Some(site) = full_site() else { return };
    let skopeo = fake_skopeo(&site, "0.3");
    let bench = site.open_with(|config| config.images.skopeo = skopeo).await;
    let image = of_registry("one");
    let rank = |rank| TaskSpec { image: Some(image.clone()), ..spec(1, rank, "cat /etc/os-release") };
    let keys = [bench.start(rank(0), FAR), bench.start(rank(1), FAR)];
    for key in keys {
        assert_eq!(bench.over(key).await.0, TaskState::Exited { code: 0 });
        assert_eq!(bench.output(key, Stream::Stdout).await.0, "ID=of-the-image\n");
    }
    assert_eq!(said(&bench, in_image(2, &image, "id -u")).await, "2000000003\n");
    assert_eq!(std::fs::read_to_string(site.path("pulled")).expect("there"), "pulled\n", "brought once");
    let (reason, by_node) = refused(&bench, in_image(3, &of_registry("absent"), ":")).await;
    assert!(!by_node && reason.contains("manifest unknown"), "{reason}");
}

#[tokio::test]
async fn a_node_without_skopeo_says_so_and_a_registry_that_does_not_answer_is_given_up() {
    let Some(site) = full_site() else { return };
    let missing = |config: &mut ProcessConfig| config.images.skopeo = "/nowhere/skopeo".into();
    let bench = site.open_with(missing).await;
    let (reason, by_node) = refused(&bench, in_image(1, &of_registry("one"), ":")).await;
    assert!(by_node && reason.contains("no skopeo") && reason.contains("install it"), "{reason}");
    bench.die();
    let skopeo = fake_skopeo(&site, "60");
    let impatient = |config: &mut ProcessConfig| {
        config.images.skopeo = skopeo;
        config.images.pull_within = Duration::from_millis(400);
    };
    let bench = site.open_with(impatient).await;
    let (reason, by_node) = refused(&bench, in_image(2, &of_registry("one"), ":")).await;
    assert!(by_node && reason.contains("did not deliver it"), "{reason}");
}

#[tokio::test]
async fn a_task_that_needs_a_newer_cuda_is_refused_with_the_driver_that_is_too_old() {
    let Some(site) = full_site() else { return };
    let old = |config: &mut ProcessConfig| {
        config.driver = Some(Driver { version: "535.104.05".to_owned(), cuda: "12.2".to_owned() });
    };
    let bench = site.open_with(old).await;
    let root = site.path("packed");
    root_at(&root);
    let config = serde_json::json!({ "Env": ["PATH=/bin", "NVIDIA_REQUIRE_CUDA=cuda>=12.4"] });
    layout_at(&site.path("layouts/new"), &[packed(&root)], &config);
    let at = site.path("layouts/new");
    let image = TaskImage { image: format!("oci:{}", at.display()), below: site.path("layouts").display().to_string() };
    let with = |id, env: &[(&str, &str)]| {
        let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let devices = vec![DeviceHold { gpu: 0, mode: HoldMode::Whole }];
        TaskSpec { env, devices, ..in_image(id, &image, "echo it runs") }
    };
    let (reason, by_node) = refused(&bench, with(1, &[])).await;
    assert!(!by_node && reason.contains("CUDA 12.2") && reason.contains("cuda>=12.4"), "{reason}");
    // What the job says counts before what the image says, and a job without an image is asked too.
    assert_eq!(said(&bench, with(2, &[("NVIDIA_REQUIRE_CUDA", "cuda>=12.0")])).await, "it runs\n");
    assert_eq!(said(&bench, with(3, &[("NVIDIA_DISABLE_REQUIRE", "true")])).await, "it runs\n");
    let plain = TaskSpec { image: None, ..with(4, &[("NVIDIA_REQUIRE_CUDA", "cuda>=13.0")]) };
    let (reason, by_node) = refused(&bench, plain).await;
    assert!(!by_node && reason.contains("cuda>=13.0"), "{reason}");
    let no_gpu = TaskSpec { devices: Vec::new(), ..with(5, &[]) };
    assert_eq!(said(&bench, no_gpu).await, "it runs\n");
}

#[tokio::test]
async fn a_cancel_wins_over_a_preparation_and_holds_up_nobody() {
    let Some(site) = full_site() else { return };
    let skopeo = fake_skopeo(&site, "20");
    let bench = site.open_with(|config| config.images.skopeo = skopeo).await;
    let slow = bench.start(in_image(1, &of_registry("one"), ":"), FAR);
    // Others start meanwhile.
    assert_eq!(said(&bench, alone(2, "echo here")).await, "here\n");
    assert_eq!(bench.exec.observe()[&slow].phase, Phase::Starting);
    let told = Instant::now();
    bench.stop(slow);
    assert_eq!(bench.over(slow).await.0, TaskState::Stopped);
    assert!(told.elapsed() < Duration::from_secs(5), "{:?}", told.elapsed());
    assert!(!site.path("data/tasks/1.0").exists(), "it never started");
}

#[tokio::test]
async fn an_agent_that_is_killed_while_it_prepares_begins_again() {
    let Some(site) = full_site() else { return };
    let skopeo = fake_skopeo(&site, "1");
    let again = skopeo.clone();
    let bench = site.open_with(|config| config.images.skopeo = skopeo).await;
    bench.start(in_image(1, &of_registry("one"), ":"), FAR);
    tokio::time::sleep(Duration::from_millis(300)).await;
    // What a killed agent leaves: half of an image.
    std::fs::create_dir_all(site.path("data/images/new/77/root/etc")).expect("made");
    bench.die();
    let bench = site.open_with(|config| config.images.skopeo = again).await;
    assert!(!site.path("data/images/new/77").exists(), "what was not finished is gone");
    assert!(!bench.exec.observe().contains_key(&key(1, 0)), "the task has no record, so it is started again");
    assert_eq!(said(&bench, in_image(1, &of_registry("one"), "cat /etc/os-release")).await, "ID=of-the-image\n");
}

#[tokio::test]
async fn what_is_written_over_an_image_has_a_bound_and_what_nobody_uses_goes_first() {
    let Some(site) = full_site() else { return };
    let layout = layout_image(&site);
    let other = files(&[("etc/other", "other", 0o644)]);
    layout_at(&site.path("layouts/two"), &[packed(&site.path("packed")), other], &serde_json::json!({}));
    let second = TaskImage { image: format!("oci:{}", site.path("layouts/two").display()), ..layout.clone() };
    let small = |config: &mut ProcessConfig| {
        config.images.upper_bytes_max = 1 << 20;
        config.images.store_images_max = 1;
    };
    let bench = site.open_with(small).await;
    let held = bench.start(in_image(1, &layout, "echo up; exec sleep 600"), FAR);
    bench.running(held).await;
    let roots = || std::fs::read_dir(site.path("data/images/roots")).expect("there").count();
    assert_eq!(said(&bench, in_image(2, &second, "cat /etc/other")).await, "other");
    assert_eq!(roots(), 2, "both are in use when the second comes");
    bench.exec.kill(held);
    bench.over(held).await;
    let third = files(&[("etc/third", "3", 0o644), ("var/.keep", "", 0o644)]);
    layout_at(&site.path("layouts/three"), &[packed(&site.path("packed")), third], &serde_json::json!({}));
    let third = TaskImage { image: format!("oci:{}", site.path("layouts/three").display()), ..layout };
    assert_eq!(said(&bench, in_image(3, &third, "cat /etc/third")).await, "3");
    assert_eq!(roots(), 1, "the others are gone");
}

/// The device list that fences what it may open is the same as without an image (`sandbox.rs`).
#[tokio::test]
async fn a_task_with_a_gpu_finds_its_device_node_and_the_driver_of_the_host_and_others_do_not() {
    let Some(site) = full_site() else { return };
    let driver = site.path("driver");
    let libraries = driver.join("usr/lib/x86_64-linux-gnu");
    std::fs::create_dir_all(&libraries).expect("made");
    std::fs::create_dir_all(driver.join("usr/bin")).expect("made");
    std::fs::write(libraries.join("libcuda.so.570.1"), "the driver\n").expect("written");
    symlink("libcuda.so.570.1", libraries.join("libcuda.so.1")).expect("made");
    std::fs::write(driver.join("usr/bin/nvidia-smi"), "#!/bin/sh\necho smi of the host\n").expect("written");
    std::fs::set_permissions(driver.join("usr/bin/nvidia-smi"), PermissionsExt::from_mode(0o755)).expect("its own");
    let bench = site.open_with(|config| config.images.driver_root = Some(driver)).await;
    let image = folder_image(&site);
    // As an image has it that was made from a container with another driver in it.
    let inside = site.path("images/one/usr/lib/x86_64-linux-gnu");
    std::fs::create_dir_all(&inside).expect("made");
    symlink("/nowhere/libcuda.so.1", inside.join("libcuda.so.1")).expect("made");
    let device = |minor| DeviceNode { name: format!("nvidia{minor}"), major: 195, minor };
    let devices = vec![DeviceHold { gpu: 0, mode: HoldMode::Whole }];
    let script = "ls /dev | grep nvidia; cat /usr/lib/x86_64-linux-gnu/libcuda.so.1; nvidia-smi; echo $LD_LIBRARY_PATH; \
                  (: > /usr/lib/x86_64-linux-gnu/libcuda.so.1) 2>/dev/null && echo written; exit 0";
    let env = [("LD_LIBRARY_PATH".to_owned(), "/opt/lib".to_owned()), ("PATH".to_owned(), "/bin:/usr/bin".to_owned())];
    let with = TaskSpec { devices, env: env.into(), ..in_image(1, &image, script) };
    let key = bench.start_with(with, FAR, vec![device(77)]);
    assert_eq!(bench.over(key).await.0, TaskState::Exited { code: 0 });
    let (out, _) = bench.output(key, Stream::Stdout).await;
    assert_eq!(out, "nvidia77\nthe driver\nsmi of the host\n/opt/lib:/usr/lib/x86_64-linux-gnu\n");
    let without = "ls /dev | grep nvidia; [ -e /usr/bin/nvidia-smi ] || echo none; echo ${LD_LIBRARY_PATH-unset}";
    assert_eq!(said(&bench, in_image(2, &image, without)).await, "none\nunset\n");
}
