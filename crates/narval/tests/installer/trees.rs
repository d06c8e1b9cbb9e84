//! `narval tree`, `narval why` and `narval diff`, over closures that real Nix made.

use std::process::Command;

use serde_json::Value;

use crate::lab::Lab;
use crate::support::{Server, stdout};

/// Four texts: `d` refers to `b` and `c`, and both to `a`.
fn diamond(lab: &Lab) -> [String; 4] {
    let text = r#"let a = builtins.toFile "a" "aaaaaaaaaaaaaaaaaaaa"; b = builtins.toFile "b" "${a} and much more";
        c = builtins.toFile "c" "${a}"; d = builtins.toFile "d" "${b} ${c}"; in "${a} ${b} ${c} ${d}""#;
    let mut command = Command::new("nix-instantiate");
    command.args(["--store", &lab.store.uri(), "--eval", "--read-write-mode", "-E", text]);
    let paths = stdout(command.env_remove("NIX_REMOTE").env("HOME", lab.store.dir.path()).output().unwrap());
    let mut paths = paths.trim_matches('"').split(' ').map(str::to_owned);
    std::array::from_fn(|_| paths.next().unwrap())
}

/// The part of each line behind the two sizes, each of a number and a unit.
fn drawn(text: &str) -> Vec<String> {
    let behind = |line: &str| {
        let rest = (0..4).fold(line, |rest, _| rest.trim_start().trim_start_matches(|c: char| c != ' '));
        rest.strip_prefix("  ").unwrap().to_owned()
    };
    text.lines().map(behind).collect()
}

fn base(path: &str) -> &str {
    path.rsplit('/').next().unwrap()
}

#[test]
fn a_closure_is_drawn_once_from_a_store_a_folder_and_a_server() {
    let lab = Lab::new();
    let paths = diamond(&lab);
    let [a, b, c, d] = paths.each_ref().map(|path| base(path));
    let cache = lab.cache_url();
    lab.done(&["copy", "--store", &lab.store.uri(), "--to", &cache, d]);
    let server = Server::narval(&lab.store, &[]);
    let expected =
        [d.to_owned(), format!("├── {b}"), format!("│   └── {a}"), format!("└── {c}"), format!("    └── {a}")];
    for place in [["--store", &lab.store.uri()], ["--from", &cache], ["--from", &server.url()]] {
        // Names that are unsigned are vouched for by their contents.
        let text = lab.done(&["tree", d, place[0], place[1], "--quiet"]);
        assert_eq!(drawn(&text), expected, "{place:?}: {text}");
        let text = lab.done(&["tree", d, place[0], place[1], "--depth", "1"]);
        assert_eq!(text.lines().count(), 4, "{text}");
        assert!(text.lines().next_back().unwrap().starts_with("4 paths, "), "{text}");
    }
    // Sizes are those that Nix reports.
    let lines = lab.done(&["tree", d, "--store", &lab.store.uri(), "--json"]);
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let sizes = crate::support::Nix::Newest
        .nix(lab.store.dir.path(), &["path-info", "--store", &lab.store.uri(), "--size", "--closure-size", &paths[3]]);
    let sizes: Vec<u64> = stdout(sizes).split_whitespace().skip(1).map(|size| size.parse().unwrap()).collect();
    assert_eq!([lines[0]["narSize"].as_u64().unwrap(), lines[0]["closureSize"].as_u64().unwrap()], *sizes);
    assert_eq!((lines[0]["references"][0].as_str(), lines[1]["level"].as_u64()), (Some(b), Some(1)));
    assert!(lab.fails(3, &["tree", &format!("{}-nothing", "0".repeat(32)), "--from", &cache]).contains("nothing"));
}

