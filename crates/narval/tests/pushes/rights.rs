//! What a token without `sign` or `replace` cannot do to the paths of others.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use narval_nix::content_address::Method;
use narval_nix::{Algorithm, ContentAddress, Hash, HashPart, Hasher, Sha256, StoreDir};
use narval_nix::{Signature, StorePath};

use crate::lab::{Lab, Nar};
use crate::support::{NARVAL, Server, Store, hash_part};

fn path_of(name: &str) -> String {
    let digest = Sha256::of(name.as_bytes());
    format!("{}-{name}", HashPart::from_digest(digest.as_bytes()[..20].try_into().unwrap()))
}

fn url(path: &str) -> String {
    format!("/{}.narinfo", hash_part(path))
}

/// Uploads a NAR and its narinfo with further lines; the status of the latter.
fn publish(lab: &Lab, token: &str, path: &str, nar: &Nar, lines: &str) -> (u16, String) {
    assert!(matches!(lab.put(&nar.url(), token, &nar.bytes).status, 200 | 201));
    let put = lab.put(&url(path), token, (nar.narinfo(path, &[]) + lines).as_bytes());
    (put.status, put.text().to_owned())
}

fn signatures(lab: &Lab, path: &str) -> Vec<String> {
    let narinfo = lab.get(&url(path));
    assert_eq!(narinfo.status, 200);
    narinfo.text().lines().filter_map(|line| line.strip_prefix("Sig: ")).map(str::to_owned).collect()
}

fn junk(count: u8) -> String {
    let signature = |number: u8| Signature::new(&format!("junk-{number}"), [number; 64]).unwrap();
    (0..count).map(|number| format!("Sig: {}\n", signature(number))).collect()
}

fn lab_with_key() -> Lab {
    let store = Store::new();
    let (secret, _) = store.key("own-1");
    let text = format!("data = 'data'\nsign-keys = '{}'\n", secret.display());
    Lab::configured(store, &text)
}

#[test]
fn made_up_signatures_leave_room_for_the_caches_own() {
    let lab = lab_with_key();
    let (push, sign) = (lab.token("push"), lab.token("push,sign"));
    let (path, nar) = (path_of("a"), Nar::of(b"a"));
    assert_eq!(publish(&lab, &push, &path, &nar, &junk(255)).0, 201);
    assert_eq!(signatures(&lab, &path).len(), 16);
    assert_eq!(publish(&lab, &push, &path, &nar, &junk(255)).0, 200);
    assert_eq!(signatures(&lab, &path).len(), 16, "a second upload adds none");
    // Also of a token that may have things signed.
    assert_eq!(publish(&lab, &sign, &path, &nar, &junk(255)).0, 200);
    let all = signatures(&lab, &path);
    assert!(all.len() <= 256 && all.iter().any(|signature| signature.starts_with("own-1:")), "{}", all.len());
}

#[test]
fn an_unsigned_path_gives_way_to_one_that_the_cache_signs() {
    let lab = lab_with_key();
    let (push, sign) = (lab.token("push"), lab.token("push,sign"));
    let (path, wrong, right) = (path_of("a"), Nar::of(b"wrong"), Nar::of(b"right"));
    assert_eq!(publish(&lab, &push, &path, &wrong, "").0, 201);
    assert_eq!(publish(&lab, &push, &path, &right, "").0, 409, "neither is better");
    assert_eq!(publish(&lab, &sign, &path, &right, "").0, 200);
    assert!(lab.get(&url(&path)).text().contains(&right.hash.to_nix32()));
    assert_eq!(signatures(&lab, &path).len(), 1);
    for token in [&push, &sign] {
        assert_eq!(publish(&lab, token, &path, &wrong, "").0, 409, "a signed one gives way to nobody");
    }
    let audit = std::fs::read_to_string(lab.data_path().join("audit.jsonl")).unwrap();
    let replaced = audit.lines().find(|line| line.contains("replaced")).unwrap();
    assert!(replaced.contains(&path) && replaced.contains(sign.split('_').nth(1).unwrap()), "{replaced}");
}

/// A hash with this algorithm.
fn hash(algorithm: Algorithm, bytes: &[u8]) -> Hash {
    let mut hasher = Hasher::new(algorithm).unwrap();
    hasher.update(bytes);
    hasher.finish()
}

