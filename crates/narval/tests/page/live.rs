//! *Now*: an overload is seen, and nobody sees figures any longer than allowed.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::browser::Browser;
use crate::lab::Lab;

/// Counts the samples that the page gets, and notes the first one that counts requests that failed, the first one with which the page
/// shows an alarm, and the shortest time between two, in milliseconds. Upstreams have an alarm of their own.
const OBSERVE: &str = "
    window.observed = { samples: 0, shortest: Infinity };
    const parse = JSON.parse;
    JSON.parse = (text, revive) => {
        const sample = parse(text, revive);
        if (!sample || !('uptime' in sample)) return sample;
        window.observed.samples += 1;
        const { failed, uptime } = sample, last = window.observed.last;
        if (last && failed > last.failed) window.observed.failed ??= window.observed.samples;
        if (last) window.observed.shortest = Math.min(window.observed.shortest, uptime - last.uptime);
        window.observed.last = { failed, uptime };
        return sample;
    };
    new MutationObserver(() => {
        const alarms = [...document.querySelectorAll('.card.alarm h2')];
        if (alarms.some((title) => !title.textContent.startsWith('Upstreams'))) window.observed.alarmed ??= window.observed.samples;
    }).observe(document.body, { subtree: true, attributes: true });
";

/// An upstream that accepts connections and never answers makes threads wait; what comes after that is answered 503. The page shows it
/// with the sample that counts it, and there is a sample every second.
#[test]
fn an_overload_is_seen_at_once() {
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
    ]);
    browser.open(&format!("{}/#/now", lab.server.url()), "since the server started");
    browser.wait("document.querySelectorAll('.card .figure').length > 5 && !document.querySelector('.card.alarm')");
    browser.eval(&format!("{{ {OBSERVE} }}"));
    // Those of before the overload: there is a sample of which the page knows that it is no alarm.
    browser.wait("window.observed.samples > 1");
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
    browser.wait("window.observed.failed && window.observed.samples > window.observed.failed + 2");
    browser.screenshot("now-overload");
    is_over.store(true, Ordering::Relaxed);
    clients.into_iter().for_each(|client| client.join().unwrap());
    let number =
        |browser: &mut Browser, what: &str| browser.eval(&format!("window.observed.{what} ?? 1e9")).as_f64().unwrap();
    let [alarmed, failed, shortest] = ["alarmed", "failed", "shortest"].map(|what| number(&mut browser, what));
    assert!(alarmed <= failed, "shown with sample {alarmed}, counted by sample {failed}");
    assert!((500.0..2_000.0).contains(&shortest), "{shortest} ms between two samples");
    // It is over, too, where nobody asks any more.
    browser.wait("!document.querySelector('.card.alarm') || document.querySelector('.card.alarm h2').textContent.startsWith('Upstreams')");
}

#[test]
fn figures_of_a_private_cache_end_with_the_token_and_with_the_session() {
    let lab = Lab::new(&["--private"]);
    let token = lab.token(&["--pull"]);
    let id = token.split('_').nth(1).unwrap();
    let session = lab.sign_in(&token);
    let other = lab.sign_in(&token);
    let bearer = format!("Authorization: Bearer {token}");
    let open = |fields: &[&str]| {
        let (status, stream) = lab.socket(fields);
        assert_eq!(status, "101");
        stream
    };
    // Reads until the server closes.
    let ends = |mut stream: std::net::TcpStream| {
        let until = Instant::now() + Duration::from_secs(60);
        let (mut all, mut piece) = (Vec::new(), [0; 4096]);
        while !all.windows(17).any(|window| window == b"the session has e") {
            let read = stream.read(&mut piece).unwrap();
            assert!(read > 0, "closed without a reason");
            assert!(Instant::now() < until, "the figures go on");
            all.extend_from_slice(&piece[..read]);
        }
    };
    let by_session = open(&[&session.cookie, &session.origin, &session.host]);
    let by_other = open(&[&other.cookie, &other.origin, &other.host]);
    let by_token = open(&[&bearer, &session.host]);
    assert_eq!(lab.ask("DELETE", "session", &session.fields(), "").status, 204);
    ends(by_session);
    crate::support::stdout(lab.run(&["token", "revoke", id]));
    ends(by_other);
    ends(by_token);
}

/// Downloads, uploads and compressions are counted while they are under way, for the page and in `/metrics`.
#[test]
fn what_is_under_way_is_counted_until_it_ends() {
    let store = crate::support::Store::new();
    let mut noise = 1_u64;
    let large: Vec<u8> = std::iter::repeat_with(|| {
        noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (noise >> 56) as u8
    })
    .take(40_000_000)
    .collect();
    let root = store.path("large");
    std::fs::write(&root, &large).unwrap();
    let path = store.add(&root);
    let data = store.path("data");
    let args = ["serve", "--listen", "127.0.0.1:0", "--store", &store.uri(), "--data", data.to_str().unwrap()];
    let mut command = std::process::Command::new(crate::support::NARVAL);
    command.args(args);
    let server = crate::support::Server::start(command, &[("XDG_CACHE_HOME", store.path("cache").to_str().unwrap())]);
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
    let narinfo = server.get(&format!("/{}.narinfo", crate::support::hash_part(&path)));
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
    drop(upload);
    wait("uploads_being_received", 0);
}
