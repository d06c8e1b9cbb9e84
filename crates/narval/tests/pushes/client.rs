//! `narval push` to our own server: the requests it takes, parts that resume, restarts; real Nix reads what was pushed.

use std::process::{Command, Output};
use std::time::Duration;

use narval_codec::encode::Encoding;
use narval_nix::Sha256;

use crate::lab::Lab;
use crate::support::{NARVAL, Nix, Store, noise, stdout};

/// Bytes of a part that `narval push` sends.
const PART_LEN: usize = 16 * 1024 * 1024;

/// A store path whose NAR hardly compresses.
fn add_big(store: &Store, name: &str, len: usize) -> String {
    store.add_file(name, noise(1, len))
}

fn command(lab: &Lab, token: &str, args: &[&str]) -> Command {
    let file = lab.store.path(&format!("token-{}", token.len()));
    std::fs::write(&file, token).unwrap();
    let mut command = Command::new(NARVAL);
    command.args(["push", "--json", "--store", &lab.store.uri(), "--to", &lab.server.url()]).args(args);
    command.arg("--token-file").arg(file).env("HOME", lab.store.dir.path()).env_remove("NARVAL_STORE");
    command
}

fn push(lab: &Lab, token: &str, args: &[&str]) -> Output {
    command(lab, token, args).output().unwrap()
}

/// What the summary says.
fn summary(output: Output) -> serde_json::Value {
    let text = stdout(output);
    let last = text.lines().last().unwrap();
    serde_json::from_str(last).unwrap()
}

fn number(summary: &serde_json::Value, key: &str) -> u64 {
    summary[key].as_u64().unwrap_or_else(|| panic!("{key}: {summary}"))
}

#[test]
fn a_closure_takes_one_query_one_upload_per_nar_and_one_commit() {
    let lab = Lab::new();
    let token = lab.token("push");
    let (tree, hello) = (lab.store.add_tree("tree"), lab.store.add_file("hello", "hello"));
    let first = summary(push(&lab, &token, &[&tree, &hello]));
    assert_eq!((number(&first, "pushed"), number(&first, "already")), (2, 0));
    // The question, two NARs, the commit; nix-cache-info came before.
    assert_eq!(number(&first, "requests"), 4);
    let again = summary(push(&lab, &token, &[&tree, &hello]));
    assert_eq!((number(&again, "pushed"), number(&again, "already"), number(&again, "requests")), (0, 2, 1));
    // Three parts, and one question whether there were some before.
    let big = add_big(&lab.store, "big", 2 * PART_LEN + 1_000_000);
    let large = summary(push(&lab, &token, &[&big]));
    assert_eq!((number(&large, "pushed"), number(&large, "requests")), (1, 6));
    // The same NAR under another name is known.
    let same = lab.store.path("other-name");
    std::fs::copy(lab.store.real(&big), &same).unwrap();
    let same = lab.store.add(&same);
    let known = summary(push(&lab, &token, &[&same]));
    assert_eq!(number(&known, "pushed"), 1);
    assert!(number(&known, "sent") <= PART_LEN as u64, "{known}");
    let bare = lab.store.add_file("bare", "not compressed");
    summary(push(&lab, &token, &["--no-compression", &bare]));
    for nix in Nix::BOTH {
        for path in [&tree, &hello, &big, &same, &bare] {
            lab.pull(nix, path);
        }
    }
}

#[test]
fn parts_of_an_earlier_run_are_not_sent_again() {
    let lab = Lab::new();
    let token = lab.token("push");
    let big = add_big(&lab.store, "big", 2 * PART_LEN);
    let nar = lab.store.dump(&big);
    let mut file = Vec::new();
    let mut take = |bytes: &[u8]| {
        file.extend_from_slice(bytes);
        Ok(())
    };
    Encoding::Zstd(1).encode(&mut &nar[..], nar.len() as u64, Sha256::of(&nar), &mut take).unwrap();
    let url = format!("/_narval/v1/nar/{}.nar.zst", Sha256::of(&nar).to_nix32());
    assert_eq!(lab.put(&format!("{url}?offset=0"), &token, &file[..PART_LEN]).status, 202);
    let output = push(&lab, &token, &[&big]);
    let message = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        message.contains(&format!("\"offset\":{PART_LEN}")) && message.contains("\"state\":\"resumed\""),
        "{message}"
    );
    let rest = summary(output);
    assert_eq!(number(&rest, "sent"), (file.len() - PART_LEN) as u64, "{rest}");
    lab.pull(Nix::Newest, &big);
    // Parts of something else: it begins anew.
    let other = add_big(&lab.store, "other", 2 * PART_LEN + 1);
    let nar = lab.store.dump(&other);
    let url = format!("/_narval/v1/nar/{}.nar.zst", Sha256::of(&nar).to_nix32());
    assert_eq!(lab.put(&format!("{url}?offset=0"), &token, &[7; 1000]).status, 202);
    let whole = summary(push(&lab, &token, &[&other]));
    assert_eq!(number(&whole, "pushed"), 1);
    lab.pull(Nix::Newest, &other);
}

#[test]
fn a_client_that_may_not_push_is_told_why() {
    let lab = Lab::new();
    let path = lab.store.add_file("a", "a");
    for (token, status) in [("nv1_none_none".to_owned(), "401"), (lab.token("pull"), "403")] {
        let output = push(&lab, &token, &[&path]);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(5), "{message}");
        assert!(message.contains(status) && message.lines().count() == 1, "{message}");
    }
}

#[test]
fn a_killed_server_loses_nothing_that_was_pushed() {
    let mut lab = Lab::new();
    let token = lab.token("push");
    let paths: Vec<_> = (0..6).map(|number| add_big(&lab.store, &format!("big-{number}"), 900_000 + number)).collect();
    let large = add_big(&lab.store, "large", PART_LEN + 5_000_000);
    let all: Vec<&str> = paths.iter().chain([&large]).map(String::as_str).collect();
    for round in 0..4_u32 {
        let one: Vec<&str> = [&["--attempts", "2"][..], &all].concat();
        let child = command(&lab, &token, &one).output_in_background();
        std::thread::sleep(Duration::from_millis(u64::from(100 + 150 * round)));
        lab.restart("-KILL");
        // It may have failed: its server has another port now.
        child.join().unwrap();
    }
    let last = summary(push(&lab, &token, &all));
    assert_eq!(number(&last, "pushed") + number(&last, "already"), 7, "{last}");
    for path in &all {
        lab.pull(Nix::Newest, path);
    }
}

trait InBackground {
    fn output_in_background(self) -> std::thread::JoinHandle<Output>;
}

impl InBackground for Command {
    fn output_in_background(mut self) -> std::thread::JoinHandle<Output> {
        std::thread::spawn(move || self.output().unwrap())
    }
}
