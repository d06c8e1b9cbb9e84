//! Real Nix, the newest and 2.8, as clients of both programs.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails may say so")]

mod support;

use std::process::Command;

use support::{NIX_SERVE, Nix, Server, Store, hash_part, stdout};

/// A closure with real references, self-references, logs and derivers, made by real Nix.
fn hello() -> String {
    support::made_closure().expect("tools/make-closure makes the closure that is missing in /nix/store")
}

fn copy(nix: Nix, home: &Store, url: &str, key: &str, path: &str, to: &str) -> Result<(), String> {
    let to = home.path(to);
    let args = ["copy", "--from", url, "--to", to.to_str().unwrap(), "--option", "trusted-public-keys", key, path];
    let output = nix.nix(home.dir.path(), &args);
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

/// The files and links below two folders are the same (`diff -r` follows links).
fn assert_same(one: &std::path::Path, two: &std::path::Path) {
    let same = Command::new("diff").args(["-r", "--no-dereference"]).args([one, two]).status().unwrap();
    assert!(same.success(), "{} and {} differ", one.display(), two.display());
}

fn serve_this_machine(program: &str, home: &Store) -> (Server, String) {
    let (file, public) = home.key("test-1");
    let mut command = Command::new(program);
    let server = if program == NIX_SERVE {
        command.args(["--listen", "127.0.0.1:0", "--store", "local"]);
        Server::start(command, &[("NIX_SECRET_KEY_FILE", file.to_str().unwrap())])
    } else {
        command.args(["serve", "--listen", "127.0.0.1:0", "--store", "local", "--sign-key"]).arg(&file);
        Server::start(command, &[("XDG_CACHE_HOME", home.path("cache").to_str().unwrap())])
    };
    (server, public)
}

#[test]
fn a_closure_is_copied_by_both_nixes_from_both_programs() {
    let hello = hello();
    for program in [NIX_SERVE, support::NARVAL] {
        for nix in Nix::BOTH {
            let home = Store::new();
            let (server, public) = serve_this_machine(program, &home);
            copy(nix, &home, &server.url(), &public, &hello, "copy").unwrap();
            assert_same(std::path::Path::new(&hello), &home.path("copy").join(&hello[1..]));
        }
    }
}

#[test]
fn signatures_are_checked() {
    let hello = hello();
    let home = Store::new();
    let (server, _) = serve_this_machine(NIX_SERVE, &home);
    let (_, other) = home.key("test-2");
    let error = copy(Nix::Newest, &home, &server.url(), &other, &hello, "copy").unwrap_err();
    assert!(error.contains("lacks a signature by a trusted key") || error.contains("signature"), "{error}");
}

#[test]
fn path_info_ls_cat_verify_and_log() {
    let hello = hello();
    for (program, nix) in [(NIX_SERVE, Nix::Newest), (support::NARVAL, Nix::Newest), (NIX_SERVE, Nix::Old)] {
        let home = Store::new();
        let (server, public) = serve_this_machine(program, &home);
        let url = server.url();
        let run = |args: &[&str]| stdout(nix.nix(home.dir.path(), args));
        assert!(run(&["path-info", "--store", &url, "--recursive", &hello]).lines().count() >= 3);
        assert_eq!(run(&["store", "ls", "--store", &url, &format!("{hello}/bin")]), "./hello");
        let cat = nix.nix(home.dir.path(), &["store", "cat", "--store", &url, &format!("{hello}/bin/hello")]);
        assert!(cat.stdout == std::fs::read(format!("{hello}/bin/hello")).unwrap());
        run(&["store", "verify", "--store", &url, "--option", "trusted-public-keys", &public, &hello]);
        // The log is empty, but there: what counts is that the client found it.
        run(&["log", "--store", &url, &hello]);
    }
}

#[test]
fn substitution_by_nix_store() {
    let hello = hello();
    let home = Store::new();
    let (server, public) = serve_this_machine(NIX_SERVE, &home);
    let url = server.url();
    let options = ["--option", "substituters", &url, "--option", "trusted-public-keys", &public];
    let mut args = vec!["-r", &hello];
    args.extend(options);
    let output = home.nix_store(&args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_same(std::path::Path::new(&hello), &home.real(&hello));
}

#[test]
fn a_store_made_by_either_nix_is_served() {
    for nix in Nix::BOTH {
        let store = Store::made_by(nix);
        let path = store.add_tree("tree");
        let (file, public) = store.key("test-1");
        let server = Server::nix_serve(&store, &[], &[("NIX_SECRET_KEY_FILE", file.to_str().unwrap())]);
        assert_eq!(server.get(&format!("/nar/{}.nar", hash_part(&path))).body, store.dump(&path), "{nix:?}");
        copy(Nix::Newest, &store, &server.url(), &public, &path, "copy").unwrap();
    }
}

#[test]
fn an_unprivileged_server_reads_what_root_wrote() {
    let whoami = Command::new("id").arg("-u").output().unwrap();
    let store = Store::new();
    let path = store.add_tree("tree");
    // As root the server becomes nobody; as anybody else it is unprivileged to begin with.
    let args: &[&str] = if whoami.stdout == b"0\n" { &["--user", "nobody"] } else { &[] };
    // The temporary folder itself is its owner's alone.
    std::fs::set_permissions(store.dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let server = Server::nix_serve(&store, args, &[]);
    if !args.is_empty() {
        let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
        assert!(!status.contains("Uid:\t0"), "{status}");
    }
    assert_eq!(server.get(&format!("/nar/{}.nar", hash_part(&path))).body, store.dump(&path));
    let later = store.add_file("later", "added while the server runs");
    assert_eq!(server.get(&format!("/{}.narinfo", hash_part(&later))).status, 200);
}

#[test]
fn both_nixes_copy_over_https_from_a_server_whose_certificate_they_trust() {
    let store = Store::new();
    let path = store.add_tree("tree");
    let (file, public) = store.key("test-1");
    let [cert, key] = support::certificate(store.dir.path());
    let tls = ["--ssl-cert", cert.to_str().unwrap(), "--ssl-key", key.to_str().unwrap()];
    let server = Server::nix_serve(&store, &tls, &[("NIX_SECRET_KEY_FILE", file.to_str().unwrap())]);
    let url = format!("https://localhost:{}", server.address.port());
    for nix in Nix::BOTH {
        let home = Store::new();
        let to = home.path("copy");
        let args = ["copy", "--from", &url, "--to", to.to_str().unwrap(), "--option", "trusted-public-keys", &public];
        let args = [&args[..], &["--option", "download-attempts", "1", &path]].concat();
        let without = nix.nix_with(home.dir.path(), &[], &args);
        assert!(!without.status.success(), "{nix:?} took a certificate that nobody vouches for");
        let trust = [("NIX_SSL_CERT_FILE", cert.to_str().unwrap())];
        stdout(nix.nix_with(home.dir.path(), &trust, &args));
        assert_same(&store.real(&path), &to.join(&path[1..]));
    }
}

/// Twenty times over with `NARVAL_ROUNDS=20`; the log says by which version each request came.
#[test]
fn a_closure_is_copied_over_http_2() {
    let hello = hello();
    let rounds = std::env::var("NARVAL_ROUNDS").map_or(2, |rounds| rounds.parse().expect("NARVAL_ROUNDS is a number"));
    for program in [NIX_SERVE, support::NARVAL] {
        let home = Store::new();
        let [cert, key] = support::certificate(home.dir.path());
        let log = home.path("access.log");
        let mut command = Command::new(program);
        if program == support::NARVAL {
            command.args(["serve", "--tls-cert"]).arg(&cert).arg("--tls-key").arg(&key);
        } else {
            command.arg("--ssl-cert").arg(&cert).arg("--ssl-key").arg(&key);
        }
        command.args(["--listen", "127.0.0.1:0", "--store", "local", "--access-log"]).arg(&log);
        let server = Server::start(command, &[("XDG_CACHE_HOME", home.path("cache").to_str().unwrap())]);
        let url = format!("https://localhost:{}", server.address.port());
        for round in 0..rounds {
            let client = Store::new();
            let to = client.path("copy");
            let args = ["copy", "--no-check-sigs", "--from", &url, "--to", to.to_str().unwrap(), &hello];
            stdout(Nix::Newest.nix_with(client.dir.path(), &[("NIX_SSL_CERT_FILE", cert.to_str().unwrap())], &args));
            if round == 0 {
                assert_same(std::path::Path::new(&hello), &to.join(&hello[1..]));
            }
        }
        // the log has every line once the server has ended
        assert_eq!(server.terminate(), Some(0));
        let log = std::fs::read_to_string(log).unwrap();
        let (http2, others): (Vec<_>, Vec<_>) = log.lines().partition(|line| line.contains(" HTTP/2.0\" "));
        assert!(others.is_empty(), "{others:?}");
        assert!(
            http2.iter().filter(|line| line.contains(".narinfo ") && line.contains("\" 200 ")).count() >= 3 * rounds
        );
    }
}
