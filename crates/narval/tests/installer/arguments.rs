//! What all commands have in common: how store paths are given, and what `--json` prints.

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::Value;

use crate::lab::Lab;
use crate::support::{Server, hash_part, stdout};

/// Arguments named PATH that are files; and that of a job, which `tests/ci` runs.
const OTHERS: [&str; 3] = ["ci", "nar-dump", "nar-hash"];

/// The commands whose output is a file's, a program's or of a format of Nix.
const WITHOUT_JSON: [&str; 4] = ["cat", "run", "shell", "nar-ls"];

/// The pages of `--help` that have a line with this text, each as often as it has one.
fn pages_with(is_meant: impl Fn(&str) -> bool) -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/help");
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let page = entry.unwrap().path();
        let text = std::fs::read_to_string(&page).unwrap();
        let arguments = text.lines().filter(|line| !line.starts_with("Usage"));
        let name = page.file_stem().unwrap().to_str().unwrap();
        found.extend(arguments.filter(|line| is_meant(line)).map(|_| name.to_owned()));
    }
    found.sort();
    found
}

/// A lab with a data folder that has all paths, and a server for it.
struct Place {
    lab: Lab,
    root: String,
    data: String,
    server: Server,
}

impl Place {
    fn new() -> Self {
        let lab = Lab::new();
        let (root, data) = (lab.folder("mine"), lab.folder("data"));
        lab.install(&root, &[&lab.top, &lab.hello]);
        std::fs::write(lab.folder("key"), lab.done(&["key", "generate", "test-1"])).unwrap();
        // As a channel, but not compressed.
        std::fs::create_dir(lab.folder("channel")).unwrap();
        let packages = r#"{"version":2,"packages":{"hello":{"name":"hello-1.0","meta":{"mainProgram":"hello"}}}}"#;
        std::fs::write(lab.folder("channel/packages.json.br"), packages).unwrap();
        std::fs::write(lab.folder("channel/store-paths.xz"), format!("{}\n", lab.hello)).unwrap();
        let token = lab.folder("token");
        let allowed = ["--push", "--pin", "--delete", "--release", "api,prod"];
        let create = [&["token", "create", "test", "--data", &data], &allowed[..]].concat();
        std::fs::write(&token, lab.done(&create)).unwrap();
        let mut command = lab.command(&["serve", "--listen", "127.0.0.1:0", "--data", &data]);
        command.args(["--store", &lab.store.uri(), "--sign-key", &lab.folder("key")]);
        let server = Server::start(command, &[]);
        lab.done(&["push", "--store", &root, "--to", &server.url(), "--token-file", &token, &lab.top, &lab.hello]);
        for _ in 0..2 {
            let release = ["push", "--store", &root, "--to", &server.url(), "--token-file", &token, &lab.hello];
            lab.done(&[&release[..], &["--release", "api"]].concat());
        }
        Self { lab, root, data, server }
    }

    /// The command line of `template`, in which these words stand for places.
    fn fill(&self, template: &str, path: &str, round: &str) -> Vec<String> {
        let (lab, folder) = (&self.lab, self.lab.folder(round));
        let words = template.split(' ').map(|word| {
            let word = word.replace("{PATH}", path).replace("{root}", &self.root).replace("{data}", &self.data);
            let word = word.replace("{channel}", &lab.folder("channel"));
            let word = word.replace("{cache}", &lab.cache_url()).replace("{new}", &folder);
            let word = word
                .replace("{key}", &lab.folder("key"))
                .replace("{url}", &self.server.url())
                .replace("{top}", &lab.top);
            let word = word.replace("{token}", &lab.folder("token"));
            word.replace("{tree}", &lab.tree).replace("{hello}", &lab.hello)
        });
        words.collect()
    }
}