#[test]
fn a_path_whose_contents_its_content_address_does_not_name_is_refused() {
    let lab = lab_with_key();
    let (good, bad) = (Nar::of(b"good"), Nar::of(b"bad"));
    let addresses = [
        (Method::Nar, hash(Algorithm::Sha256, &good.bytes)),
        (Method::Nar, hash(Algorithm::Sha1, &good.bytes)),
        (Method::Flat, hash(Algorithm::Sha256, b"good")),
        (Method::Flat, hash(Algorithm::Sha512, b"good")),
        (Method::Text, hash(Algorithm::Sha256, b"good")),
    ];
    for (index, scopes) in ["push", "push,sign", "admin"].into_iter().enumerate() {
        let token = lab.token(scopes);
        for (method, hash) in addresses {
            let ca = ContentAddress::new(method, hash).unwrap();
            let name = format!("source-{index}").parse().unwrap();
            let path: StorePath = ca.store_path(&StoreDir::default(), &name, &BTreeSet::new(), false).unwrap();
            let (path, line) = (path.to_string(), format!("CA: {ca}\n"));
            let (status, message) = publish(&lab, &token, &path, &bad, &line);
            assert_eq!(status, 422, "{scopes}: {ca}");
            assert!(message.contains("its contents do not have the hash of its CA"), "{message}");
            assert_eq!(lab.get(&url(&path)).status, 404);
            assert_eq!(publish(&lab, &token, &path, &good, &line).0, 201, "{scopes}: {ca}");
        }
    }
}

