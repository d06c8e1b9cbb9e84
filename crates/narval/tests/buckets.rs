//! Buckets (`s3://`) of real object stores: written by `narval push`, read by narval and by real Nix.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails may say so")]

#[path = "../../narval-s3/tests/ports/mod.rs"]
mod ports;
#[path = "../../narval-s3/tests/s3/mod.rs"]
mod s3;
mod support;

use std::path::Path;
use std::process::{Command, Output};

use s3::S3Server;
use s3::proxy::{Fault, Proxy};
use support::{NARVAL, Nix, Server, Store, hash_part, stdout};

/// Runs narval with these credentials, and no others of this machine.
fn narval(environment: &[(String, String)], home: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(NARVAL);
    command.args(args).env("HOME", home).env("AWS_EC2_METADATA_DISABLED", "true").env_remove("AWS_PROFILE");
    command.env("NO_PROXY", "127.0.0.1").envs(environment.iter().map(|(name, value)| (name, value)));
    command.output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn what_is_pushed_to_a_bucket_is_read_by_narval_and_by_nix() {
    for server in S3Server::all() {
        let store = Store::new();
        let (tree, large) = (store.add_tree("tree"), store.add_file("large", vec![7; 5_000_000]));
        let (key, public) = store.key("bucket-1");
        let bucket = server.bucket("the-cache");
        // Below a prefix, which Nix writes in the same way.
        let (url, environment) = (bucket.replace("the-cache", "the-cache/a/prefix"), server.environment());
        let push = ["push", &tree, &large, "--to", &url, "--store", &store.uri(), "--sign-key", key.to_str().unwrap()];
        let pushed = narval(&environment, store.dir.path(), &push);
        assert!(pushed.status.success(), "{}: {}", server.name, said(&pushed));
        let again = narval(&environment, store.dir.path(), &push);
        assert!(said(&again).contains("already has all 2 paths"), "{}: {}", server.name, said(&again));

        let read = ["--from", &url, "--trusted-public-key", &public];
        let info = narval(&environment, store.dir.path(), &[&["path-info", &tree][..], &read].concat());
        assert!(String::from_utf8_lossy(&info.stdout).contains(hash_part(&tree)), "{}", said(&info));
        let root = store.path("installed");
        let install = [&["install", &tree, &large][..], &read, &["--store", root.to_str().unwrap()]].concat();
        let installed = narval(&environment, store.dir.path(), &install);
        assert!(installed.status.success(), "{}: {}", server.name, said(&installed));
        let dumped = |root: &Path, path: &str| {
            let file = root.join(path.trim_start_matches('/'));
            stdout(Nix::Newest.nix_store(store.dir.path(), &["--dump", file.to_str().unwrap()]))
        };
        assert_eq!(dumped(&root, &large), dumped(&store.path("root"), &large), "{}", server.name);

        // Nobody reads it without credentials, until everybody may.
        let anonymous = narval(&[], store.dir.path(), &[&["path-info", &tree][..], &read].concat());
        assert!(
            !anonymous.status.success() && said(&anonymous).contains("no credentials were found"),
            "{}",
            said(&anonymous)
        );
        if server.name == "versitygw" {
            server.make_public("the-cache");
            let anonymous = narval(&[], store.dir.path(), &[&["path-info", &tree][..], &read].concat());
            assert!(anonymous.status.success(), "{}", said(&anonymous));
            let copied = store.path("copied");
            let options = ["--option", "trusted-public-keys", &public];
            let copy = ["copy", "--from", &url, "--to", copied.to_str().unwrap(), &tree, &large];
            let output = Nix::Newest.nix(store.dir.path(), &[&copy[..], &options].concat());
            assert!(output.status.success(), "nix copy --from {url}: {}", said(&output));
        }
    }
}

#[test]
fn caches_and_stores_are_copied_into_buckets() {
    let Some(server) = S3Server::versitygw() else { return };
    let store = Store::new();
    let (path, (key, public)) = (store.add_tree("tree"), store.key("bucket-1"));
    let (first, second, environment) = (server.bucket("first"), server.bucket("second"), server.environment());
    let from_store = ["copy", &path, "--store", &store.uri(), "--to", &first, "--sign-key", key.to_str().unwrap()];
    let copied = narval(&environment, store.dir.path(), &from_store);
    assert!(said(&copied).contains("Copied 1 path"), "{}", said(&copied));
    let trusted = ["--trusted-public-key", &public];
    let from_cache = [&["copy", &path, "--from", &first, "--to", &second][..], &trusted].concat();
    for expected in ["Copied 1 path", "Copied 0 paths"] {
        let copied = narval(&environment, store.dir.path(), &from_cache);
        assert!(said(&copied).contains(expected), "{}", said(&copied));
    }
    let root = store.path("installed");
    let install = ["install", &path, "--from", &second, "--store", root.to_str().unwrap()];
    let installed = narval(&environment, store.dir.path(), &[&install[..], &trusted].concat());
    assert!(installed.status.success(), "{}", said(&installed));
}

#[test]
fn a_bucket_is_an_upstream_of_a_server() {
    let Some(bucket) = S3Server::versitygw() else { return };
    let store = Store::new();
    let (path, (key, public)) = (store.add_tree("tree"), store.key("bucket-1"));
    let (url, environment) = (bucket.bucket("upstream"), bucket.environment());
    let push = ["push", &path, "--to", &url, "--store", &store.uri(), "--sign-key", key.to_str().unwrap()];
    assert!(narval(&environment, store.dir.path(), &push).status.success());
    let data = store.path("data");
    let mut command = Command::new(NARVAL);
    command.args(["serve", "--listen", "127.0.0.1:0", "--data", data.to_str().unwrap()]);
    command.args(["--upstream", &url, "--upstream-key", &public]);
    command.env("HOME", store.dir.path()).env("NO_PROXY", "127.0.0.1");
    let set: Vec<(&str, &str)> = environment.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let server = Server::start(command, &set);
    // Nix needs no credentials for it.
    let copied = store.path("copied");
    let copy = ["copy", "--from", &server.url(), "--to", copied.to_str().unwrap(), &path];
    let output =
        Nix::Newest.nix(store.dir.path(), &[&copy[..], &["--option", "trusted-public-keys", &public]].concat());
    assert!(output.status.success(), "{}", said(&output));
}

#[test]
fn a_push_costs_two_requests_for_each_path_and_five_more() {
    let Some(server) = S3Server::versitygw() else { return };
    let store = Store::new();
    server.bucket("counted");
    let proxy = Proxy::to(server.port);
    let (url, environment) = (server.url_through("counted", &proxy), server.environment());
    let (mut paths, count) = (Vec::new(), 20);
    for number in 0..count {
        // Each is a path of its own; some have the same NAR.
        paths.push(store.add_file(&format!("file-{number}"), vec![u8::try_from(number % 15).unwrap(); 5000]));
    }
    let push = |paths: &[String], url: &str| {
        let mut args = vec!["push", "--to", url];
        args.extend(paths.iter().map(String::as_str));
        let uri = store.uri();
        args.extend(["--store", &uri]);
        let pushed = narval(&environment, store.dir.path(), &args);
        assert!(pushed.status.success(), "{}", said(&pushed));
        let requests = proxy.take_requests();
        let of = |method: &str, text: &str| {
            requests.iter().filter(|request| request.starts_with(method) && request.contains(text)).count()
        };
        (requests.len(), of("GET", "list-type"), of("GET", ".narinfo?"), of("HEAD", ""), of("PUT", "/nar/"))
    };
    // GET and PUT of nix-cache-info, one list, 15 NARs, 20 narinfos.
    assert_eq!(push(&paths, &url), (3 + 15 + count, 1, 0, 0, 15));
    // Those that are listed are read: their names may be others.
    assert_eq!(push(&paths, &url), (2 + count, 1, count, 0, 0));
    paths.push(store.add_tree("one-more"));
    assert_eq!(push(&paths, &url), (2 + count + 2, 1, count, 0, 1));
    // A few are requested.
    assert_eq!(push(&paths[..3], &url), (1 + 3, 0, 3, 0, 0));
    // Below a prefix, and with objects there that are none of a cache, it is the same.
    assert_eq!(push(&paths, &url.replace("counted", "counted/a")).0, 3 + 16 + count + 1);
    // Whoever may not list asks for each.
    proxy.set(|_, target| if target.contains("list-type") { Fault::Denied } else { Fault::None });
    assert_eq!(push(&paths, &url.replace("counted", "counted/b")).2, count + 1);
    // A bucket with far more objects than are wanted is not read to its end: four requests more than those of the paths.
    proxy.set(|_, _| Fault::None);
    let folder = server.root().join("counted/c");
    std::fs::create_dir_all(&folder).unwrap();
    for number in 0..3500 {
        std::fs::write(folder.join(format!("0{number:031}.narinfo")), "x").unwrap();
    }
    let (_, lists, asked, ..) = push(&paths, &url.replace("counted", "counted/c"));
    assert_eq!((lists, asked), (3, count + 1));
}