#[test]
fn why_shows_the_shortest_chain_or_all() {
    let lab = Lab::new();
    let paths = diamond(&lab);
    let [a, b, c, d] = paths.each_ref().map(|path| base(path));
    let store = lab.store.uri();
    let why = |more: &[&str]| drawn(&lab.done(&[&["why", d, a, "--store", &store], more].concat()));
    let (by_b, by_c) = (format!("└── {b}"), format!("└── {c}"));
    let chain = why(&[]);
    assert!(chain[1] == by_b || chain[1] == by_c, "{chain:?}");
    assert_eq!((chain[0].as_str(), chain[2].as_str(), chain.len()), (d, format!("    └── {a}").as_str(), 3));
    assert_eq!(why(&["--all"]).len(), 5, "{:?}", why(&["--all"]));
    // Only chains that lead there.
    let text = lab.done(&["why", d, b, "--store", &store, "--all"]);
    assert_eq!(drawn(&text), [d.to_owned(), by_b], "{text}");
    let json: Value = serde_json::from_str(&lab.done(&["why", d, a, "--store", &store, "--json"])).unwrap();
    assert_eq!((json["why"][0].as_str(), json["why"][2].as_str()), (Some(d), Some(a)));
    assert!(lab.fails(3, &["why", a, d, "--store", &store]).contains("does not depend on"));
}

#[test]
fn diff_shows_what_closures_of_different_places_do_not_share() {
    let lab = Lab::new();
    let paths = diamond(&lab);
    let [a, b, _, d] = paths.each_ref().map(|path| base(path));
    let (store, cache) = (lab.store.uri(), lab.cache_url());
    let added = |name: &str, len: usize| lab.store.add_file(name, "x".repeat(len));
    let [old, new, again] = [added("tool-1.9", 1000), added("tool-1.10", 51_000), added("tool-1.10", 52_000)];
    let diff = |more: &[&str]| lab.done(&[&["diff", "--store", &store], more].concat());
    // `b` has `a` and itself, of the four of `d`.
    let text = diff(&[b, d]);
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines.len() == 3 && lines[0].starts_with("c: ∅ → without version, +"), "{text}");
    assert!(lines[2].starts_with("before: 2 paths, ") && lines[2].contains("after: 4 paths, "), "{text}");
    assert!(diff(&[d, a, "--quiet"]).starts_with("b: without version → ∅, -"), "{text}");
    assert_eq!(diff(&[&old, &new, "--quiet"]), "tool: 1.9 → 1.10, +50 kB");
    // Another build of a version is counted, and listed if its size is worth it or all are.
    let text = diff(&[&new, &again]);
    assert!(text.lines().count() == 1 && text.contains("1 package built anew"), "{text}");
    assert_eq!(diff(&[&new, &again, "--all", "--quiet"]), "tool: 1.10, +1.0 kB");
    assert_eq!(diff(&[d, d, "--quiet"]), "");

    let json = diff(&[&old, &new, "--json"]);
    let lines: Vec<Value> = json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&lines[0]["package"], &lines[0]["versionsAfter"][0]), (&"tool".into(), &"1.10".into()));
    assert_eq!((&lines[0]["pathsBefore"][0], &lines[0]["sizeChange"]), (&base(&old).into(), &50_000.into()));
    assert_eq!((&lines[1]["changed"], &lines[1]["after"]["paths"]), (&1.into(), &1.into()));

    // One side from a cache, and the generations of a profile.
    lab.done(&["copy", "--store", &store, "--to", &cache, d, &old, &new]);
    let (own, profile) = (lab.folder("own"), lab.folder("p"));
    lab.install(&own, &["--profile", &profile, &old]);
    lab.install(&own, &["--profile", &profile, &new]);
    let of_own = |more: &[&str]| lab.done(&[&["diff", "--quiet", "--store", &own, "--from", &cache], more].concat());
    assert_eq!(of_own(&[&format!("{profile}-1-link"), &profile]), "tool: 1.9 → 1.10, +50 kB");
    assert!(of_own(&[&profile, d]).contains("tool: 1.10 → ∅, -51 kB"));
    assert!(lab.fails(3, &["diff", d, &format!("{}-nothing", "0".repeat(32)), "--from", &cache]).contains("nothing"));
}