#[test]
fn a_realisation_loses_no_signature() {
    let lab = lab_with_key();
    let (push, sign, replace) = (lab.token("push"), lab.token("push,sign"), lab.token("push,replace"));
    let hash = "0".repeat(64);
    let url = format!("/realisations/sha256:{hash}!out.doi");
    let text = |dependent: &str, signatures: &str| {
        format!(r#"{{"dependentRealisations":{{{dependent}}},"outPath":"x","signatures":[{signatures}]}}"#)
    };
    let stored = |lab: &Lab| lab.get(&url).text().to_owned();
    assert_eq!(lab.put(&url, &sign, text("", r#""a:1""#).as_bytes()).status, 201);
    let others = format!(r#""sha256:{hash}!dev":"y""#);
    for less in [text("", ""), text(&others, ""), text(&others, r#""b:1""#)] {
        assert!(matches!(lab.put(&url, &push, less.as_bytes()).status, 200 | 201));
        assert_eq!(stored(&lab), text("", r#""a:1""#), "{less}");
    }
    lab.put(&url, &push, text("", r#""b:1""#).as_bytes());
    assert_eq!(stored(&lab), text("", r#""a:1","b:1""#));
    lab.put(&url, &replace, text(&others, r#""c:1""#).as_bytes());
    assert_eq!(stored(&lab), text(&others, r#""c:1""#));
}

#[test]
fn a_push_hides_no_path_of_an_upstream() {
    let there = Store::new();
    let (secret, key) = there.key("upstream-1");
    let upstream = Server::narval(&there, &["--sign-key", secret.to_str().unwrap()]);
    let [hidden, same, vouched, replaced] =
        ["hidden", "same", "vouched", "replaced"].map(|name| there.add_file(name, "of the upstream"));
    let base = |path: &str| path.rsplit('/').next().unwrap().to_owned();
    let store = Store::new();
    let (own, _) = store.key("own-1");
    let text = format!(
        "data = 'data'\nsign-keys = '{}'\nupstream-absent-after = '1m'\n[[upstream]]\nurl = '{}'\nkeys = '{key}'\n",
        own.display(),
        upstream.url()
    );
    let lab = Lab::configured(store, &text);
    let (push, sign, replace) = (lab.token("push"), lab.token("push,sign"), lab.token("push,replace"));
    let (right, wrong) = (Nar::of(b"of the upstream"), Nar::of(b"wrong"));
    let (status, message) = publish(&lab, &push, &base(&hidden), &wrong, "");
    assert_eq!(status, 409, "{message}");
    assert!(message.contains("is in an upstream of this cache with other contents"), "{message}");
    // Not after a client has got it either.
    let names = |path: &str| -> Vec<String> {
        let all = signatures(&lab, path);
        let mut names: Vec<_> = all.iter().map(|signature| signature.split(':').next().unwrap().to_owned()).collect();
        names.sort();
        names
    };
    assert_eq!(names(&hidden), ["own-1", "upstream-1"]);
    assert_eq!(publish(&lab, &push, &base(&hidden), &wrong, "").0, 409);
    assert_eq!(names(&hidden), ["own-1", "upstream-1"]);
    // The same contents stay signed.
    assert_eq!(publish(&lab, &push, &base(&same), &right, "").0, 201);
    assert_eq!(lab.get(&format!("/push{}", url(&same))).status, 200, "it is in the cache itself");
    assert_eq!(names(&same), ["own-1", "upstream-1"]);
    // Those who are trusted may.
    assert_eq!(publish(&lab, &sign, &base(&vouched), &wrong, "").0, 201);
    assert_eq!(names(&vouched), ["own-1"]);
    assert_eq!(publish(&lab, &replace, &base(&replaced), &wrong, "").0, 201);
    assert!(names(&replaced).is_empty());
}

/// Everything in a folder, and below it, that other users may open.
fn open_to_others(folder: &Path) -> Vec<String> {
    let found = Command::new("find").arg(folder).args(["-perm", "/077", "-printf", "%m %P\n"]).output().unwrap();
    assert!(found.status.success(), "{}", String::from_utf8_lossy(&found.stderr));
    String::from_utf8(found.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// `narval` with the usual umask.
fn with_umask(args: &[&str]) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", "umask 022; exec \"$@\"", "sh", NARVAL]).args(args);
    command
}

/// A server with the usual umask over a store and a new data folder, in which its cache of compressed NARs is, too. It also listens on a
/// unix socket.
fn served_with_umask(store: &Store, config: &str) -> Server {
    let text = format!(
        "listen = ['127.0.0.1:0', '{}']\ndata = 'data'\nstore = '{}'\n{config}\n[nar-cache]\nfolder = 'data/nars'\n",
        store.path("socket").display(),
        store.uri()
    );
    std::fs::write(store.path("narval.toml"), text).unwrap();
    Server::start(with_umask(&["serve", "--config", store.path("narval.toml").to_str().unwrap()]), &[])
}

/// Has a server keep files of all kinds, and commands work on them.
fn push_and_keep_house(lab: &Lab, live: &str) {
    let token = lab.token("push,sign");
    let (path, nar) = (path_of("a"), Nar::of(&[7; 100_000]));
    assert_eq!(publish(lab, &token, &path, &nar, "").0, 201);
    assert_eq!(lab.put(&format!("/log/{path}.drv"), &token, b"a log").status, 201);
    let part = lab.send("PUT", &format!("/_narval/v1/nar/{}.nar?offset=0", nar.hash.to_nix32()), &token, &[], b"part");
    assert!(matches!(part.status, 200..=202), "{} {}", part.status, part.text());
    // A compressed NAR of the live store.
    let compressed = || {
        let url = format!("/nar/{}.nar", hash_part(live));
        assert_eq!(lab.server.ask("GET", &url, &["Accept-Encoding: zstd"]).status, 200);
        let kept = std::fs::read_dir(lab.data_path().join("nars")).into_iter().flatten();
        kept.flatten().any(|folder| folder.path().is_dir() && std::fs::read_dir(folder.path()).unwrap().count() > 0)
    };
    let until = Instant::now() + Duration::from_secs(60);
    while !compressed() {
        assert!(Instant::now() < until, "no compressed NAR was kept: {}", lab.server.log());
        std::thread::sleep(Duration::from_millis(20));
    }
    let config = lab.store.path("narval.toml");
    for command in [&["token", "create", "x", "--pull"][..], &["cache", "gc"], &["cache", "fsck", "--contents"]] {
        let output = with_umask(command).args(["--config", config.to_str().unwrap()]).output().unwrap();
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn other_users_cannot_read_the_data_folder() {
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let warnings = |server: &Server| server.log().lines().filter(|line| line.contains("other users")).count();
    let store = Store::new();
    let live = store.add_tree("tree");
    let server = served_with_umask(&store, "");
    let lab = Lab { store, server };
    push_and_keep_house(&lab, &live);
    let data = lab.data_path();
    let Lab { store, server } = lab;
    assert_eq!(open_to_others(&data), Vec::<String>::new());
    assert_eq!((warnings(&server), mode(&store.path("socket"))), (0, 0o755), "only files of the data are private");
    // The index is made anew.
    server.end("-TERM");
    let config = store.path("narval.toml");
    let rebuilt = with_umask(&["cache", "fsck", "--rebuild", "--config", config.to_str().unwrap()]).output().unwrap();
    assert!(rebuilt.status.success(), "{}", String::from_utf8_lossy(&rebuilt.stderr));
    assert_eq!(open_to_others(&data), Vec::<String>::new());
    // Wider ones stay as they are, and one line says so: a file, and the folder.
    for (wide, wide_mode) in [(data.join("audit.jsonl"), 0o644), (data.clone(), 0o750)] {
        std::fs::set_permissions(&wide, PermissionsExt::from_mode(wide_mode)).unwrap();
        for (config, expected) in [("", 1), ("share-data = true\n", 0)] {
            let server = served_with_umask(&store, config);
            assert!(warnings(&server) == expected && mode(&wide) == wide_mode, "{}", server.log());
            server.end("-TERM");
        }
    }
}

#[test]
fn a_data_folder_is_shared_if_that_is_configured() {
    let store = Store::new();
    let live = store.add_tree("tree");
    std::fs::create_dir(store.path("data")).unwrap();
    std::fs::set_permissions(store.path("data"), PermissionsExt::from_mode(0o755)).unwrap();
    let server = served_with_umask(&store, "share-data = true\n");
    let lab = Lab { store, server };
    push_and_keep_house(&lab, &live);
    let shared = open_to_others(&lab.data_path());
    let has = |end: &str| shared.iter().any(|line| line.starts_with("644 ") && line.ends_with(end));
    assert!(has("index.sqlite") && has(".nar") && has(".zst"), "{shared:?}");
    assert!(!lab.server.log().contains("other users"), "{}", lab.server.log());
}

/// Runs `narval token`: what it printed, and said.
fn token_command(lab: &Lab, args: &[&str]) -> (String, String) {
    let mut command = Command::new(NARVAL);
    let output = command.arg("token").args(args).arg("--data").arg(lab.data_path()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn a_token_is_for_the_caches_that_were_meant_and_can_be_changed() {
    let store = Store::new();
    let config = format!("data = '{}'\n[[cache]]\nname = 'team'\n", store.path("data").display());
    let lab = Lab::configured(store, &config);
    let (_, output_text) = token_command(&lab, &["create", "--pull", "--cache", "default,team", "both"]);
    assert!(!output_text.contains("warning"), "{output_text}");
    let (listed, _) = token_command(&lab, &["list", "--json"]);
    assert!(listed.contains("\"caches\":[\"default\",\"team\"]"), "{listed}");
    let (_, output_text) = token_command(&lab, &["create", "--pull", "--cache", "nosuch", "misspelt"]);
    assert!(output_text.contains("warning: no cache matches 'nosuch'; there is default, team"), "{output_text}");

    let (token, _) = token_command(&lab, &["create", "--pull", "--cache", "default", "one"]);
    let (token, id) = (token.trim(), token.split('_').nth(1).unwrap().to_owned());
    let missing = || lab.post("/team/_narval/v1/missing", token, b"");
    let refused = missing();
    assert_eq!(refused.status, 403);
    let advice = format!("narval token change {id} --add-scope push --add-cache team");
    assert!(
        refused.text().contains("it allows pull in default") && refused.text().contains(&advice),
        "{}",
        refused.text()
    );
    let words: Vec<&str> = advice.split(' ').skip(2).collect();
    let (_, output_text) = token_command(&lab, &words);
    assert!(output_text.contains("allows pull,push in default, team"), "{output_text}");
    assert_eq!(missing().status, 200, "{}", missing().text());
    token_command(&lab, &["change", &id, "--remove-scope", "push"]);
    let refused = missing();
    assert!(
        refused.status == 403 && refused.text().contains("lacks the scope 'push': it allows pull"),
        "{}",
        refused.text()
    );
}

#[test]
fn a_token_in_a_file_is_for_its_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let lab = Lab::new();
    let file = lab.store.path("made");
    let args = ["create", "--push", "--sign", "ci", "--out", file.to_str().unwrap()];
    let (printed, _) = token_command(&lab, &args);
    assert_eq!((printed.as_str(), std::fs::metadata(&file).unwrap().permissions().mode() & 0o777), ("", 0o600));
    let token = std::fs::read_to_string(&file).unwrap();
    assert_eq!(lab.post("/_narval/v1/missing", token.trim(), b"").status, 200);
    // A file that is there is not replaced, and no token is made for it.
    let tokens = || token_command(&lab, &["list"]).0.lines().count();
    let before = tokens();
    let mut again = Command::new(NARVAL);
    assert_eq!(again.arg("token").args(args).arg("--data").arg(lab.data_path()).status().unwrap().code(), Some(2));
    assert_eq!(tokens(), before);
}

#[test]
fn uploads_over_plain_http_from_a_network_are_a_warning() {
    let store = Store::new();
    let serve = |listen: &str| {
        let mut command = Command::new(NARVAL);
        command.args(["serve", "--listen", listen, "--data"]).arg(store.path("data"));
        let server = Server::start(command, &[]);
        let log = server.log();
        server.terminate();
        log.matches("uploads come over plain HTTP").count()
    };
    assert_eq!((serve("127.0.0.1:0"), serve("0.0.0.0:0")), (0, 1));
}
