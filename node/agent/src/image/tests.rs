//! Layers that are hostile, damaged, or random: nothing of them leaves the folder, and what an image asks for and may not have is refused with words.

use super::unpack::Unpacking;
use super::zstd::Zstd;
use super::{Bounds, ImageError};
use flate2::Compression;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use tar::EntryType;
use tempfile::TempDir;

const BOUNDS: Bounds = Bounds { bytes_max: 1 << 20, entries_max: 1_000 };

/// One entry of an archive, written as it stands: the library would refuse most of these.
#[derive(Clone, Debug)]
struct Raw {
    kind: EntryType,
    path: String,
    link: String,
    content: String,
    mode: u32,
}

fn raw(kind: EntryType, path: &str, link: &str, content: &str) -> Raw {
    Raw { kind, path: path.to_owned(), link: link.to_owned(), content: content.to_owned(), mode: 0o755 }
}

fn file(path: &str, content: &str) -> Raw {
    raw(EntryType::Regular, path, "", content)
}

fn archive(entries: &[Raw]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for Raw { kind, path, link, content, mode } in entries {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(*kind);
        header.set_mode(*mode);
        header.set_size(content.len() as u64);
        let old = header.as_old_mut();
        old.name[..path.len()].copy_from_slice(path.as_bytes());
        old.linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_cksum();
        bytes.extend(header.as_bytes());
        bytes.extend(content.as_bytes());
        bytes.resize(bytes.len().next_multiple_of(512), 0);
    }
    bytes.resize(bytes.len() + 1_024, 0);
    bytes
}

/// An image's folder beside something that is none of its business.
struct Bench {
    dir: TempDir,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(dir.path().join("root")).expect("made");
        std::fs::create_dir(dir.path().join("outside")).expect("made");
        std::fs::write(dir.path().join("outside/secret"), "secret").expect("written");
        std::fs::write(dir.path().join("secret"), "secret").expect("written");
        Bench { dir }
    }

    fn root(&self) -> std::path::PathBuf {
        self.dir.path().join("root")
    }

    fn unpack(&self, layers: &[Vec<u8>]) -> Result<(), ImageError> {
        let mut unpacking = Unpacking::into(&self.root(), BOUNDS)?;
        layers.iter().try_for_each(|layer| unpacking.layer(layer.as_slice()).map(drop))
    }

    /// What is outside: paths, content, and how often a file is linked.
    fn outside(&self) -> BTreeMap<String, (String, u64)> {
        let mut seen = BTreeMap::new();
        for folder in [self.dir.path().to_owned(), self.dir.path().join("outside")] {
            for entry in std::fs::read_dir(folder).expect("there") {
                let entry = entry.expect("an entry");
                let what = entry.metadata().expect("there");
                let content =
                    if what.is_file() { std::fs::read_to_string(entry.path()).expect("there") } else { String::new() };
                let links = if what.is_file() { what.nlink() } else { 0 };
                seen.insert(entry.path().display().to_string(), (content, links));
            }
        }
        seen
    }

    fn read(&self, path: &str) -> Option<String> {
        std::fs::read_to_string(self.root().join(path)).ok()
    }
}

/// Refused, with a word of why, and nothing outside was touched.
fn check_refused(layers: &[&[Raw]], why: &str) {
    let bench = Bench::new();
    let before = bench.outside();
    let layers: Vec<Vec<u8>> = layers.iter().map(|layer| archive(layer)).collect();
    let said = bench.unpack(&layers).expect_err(why).to_string();
    assert!(said.contains(why), "{said:?} does not say {why:?}");
    assert_eq!(bench.outside(), before);
}