/// Each argument that takes a store path: the page of its command's help, what is run before it, and the command.
const PATHS: [(&str, &str, &str); 22] = [
    ("install", "", "install --offline --from {cache} --store {root} {PATH}"),
    ("run", "", "run --offline --store {root} {PATH} -- true"),
    ("shell", "", "shell --offline --store {root} {PATH} -- true"),
    ("copy", "", "copy --store {root} --to file://{new} {PATH}"),
    ("push", "", "push --store {root} --to file://{new} {PATH}"),
    ("verify", "", "verify --no-check-sigs --store {root} {PATH}"),
    ("path-info", "", "path-info --from {cache} --store {root} {PATH}"),
    ("path-info", "", "path-info --from {cache} --store {root} {top} --why {PATH}"),
    ("tree", "", "tree --from {cache} --store {root} {PATH}"),
    ("why", "", "why --from {cache} --store {root} {PATH} {tree}"),
    ("why", "", "why --from {cache} --store {root} {top} {PATH}"),
    ("why-slow", "", "why-slow --from {url} {PATH}"),
    ("ls", "", "ls --no-check-sigs --from {cache} --store {root} {PATH}"),
    ("cat", "", "cat --no-check-sigs --from {cache} --store {root} {PATH}"),
    (
        "remove",
        "install --offline --store {root} --profile {new} {PATH}",
        "remove --store {root} --profile {new} {PATH}",
    ),
    ("warm", "", "warm --store {root} --nar-cache {new} {PATH}"),
    ("pin-add", "", "pin add --data {data} name {PATH}"),
    ("pin-remove", "pin add --data {data} name {PATH}", "pin remove --data {data} name {PATH}"),
    ("cache-why", "", "cache why --data {data} {PATH}"),
    ("cache-sign", "", "cache sign --sign-key {key} --data {data} {PATH}"),
    ("cache-delete", "", "cache delete --referrers --data {data} {PATH}"),
    ("doctor", "", "doctor --no-check-sigs --server {url} --path {PATH}"),
];

/// One parser for all of them: in full, HASH-NAME, the hash part, where the files are, and a symlink to any of these.
#[test]
fn every_argument_takes_a_path_in_five_forms() {
    let mut tested: Vec<_> = PATHS.iter().map(|(page, ..)| (*page).to_owned()).collect();
    tested.sort();
    let names = ["PATH>", "PATH]", "DEPENDENCY>"];
    let mut pages = pages_with(|line| line.starts_with(' ') && names.iter().any(|name| line.contains(name)));
    pages.retain(|page| !OTHERS.contains(&page.as_str()));
    assert_eq!(tested, pages);

    let place = Place::new();
    for (at, (page, before, template)) in PATHS.into_iter().enumerate() {
        let lab = &place.lab;
        // A text and a program, so that there is something to run, to print and to depend on.
        let path = match (page, template.contains("{top}")) {
            ("run" | "shell", _) => &lab.hello,
            ("path-info" | "why", true) => &lab.tree,
            _ => &lab.top,
        };
        let base = path.rsplit('/').next().unwrap();
        let real = format!("{}{path}", place.root);
        let (to_path, to_real) = (lab.folder(&format!("to-path-{at}")), lab.folder(&format!("to-real-{at}")));
        symlink(path, &to_path).unwrap();
        symlink(&real, &to_real).unwrap();
        let below = [format!("{base}/bin"), format!("{path}/bin")];
        let mut forms = vec![path.as_str(), base, hash_part(path), &real, &to_path, &to_real];
        if !["ls", "cat"].contains(&page) {
            forms.extend(below.iter().map(String::as_str));
        }
        // Deleted once, it is gone.
        let forms: Vec<&str> = forms.into_iter().filter(|form| page != "cache-delete" || *form != base).collect();
        for (round, form) in forms.into_iter().enumerate() {
            let new = format!("new-{at}-{round}");
            for template in [before, template].into_iter().filter(|template| !template.is_empty()) {
                let arguments = place.fill(template, form, &new);
                let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
                let output = lab.run(&arguments);
                let output_text = String::from_utf8_lossy(&output.stderr).into_owned();
                let expected: &[&str] = match page {
                    // Deleted by the first form.
                    "cache-delete" if round > 0 => &["not in the cache", "does not have"],
                    // It asks nobody.
                    "why-slow" => &["is no Narval server with upstreams"],
                    _ => &[],
                };
                let is_as_expected = expected.iter().any(|words| output_text.contains(words));
                assert!(output.status.success() == expected.is_empty(), "{arguments:?}: {output_text}");
                assert!(expected.is_empty() || is_as_expected, "{arguments:?}: {output_text}");
            }
        }
    }
}

