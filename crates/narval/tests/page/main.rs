//! The page that browsers get: what it answers, and what a real browser (Debian's chromium, where it is installed) makes of it.

#![allow(dead_code, unreachable_pub, reason = "each file uses its part")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails may say so")]

mod browser;
mod inside;
mod lab;
mod looks;
mod manage;
mod plain;
mod states;
mod status;
#[path = "../support/mod.rs"]
mod support;
mod use_it;

use std::process::Command;
use std::time::{Duration, Instant};

use browser::Browser;
use lab::Lab;
use serde_json::{Value, json};
use support::{NARVAL, Server, Store, hash_part, stdout};

const HTML: &[&str] = &["Accept: text/html,application/xhtml+xml,*/*;q=0.8"];

/// A tree with names that a listing can hold.
fn add_tree(store: &Store, name: &str) -> String {
    let root = store.path(name);
    std::fs::create_dir_all(root.join("bin")).unwrap();
    std::fs::write(root.join("bin/run"), "#!/bin/sh\necho hello\n").unwrap();
    std::fs::write(root.join("large"), vec![7; 400_000]).unwrap();
    std::fs::write(root.join("zero"), "").unwrap();
    store.add(&root)
}

fn json(server: &Server, path: &str) -> Value {
    let answer = server.get(path);
    assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    serde_json::from_slice(&answer.body).unwrap()
}

#[test]
fn browsers_get_a_page_and_nix_what_it_always_got() {
    let store = Store::new();
    let server = Server::narval(&store, &[]);
    let page = server.ask("GET", "/", HTML);
    assert_eq!((page.status, page.field("content-type").unwrap()), (200, "text/html; charset=utf-8"));
    assert!(page.body.len() < 100_000);
    assert_eq!(page.field("cache-control"), Some("no-store"));
    let policy = page.field("content-security-policy").unwrap();
    assert!(policy.starts_with("default-src 'none'; script-src 'sha256-") && !policy.contains("unsafe"), "{policy}");
    let own = page.text().matches("data-url=\"http://").count() + page.text().matches("http://www.w3.org").count();
    assert_eq!(page.text().matches("http://").count(), own, "nothing from elsewhere");
    for accept in ["Accept: */*", "X: y"] {
        let plain = server.ask("GET", "/", &[accept]);
        assert!(plain.text().starts_with("This is a Nix binary cache"), "{accept}");
    }
    // What Nix asks for does not depend on it.
    assert!(server.ask("GET", "/nix-cache-info", HTML).text().starts_with("StoreDir: "));
    let without = Server::narval(&store, &["--no-web"]);
    assert!(without.ask("GET", "/", HTML).text().starts_with("This is a Nix binary cache"));
    assert_eq!(without.get("/_narval/page/check").status, 404);
    let old = Server::nix_serve(&store, &[], &[]);
    assert_eq!(old.ask("GET", "/", HTML).status, 404);
    assert_eq!(old.get("/_narval/page/check").status, 404);
}

#[test]
fn paths_are_found_and_shown_in_full() {
    let store = Store::new();
    let (key, public) = store.key("page-1");
    let tree = add_tree(&store, "Tree-With-1.0");
    let server = Server::narval(&store, &["--sign-key", key.to_str().unwrap()]);
    assert!(server.ask("GET", "/", HTML).text().contains(public.trim()));
    let check = json(&server, "/_narval/page/check");
    assert_eq!((&check["paths"], &check["checked"], &check["signed"]), (&1.into(), &1.into(), &1.into()));
    let found = json(&server, "/_narval/page/paths?q=with+tree");
    assert_eq!((found["total"].as_u64(), found["paths"][0]["name"].as_str()), (Some(1), Some("Tree-With-1.0")));
    assert_eq!(found["paths"][0]["hash"], hash_part(&tree));
    let path = server.get(&format!("/_narval/path/{}", hash_part(&tree)));
    for text in ["this machine’s store", "✓ this server’s key", "✓ Can be installed: it is signed by page-1.", &tree]
    {
        assert!(path.text().contains(text), "{text}: {}", path.text());
    }
    assert_eq!(path.field("cache-control"), Some("no-store"));
    // New ones are found at once.
    store.add_file("later-2.0", "x");
    let until = Instant::now() + Duration::from_secs(60);
    while json(&server, "/_narval/page/paths?q=later-2")["total"] != 1 {
        assert!(Instant::now() < until, "a new path is not found");
        std::thread::sleep(Duration::from_millis(50));
    }
    let absent = "0".repeat(32);
    for route in ["page/closure", "page/file", "path", "files", &format!("compare/{absent}")] {
        assert_eq!(server.get(&format!("/_narval/{route}/{absent}")).status, 404, "{route}");
    }
    for below in ["path/x", "path/../status", "page/closure/../check", "manage"] {
        assert_eq!(server.get(&format!("/_narval/{below}")).status, 404, "{below}");
    }
}

