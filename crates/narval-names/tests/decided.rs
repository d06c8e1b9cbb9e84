//! Which names are decided, on a channel whose right answers are known: none wrong, and all that are not ambiguous.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails may say so")]

mod generated;

use std::collections::HashMap;

use narval_names::{
    Builder, Decision, Evidence, Index, SystemWalk, join, read_evaluation, read_packages, read_store_paths,
};
use narval_nix::StorePath;

use generated::{Channel, Name};

/// What the narinfos and listings of a cache tell.
struct Cache<'a>(&'a Channel);

impl Evidence for Cache<'_> {
    fn references(&mut self, paths: &[StorePath]) -> Vec<Option<Vec<StorePath>>> {
        paths.iter().map(|path| self.0.references.get(path).cloned()).collect()
    }

    fn deriver(&mut self, path: &StorePath) -> Option<StorePath> {
        self.0.derivers.get(path).cloned()
    }

    fn c_library(&mut self, path: &StorePath) -> Vec<String> {
        self.0.systems.get(path).map(|system| (*system).to_owned()).into_iter().collect()
    }
}

fn channel() -> Channel {
    let names: Vec<Name> = (0..1000)
        .map(|at| Name {
            name: if at % 7 == 0 { format!("{at}bit") } else { format!("tool{at}") },
            version: format!("{}.{}", at % 9, at % 31),
            description: format!("The tool of number {at}"),
        })
        .collect();
    Channel::of(&names, 1500)
}

fn index(builder: Builder) -> Index {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("index");
    builder.write(&mut std::fs::File::create(&file).unwrap()).unwrap();
    Index::open(&file).unwrap()
}

#[test]
fn the_two_files_decide_what_is_not_ambiguous_and_nothing_wrongly() {
    let channel = channel();
    let mut builder = Builder::default();
    read_packages(channel.packages_json().as_bytes(), &mut builder).unwrap();
    read_store_paths(channel.store_paths().as_bytes(), &mut builder).unwrap();
    let index = index(builder);
    let mut named: HashMap<&str, Vec<&StorePath>> = HashMap::new();
    for path in &channel.paths {
        named.entry(path.name()).or_default().push(path);
    }
    let (mut walk, mut evidence) = (SystemWalk::default(), Cache(&channel));
    let (mut right, mut open) = (0, 0);
    for answer in &channel.answers {
        let package = index.package(&answer.attribute).unwrap().unwrap();
        let message = join(&index, &package, (&answer.output, &package.system), &mut walk, &mut evidence).unwrap();
        let fits = |path: &&&StorePath| channel.systems.get(**path).is_none_or(|system| *system == package.system);
        let fitting = named[answer.path.name()].iter().filter(fits).count();
        let what = format!("{} {}", answer.attribute, answer.output);
        match message {
            Decision::One(path) => {
                assert_eq!(path, answer.path, "{what}");
                right += 1;
            }
            Decision::Several { left, .. } => {
                assert!(fitting > 1 || answer.has_twin, "{what} is not ambiguous: {left:?}");
                assert!(left.contains(&answer.path), "{what} is not among the candidates: {left:?}");
                open += 1;
            }
            other => panic!("{what}: {other:?}"),
        }
    }
    // Variants and twins are left open.
    assert!(open > 0 && right * 100 >= (right + open) * 94, "{right} right, {open} open");
}

#[test]
fn an_evaluation_decides_all() {
    let channel = channel();
    let mut builder = Builder::default();
    let attributes = read_evaluation(channel.evaluation().as_bytes(), &mut builder).unwrap();
    let index = index(builder);
    for answer in &channel.answers {
        let exact = index.exact(&answer.attribute).unwrap();
        let found: Vec<_> = exact.iter().filter(|exact| exact.output == answer.output).collect();
        assert_eq!(found.len(), 1, "{}", answer.attribute);
        assert_eq!(found[0].path, answer.path, "{}", answer.attribute);
    }
    assert!(attributes >= channel.packages.len() * 9 / 10);
}
