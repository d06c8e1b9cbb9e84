//! The crates can be published: their metadata is complete, and their packages have all files that they are built from.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails may say so")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn cargo(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO")).args(arguments).current_dir(ROOT).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The crates that are published, by name.
fn published() -> BTreeMap<String, Value> {
    let metadata: Value =
        serde_json::from_str(&cargo(&["metadata", "--format-version=1", "--no-deps", "--offline"])).unwrap();
    let packages = metadata["packages"].as_array().unwrap().iter().filter(|package| package["publish"].is_null());
    packages.map(|package| (package["name"].as_str().unwrap().to_owned(), package.clone())).collect()
}

fn folder(package: &Value) -> PathBuf {
    Path::new(package["manifest_path"].as_str().unwrap()).parent().unwrap().to_owned()
}

#[test]
fn every_published_crate_describes_itself() {
    let published = published();
    let folders = fs::read_dir(Path::new(ROOT).join("crates")).unwrap().count();
    assert_eq!(published.len(), folders, "{:?}", published.keys());
    for (name, package) in &published {
        for key in ["description", "license", "repository", "readme", "rust_version"] {
            assert!(package[key].is_string(), "{name} has no {key}");
        }
        assert!(folder(package).join(package["readme"].as_str().unwrap()).is_file(), "{name}: its readme is missing");
        let (keywords, categories) =
            (package["keywords"].as_array().unwrap(), package["categories"].as_array().unwrap());
        // The registry's limits.
        assert!((1..=5).contains(&keywords.len()), "{name}: {keywords:?}");
        assert!((1..=5).contains(&categories.len()), "{name}: {categories:?}");
        assert!(keywords.iter().all(|keyword| keyword.as_str().unwrap().len() <= 20), "{name}: {keywords:?}");
        assert_eq!(package["version"], env!("CARGO_PKG_VERSION"), "{name}");
    }
}

#[test]
fn dependencies_on_each_other_have_this_version() {
    for (name, package) in published() {
        let ours =
            package["dependencies"].as_array().unwrap().iter().filter(|dependency| dependency["path"].is_string());
        for dependency in ours {
            assert_eq!(dependency["req"], concat!("^", env!("CARGO_PKG_VERSION")), "{name}: {}", dependency["name"]);
        }
    }
}

#[test]
fn packages_have_every_file_that_their_crate_is_built_from() {
    for (name, package) in &published() {
        let listed = cargo(&["package", "-p", name, "--list", "--allow-dirty", "--offline"]);
        let has = |file: &str| listed.lines().any(|listed| listed == file);
        for file in ["Cargo.toml", "README.md", "LICENSE-MIT", "LICENSE-APACHE"] {
            assert!(has(file), "{name}: {file} is not in its package");
        }
        let folder = folder(package);
        for file in files(&folder.join("src")) {
            let file = file.strip_prefix(&folder).unwrap().to_str().unwrap();
            assert!(has(file), "{name}: {file} is not in its package");
        }
        // A file from outside the crate would be missing after publication.
        for file in
            files(&folder.join("src")).filter(|file| file.extension().is_some_and(|extension| extension == "rs"))
        {
            // What only documentation tests read is not needed to build.
            let text = fs::read_to_string(&file).unwrap().replace("#[cfg(doctest)]\n#[doc = include_str!(", "");
            for included in text.split("include_str!(\"").skip(1).chain(text.split("include_bytes!(\"").skip(1)) {
                let included = file.parent().unwrap().join(included.split('"').next().unwrap());
                let inside = included.canonicalize().unwrap().starts_with(folder.join("src"));
                assert!(inside, "{name}: {} includes {}", file.display(), included.display());
            }
        }
    }
}

fn files(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { folders.push(path) } else { found.push(path) }
        }
    }
    found.into_iter()
}

/// The units that documents and help texts name are those that are packaged.
#[test]
fn documents_name_the_units_that_there_are() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let has_unit = |name: &str| {
        let unit = |kind: &str| {
            root.join(format!("packaging/systemd/{}.{kind}", name.trim_end_matches(&format!(".{kind}")))).exists()
        };
        unit("service") || unit("socket")
    };
    let folders =
        ["docs", "docs/reference", "crates/narval/tests/help", "packaging", "packaging/scale-out", "packaging/systemd"];
    let files = folders.iter().flat_map(|folder| fs::read_dir(root.join(folder)).unwrap());
    let files = files.map(|entry| entry.unwrap().path()).chain([root.join("README.md")]).filter(|path| path.is_file());
    let mut named = 0;
    for file in files {
        let Ok(text) = fs::read_to_string(&file) else { continue };
        for (_, rest) in text.match_indices("systemctl ").map(|(at, found)| text[at..].split_at(found.len())) {
            let words = rest
                .lines()
                .next()
                .unwrap_or_default()
                .split_whitespace()
                .map(|word| word.trim_matches(|c| "`'\".,;)".contains(c)));
            for unit in words
                .take_while(|word| !["#", "&&", "||", "|"].contains(word))
                .filter(|word| word.starts_with("narval"))
            {
                assert!(has_unit(unit), "{}: there is no unit '{unit}'", file.display());
                named += 1;
            }
        }
    }
    assert!(named > 3, "only {named} units are found in the documents");
}
