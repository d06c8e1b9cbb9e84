//! A closure that lies in all sources of a server: its live store, the cache that is written, and an upstream.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::lab::{Lab, Nar};
use crate::support::{Nix, Server, Store, hash_part, stdout};

const PATH: &str = "00bgd045z0d4icpbc2yyz4gx48ak44la-top";

/// A text file that refers to a path.
fn referring_to(store: &Store, name: &str, path: &str) -> String {
    let expression = format!("builtins.toFile \"{name}\" (builtins.storePath \"{path}\")");
    let args = ["eval", "--raw", "--impure", "--store", &store.uri(), "--expr", &expression];
    stdout(Nix::Newest.nix(store.dir.path(), &args))
}

/// A batch lookup: each hash part, with its narinfo, or with the word that stands for it.
fn batch(lab: &Lab, want: &str, parts: &[&str]) -> BTreeMap<String, String> {
    let answer = lab.post(&format!("/batch-lookup-v1?want={want}"), "", parts.join("\n").as_bytes());
    let mut rest = answer.text();
    let mut entries = BTreeMap::new();
    loop {
        let (line, after) = rest.split_once('\n').unwrap();
        let (part, word) = line.split_once(' ').unwrap();
        if part == "end" {
            assert_eq!((word.parse(), after), (Ok(entries.len()), ""));
            return entries;
        }
        let length = word.parse().unwrap_or(0);
        let value = if length > 0 { &after[..length] } else { word };
        entries.insert(part.to_owned(), value.to_owned());
        rest = &after[length..];
    }
}

#[test]
fn a_closure_is_looked_up_in_all_sources_in_order() {
    let (live, other) = (Store::new(), Store::new());
    let (key_file, key) = other.key("upstream-1");
    let log = other.path("upstream.log");
    let args = ["--sign-key", key_file.to_str().unwrap(), "--access-log", log.to_str().unwrap()];
    let upstream = Server::narval(&other, &args);
    let asked = |request: &str| std::fs::read_to_string(&log).unwrap_or_default().matches(request).count();
    let lab = Lab::with(&["--store", &live.uri(), "--upstream", &upstream.url(), "--upstream-key", &key]);

    let here = live.add_file("live", "of the live store");
    let last = other.add_file("last", "of the upstream");
    let next = referring_to(&other, "next", &last);
    let token = lab.token("push");
    let nar = Nar::of(b"of the cache");
    assert_eq!(lab.put(&nar.url(), &token, &nar.bytes).status, 201);
    let base = |path: &str| path.rsplit('/').next().unwrap().to_owned();
    let narinfo = nar.narinfo(PATH, &[&base(&here), &base(&next)]);
    let put = lab.put(&format!("/{}.narinfo", hash_part(PATH)), &token, narinfo.as_bytes());
    assert_eq!(put.status, 201, "{}", put.text());

    let paths = [(PATH, "cache"), (&here, "store"), (&next, "upstream"), (&last, "upstream")];
    let json = |route: &str, path: &str| -> Value {
        let answer = lab.get(&format!("/_narval/page/{route}/{}", hash_part(path)));
        serde_json::from_slice(&answer.body).unwrap()
    };
    let closure = json("closure", PATH);
    let mut shown: Vec<_> =
        closure["nodes"].as_array().unwrap().iter().map(|node| node["hash"].as_str().unwrap()).collect();
    let mut want: Vec<_> = paths.iter().map(|(path, _)| hash_part(path)).collect();
    shown.sort_unstable();
    want.sort_unstable();
    assert_eq!((shown, &closure["missing"]), (want.clone(), &0.into()));
    let words =
        [("cache", "pushed to this cache"), ("store", "this machine’s store"), ("upstream", "an upstream cache")];
    for (path, source) in paths {
        let shown = lab.get(&format!("/_narval/path/{}", hash_part(path)));
        let message = words.iter().find(|(key, _)| *key == source).unwrap().1;
        assert!(shown.text().contains(&format!("<dd>{message}</dd>")), "{path}: {}", shown.text());
    }
    // Opening the page fetches none of the closure's NARs.
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(asked("\"GET /nar/"), 0);

    let found = batch(&lab, "closure", &[hash_part(PATH)]);
    assert_eq!(found.keys().map(String::as_str).collect::<Vec<_>>(), want);
    for (part, narinfo) in &found {
        assert_eq!(narinfo, lab.get(&format!("/{part}.narinfo")).text());
    }
    // A client that asks for a closure does: they are fetched ahead.
    let until = Instant::now() + Duration::from_secs(60);
    while asked("\"GET /nar/") < 2 {
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(5));
    }

    // What is kept of the upstream is present; nobody asks for what is not.
    let unknown = other.add_file("unknown", "never asked for");
    let parts = [hash_part(PATH), hash_part(&here), hash_part(&next), hash_part(&last), hash_part(&unknown)];
    let presence = batch(&lab, "presence", &parts);
    let word = |path: &str| presence[hash_part(path)].as_str();
    assert_eq!([PATH, &here, &next, &last, &unknown].map(word), ["present", "present", "present", "present", "absent"]);
    assert_eq!(asked(hash_part(&unknown)), 0);
}