#[test]
fn what_leads_out_or_makes_devices_is_refused() {
    let link = |path, to| raw(EntryType::Symlink, path, to, "");
    let hard = |path, to| raw(EntryType::Link, path, to, "");
    check_refused(&[&[file("../secret", "x")]], "its path leads out of the image");
    check_refused(&[&[file("a/../../secret", "x")]], "its path leads out of the image");
    check_refused(&[&[hard("a", "../secret")]], "its hard link leads out of the image");
    check_refused(&[&[hard("a", "/etc/shadow")]], "its hard link leads to nothing");
    check_refused(&[&[link("a", "/"), hard("b", "a/etc/shadow")]], "its hard link leads to nothing");
    check_refused(&[&[hard("a", "a")]], "its hard link does not lead to a file");
    check_refused(&[&[raw(EntryType::Char, "dev/mem", "", "")]], "it is a device, a pipe");
    check_refused(&[&[raw(EntryType::Block, "dev/sda", "", "")]], "it is a device, a pipe");
    check_refused(&[&[raw(EntryType::Fifo, "pipe", "", "")]], "it is a device, a pipe");
    check_refused(&[&[file("a/.wh...", "")]], "it would remove a folder above");
    check_refused(&[&[file("a", "x"), file("a/b", "x")]], "entry \"a/b\" is refused");
    check_refused(&[&[link("a", "a"), file("a/b", "x")]], "entry \"a/b\" is refused");
}

/// As if the image were the root: many images have `/var/run` as a link to `/run`, and layers that write through it.
#[test]
fn links_mean_what_they_mean_inside() {
    let bench = Bench::new();
    let before = bench.outside();
    let outside = bench.dir.path().join("outside");
    let away = raw(EntryType::Symlink, "away", &outside.display().to_string(), "");
    let up = raw(EntryType::Symlink, "up", "../../../..", "");
    let layer = [away, up, file("away/secret", "mine"), file("up/secret", "mine too"), file("/etc/x", "absolute")];
    bench.unpack(&[archive(&layer)]).expect("they are harmless");
    assert_eq!(bench.outside(), before);
    assert_eq!(bench.read(&format!(".{}/secret", outside.display())).as_deref(), Some("mine"));
    assert_eq!(bench.read("secret").as_deref(), Some("mine too"));
    assert_eq!(bench.read("etc/x").as_deref(), Some("absolute"));
    // A whiteout through a link removes inside.
    bench.unpack(&[archive(&[file("away/.wh.secret", ""), file("up/.wh..wh..opq", "")])]).expect("harmless");
    assert_eq!(bench.outside(), before);
    assert_eq!(bench.read("etc/x"), None, "up is the root itself");
}

#[test]
fn a_layer_takes_away_what_lower_ones_have_and_never_its_own() {
    let bench = Bench::new();
    let lower = [file("a/one", "1"), file("a/deep/two", "2"), file("b", "b"), file("c/x", "x")];
    let upper = [
        file("a/new", "n"),
        file("a/deep/mine", "m"),
        file("a/.wh..wh..opq", ""),
        file(".wh.b", ""),
        file("c", "now a file"),
    ];
    bench.unpack(&[archive(&lower), archive(&upper)]).expect("a good image");
    let now = ["a/one", "a/deep/two", "b", "a/new", "a/deep/mine", "c"].map(|path| bench.read(path).is_some());
    assert_eq!(now, [false, false, false, true, true, true]);
    assert_eq!(bench.read("c").as_deref(), Some("now a file"));
}

#[test]
fn modes_lose_what_changes_the_user_and_let_the_task_read() {
    let bench = Bench::new();
    let with = |path: &str, kind, mode| Raw { mode, ..raw(kind, path, "", "") };
    let layer = [
        with("raise", EntryType::Regular, 0o6755),
        with("closed", EntryType::Regular, 0o600),
        with("root", EntryType::Directory, 0o2700),
        with("tmp", EntryType::Directory, 0o1777),
    ];
    bench.unpack(&[archive(&layer)]).expect("a good image");
    let mode = |path: &str| std::fs::metadata(bench.root().join(path)).expect("there").permissions().mode() & 0o7777;
    assert_eq!(["raise", "closed", "root", "tmp"].map(mode), [0o755, 0o644, 0o755, 0o1777]);
}