#[test]
fn files_come_out_of_nars_and_cannot_run() {
    let store = Store::new();
    let tree = add_tree(&store, "tree");
    let page = b"<script>document.title = 'run'</script>";
    let one = store.add_file("page.html", page);
    let data = store.path("data");
    let server = Server::narval(&store, &[]);
    let file = |path: &str, below: &str| format!("/_narval/page/file/{}/{below}", hash_part(path));
    let run = server.get(&file(&tree, "bin/run"));
    assert_eq!(run.body, std::fs::read(store.real(&tree).join("bin/run")).unwrap());
    assert_eq!(server.get(&file(&tree, "zero")).body, b"");
    for below in ["bin/none", "../x", "bin", "bin/../../etc/passwd", "%2e%2e/x"] {
        assert!([400, 404].contains(&server.get(&file(&tree, below)).status), "{below}");
    }
    let shown = server.get(&file(&one, ""));
    assert_eq!(shown.body, page);
    assert!(shown.field("content-security-policy").unwrap().contains("sandbox"));
    assert_eq!(shown.field("content-type").unwrap(), "text/plain; charset=utf-8");
    assert_eq!(shown.field("x-content-type-options").unwrap(), "nosniff");
    assert_eq!(server.get(&format!("{}?download", file(&one, ""))).field("content-disposition").unwrap(), "attachment");
    // The same out of a compressed NAR that was pushed.
    let token = stdout(
        Command::new(NARVAL).args(["token", "create", "--push", "--data"]).arg(&data).arg("page").output().unwrap(),
    );
    let netrc = store.path("netrc");
    std::fs::write(&netrc, format!("machine 127.0.0.1 password {}\n", token.trim())).unwrap();
    let alone = Lab::serve(&store, &[]);
    let pushed = Command::new(NARVAL)
        .args(["push", "--quiet", "--store", &store.uri(), "--to", &alone.url(), "--netrc-file"])
        .args([netrc.to_str().unwrap(), &tree])
        .output()
        .unwrap();
    assert!(pushed.status.success(), "{}", String::from_utf8_lossy(&pushed.stderr));
    assert_eq!(alone.get(&file(&tree, "bin/run")).body, run.body);
    assert_eq!(alone.get(&file(&tree, "large")).body, vec![7; 400_000]);
    assert_eq!(alone.get(&file(&tree, "zero")).body, b"");
    assert!(alone.get(&format!("/_narval/path/{}", hash_part(&tree))).text().contains("<dd>pushed to this cache</dd>"));
}

#[test]
fn a_private_cache_shows_nothing_of_itself() {
    let store = Store::new();
    let data = store.path("data");
    let token = stdout(
        Command::new(NARVAL).args(["token", "create", "--pull", "--data"]).arg(&data).arg("page").output().unwrap(),
    );
    let server = Lab::serve(&store, &["--private"]);
    assert_eq!(server.ask("GET", "/", HTML).status, 200, "the document asks for a token");
    for route in ["check", "paths"] {
        let path = format!("/_narval/page/{route}");
        assert_eq!(server.get(&path).status, 401, "{route}");
    }
    let bearer = format!("Authorization: Bearer {}", token.trim());
    assert_eq!(server.ask("GET", "/_narval/page/check", &[&bearer]).status, 200);
}

#[test]
fn a_browser_shows_every_view_without_a_complaint() {
    let store = Store::new();
    let (key, public) = store.key("page-1");
    let tree = add_tree(&store, "tree");
    store.add_file("-=script=-alert-1", "<img src=x onerror=alert(1)>");
    let Some(mut browser) = Browser::start() else { return };
    let server = Server::narval(&store, &["--sign-key", key.to_str().unwrap()]);
    let hash = hash_part(&tree);
    let views = [
        (String::new(), public.trim().to_owned()),
        ("#/find/tree".to_owned(), format!("_narval/path/{hash}")),
        (format!("#/path/{hash}"), "this server’s key".to_owned()),
        (format!("#/files/{hash}/bin/run"), "#!".to_owned()),
        ("#/now".to_owned(), "All is well".to_owned()),
        ("#/path/nothing".to_owned(), "Not found".to_owned()),
    ];
    for (at, expected) in views {
        for width in [390, 1280] {
            browser.resize(width);
            browser.open(&format!("{}/{at}", server.url()), "");
            browser.wait(&format!("document.documentElement.outerHTML.includes({})", json!(expected)));
            let mut complaints = std::mem::take(&mut browser.complaints);
            // The browser reports a fetch answered 404 on its console.
            complaints.retain(|complaint| !at.ends_with("nothing") || !complaint.contains("status of 404"));
            assert!(complaints.is_empty(), "{at} at {width}: {complaints:?}");
        }
    }
}

/// The first visit leaves nothing on the browser's console: no request is made that would be refused.
#[test]
fn a_first_visit_to_a_private_cache_asks_for_a_token_and_nothing_else() {
    let Some(mut browser) = Browser::start() else { return };
    let lab = Lab::new(&["--private"]);
    lab.push(&lab.store.add_file("inside-1.0", "x"));
    let url = lab.server.url();
    for at in ["", "#/find", "#/now", &format!("#/path/{}", "0".repeat(32))] {
        browser.open(&format!("{url}/{at}"), "This cache is private");
        assert!(browser.complaints.is_empty(), "{at}: {:?}", browser.complaints);
    }
    // A token that cannot read opens a session, which says so.
    browser.fill("#token", &lab.token(&["--push"]));
    browser.press("Enter", 13);
    browser.shows("it lacks the scope pull");
    browser.click("a", "What it allows");
    browser.shows("which allows push");
    browser.click("button", "Sign out");
    browser.shows("This cache is private");
    // One that can shows what was asked for.
    browser.open(&format!("{url}/#/find/inside"), "This cache is private");
    browser.fill("#token", &lab.token(&["--pull"]));
    browser.press("Enter", 13);
    browser.shows("inside 1.0");
    assert!(browser.complaints.is_empty(), "{:?}", browser.complaints);
}
