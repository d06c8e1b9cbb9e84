//! Paths without a signature of the cache: who is told, and how they get one. The judge is real Nix that trusts the cache's key only.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use base64::{Engine, engine::general_purpose::STANDARD};
use narval_keep::{CachePatterns, Data, DataOptions, NewToken};
use narval_nix::presence::Snapshot;
use narval_nix::{NarInfo, Release, StoreDir, TrustedKeys};

use crate::api::until;
use crate::lab::{Lab, Nar, serve};
use crate::support::{NARVAL, Nix, Server, Store, hash_part, stdout};

fn push(lab: &Lab, token: &str, args: &[&str]) -> Output {
    let file = lab.store.path("token");
    std::fs::write(&file, token).unwrap();
    let mut command = Command::new(NARVAL);
    command.args(["push", "--json", "--store", &lab.store.uri(), "--to", &lab.server.url()]).args(args);
    command.arg("--token-file").arg(file).env("HOME", lab.store.dir.path()).env_remove("NARVAL_STORE");
    command.output().unwrap()
}

/// A number of the summary.
fn number(output: &Output, key: &str) -> u64 {
    let text = String::from_utf8_lossy(&output.stdout);
    let summary = text.lines().find(|line| line.contains("\"summary\"")).unwrap_or_else(|| panic!("{output:?}"));
    serde_json::from_str::<serde_json::Value>(summary).unwrap()[key].as_u64().unwrap_or_else(|| panic!("{key}: {text}"))
}

/// A path that is not content-addressed, as what is built: it needs a signature.
fn add(lab: &Lab, name: &str) -> String {
    let path = lab.store.add_file(name, name);
    let database = lab.store.path("root/nix/var/nix/db/db.sqlite");
    let statement = format!("update ValidPaths set ca = null where path = '{path}'");
    assert!(Command::new("sqlite3").arg(database).arg(statement).status().unwrap().success());
    path
}

fn sign(lab: &Lab, args: &[&str]) -> Output {
    let mut command = Command::new(NARVAL);
    command.args(["cache", "sign", "--json", "--data"]).arg(lab.data_path()).args(args);
    command.output().unwrap()
}

/// Whether a new store that trusts this key only takes the path.
fn is_accepted(lab: &Lab, key: &str, path: &str) -> bool {
    let fresh = Store::new();
    let (from, to) = (lab.server.url(), fresh.uri());
    let trust = ["--option", "require-sigs", "true", "--option", "trusted-public-keys", key];
    let args = [&["copy", "--refresh", "--from", &from, "--to", &to, path], &trust[..]].concat();
    let output = Nix::Newest.nix(fresh.dir.path(), &args);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() || complaint.contains("signature"), "{complaint}");
    output.status.success()
}

#[test]
fn what_a_token_may_not_have_signed_is_said_and_signed_by_the_next_that_may() {
    let store = Store::new();
    let (key_file, key) = store.key("own-1");
    let mut lab = Lab::of(store);
    let base = format!("data = '{}'\nsign-keys = '{}'\n", lab.data_path().display(), key_file.display());
    lab = Lab::configured(lab.store, &base);
    let (weak, strong) = (lab.token("push"), lab.token("push,sign"));
    let (tree, hello) = (add(&lab, "tree"), add(&lab, "hello"));

    let pushed = push(&lab, &weak, &[&tree, &hello]);
    assert_eq!(pushed.status.code(), Some(0), "{pushed:?}");
    assert_eq!((number(&pushed, "pushed"), number(&pushed, "unsigned")), (2, 2));
    assert!(!is_accepted(&lab, &key, &hello));
    let other = add(&lab, "other");
    let refused = push(&lab, &weak, &["--require-signed", &other]);
    assert_eq!(refused.status.code(), Some(4), "{refused:?}");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("not signed by the cache"), "{refused:?}");

    // The bytes are there: what is sent again are the narinfos.
    let again = push(&lab, &strong, &[&tree, &hello]);
    assert_eq!((number(&again, "pushed"), number(&again, "unsigned")), (2, 0), "{again:?}");
    assert!(is_accepted(&lab, &key, &hello) && is_accepted(&lab, &key, &tree));
    let third = push(&lab, &strong, &[&tree, &hello]);
    assert_eq!((number(&third, "pushed"), number(&third, "already")), (0, 2), "{third:?}");
    assert!(!is_accepted(&lab, &key, &other));
}

