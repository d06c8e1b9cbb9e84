//! The documentation as a book: every page is in it, and every link leads somewhere.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails may say so")]

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Component, Path, PathBuf};

/// The repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// All pages, relative to the repository.
fn pages() -> Vec<PathBuf> {
    let mut pages = Vec::new();
    for folder in ["", "docs", "docs/reference"] {
        for entry in fs::read_dir(root().join(folder)).unwrap() {
            let name = entry.unwrap().file_name();
            if Path::new(&name).extension().is_some_and(|extension| extension == "md") {
                pages.push(Path::new(folder).join(name));
            }
        }
    }
    pages.sort();
    pages
}

/// The lines of a page that are text, and not of a code block.
fn prose(page: &Path) -> Vec<String> {
    let text = fs::read_to_string(root().join(page)).unwrap();
    let mut in_block = false;
    let mut prose = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        } else if !in_block {
            prose.push(line.to_owned());
        }
    }
    assert!(!in_block, "{}: a code block does not end", page.display());
    prose
}

/// The anchors of a page: of its headings, as GitHub and mdbook make them.
fn anchors(page: &Path) -> BTreeSet<String> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let mut anchors = BTreeSet::new();
    for line in prose(page) {
        let title = line.trim_start_matches('#');
        if title.len() == line.len() || !title.starts_with(' ') {
            continue;
        }
        let plain = title.trim().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        let name: String = plain.map(|c| if c == ' ' { '-' } else { c }).flat_map(char::to_lowercase).collect();
        let count = seen.entry(name.clone()).or_default();
        anchors.insert(if *count == 0 { name } else { format!("{name}-{count}") });
        *count += 1;
    }
    anchors
}

/// The targets of the links and pictures of a page.
fn targets(page: &Path) -> Vec<String> {
    let mut targets = Vec::new();
    for line in prose(page) {
        // What is quoted as code is not a link.
        let text: Vec<_> = line.split('`').step_by(2).collect();
        let text = text.join("`");
        for part in text.split("](").skip(1) {
            targets.push(part.split(')').next().unwrap().to_owned());
        }
    }
    targets
}

/// A path without `.` and `..`.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => assert!(normal.pop(), "{} leads out of the repository", path.display()),
            Component::CurDir => {}
            other => normal.push(other),
        }
    }
    normal
}

#[test]
fn links_lead_somewhere() {
    let (mut checked, mut broken) = (0, Vec::new());
    for page in pages() {
        for target in targets(&page) {
            if target.starts_with("https://") || target.starts_with("http://") {
                continue;
            }
            checked += 1;
            let (file, anchor) = target.split_once('#').map_or((target.as_str(), None), |(file, at)| (file, Some(at)));
            let to = if file.is_empty() { page.clone() } else { normal(&page.parent().unwrap().join(file)) };
            let is_there = root().join(&to).exists();
            let has_anchor = || anchor.is_none_or(|anchor| anchors(&to).contains(anchor));
            // The book has only what is below docs/.
            let leaves_the_book = page.starts_with("docs") && !to.starts_with("docs");
            if !is_there || leaves_the_book || !has_anchor() {
                broken.push(format!("{}: {target}", page.display()));
            }
        }
    }
    assert!(checked > 150, "only {checked} links are found");
    assert!(broken.is_empty(), "broken links:\n{}", broken.join("\n"));
}

#[test]
fn every_page_is_in_the_book_once() {
    let summary = targets(Path::new("docs/SUMMARY.md"));
    let unique: BTreeSet<_> = summary.iter().map(|target| Path::new("docs").join(target)).collect();
    assert_eq!(unique.len(), summary.len(), "a page is in the summary twice");
    let there = pages().into_iter().filter(|page| page.starts_with("docs") && !page.ends_with("SUMMARY.md"));
    assert_eq!(unique, there.collect());
}

/// mdbook would list a page in the order of the summary, under its title.
#[test]
fn every_page_starts_with_a_title() {
    for page in pages() {
        let first = prose(&page).into_iter().next().unwrap_or_default();
        assert!(first.starts_with("# "), "{}: {first}", page.display());
    }
}

#[test]
fn anchors_are_those_of_the_headings() {
    let anchors = anchors(Path::new("docs/configuration.md"));
    assert!(anchors.contains("several-caches") && anchors.contains("the-configuration-file-of-narval-serve"));
    assert!(targets(Path::new("README.md")).contains(&"docs/operating.md#metrics".to_owned()));
}