#[test]
fn sizes_have_bounds_and_damaged_archives_are_refused() {
    let bench = Bench::new();
    let many: Vec<Raw> = (0..1_001).map(|at| file(&format!("f{at}"), "")).collect();
    assert!(matches!(bench.unpack(&[archive(&many)]), Err(ImageError::TooLarge { .. })));
    let large = file("large", &"x".repeat((1 << 20) + 1));
    assert!(matches!(bench.unpack(&[archive(&[large])]), Err(ImageError::TooLarge { .. })));
    // A name of a gigabyte, which the header only announces.
    let mut huge = archive(&[raw(EntryType::GNULongName, "x", "", "")]);
    let mut header = tar::Header::from_byte_slice(&huge[..512]).clone();
    header.set_size(1 << 30);
    header.set_cksum();
    huge[..512].copy_from_slice(header.as_bytes());
    let said = bench.unpack(&[huge]).expect_err("refused before it is read").to_string();
    assert!(said.contains("an extension of the archive has 1073741824 bytes"), "{said}");

    let good = archive(&[file("a", &"content".repeat(100))]);
    assert!(bench.unpack(&[good[..600].to_vec()]).is_err(), "the content is cut off");
    assert!(bench.unpack(&[good[..100].to_vec()]).is_err(), "the header is cut off");
    let mut damaged = good.clone();
    damaged[3] ^= 0xff;
    assert!(bench.unpack(&[damaged]).is_err(), "the header's sum is wrong");

    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(&good).expect("packed");
    let packed = packed.finish().expect("packed");
    let cut = MultiGzDecoder::new(&packed[..packed.len() / 2]);
    let mut unpacking = Unpacking::into(&bench.root(), BOUNDS).expect("a folder");
    assert!(matches!(unpacking.layer(cut), Err(ImageError::Archive { .. })), "the compressed data is cut off");
}

#[test]
fn zstd_data_of_several_frames_is_read_to_its_end() {
    let frame = |bytes: &[u8]| ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest);
    let skipped = [&0x184D_2A50_u32.to_le_bytes()[..], &3_u32.to_le_bytes(), b"abc"].concat();
    let all = [frame(b"one "), skipped, frame(b"two "), frame(&vec![b'x'; 300_000])].concat();
    let mut text = Vec::new();
    Zstd::new(all.as_slice()).read_to_end(&mut text).expect("good data");
    assert_eq!(text.len(), 8 + 300_000);
    assert!(text.starts_with(b"one two xx"));
    assert!(Zstd::new(&all[..all.len() - 5]).read_to_end(&mut text).is_err(), "cut off");
}

/// Names that lie, climb, and meet each other.
fn path() -> impl Strategy<Value = String> {
    let part = prop::sample::select(vec![
        "a",
        "b",
        "c",
        "..",
        ".",
        "",
        ".wh.a",
        ".wh..wh..opq",
        ".wh...",
        "outside",
        "secret",
    ]);
    (any::<bool>(), vec(part, 1..5))
        .prop_map(|(is_absolute, parts)| format!("{}{}", if is_absolute { "/" } else { "" }, parts.join("/")))
}

fn entry() -> impl Strategy<Value = Raw> {
    use EntryType::{Char, Directory, Link, Regular, Symlink};
    let kind = prop::sample::select(vec![Regular, Regular, Directory, Symlink, Symlink, Symlink, Link, Link, Char]);
    let link = prop_oneof![
        path(),
        Just("OUTSIDE".to_owned()),
        Just("OUTSIDE/secret".to_owned()),
        Just("../outside".to_owned())
    ];
    (kind, path(), link).prop_map(|(kind, path, link)| {
        let content = if kind == Regular { "from the image" } else { "" };
        Raw { mode: 0o4777, ..raw(kind, &path, &link, content) }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Each entry is a layer of its own, so that one that is refused does not hide what the next would do.
    #[test]
    fn nothing_that_layers_say_leaves_the_folder(entries in vec(entry(), 1..24)) {
        let bench = Bench::new();
        // One link that was there before, as a careless unpacker of an earlier layer would have left it.
        symlink(bench.dir.path().join("outside"), bench.root().join("b")).expect("made");
        let before = bench.outside();
        let outside = bench.dir.path().join("outside").display().to_string();
        for mut entry in entries {
            entry.link = entry.link.replace("OUTSIDE", &outside);
            let _ = bench.unpack(&[archive(&[entry.clone()])]);
            prop_assert_eq!(&bench.outside(), &before, "{:?}", entry);
        }
        prop_assert!(has_no_special_file(&bench.root()));
    }
}

fn has_no_special_file(folder: &Path) -> bool {
    std::fs::read_dir(folder).expect("there").all(|entry| {
        let entry = entry.expect("an entry");
        let what = entry.path().symlink_metadata().expect("there");
        let is_fine = what.is_dir() || what.is_symlink() || what.is_file() && what.mode() & 0o7000 == 0;
        is_fine && (!what.is_dir() || has_no_special_file(&entry.path()))
    })
}