/// The path of another store is refused with the name of that store, and a path that another usual store has is found there.
#[test]
fn a_path_of_another_store_names_that_store() {
    let lab = Lab::new();
    let (own, other) = (lab.folder(".local/share/narval"), lab.folder("other"));
    lab.install(&own, &[&lab.hello]);
    lab.install(&other, &[&lab.top]);
    let real = format!("{own}{}", lab.hello);
    let output_text = lab.fails(2, &["verify", "--store", &other, &real]);
    assert!(output_text.contains(&format!("--store '{own}'")) && output_text.lines().count() == 1, "{output_text}");
    let to = format!("file://{}", lab.folder("to"));
    let empty = format!("file://{}", lab.folder("empty"));
    std::fs::create_dir(lab.folder("empty")).unwrap();
    std::fs::write(format!("{}/nix-cache-info", lab.folder("empty")), "StoreDir: /nix/store\n").unwrap();
    let commands = ["install", "run", "shell", "tree", "path-info"].map(|command| vec![command, "--from", &empty]);
    let dry = vec!["install", "--dry-run", "--from", &empty];
    let why = vec!["why", "--from", &empty, &lab.hello];
    let local = [vec!["push", "--to", &to], vec!["copy", "--to", &to], vec!["verify"]];
    for command in commands.into_iter().chain(local).chain([dry, why]) {
        let output_text = lab.fails(3, &[&command[..], &["--store", &other, &lab.hello]].concat());
        assert!(output_text.contains(&format!("--store {own}")), "{command:?}: {output_text}");
    }
}

/// Each command with `--json`: the page of its help, a command that succeeds, and one that fails.
const JSON: [(&str, &str, &str); 47] = [
    ("install", "install --from {cache} --store {root} {hello}", "install --offline --store {new} {hello}"),
    ("copy", "copy --store {root} --to file://{new} {hello}", "copy --store {new} --to file://{new} {hello}"),
    ("push", "push --store {root} --to file://{new} {hello}", "push --store {new} --to file://{new} {hello}"),
    ("verify", "verify --no-check-sigs --store {root}", "verify --store {new}"),
    ("path-info", "path-info -r --from {cache} --store {root} {top}", "path-info --offline --store {new} {top}"),
    ("tree", "tree --from {cache} --store {root} {top}", "tree --offline --store {new} {top}"),
    ("why", "why --from {cache} --store {root} {top} {tree}", "why --from {cache} --store {root} {tree} {top}"),
    ("diff", "diff --from {cache} --store {root} {hello} {top}", "diff --offline --store {new} {hello} {top}"),
    ("ls", "ls --no-check-sigs --from {cache} {hello}", "ls --no-check-sigs --from {cache} {hello}/absent"),
    ("profiles", "profiles --store {root}", "profiles --store {root} --absent"),
    ("remove", "remove --store {root} --profile {root}/p hello", "remove --store {root} --profile {root}/p hello"),
    ("search", "search hello --from {url}", "search absent --from {url}"),
    ("info", "info hello --from {url}", "info absent --from {url}"),
    ("which-package", "which-package hello --channel {channel}", "which-package absent --channel {channel}"),
    ("update", "update --channel none", "update --channel {new}"),
    ("upgrade", "upgrade --from {url} --store {root} --profile {root}/p", "upgrade --from {url} --profile {new}/p"),
    ("rollback", "rollback --profile {root}/p", "rollback --profile {new}/p"),
    ("list", "list --profile {root}/p", "list --profile {new}/p"),
    ("history", "history --profile {root}/p", "history --profile {new}/p"),
    ("env", "env --shell sh --profile {root}/p", "env --profile {root}"),
    ("gc", "gc --dry-run --store {root}", "gc --dry-run --store {new}"),
    ("doctor", "doctor --no-check-sigs --server {url}", "doctor --server {url} --path absent"),
    ("top", "top --once {url}", "top --once http://127.0.0.1:1"),
    ("releases", "releases api --from {url}", "releases absent --from {url}"),
    (
        "release-show",
        "release show api --no-check-sigs --from {url}",
        "release show absent --no-check-sigs --from {url}",
    ),
    (
        "release-promote",
        "release promote api 1 --as prod --to {url} --token-file {token}",
        "release promote api 99 --as prod --to {url} --token-file {token}",
    ),
    (
        "release-pin",
        "release pin api 1 --to {url} --token-file {token}",
        "release pin api 99 --to {url} --token-file {token}",
    ),
    (
        "release-forget",
        "release forget prod --all --to {url} --token-file {token}",
        "release forget api 99 --to {url} --token-file {token}",
    ),
    (
        "follow",
        "follow @api --once --switch true --no-check-sigs --from {url} --store {root} --profile {root}/follow",
        "follow @absent --once --switch true --no-check-sigs --from {url} --store {root} --profile {root}/follow",
    ),
    ("machines", "machines --data {data}", "machines --data {new}"),
    ("token-list", "token list --data {data}", "token list --data {new}"),
    ("cache-gc", "cache gc --data {data}", "cache gc --data {new}"),
    ("cache-sign", "cache sign --all --sign-key {key} --data {data}", "cache sign --all --data {data}"),
    ("cache-stats", "cache stats --data {data}", "cache stats --data {new}"),
    ("cache-list", "cache list --data {data}", "cache list --data {new}"),
    ("cache-create", "cache create made --data {data}", "cache create nar --data {data}"),
    ("cache-settings", "cache settings made --data {data}", "cache settings other --data {data}"),
    ("cache-jobs", "cache jobs --data {data}", "cache jobs --data {new}"),
    ("cache-recompress", "cache recompress --data {data}", "cache recompress --data {new}"),
    (
        "cache-export",
        "cache export --destination file://{root}/mirror --data {data}",
        "cache export --destination nowhere --data {data}",
    ),
    ("key-rotate", "key rotate default --data {data}", "key rotate other --data {data}"),
    ("key-list", "key list default --data {data}", "key list other --data {data}"),
    ("login", "login {url} --name work --token-file {token}", "login {url} --paste"),
    ("logout", "logout work", "logout work"),
    ("cache-backup", "cache backup {root}/backups --data {data}", "cache backup {data} --data {data}"),
    ("cache-restore", "cache restore {root}/backups --data {new}", "cache restore {root}/backups --data {data}"),
    ("cache-audit", "cache audit --data {data}", "cache audit --data {new}"),
];

