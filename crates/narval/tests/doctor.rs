//! `narval doctor --server`, against real servers that are right, and wrong in one way each.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails may say so")]

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, SystemTime};

use support::{NARVAL, Server, Store, certificate};

const DAY: Duration = Duration::from_secs(24 * 3600);

fn run(args: &[&str], certificates: Option<&Path>) -> Output {
    let mut command = Command::new(NARVAL);
    for name in ["NARVAL_CACHES", "NARVAL_TRUSTED_KEYS", "NIX_SSL_CERT_FILE", "SSL_CERT_FILE"] {
        command.env_remove(name);
    }
    if let Some(file) = certificates {
        command.env("SSL_CERT_FILE", file);
    }
    command.arg("doctor").args(args).output().unwrap()
}

/// The exit code and the findings of `--json`: the checks, whether each passed, and what it says.
fn doctor(server: &str, args: &[&str], certificates: Option<&Path>) -> (Option<i32>, BTreeMap<String, (bool, String)>) {
    let output = run(&[&["--server", server, "--json"], args].concat(), certificates);
    let text = String::from_utf8(output.stdout).unwrap();
    // The last line is the summary, or the error with the exit code.
    let mut objects: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let last = objects.pop().unwrap();
    assert_eq!(last["type"], if output.status.success() { "summary" } else { "error" }, "{text}");
    let findings = objects.iter().map(|found| {
        assert_eq!(found["type"], "check", "{text}");
        let text = |key: &str| found[key].as_str().unwrap().to_owned();
        (text("check"), (found["ok"].as_bool().unwrap(), text("text")))
    });
    let findings: BTreeMap<_, _> = findings.collect();
    assert!(!findings.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    (output.status.code(), findings)
}

/// The checks that failed.
fn failed(findings: &BTreeMap<String, (bool, String)>) -> Vec<&str> {
    findings.iter().filter(|(_, found)| !found.0).map(|(what, _)| what.as_str()).collect()
}

/// A certificate for these names that expires at a time.
fn certificate_until(folder: &Path, names: &[&str], until: SystemTime) -> [PathBuf; 2] {
    let key = rcgen::KeyPair::generate().unwrap();
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut wanted = rcgen::CertificateParams::new(names).unwrap();
    wanted.not_before = rcgen::date_time_ymd(2000, 1, 1);
    wanted.not_after = until.into();
    let files = ["cert.pem", "key.pem"].map(|name| folder.join(name));
    fs::write(&files[0], wanted.self_signed(&key).unwrap().pem()).unwrap();
    fs::write(&files[1], key.serialize_pem()).unwrap();
    files
}

/// A TLS server of OpenSSL, which takes any certificate. Killed when dropped.
struct OpenSsl {
    child: Child,
    address: String,
}

impl OpenSsl {
    fn start(files: &[PathBuf; 2]) -> Self {
        let mut command = Command::new("openssl");
        command.args(["s_server", "-accept", "127.0.0.1:0", "-www", "-cert"]).arg(&files[0]).arg("-key").arg(&files[1]);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let address = lines.find_map(|line| line.strip_prefix("ACCEPT ").map(str::to_owned)).unwrap();
        // Its later lines have somewhere to go.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, address }
    }
}

impl Drop for OpenSsl {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

#[test]
fn a_good_server_passes_every_check() {
    let store = Store::new();
    let path = store.add_file("file", vec![b'a'; 3 << 20]);
    let (secret, public) = store.key("cache.example.org-1");
    let server = Server::narval(&store, &["--sign-key", secret.to_str().unwrap(), "--priority", "35"]);
    let args = ["--path", &path, "--trusted-public-key", public.trim()];
    let (code, findings) = doctor(&server.url(), &args, None);
    assert_eq!((code, failed(&findings)), (Some(0), vec![]), "{findings:?}");
    for (what, says) in [
        ("tls", "none"),
        ("http/2", "no"),
        ("clock", "the server's is 0 s"),
        ("cache info", "for /nix/store"),
        ("priority", "35: asked before cache.nixos.org"),
        ("keys", "cache.example.org-1, trusted here"),
        ("absent path", "answered 404"),
        ("path", "a NAR of 3.1 MB"),
        ("signature", "by cache.example.org-1"),
        ("compression", "zstd, while the NAR is sent"),
        ("ranges", "yes"),
        ("speed", "(3.1 MB in"),
        ("round trip", " ms"),
    ] {
        assert!(findings.get(what).is_some_and(|found| found.1.contains(says)), "{what}: {findings:?}");
    }
    assert_eq!(findings.len(), 13, "{findings:?}");

    // For people: one line each.
    let output = run(&[&["--server", &server.url()], &args[..]].concat(), None);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().filter(|line| line.starts_with("ok   ")).count(), 13, "{text}");

    // Without a path, what needs one is not checked.
    let (code, findings) = doctor(&server.url(), &args[2..], None);
    assert_eq!((code, findings.len()), (Some(0), 9), "{findings:?}");
}

#[test]
fn keys_that_are_not_trusted_fail() {
    let store = Store::new();
    let path = store.add_file("file", "contents");
    let (secret, _) = store.key("cache.example.org-1");
    let server = Server::narval(&store, &["--sign-key", secret.to_str().unwrap()]);
    let (code, findings) = doctor(&server.url(), &["--path", &path], None);
    assert_eq!((code, failed(&findings)), (Some(1), vec!["keys", "signature"]), "{findings:?}");
    assert!(findings["keys"].1.contains("not trusted here: 'narval use"), "{findings:?}");

    // Another key of the same name.
    let other = Store::new();
    let (_, public) = other.key("cache.example.org-1");
    let (code, findings) = doctor(&server.url(), &["--path", &path, "--trusted-public-key", public.trim()], None);
    assert_eq!((code, failed(&findings)), (Some(1), vec!["keys", "signature"]), "{findings:?}");
    assert!(findings["keys"].1.contains("another key of that name"), "{findings:?}");

    let (code, findings) = doctor(&server.url(), &["--path", &path, "--no-check-sigs"], None);
    assert_eq!((code, failed(&findings)), (Some(0), vec![]), "{findings:?}");

    // A server that does not sign, and a path that it does not have.
    let server = Server::narval(&store, &[]);
    let (code, findings) = doctor(&server.url(), &["--path", &path], None);
    assert_eq!((code, failed(&findings)), (Some(1), vec!["signature"]), "{findings:?}");
    assert!(findings["signature"].1.contains("the cache publishes no key"), "{findings:?}");
    let missing = "/nix/store/1111111111111111111111111111111a-missing";
    let (code, findings) = doctor(&server.url(), &["--path", missing], None);
    assert_eq!((code, failed(&findings)), (Some(1), vec!["path"]), "{findings:?}");
}

#[test]
fn certificates_are_verified() {
    let store = Store::new();
    let now = SystemTime::now();
    let folders: Vec<_> = (0..4).map(|_| tempfile::tempdir().unwrap()).collect();
    let good = certificate(folders[0].path());
    let elsewhere = certificate_until(folders[1].path(), &["elsewhere.example"], now + 90 * DAY);
    let expired = certificate_until(folders[2].path(), &["127.0.0.1"], now - 3 * DAY);
    let expiring = certificate_until(folders[3].path(), &["127.0.0.1"], now + 3 * DAY + DAY / 2);
    let https = |files: &[PathBuf; 2], trusted: Option<&Path>, args: &[&str]| {
        let options = ["--tls-cert", files[0].to_str().unwrap(), "--tls-key", files[1].to_str().unwrap()];
        let server = Server::narval(&store, &[&options, args].concat());
        doctor(&format!("https://{}", server.address), &[], trusted)
    };
    let (code, findings) = https(&good, Some(&good[0]), &[]);
    assert_eq!((code, failed(&findings)), (Some(0), vec![]), "{findings:?}");
    assert!(findings["tls"].1.starts_with("TLSv1_3, a verified chain of 1, "), "{findings:?}");
    assert!(findings["tls"].1.ends_with(" days left"), "{findings:?}");
    assert_eq!(findings["http/2"].1, "yes");
    let (_, findings) = https(&good, Some(&good[0]), &["--no-http2"]);
    assert!(findings["http/2"].1.starts_with("no"), "{findings:?}");

    for (files, trusted, says) in
        [(&good, None, "UnknownIssuer"), (&elsewhere, Some(&elsewhere[0]), "elsewhere.example")]
    {
        let (code, findings) = https(files, trusted.map(PathBuf::as_path), &[]);
        assert_eq!((code, failed(&findings)), (Some(1), vec!["tls"]), "{says}: {findings:?}");
        assert!(findings["tls"].1.contains(says), "{says}: {findings:?}");
    }
    // Narval does not start with a certificate that has expired.
    let server = OpenSsl::start(&expired);
    let (code, findings) = doctor(&format!("https://{}", server.address), &[], Some(&expired[0]));
    assert_eq!((code, failed(&findings)), (Some(1), vec!["tls"]), "{findings:?}");
    let message = &findings["tls"].1;
    let seconds = (now - 3 * DAY).duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let mut date = Command::new("date");
    date.args(["-u", "+%d %b %Y %T", "-d"]).arg(format!("@{seconds}")).env("LC_ALL", "C");
    let date = String::from_utf8(date.output().unwrap().stdout).unwrap();
    let expected = format!("a certificate that it presented expired on {} GMT (", date.trim());
    assert!(message.contains(&expected) && !message.contains("SSL_CERT_FILE"), "{message}: {expected}");
    let (code, findings) = https(&expiring, Some(&expiring[0]), &[]);
    assert_eq!(code, Some(1), "{findings:?}");
    assert!(findings["tls"].1.contains("expires in 3 days"), "{findings:?}");
}

#[test]
fn servers_that_are_no_caches_fail() {
    // Nobody listens here: the port was free a moment ago.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    for (scheme, failing) in [("http", "cache info"), ("https", "tls")] {
        let (code, findings) = doctor(&format!("{scheme}://{address}"), &[], None);
        assert_eq!((code, failed(&findings)), (Some(1), vec![failing]), "{findings:?}");
        assert!(findings[failing].1.contains("cannot connect to"), "{findings:?}");
    }

    // A server of files: without nix-cache-info, and one that has a file for a path that cannot exist.
    let serve = |files: &[(&str, &str)]| {
        let folder = tempfile::tempdir().unwrap();
        files.iter().for_each(|(name, contents)| fs::write(folder.path().join(name), contents).unwrap());
        let mut command = Command::new(NARVAL);
        command.arg("static").arg(folder.path()).args(["--listen", "127.0.0.1:0"]);
        let server = Server::start(command, &[]);
        doctor(&server.url(), &[], None)
    };
    let (code, findings) = serve(&[]);
    assert_eq!((code, failed(&findings)), (Some(1), vec!["cache info"]), "{findings:?}");
    assert!(findings["cache info"].1.contains("answered 404; is it a cache?"), "{findings:?}");
    let (code, findings) = serve(&[("nix-cache-info", "StoreDir: /nix/store\nPriority: much\n")]);
    assert_eq!((code, failed(&findings)), (Some(1), vec!["cache info"]), "{findings:?}");
    assert!(findings["cache info"].1.contains("Priority is not a number"), "{findings:?}");
    let absent = format!("{}.narinfo", "0".repeat(32));
    let (code, findings) = serve(&[("nix-cache-info", "StoreDir: /nix/store\n"), (&absent, "")]);
    assert_eq!((code, failed(&findings)), (Some(1), vec!["absent path"]), "{findings:?}");
    assert!(findings["absent path"].1.contains("answered 200 where 404 is due"), "{findings:?}");
}

#[test]
fn wrong_usage_has_its_own_exit_code() {
    let store = Store::new();
    let server = Server::narval(&store, &[]);
    let url = server.url();
    for args in [
        &["--server", "file:///nowhere"][..],
        &["--server", "not a URL"],
        &["--path", "/nix/store/x"],
        &["--server", &url, "--path", "no path"],
        &["--server", &url, "--trusted-public-key", "nonsense"],
    ] {
        let output = run(args, None);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn a_health_check_needs_no_token() {
    let store = Store::new();
    let data = store.path("data");
    let server = Server::narval(&store, &["--data", data.to_str().unwrap(), "--private"]);
    let (code, findings) = doctor(&server.url(), &["--health"], None);
    assert_eq!((code, failed(&findings), findings.len()), (Some(0), vec![], 1), "{findings:?}");
    fs::write(store.real("/nix/var/nix/db/db.sqlite"), "no database").unwrap();
    let (code, findings) = doctor(&server.url(), &["--health"], None);
    assert_eq!((code, failed(&findings)), (Some(1), vec!["health"]), "{findings:?}");
    assert!(findings["health"].1.contains("the server answered 503"), "{findings:?}");
}