#[test]
fn a_key_is_rotated_without_losing_old_paths() {
    let store = Store::new();
    let (old_file, old_key) = store.key("own-1");
    let (new_file, new_key) = store.key("own-2");
    let data = store.path("data");
    let config = |keys: &[&Path]| {
        let keys: Vec<String> = keys.iter().map(|key| format!("'{}'", key.display())).collect();
        format!("data = '{}'\nsign-keys = [{}]\n", data.display(), keys.join(", "))
    };
    let mut lab = Lab::configured(store, &config(&[&old_file]));
    let path = add(&lab, "of-before");
    assert_eq!(push(&lab, &lab.token("push,sign"), &["--require-signed", &path]).status.code(), Some(0));
    assert!(is_accepted(&lab, &old_key, &path) && !is_accepted(&lab, &new_key, &path));

    // As docs/security.md has it: add the new key, sign what is there, then remove the old one.
    lab.reload(&config(&[&old_file, &new_file]));
    let file = lab.store.path("narval.toml");
    let by_file = |args: &[&str]| {
        let mut command = Command::new(NARVAL);
        command.args(["cache", "sign", "--json", "--config"]).arg(&file).args(args).env_remove("NARVAL_DATA");
        command.output().unwrap()
    };
    let counted = by_file(&["--all", "--dry-run"]);
    assert_eq!((number(&counted, "paths"), number(&counted, "unsigned"), number(&counted, "signed")), (1, 1, 0));
    assert!(!is_accepted(&lab, &new_key, &path), "a dry run signs nothing");
    let signed = by_file(&["--all"]);
    assert_eq!((number(&signed, "signed"), number(&signed, "failed")), (1, 0), "{signed:?}");
    assert_eq!(number(&by_file(&["--all"]), "unsigned"), 0, "what is signed is left alone");
    lab.reload(&config(&[&new_file]));
    assert!(is_accepted(&lab, &new_key, &path) && is_accepted(&lab, &old_key, &path));
}

#[test]
fn what_cannot_be_signed_is_one_line() {
    let store = Store::new();
    let (key_file, _) = store.key("own-1");
    let lab = Lab::of(store);
    let key = key_file.to_str().unwrap();
    let absent = "00bgd045z0d4icpbc2yyz4gx48ak44la-absent";
    for (args, complaint) in [
        (&["--all"][..], "has no key"),
        (&["--sign-key", key, absent], "is not in the cache"),
        (&["--sign-key", "/does/not/exist", "--all"], "cannot read secret key"),
        (&["--sign-key", key], "required"),
    ] {
        let refused = sign(&lab, args);
        assert_eq!(refused.status.code(), Some(2), "{args:?}: {refused:?}");
        assert!(String::from_utf8_lossy(&refused.stderr).contains(complaint), "{args:?}: {refused:?}");
    }
    let mut command = Command::new(NARVAL);
    command.args(["token", "create", "--push", "ci", "--data"]).arg(lab.data_path());
    let made = command.output().unwrap();
    assert!(String::from_utf8_lossy(&made.stderr).contains("not signed by the cache"), "{made:?}");
    assert!(stdout(made).starts_with("nv1_"));
}

/// What `narval doctor` and `narval install` say of a path that is not accepted.
fn advice(lab: &Lab, key: &str, path: &str) -> String {
    let mut message = String::new();
    let url = lab.server.url();
    for args in [&["doctor", "--server", &url, "--path", path][..], &["install", "--from", &url, path]] {
        let mut command = Command::new(NARVAL);
        command.args(args).args(["--trusted-public-key", key]).env("HOME", lab.store.dir.path());
        command
            .env("NARVAL_STORE", lab.store.path("fresh"))
            .env_remove("NARVAL_CACHES")
            .env_remove("NARVAL_TRUSTED_KEYS");
        let output = command.output().unwrap();
        assert!(!output.status.success(), "{args:?}: {output:?}");
        let both = [output.stdout, output.stderr].concat();
        let text = String::from_utf8(both).unwrap();
        let line = text.lines().find(|line| line.contains("FAIL signature") || line.contains("not signed by"));
        message += line.unwrap_or_else(|| panic!("{args:?}: {text}"));
        message.push('\n');
    }
    message
}

