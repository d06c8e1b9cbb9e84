//! *Status*: whether all is well, what was in the last hour, and what is under way; nobody sees figures any longer than allowed.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::browser::Browser;
use crate::lab::Lab;
use crate::looks::{check, keyboard};
use crate::support::{Server, Store, hash_part, noise};

/// The text of Status, as the server renders it.
fn status(server: &Server, at: &str, fields: &[&str]) -> String {
    let answer = server.ask("GET", at, fields);
    assert_eq!(answer.status, 200, "{}", answer.text());
    // Without style and script.
    let text = answer.text().to_owned();
    let body = text.split("<body").nth(1).unwrap_or_default();
    body.split("<script").next().unwrap_or_default().to_owned()
}

/// Asks until the text has this.
fn wait_for(server: &Server, at: &str, expected: &str) -> String {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let text = status(server, at, &[]);
        if text.contains(expected) {
            return text;
        }
        assert!(Instant::now() < until, "never {expected:?}: {text}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

const STATUS: &str = "/_narval/status";

/// An upstream that accepts connections and never answers makes threads wait; what comes after that is answered 503. A page that is open shows
/// it by itself, with what to do.
#[test]
fn an_overload_is_seen() {
    let Some(mut browser) = Browser::start() else { return };
    let upstream = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = upstream.local_addr().unwrap();
    std::thread::spawn(move || {
        let connections: Vec<_> = upstream.incoming().take(2_000).collect();
        drop(connections);
    });
    let lab = Lab::new(&[
        "--upstream",
        &format!("http://{address}"),
        "--upstream-key",
        "x-1:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
        "--upstream-when-down",
        "unavailable",
        "--upstream-absent-after",
        "800ms",
    ]);
    browser.open(&format!("{}{STATUS}", lab.server.url()), "Idle.");
    let is_over = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..150)
        .map(|number| {
            let (is_over, address) = (Arc::clone(&is_over), lab.server.address);
            std::thread::spawn(move || {
                let part = format!("{number:032}");
                while !is_over.load(Ordering::Relaxed) {
                    let Ok(mut stream) = std::net::TcpStream::connect(address) else { continue };
                    stream.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
                    let _ = write!(stream, "GET /{part}.narinfo HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
                    let _ = stream.read(&mut [0; 512]);
                }
            })
        })
        .collect();
    browser.shows("requests failed");
    browser.wait(
        "[...document.querySelectorAll('#verdict a')].some((link) => link.href.endsWith('/runbook.html#narvalerrors'))",
    );
    browser.shows("requests per second in the last minute");
    browser.wait("document.querySelector('.area .l3') && document.querySelector('#state').textContent.startsWith('▲')");
    browser.screenshot("status-overload");
    is_over.store(true, Ordering::Relaxed);
    clients.into_iter().for_each(|client| client.join().unwrap());
}

#[test]
fn figures_of_a_private_cache_end_with_the_token_and_with_the_session() {
    let lab = Lab::new(&["--private"]);
    let token = lab.token(&["--pull"]);
    let id = token.split('_').nth(1).unwrap();
    let session = lab.sign_in(&token);
    let other = lab.sign_in(&token);
    let bearer = format!("Authorization: Bearer {token}");
    let is_shown = |field: &str| status(&lab.server, STATUS, &[field]).contains("All is well");
    assert!(is_shown(&session.cookie) && is_shown(&other.cookie) && is_shown(&bearer) && !is_shown("X: y"));
    assert_eq!(lab.ask("DELETE", "session", &session.fields(), "").status, 204);
    assert!(!is_shown(&session.cookie) && is_shown(&other.cookie));
    let Some(mut browser) = Browser::start() else { return };
    browser.open(&format!("{}{STATUS}", lab.server.url()), "Sign in");
    browser.fill("#token", &token);
    browser.press("Enter", 13);
    browser.shows("All is well");
    crate::support::stdout(lab.run(&["token", "revoke", id]));
    // It was open.
    browser.shows("Sign in");
    browser.wait("!document.body.innerText.includes('All is well')");
    assert!(!is_shown(&other.cookie) && !is_shown(&bearer));
}

/// The server renders all of it, with what was before anybody looked.
#[test]
fn status_has_a_past_when_it_is_opened_first() {
    let lab = Lab::new(&[]);
    let path = lab.store.add_file("one-1.0", "x");
    lab.push(&path);
    for _ in 0..7 {
        assert_eq!(lab.server.get(&format!("/{}.narinfo", hash_part(&path))).status, 200);
        assert_eq!(lab.server.get(&format!("/{:032}.narinfo", 0)).status, 404);
    }
    std::thread::sleep(Duration::from_secs(6));
    let text = status(&lab.server, STATUS, &[]);
    assert!(
        text.contains("requests per second") && text.contains(">absent 7<") && text.contains("All is well"),
        "{text}"
    );
    // What the page and probes ask for is no request of a client.
    assert!(!text.contains("refused "), "{text}");
    assert!(text.contains("received ") && text.contains("in 1 path"), "{text}");
    // No value without a denominator, and no part that this server does not have.
    assert!(!text.contains("pstream") && !text.contains("Compressed NARs that were there"), "{text}");
    let Some(mut browser) = Browser::start() else { return };
    browser.call("Emulation.setScriptExecutionDisabled", serde_json::json!({ "value": true }));
    browser.open(&format!("{}{STATUS}", lab.server.url()), "absent 7");
    let size = browser
        .eval("(({ width, height }) => [width, height])(document.querySelector('.area').getBoundingClientRect())");
    assert!(size[0].as_f64().unwrap() > 200.0 && size[1].as_f64().unwrap() > 100.0, "{size}");
}

/// Who may read one cache is not told of the others, nor of the server.
#[test]
fn a_cache_shows_its_own_figures_and_the_server_is_for_its_operator() {
    let store = Store::new();
    let config = store.path("serve.toml");
    std::fs::write(&config, "[[cache]]\nname = \"team\"\n").unwrap();
    let server = Lab::serve(&store, &["--config", config.to_str().unwrap()]);
    let lab = Lab { store, server };
    let team = format!("/team{STATUS}");
    for _ in 0..50 {
        assert_eq!(lab.server.get(&format!("/{:032}.narinfo", 0)).status, 404);
    }
    let root = wait_for(&lab.server, STATUS, ">absent 50<");
    let of_team = status(&lab.server, &team, &[]);
    assert!(of_team.contains("No request since the server started") && !of_team.contains("absent"), "{of_team}");
    let of_server = ["The whole server", "Workers busy", "File system of the"];
    let admin = lab.token(&["--admin", "--cache", "*"]);
    let session = lab.sign_in(&admin);
    let operator = status(&lab.server, STATUS, &[&session.cookie]);
    let of_team = status(&lab.server, &team, &[&session.cookie]);
    for words in of_server {
        assert!(operator.contains(words), "{words}: {operator}");
        assert!(!root.contains(words) && !of_team.contains(words), "{words}");
    }
    // Without tokens, whoever sees the page sees it all.
    let live = Server::narval(&Store::new(), &[]);
    assert!(of_server[..2].iter().all(|words| status(&live, STATUS, &[]).contains(words)));
}

/// Sizes of the last month, which the server has recorded.
#[test]
fn room_says_how_the_cache_grows_and_when_it_is_full() {
    let store = Store::new();
    let config = store.path("serve.toml");
    std::fs::write(&config, "[[cache]]\nname = \"default\"\nquota = \"1G\"\n").unwrap();
    std::fs::create_dir(store.path("data")).unwrap();
    let today = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() / 86_400;
    // Nothing of today: the server records that when it has run for a while.
    let sizes: Vec<_> = (1..=31).map(|ago| format!("\"{}\":{}", today - ago, 400_000_000 - ago * 10_000_000)).collect();
    std::fs::write(store.path("data/sizes.json"), format!("{{\"default\":{{{}}}}}", sizes.join(","))).unwrap();
    let server = Lab::serve(&store, &["--config", config.to_str().unwrap()]);
    let text = status(&server, STATUS, &[]);
    assert!(
        text.contains("It grew by 70.0 MB in 7 days and 300 MB in 30 days; at its limit in about 15 weeks."),
        "{text}"
    );
    // The cache is empty.
    wait_for(&server, STATUS, "It shrank by");
    let sizes = std::fs::read_to_string(store.path("data/sizes.json")).unwrap();
    assert!(sizes.contains(&format!("\"{today}\":0")) && !sizes.contains(&format!("\"{}\"", today - 32)), "{sizes}");
}

/// A quota that is nearly used up, paths that nobody can install and an upstream that is away: each with its section of the runbook.
#[test]
fn trouble_is_said_with_what_to_do() {
    let store = Store::new();
    let (key, _) = store.key("own-1");
    let path = store.add_file("unsigned-1.0", noise(1, 500_000));
    let database = store.path("root/nix/var/nix/db/db.sqlite");
    let statement = format!("update ValidPaths set ca = null where path = '{path}'");
    assert!(std::process::Command::new("sqlite3").arg(database).arg(statement).status().unwrap().success());
    let (config, gone) = (store.path("serve.toml"), TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap());
    let text = format!(
        "sign-keys = [\"{}\"]\n[[cache]]\nname = \"default\"\nquota = 540000\n[[cache.upstream]]\nurl = \"http://{gone}\"\n\
         keys = [\"x-1:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\"]\n",
        key.display()
    );
    std::fs::write(&config, text).unwrap();
    let server = Lab::serve(&store, &["--config", config.to_str().unwrap()]);
    let lab = Lab { store, server };
    // By a token that may not sign.
    lab.push(&path);
    for number in 0..10 {
        lab.server.get(&format!("/{number:032}.narinfo"));
    }
    let expected = [
        ("1 of 1 path is not signed", "#narvalunsignedpaths"),
        (" % of the quota is used", "#narvalquotanearlyfull"),
        ("does not answer", "#narvalupstreamdown"),
    ];
    for (words, section) in expected {
        let text = wait_for(&lab.server, STATUS, words);
        assert!(text.contains(&format!("/runbook.html{section}\"")), "{text}");
    }
    let text = status(&lab.server, STATUS, &[]);
    assert!(text.contains("lacks a signature by a trusted key") && text.contains("▲ down"), "{text}");
    assert!(status(&lab.server, "/", &["Accept: text/html"]).contains("▲ "), "the header says it, too");
    let Some(mut browser) = Browser::start() else { return };
    browser.open(&format!("{}{STATUS}", lab.server.url()), "is not signed");
    check(&mut browser, "status-trouble");
    keyboard(&mut browser, "status-trouble");
}

#[test]
fn status_can_be_read_idle_and_busy() {
    let Some(mut browser) = Browser::start() else { return };
    let store = Store::new();
    let path = store.add_file("large-1.0", noise(1, 30_000_000));
    let lab = {
        let server = Lab::serve(&store, &["--store", &store.uri()]);
        Lab { store, server }
    };
    let url = format!("{}{STATUS}", lab.server.url());
    browser.open(&url, "All is well");
    check(&mut browser, "status-idle");
    keyboard(&mut browser, "status-idle");
    let narinfo = lab.server.get(&format!("/{}.narinfo", hash_part(&path)));
    let nar = narinfo.text().lines().find_map(|line| line.strip_prefix("URL: ").map(str::to_owned)).unwrap();
    for round in 0..6 {
        for number in 0..40 * (round + 1) {
            lab.server.get(&format!("/{}.narinfo", hash_part(&path)));
            if number % 4 == 0 {
                lab.server.get(&format!("/{number:032}.narinfo"));
            }
        }
        lab.server.ask("GET", &format!("/{nar}"), &["Range: bytes=0-9999999"]);
        std::thread::sleep(Duration::from_millis(1500));
    }
    let mut slow = lab.server.connect();
    write!(slow, "GET /{nar} HTTP/1.1\r\nHost: t\r\n\r\n").unwrap();
    slow.read_exact(&mut [0; 100_000]).unwrap();
    browser.shows("large-1.0");
    browser.shows("requests per second");
    browser.wait("document.querySelector('#traffic .area')");
    browser.eval("document.getElementById('details').open = true");
    check(&mut browser, "status-busy");
    keyboard(&mut browser, "status-busy");
    // What is open stays open.
    std::thread::sleep(Duration::from_secs(6));
    assert_eq!(browser.eval("document.getElementById('details').open"), true);
    drop(slow);
}

/// Downloads, uploads and compressions are counted while they are under way, for the page and in `/metrics`.
#[test]
fn what_is_under_way_is_counted_until_it_ends() {
    let store = Store::new();
    let large = noise(1, 40_000_000);
    let root = store.path("large");
    std::fs::write(&root, &large).unwrap();
    let path = store.add(&root);
    let data = store.path("data");
    let args = ["serve", "--listen", "127.0.0.1:0", "--store", &store.uri(), "--data", data.to_str().unwrap()];
    let mut command = std::process::Command::new(crate::support::NARVAL);
    command.args(args);
    let server = Server::start(command, &[("XDG_CACHE_HOME", store.path("cache").to_str().unwrap())]);
    let count = |name: &str| -> u64 {
        let metrics = server.get("/metrics");
        metrics.figure(&format!("narval_{name}")).unwrap_or_else(|| panic!("no {name}: {}", metrics.text()))
    };
    let wait = |name: &str, wanted: u64| {
        let until = Instant::now() + Duration::from_secs(60);
        while count(name) != wanted {
            assert!(Instant::now() < until, "{name}: {}, not {wanted}", count(name));
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let narinfo = server.get(&format!("/{}.narinfo", hash_part(&path)));
    let url = narinfo.text().lines().find_map(|line| line.strip_prefix("URL: ").map(str::to_owned)).unwrap();
    // Clients that read the head and nothing else.
    let ask = |coding: &str| {
        let mut stream = server.connect();
        write!(stream, "GET /{url} HTTP/1.1\r\nHost: t\r\nAccept-Encoding: {coding}\r\n\r\n").unwrap();
        let mut head = [0; 12];
        stream.read_exact(&mut head).unwrap();
        assert_eq!(&head, b"HTTP/1.1 200");
        stream
    };
    let plain = ask("identity");
    wait("nars_being_sent", 1);
    wait("compressions_running", 0);
    let coded = ask("zstd");
    wait("nars_being_sent", 2);
    wait("compressions_running", 1);
    let text = status(&server, STATUS, &[]);
    assert!(text.contains(">large<") && text.contains(" of 40.0 MB"), "{text}");
    drop((plain, coded));
    wait("nars_being_sent", 0);
    wait("compressions_running", 0);
    // An upload whose client pauses. What is no NAR would be refused at once.
    let nar = server.get(&format!("/{url}")).body;
    let mut token = std::process::Command::new(crate::support::NARVAL);
    token.args(["token", "create", "--push", "page", "--data"]).arg(&data);
    let token = crate::support::stdout(token.output().unwrap());
    let mut upload = server.connect();
    let name = format!("{}.nar", "0".repeat(52));
    write!(
        upload,
        "PUT /nar/{name} HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer {}\r\nContent-Length: {}\r\n\r\n",
        token.trim(),
        nar.len()
    )
    .unwrap();
    upload.write_all(&nar[..3_000_000]).unwrap();
    wait("uploads_being_received", 1);
    let text = wait_for(&server, STATUS, ">Uploads<");
    assert!(text.contains(" of 40.0 MB") && !text.contains(">large<"), "{text}");
    drop(upload);
    wait("uploads_being_received", 0);
}
