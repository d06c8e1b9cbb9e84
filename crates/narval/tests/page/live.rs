//! *Now*: an overload is seen, and nobody sees figures any longer than allowed.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::browser::Browser;
use crate::lab::Lab;

/// An upstream that accepts connections and never answers makes threads wait; what comes after that is answered 503.
#[test]
fn an_overload_is_seen_within_two_seconds() {
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
    browser.eval("new MutationObserver(() => { if (document.querySelector('.card.alarm')) window.seen ??= Date.now(); }).observe(document.body, { subtree: true, attributes: true })");
    let is_over = Arc::new(AtomicBool::new(false));
    let began = browser.eval("Date.now()").as_f64().unwrap();
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
    browser.wait("window.seen");
    let seen = browser.eval("window.seen").as_f64().unwrap();
    browser.screenshot("now-overload");
    is_over.store(true, Ordering::Relaxed);
    clients.into_iter().for_each(|client| client.join().unwrap());
    assert!(seen - began <= 2_000.0, "{} ms", seen - began);
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
    // Reads until the server closes, and gives how long that took.
    let ended = |mut stream: std::net::TcpStream| {
        let began = Instant::now();
        stream.set_read_timeout(Some(Duration::from_secs(15))).unwrap();
        let (mut all, mut piece) = (Vec::new(), [0; 4096]);
        while !all.windows(17).any(|window| window == b"the session has e") {
            let read = stream.read(&mut piece).expect("the figures go on");
            assert!(read > 0, "closed without a reason");
            all.extend_from_slice(&piece[..read]);
        }
        began.elapsed()
    };
    let by_session = open(&[&session.cookie, &session.origin, &session.host]);
    let by_other = open(&[&other.cookie, &other.origin, &other.host]);
    let by_token = open(&[&bearer, &session.host]);
    assert_eq!(lab.ask("DELETE", "session", &session.fields(), "").status, 204);
    assert!(ended(by_session) < Duration::from_secs(10));
    crate::support::stdout(lab.run(&["token", "revoke", id]));
    assert!(ended(by_other) < Duration::from_secs(10));
    assert!(ended(by_token) < Duration::from_secs(10));
}