#[test]
fn advice_is_what_helps_without_a_signature() {
    let store = Store::new();
    let ((old_file, _), (own_file, own), (other_file, _)) =
        (store.key("old-1"), store.key("own-1"), store.key("other-1"));
    let data = store.path("data");
    let with_key = |key: &Path| format!("data = '{}'\nsign-keys = '{}'\n", data.display(), key.display());
    let each = |message: &str, has: &[&str], lacks: &str| {
        for line in message.lines() {
            assert!(has.iter().all(|word| line.contains(word)) && !line.contains(lacks), "{message}");
        }
        assert_eq!(message.lines().count(), 2, "{message}");
    };

    // A path with the old key, which the server has first.
    let lab = Lab::configured(store, &with_key(&old_file));
    let by_old = add(&lab, "by-old");
    let token = lab.token("push,sign");
    assert_eq!(push(&lab, &token, &[&by_old]).status.code(), Some(0));
    let Lab { store, server } = lab;
    server.terminate();

    // No key at all.
    let lab = Lab::configured(store, &format!("data = '{}'\n", data.display()));
    let weak = lab.token("push");
    let unsigned = add(&lab, "unsigned");
    assert_eq!(push(&lab, &weak, &[&unsigned]).status.code(), Some(0));
    each(&advice(&lab, &own, &unsigned), &["publishes no key", "sign-keys"], "--trusted-public-key");
    let Lab { store, server } = lab;
    server.terminate();

    // The server's own.
    let lab = Lab::configured(store, &with_key(&own_file));
    each(&advice(&lab, &own, &unsigned), &["the key own-1", "may not sign", "narval cache sign --all"], "add the key");
    each(
        &advice(&lab, &own, &by_old),
        &["signed by old-1, and not by the cache's key own-1", "narval cache sign --all"],
        "may not",
    );
    let by_other = add(&lab, "by-other");
    let sign = ["store", "sign", "--store", &lab.store.uri(), "-k", other_file.to_str().unwrap(), &by_other];
    let signed = Nix::Newest.nix(lab.store.dir.path(), &sign);
    assert!(signed.status.success(), "{signed:?}");
    assert_eq!(push(&lab, &weak, &[&by_other]).status.code(), Some(0));
    each(&advice(&lab, &own, &by_other), &["signed by other-1, and not by the cache's key own-1"], "may not");
}

