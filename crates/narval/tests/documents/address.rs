//! The address of the repository is in Cargo.toml; the documents repeat it, and the version.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::page::{address, blocks, read, root};

/// The files that have addresses of the repository.
fn files() -> Vec<PathBuf> {
    let mut files = vec![root().join("README.md")];
    for folder in ["docs", "packaging/prometheus"] {
        files.extend(fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap().path()));
    }
    files.retain(|file| file.extension().is_some_and(|extension| ["md", "yml"].iter().any(|one| extension == *one)));
    files
}

/// What stands between two texts, everywhere.
fn between<'a>(text: &'a str, start: &str, end: &[char]) -> Vec<&'a str> {
    text.split(start).skip(1).map(|rest| rest.split(end).next().unwrap()).collect()
}

/// With `NARVAL_UPDATE_ADDRESS=1`, the documents are changed.
#[test]
fn documents_have_the_address_and_the_version_of_cargo_toml() {
    let (address, version) = (address(), env!("CARGO_PKG_VERSION"));
    let readme = read("README.md");
    let old = between(&readme, "git clone ", &[' ', '\n'])[0];
    let downloads = read("docs/pushing.md");
    let old_version = between(&downloads, "/releases/download/v", &['/'])[0];
    let download = |address: &str, version: &str| format!("{address}/releases/download/v{version}/narval-{version}-");
    if (old, old_version) != (&*address, version) && std::env::var_os("NARVAL_UPDATE_ADDRESS").is_some() {
        for file in files() {
            let text = fs::read_to_string(&file).unwrap();
            let new = text.replace(&download(old, old_version), &download(&address, version)).replace(old, &address);
            fs::write(file, new).unwrap();
        }
    }
    let mut found = 0;
    for file in files() {
        let text = fs::read_to_string(&file).unwrap();
        let links = between(&text, "runbook_url: \"", &['"'])
            .into_iter()
            .map(|link| link.split("/runbook.html").next().unwrap());
        let places = between(&text, "git clone ", &[' ', '\n']).into_iter();
        let places = places
            .chain(between(&text, "{ git = \"", &['"']))
            .chain(between(&text, "url = \"git+", &['"']))
            .chain(links);
        for place in places {
            assert_eq!(place, address, "{}: see the first lines of this test", file.display());
            found += 1;
        }
        for release in between(&text, "RELEASE: ", &['\n']) {
            assert!(release.starts_with(&download(&address, version)), "{}: {release}", file.display());
            found += 1;
        }
    }
    assert!(found > 20, "only {found} addresses are found");
}

/// The first lines of the library's page, in a project of its own: the dependency, and the first program.
#[test]
fn the_library_is_a_dependency_as_its_page_says() {
    let page = read("docs/narval-http.md");
    let blocks = blocks(&page);
    let block = |language: &str| &blocks.iter().find(|block| block.language == language).unwrap().text;
    let dependency = block("toml");
    let line = format!("narval-http = {{ git = \"{}\" }}", address());
    assert!(dependency.contains(&line), "{dependency}");
    // Where the sources are now: cargo looks for a crate of this name in a repository as in a folder.
    let crates = root().join("crates/narval-http");
    let dependency = dependency.replace(&line, &format!("narval-http = {{ path = \"{}\" }}", crates.display()));
    let package = "[package]\nname = \"mine\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n";
    cargo(&["build"], &format!("{package}{dependency}"), &[("main.rs", block("rust,no_run"))]);
}

/// A project of its own, which the page shows, and the same with another library, which is longer.
#[test]
fn the_small_service_of_the_page_is_a_project_with_tests() {
    let service = root().join("crates/narval-http/service");
    let source = |path: &str| fs::read_to_string(service.join(path)).unwrap();
    let (main, axum) = (source("narval/src/main.rs"), source("axum/src/main.rs"));
    let page = read("docs/narval-http.md");
    let shown: Vec<String> =
        blocks(&page).into_iter().filter(|block| block.language == "rust,ignore").map(|block| block.text).collect();
    let program = |main: &str| main.split("\n#[cfg(test)]").next().unwrap().to_owned();
    let expected = [program(&main), program(&axum)];
    for (shown, expected) in shown.iter().zip(&expected) {
        assert_eq!(shown.trim_end(), expected.trim_end(), "the page shows the program as it is");
    }
    assert_eq!(shown.len(), expected.len());
    let lines = |text: &str| text.lines().filter(|line| !line.is_empty() && !line.starts_with("//")).count();
    assert!(lines(&expected[0]) <= 90 && lines(&expected[0]) < lines(&expected[1]));
    let here = format!("path = \"{}\"", root().join("crates/narval-http").display());
    let manifest = source("narval/Cargo.toml").replace("path = \"../..\"", &here);
    let tests = source("narval/src/tests.rs");
    cargo(&["test"], &manifest, &[("main.rs", &main), ("tests.rs", &tests)]);
}

/// Runs cargo in a folder elsewhere, with the profiles of this workspace and the versions of its lock file: what is compiled already is
/// used.
fn cargo(command: &[&str], manifest: &str, sources: &[(&str, &str)]) {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("src")).unwrap();
    let workspace = read("Cargo.toml");
    let profiles: String = workspace
        .split("\n[")
        .filter(|part| part.starts_with("profile.dev"))
        .map(|part| format!("[{part}\n"))
        .collect();
    fs::write(folder.path().join("Cargo.toml"), format!("{manifest}\n{profiles}")).unwrap();
    for (name, source) in sources {
        fs::write(folder.path().join("src").join(name), source).unwrap();
    }
    fs::copy(root().join("Cargo.lock"), folder.path().join("Cargo.lock")).unwrap();
    let target = Path::new(env!("CARGO_BIN_EXE_narval")).ancestors().nth(2).unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(command).args(["--offline", "--target-dir"]).arg(target).current_dir(folder.path());
    let output = cargo.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&[output.stdout, output.stderr].concat()));
    for name in ["mine", "small-service"] {
        // Only one of them is there, if any.
        let _ = fs::remove_file(target.join("debug").join(name));
    }
}