/// What these need is with their own tests: a bucket, a job, a project, a platform.
const ELSEWHERE: [&str; 5] = ["cache-migrate", "ci", "lock", "oidc-test", "why-slow"];

/// One object per line, each with a version and a type; the last one is the summary, or the error.
#[test]
fn json_of_every_command_ends_with_a_summary_or_the_error() {
    let tested: BTreeSet<&str> = JSON.iter().map(|(page, ..)| *page).chain(ELSEWHERE).chain(WITHOUT_JSON).collect();
    let pages = pages_with(|line| line.trim_start().starts_with("--json"));
    assert_eq!(tested, pages.iter().map(String::as_str).collect());

    let place = Place::new();
    let profile = format!("{}/p", place.root);
    place.lab.install(&place.root, &["--profile", &profile, &place.lab.hello]);
    place.lab.install(&place.root, &["--profile", &profile, &place.lab.top]);
    for (at, (page, well, failing)) in JSON.into_iter().enumerate() {
        for (template, kind) in [(well, "summary"), (failing, "error")] {
            let mut arguments = place.fill(template, "", &format!("new-{at}"));
            arguments.push("--json".to_owned());
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            let output = place.lab.run(&arguments);
            let (code, output_text) =
                (output.status.code().unwrap(), String::from_utf8_lossy(&output.stderr).into_owned());
            let printed = if code == 0 { stdout(output) } else { String::from_utf8(output.stdout).unwrap() };
            let objects: Vec<Value> = printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            let last = objects.last().unwrap_or_else(|| panic!("{page}: {arguments:?} prints nothing: {output_text}"));
            assert_eq!(last["type"], kind, "{page}: {arguments:?}: {printed}{output_text}");
            assert!(objects.iter().all(|object| object["v"] == 1 && object["type"].is_string()), "{page}: {printed}");
            let ends = |object: &&Value| ["summary", "error"].iter().any(|end| object["type"] == *end);
            assert_eq!(objects.iter().filter(ends).count(), 1, "{page}: {printed}");
            if kind == "error" {
                assert!(last["code"] == code && last["message"].is_string(), "{page}: {last}");
            }
        }
    }
}