/// A key that OpenSSL has, and the file that names the command. What the command does stands in the file `mode`.
fn openssl_key(store: &Store, name: &str) -> (PathBuf, TrustedKeys) {
    let run = |args: &[&str]| {
        let output = Command::new("openssl").args(args).current_dir(store.dir.path()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        output.stdout
    };
    run(&["genpkey", "-algorithm", "ed25519", "-out", &format!("{name}.pem")]);
    let der = run(&["pkey", "-in", &format!("{name}.pem"), "-pubout", "-outform", "DER"]);
    let public_key = format!("{name}:{}", STANDARD.encode(&der[der.len() - 32..]));
    let folder = store.dir.path().display();
    let script = format!(
        "#!/bin/sh\ncd '{folder}'; f=$(mktemp); cat >\"$f\"\ncase $(cat mode) in\nhang) sleep 60 ;;\nfail) echo 'the module is locked' >&2; exit 1 ;;\n\
         lie) echo another text >\"$f\" ;;\nesac\nprintf '{name}:'; openssl pkeyutl -sign -rawin -inkey {name}.pem -in \"$f\" | base64 -w0\nrm -f \"$f\"\n"
    );
    let command = store.path(&format!("{name}.sign"));
    std::fs::write(&command, script).unwrap();
    std::fs::set_permissions(&command, std::fs::Permissions::from_mode(0o755)).unwrap();
    let file = store.path(&format!("{name}.toml"));
    let text = format!("public-key = '{public_key}'\ncommand = ['{}']\ndeadline-seconds = 3\n", command.display());
    std::fs::write(&file, text).unwrap();
    (file, TrustedKeys::parse_list(&public_key).unwrap())
}

/// Narinfos that are pushed and those of a live store, releases and filters are signed by a command, or answered with 503.
#[test]
fn a_key_is_with_a_command_that_signs_fails_lies_and_hangs() {
    let store = Store::new();
    let (file, trusted) = openssl_key(&store, "cache-1");
    let path = store.add_file("live", "in the store");
    let mode = |mode: &str| std::fs::write(store.path("mode"), mode).unwrap();
    mode("well");
    let key = file.to_str().unwrap();
    let lab = Lab { server: serve(&store, &["--sign-key", key]), store: Store::new() };
    let live = {
        let mut command = Command::new(NARVAL);
        command.args(["serve", "--listen", "127.0.0.1:0", "--store", &store.uri(), "--sign-key", key]);
        Server::start(command, &[("XDG_CACHE_HOME", store.path("live-cache").to_str().unwrap())])
    };
    let token = {
        let data = Data::open(&store.path("data"), DataOptions::default()).unwrap();
        let caches = CachePatterns::new(&["*"]).unwrap();
        let scopes = "push,sign,release:api*".parse().unwrap();
        data.tokens().create(&NewToken { label: "ci".into(), caches, scopes, expires: None }).unwrap().1.to_string()
    };
    let directory = StoreDir::default();
    let is_signed = |text: &[u8]| {
        let info = NarInfo::parse(text, &directory).unwrap();
        trusted.find_valid(info.fingerprint(&directory).as_bytes(), &info.signatures).is_some()
    };
    let name = "0i4073ldk2aplbmaarmp5c8gf3wmbl84-api-1";
    let (nar, narinfo) = (Nar::of(b"contents"), format!("/{}.narinfo", &name[..32]));
    assert_eq!(lab.put(&nar.url(), &token, &nar.bytes).status, 201);
    let push = || lab.put(&narinfo, &token, nar.narinfo(name, &[]).as_bytes());
    let of_store = || live.get(&format!("/{}.narinfo", hash_part(&path)));
    let filter = || lab.get("/presence-v1");
    let body = serde_json::json!({"systems": {"x86_64-linux": {"out": format!("/nix/store/{name}")}}}).to_string();
    let release = || lab.post("/_narval/v1/releases/api", &token, body.as_bytes());
    // Strangers who ask again and again do not fill the log: it says so every ten seconds.
    mode("fail");
    let begun = std::time::Instant::now();
    (0..50).for_each(|_| assert_eq!(of_store().status, 503));
    let lines = live.log().matches("does not sign").count() as u64;
    assert!((1..=begun.elapsed().as_secs() / 10 + 2).contains(&lines), "{lines} lines");
    for bad in ["fail", "lie", "hang"] {
        mode(bad);
        for answer in [push(), of_store(), filter()] {
            assert_eq!(answer.status, 503, "{bad}: {answer:?}");
            assert!(answer.text().contains("cannot sign now"), "{bad}: {answer:?}");
        }
        assert_eq!(lab.get(&narinfo).status, 404, "{bad}");
    }
    mode("well");
    // A command that has hung is asked again after ten seconds.
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let settled = |answer: &dyn Fn() -> u16| {
        loop {
            let status = answer();
            if status != 503 || std::time::Instant::now() > until {
                return status;
            }
            std::thread::sleep(std::time::Duration::from_millis(200));
        }
    };
    assert!(settled(&|| push().status) == 201 && is_signed(&lab.get(&narinfo).body));
    assert_eq!(settled(&|| of_store().status), 200);
    assert!(of_store().status == 200 && is_signed(&of_store().body));
    assert!(Snapshot::parse(&filter().body, &directory, Some(&trusted)).is_ok());
    mode("fail");
    assert_eq!(release().status, 503);
    assert!(push().status < 300, "it has its signature");
    mode("well");
    let made = release();
    assert_eq!(made.status, 201, "{made:?}");
    let made = Release::parse(&made.body).unwrap();
    assert!(made.revision == 1 && made.find_valid(&trusted).is_some());
    assert!(lab.server.log().contains("the key 'cache-1' does not sign"));
}

/// From a file to a command, to a command with another key, and to a key in the index: at each step clients may trust the key of before or the next one, and nothing
/// that was signed is lost.
#[test]
fn a_key_goes_from_a_file_to_a_command_and_on_to_another_one() {
    let store = Store::new();
    let (file, by_file) = store.key("own-1");
    let mode = store.path("mode");
    std::fs::write(&mode, "well").unwrap();
    let [(first, _), (second, _)] = ["cache-1", "cache-2"].map(|name| openssl_key(&store, name));
    let public = |file: &Path| stdout(Command::new(NARVAL).args(["key", "public"]).arg(file).output().unwrap());
    let (by_first, by_second) = (public(&first), public(&second));
    let data = store.path("data");
    let config = |keys: &[&Path]| {
        let keys: Vec<String> = keys.iter().map(|key| format!("'{}'", key.display())).collect();
        format!("data = '{}'\nsign-keys = [{}]\n", data.display(), keys.join(", "))
    };
    let mut lab = Lab::configured(store, &config(&[&file]));
    let toml = lab.store.path("narval.toml");
    let run = |args: &[&str]| {
        let output = Command::new(NARVAL).args(args).arg("--config").arg(&toml).env_remove("NARVAL_DATA").output();
        output.unwrap()
    };
    let token = lab.token("push,sign");
    let push_one = |lab: &Lab, name: &str| {
        let path = add(lab, name);
        let pushed = push(lab, &token, &["--require-signed", &path]);
        assert_eq!(pushed.status.code(), Some(0), "{pushed:?}");
        path
    };
    let of_file = push_one(&lab, "of-the-file");
    assert!(is_accepted(&lab, &by_file, &of_file) && !is_accepted(&lab, &by_first, &of_file));

    lab.reload(&config(&[&file, &first]));
    assert_eq!(number(&run(&["cache", "sign", "--json", "--all"]), "signed"), 1);
    lab.reload(&config(&[&first]));
    let of_first = push_one(&lab, "of-the-first");
    assert!(is_accepted(&lab, &by_file, &of_file) && is_accepted(&lab, &by_first, &of_file));
    assert!(is_accepted(&lab, &by_first, &of_first) && !is_accepted(&lab, &by_file, &of_first));

    lab.reload(&config(&[&first, &second]));
    assert_eq!(number(&run(&["cache", "sign", "--json", "--all"]), "signed"), 2);
    lab.reload(&config(&[&second]));
    let of_second = push_one(&lab, "of-the-second");
    assert!(is_accepted(&lab, &by_file, &of_file) && is_accepted(&lab, &by_first, &of_first));
    for path in [&of_file, &of_first, &of_second] {
        assert!(is_accepted(&lab, &by_second, path), "{path}");
    }

    // The same key with another command takes effect by a reload, and so does the file that names the one of before.
    let told = std::fs::read_to_string(&second).unwrap();
    std::fs::write(&second, told.replace("cache-2.sign", "moved.sign")).unwrap();
    std::fs::rename(lab.store.path("cache-2.sign"), lab.store.path("moved.sign")).unwrap();
    let path = add(&lab, "of-the-moved");
    assert_ne!(push(&lab, &token, &["--attempts", "1", "--require-signed", &path]).status.code(), Some(0));
    lab.reload(&config(&[&second]));
    let of_moved = push_one(&lab, "of-the-moved-later");

    // A rotation needs no signature of a key that has signed already.
    std::fs::write(&mode, "fail").unwrap();
    let rotated = run(&["key", "rotate", "default"]);
    let message = String::from_utf8_lossy(&rotated.stderr).into_owned();
    assert!(message.contains("signed 4 paths with it"), "{rotated:?}");
    std::fs::write(&mode, "well").unwrap();
    let by_index = stdout(rotated);
    assert!(by_index.starts_with("default-1:"), "{by_index}");
    for path in [&of_file, &of_first, &of_second, &of_moved] {
        assert!(is_accepted(&lab, &by_index, path) && is_accepted(&lab, &by_second, path), "{path}");
    }
    // Both sign from now on.
    until(2, "both are told", || {
        let info = lab.get("/nix-cache-info");
        u16::try_from([&by_second, &by_index].iter().filter(|key| info.text().contains(**key)).count()).unwrap()
    });
    let of_both = push_one(&lab, "of-both");
    assert!(is_accepted(&lab, &by_index, &of_both) && is_accepted(&lab, &by_second, &of_both));
}
