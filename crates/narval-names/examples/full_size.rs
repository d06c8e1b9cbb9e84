//! What the index of a channel of full size takes: `full_size generate PACKAGES FOLDER` makes the channel's two files from the names, versions and
//! descriptions of a Debian package index (`Packages`, decompressed); `full_size measure FOLDER` makes the index from them, and looks names up.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "its user sees where it fails")]

#[allow(dead_code, reason = "files are made of it here; the tests compare its answers")]
#[path = "../tests/generated/mod.rs"]
mod generated;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufReader, Read, Write};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use narval_names::{Builder, Index, read_packages, read_store_paths};

use generated::{Channel, Name};

/// As many attributes as a channel has today.
const ATTRIBUTES: usize = 120_000;
/// How many names are looked up.
const LOOKED_UP: usize = 300;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["generate", packages, folder] => generate(&fs::read_to_string(packages).unwrap(), Path::new(folder)),
        ["measure", folder] => measure(Path::new(folder)),
        _ => panic!("full_size generate PACKAGES FOLDER, or full_size measure FOLDER"),
    }
}

fn generate(index: &str, folder: &Path) {
    let mut names = BTreeMap::new();
    for entry in index.split("\n\n") {
        let field = |key: &str| entry.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(": "));
        let (Some(name), Some(version)) = (field("Package"), field("Version")) else { continue };
        // Only the version of the source: no epoch, and no revision.
        let version = version.rsplit(':').next().unwrap().split(['-', '~']).next().unwrap();
        let description = field("Description").unwrap_or_default();
        let of = Name { name: name.to_owned(), version: version.to_owned(), description: description.to_owned() };
        names.insert(name.to_owned(), of);
    }
    let names: Vec<Name> = names.into_values().collect();
    let channel = Channel::of(&names, ATTRIBUTES);
    println!("{} attributes, {} paths of {} names", channel.packages.len(), channel.paths.len(), names.len());
    fs::create_dir_all(folder).unwrap();
    let json = channel.packages_json();
    println!("packages.json: {} MB", json.len() / 1_000_000);
    let packages = File::create(folder.join("packages.json.br")).unwrap();
    brotli::CompressorWriter::new(packages, 64 * 1024, 5, 22).write_all(json.as_bytes()).unwrap();
    let mut paths = File::create(folder.join("store-paths.xz")).unwrap();
    std::io::copy(&mut liblzma::read::XzEncoder::new(channel.store_paths().as_bytes(), 1), &mut paths).unwrap();
}

fn measure(folder: &Path) {
    let open = |name: &str| BufReader::with_capacity(64 * 1024, File::open(folder.join(name)).unwrap());
    let packages = || brotli::Decompressor::new(open("packages.json.br"), 64 * 1024);
    let paths = || BufReader::with_capacity(64 * 1024, liblzma::read::XzDecoder::new(open("store-paths.xz")));
    let begun = processor_time();
    discard(packages());
    discard(paths());
    let decoded = processor_time() - begun;
    let begun = processor_time();
    let mut builder = Builder::default();
    read_packages(packages(), &mut builder).unwrap();
    read_store_paths(paths(), &mut builder).unwrap();
    let file = folder.join("index");
    builder.write(&mut File::create(&file).unwrap()).unwrap();
    let built = processor_time() - begun;
    println!(
        "index: {:.1} s of one core, {:.1} s of which decompress; {} MB at most; {:.1} MB on disk",
        built.as_secs_f64(),
        decoded.as_secs_f64(),
        memory_peak() / 1000,
        fs::metadata(&file).unwrap().len() as f64 / 1e6
    );
    let index = Index::open(&file).unwrap();
    let (mut all, step) = (Vec::new(), index.counts().attributes as usize / LOOKED_UP);
    let mut at = 0;
    index
        .packages(&mut |package| {
            if at % step == 0 {
                all.push(package.attribute);
            }
            at += 1;
            true
        })
        .unwrap();
    let look_up = |attribute: &String| {
        let begun = Instant::now();
        let index = Index::open(&file).unwrap();
        let package = index.package(attribute).unwrap().unwrap();
        std::hint::black_box(index.paths_named(&package.name).unwrap());
        begun.elapsed()
    };
    for (what, is_cold) in [("from disk", true), ("warm", false)] {
        let mut times: Vec<Duration> = all
            .iter()
            .map(|attribute| {
                if is_cold {
                    drop_from_memory(&file);
                }
                look_up(attribute)
            })
            .collect();
        times.sort_unstable();
        println!(
            "look-up with opening, {what}: median {:?}, slowest {:?}",
            times[times.len() / 2],
            times[times.len() - 1]
        );
    }
}

fn discard(mut from: impl Read) {
    std::io::copy(&mut from, &mut std::io::sink()).unwrap();
}

/// The processor time of this process.
fn processor_time() -> Duration {
    let stat = fs::read_to_string("/proc/self/schedstat").unwrap();
    Duration::from_nanos(stat.split(' ').next().unwrap().parse().unwrap())
}

/// The most memory that this process had, in KB.
fn memory_peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// Has the kernel forget the contents of a file.
fn drop_from_memory(file: &Path) {
    File::open(file).unwrap().sync_all().unwrap();
    let dropped = Command::new("dd")
        .arg(format!("if={}", file.display()))
        .args(["iflag=nocache", "count=0", "status=none"])
        .status();
    assert!(dropped.unwrap().success());
}
