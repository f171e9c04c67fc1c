//! `--image` and `--mount` through the real binary: what a pool allows, what a task sees and as whom, and what is refused where.

use crate::escapes::Cage;
use crate::escapes::files::image_at;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// A node whose pool allows images below one folder, and mounts of another.
fn cage() -> Option<Cage> {
    let folder = tempfile::tempdir().expect("a folder").keep();
    std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o755)).expect("its own");
    let at = folder.display();
    let pool = format!(
        "name: default\nisolation: full\nnetwork: host\nimages: [\"dir:{at}/images/\"]\nmounts:\n  - {{path: {at}/shared}}\n  - {{path: {at}/shared/out, write: true}}\n"
    );
    for name in ["images", "shared", "shared/out", "elsewhere"] {
        std::fs::create_dir_all(folder.join(name)).expect("made");
    }
    std::fs::set_permissions(folder.join("shared/out"), PermissionsExt::from_mode(0o777)).expect("its own");
    std::fs::write(folder.join("shared/set"), "of the host\n").expect("written");
    std::fs::write(folder.join("elsewhere/secret"), "secret\n").expect("written");
    let Some(cage) = Cage::of(&pool, &[]) else {
        std::fs::remove_dir_all(&folder).expect("its own");
        return None;
    };
    std::os::unix::fs::symlink(&folder, cage.site.path("folder")).expect("made");
    let root = folder.join("images/one");
    image_at(&root);
    std::fs::create_dir_all(root.join("etc")).expect("made");
    std::fs::write(root.join("etc/os-release"), "ID=of-the-image\n").expect("written");
    Some(cage)
}

fn folder_of(cage: &Cage) -> std::path::PathBuf {
    std::fs::read_link(cage.site.path("folder")).expect("its folder")
}

#[test]
fn a_job_runs_in_its_image_as_its_tenants_user() {
    let Some(cage) = cage() else { return };
    let folder = folder_of(&cage);
    let image = format!("dir:{}/images/one", folder.display());
    let script = "cat /etc/os-release; id -u; ls /root /home 2>/dev/null; touch /tmp/made && ls /tmp/made; cat /etc/shadow 2>/dev/null; true";
    let said = cage.says("beta", &["--image", &image], script);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!((lines[0], lines[2]), ("ID=of-the-image", "/tmp/made"), "{said}");
    assert!(lines[1].parse::<u32>().is_ok_and(|user| user > 2_000_000_000) && lines.len() == 3, "{said}");
    assert!(!folder.join("images/one/tmp/made").exists(), "the image is as it was");
    let again = cage.says("alpha", &["--image", &image], "ls /tmp/made 2>/dev/null || echo gone");
    assert_eq!(again, "gone\n", "what a task wrote is gone with it");
    remove(&folder);
}

#[test]
fn a_job_sees_what_it_mounts_and_writes_where_its_pool_lets_it() {
    let Some(cage) = cage() else { return };
    let folder = folder_of(&cage);
    let at = |name: &str| folder.join(name).display().to_string();
    let image = format!("dir:{}", at("images/one"));
    let (read, write) = (format!("{}:/tmp/in", at("shared")), format!("{}:/tmp/out:rw", at("shared/out")));
    let script = "cat /tmp/in/set; touch /tmp/in/new 2>/dev/null || echo closed; id -u > /tmp/out/$MUSTER_JOB_ID; ls /tmp/out | grep -c .";
    for words in
        [vec!["--mount", &read, "--mount", &write], vec!["--image", &image, "--mount", &read, "--mount", &write]]
    {
        let id = cage.submit("beta", &words, script);
        let job = cage.over(&id);
        let said = cage.site.said(&["logs", &id]);
        assert!(said.starts_with("of the host\nclosed\n"), "{said}: {job}");
        let owner = std::os::unix::fs::MetadataExt::uid(
            &std::fs::metadata(folder.join("shared/out").join(&id)).expect("written"),
        );
        assert!(owner > 2_000_000_000, "as its user: {owner}");
    }
    std::os::unix::fs::symlink(folder.join("elsewhere"), folder.join("shared/link")).expect("made");
    let link = format!("{}:/tmp/in", at("shared/link"));
    let id = cage.submit("beta", &["--mount", &link, "--retries", "0"], "cat /tmp/in/secret");
    let job = cage.over(&id);
    assert!(job["state"] == "failed" && job.to_string().contains("leads out of the folder"), "{job}");
    remove(&folder);
}

#[test]
fn what_no_pool_allows_is_refused_when_it_is_submitted() {
    let Some(cage) = cage() else { return };
    let folder = folder_of(&cage);
    let at = |name: &str| folder.join(name).display().to_string();
    let refused = |words: &[&str]| {
        let said = cage.site.muster(&[&["submit", "--tenant", "beta", "--gpus", "1"], words, &["--", "true"]].concat());
        assert!(!said.status.success(), "{words:?}");
        String::from_utf8_lossy(&said.stderr).into_owned()
    };
    let (image, mount) = (format!("dir:{}", at("elsewhere")), format!("{}:/tmp/in", at("elsewhere")));
    assert!(refused(&["--image", &image]).contains("does not allow image"));
    assert!(refused(&["--image", "docker://registry.example/ml/torch"]).contains("does not allow image"));
    assert!(refused(&["--mount", &mount]).contains("does not allow mount"));
    let write = format!("{}:/tmp/in:rw", at("shared"));
    assert!(refused(&["--mount", &write]).contains("does not allow mount"));
    assert!(refused(&["--mount", "/etc:/tmp/in"]).contains("does not allow mount"));
    let missing = format!("dir:{}", at("images/none"));
    let id = cage.submit("beta", &["--image", &missing, "--retries", "0"], "true");
    let job = cage.over(&id);
    assert!(job.to_string().contains("image dir:"), "{job}");
    remove(&folder);
}

fn remove(folder: &Path) {
    std::fs::remove_dir_all(folder).expect("its own");
}
