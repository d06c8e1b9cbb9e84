//! What each request is answered, and what is refused.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::lab::{Lab, Nar};
use crate::support::{NARVAL, Server, Store, hash_part};

const WRONG: &str = "nv1_0000000000000000_0000000000000000000000000000000000000000000000000000";
const PATH: &str = "00bgd045z0d4icpbc2yyz4gx48ak44la-test";
const OTHER: &str = "7gx4kiv5m0i7d7qkixq2cwzbr10lvxwc-other";

pub fn narinfo_url(path: &str) -> String {
    format!("/{}.narinfo", hash_part(path))
}

/// Uploads a NAR and a narinfo for `path`.
fn publish(lab: &Lab, token: &str, path: &str, nar: &Nar, references: &[&str]) {
    let put = lab.put(&nar.url(), token, &nar.bytes);
    assert!(matches!(put.status, 200 | 201), "{}: {}", put.status, put.text());
    let put = lab.put(&narinfo_url(path), token, nar.narinfo(path, references).as_bytes());
    assert!(matches!(put.status, 200 | 201), "{}: {}", put.status, put.text());
}

#[test]
fn without_data_a_put_is_405_with_a_line_that_says_how_to_allow_it() {
    let store = Store::new();
    let server = Server::narval(&store, &[]);
    for path in ["/nix-cache-info", &narinfo_url(PATH), "/nar/x.nar", "/anything"] {
        let answer = server.ask("PUT", path, &["Content-Length: 0"]);
        assert_eq!((answer.status, answer.field("allow")), (405, Some("GET, HEAD")), "{path}");
        assert!(answer.text().contains("narval serve --data"), "{}", answer.text());
    }
    assert!(!server.get("/nix-cache-info").text().contains("NarvalPush"));
    // The client's credentials are for another cache of this host.
    let fields = [&*format!("Authorization: Bearer {WRONG}")];
    assert_eq!(server.ask("GET", "/nix-cache-info", &fields).status, 200);
}

#[test]
fn a_wrong_token_is_401_whatever_it_is_sent_with() {
    let lab = Lab::new();
    let nar = Nar::of(b"x");
    for (method, path) in [
        ("GET", "/nix-cache-info"),
        ("HEAD", "/nix-cache-info"),
        ("GET", &*narinfo_url(PATH)),
        ("HEAD", &*nar.url()),
        ("GET", "/log/x"),
        ("PUT", &*nar.url()),
        ("PUT", &*narinfo_url(PATH)),
        ("PUT", "/nix-cache-info"),
        ("PUT", "/anything"),
    ] {
        let answer = lab.send(method, path, WRONG, &[], b"");
        assert_eq!(answer.status, 401, "{method} {path}");
        assert!(answer.field("www-authenticate").is_some_and(|value| value.starts_with("Basic ")), "{method} {path}");
    }
}

#[test]
fn malformed_credentials_are_401() {
    let lab = Lab::new();
    for field in
        ["Authorization: Basic ?", "Authorization: Digest x", "Authorization: Bearer", "Authorization: Basic bm8="]
    {
        assert_eq!(lab.send("GET", "/nix-cache-info", "", &[field], b"").status, 401, "{field}");
    }
}

#[test]
fn uploads_need_the_scope_push() {
    let lab = Lab::new();
    let nar = Nar::of(b"x");
    let pull = lab.token("pull");
    for path in [&*nar.url(), &*narinfo_url(PATH), "/nix-cache-info", "/anything", "/_narval/v1/nar/x.nar"] {
        assert_eq!(lab.put(path, "", b"x").status, 401, "{path}");
        let answer = lab.put(path, &pull, b"x");
        assert_eq!(answer.status, 403, "{path}");
        assert!(answer.text().contains("--add-scope push"), "{}", answer.text());
    }
    for path in ["/_narval/v1/missing", "/_narval/v1/commit"] {
        assert_eq!(lab.post(path, "", b"").status, 401, "{path}");
        assert_eq!(lab.post(path, &pull, b"").status, 403, "{path}");
    }
    let elsewhere = lab.token_for("other-*", "push");
    assert_eq!(lab.put(&nar.url(), &elsewhere, &nar.bytes).status, 403, "a token for other caches");
}

#[test]
fn basic_credentials_with_any_login_are_those_of_netrc() {
    use base64::Engine;
    let lab = Lab::new();
    let token = lab.token("push");
    let nar = Nar::of(b"x");
    let basic = base64::engine::general_purpose::STANDARD.encode(format!("anybody:{token}"));
    let field = format!("Authorization: Basic {basic}");
    assert_eq!(lab.send("PUT", &nar.url(), "", &[&field], &nar.bytes).status, 201);
}

#[test]
fn a_revoked_token_is_refused_at_once() {
    let lab = Lab::new();
    let token = lab.token("push");
    let nar = Nar::of(b"x");
    assert_eq!(lab.put(&nar.url(), &token, &nar.bytes).status, 201);
    lab.revoke(&token);
    assert_eq!(lab.put(&nar.url(), &token, &nar.bytes).status, 401);
    assert_eq!(lab.send("GET", "/nix-cache-info", &token, &[], b"").status, 401);
}

#[test]
fn uploads_are_refused_before_the_body_if_possible() {
    let lab = Lab::new();
    let (push, pull) = (lab.token("push"), lab.token("pull"));
    let nar = Nar::of(b"x");
    let megabytes = 10 << 20;
    assert_eq!(lab.expect(&nar.url(), "", megabytes).status, 401);
    assert_eq!(lab.expect(&nar.url(), WRONG, megabytes).status, 401);
    assert_eq!(lab.expect(&nar.url(), &pull, megabytes).status, 403);
    assert_eq!(lab.expect(&nar.url(), &push, u64::MAX >> 2).status, 413);
    assert_eq!(lab.expect("/nar/short.nar", &push, megabytes).status, 400);
    assert_eq!(lab.expect(&nar.url(), &push, megabytes).status, 100);
    assert_eq!(lab.put(&nar.url(), &push, &nar.bytes).status, 201);
    assert_eq!(lab.expect(&nar.url(), &push, megabytes).status, 200, "a known blob");
}

#[test]
fn a_nar_is_what_its_name_says_or_nothing_is_kept() {
    let lab = Lab::new();
    let token = lab.token("push");
    let nar = Nar::of(b"contents");
    let mut damaged = nar.bytes.clone();
    damaged[100] ^= 1;
    let text = b"no NAR at all";
    let text_url = format!("/nar/{}.nar", narval_nix::Sha256::of(text).to_nix32());
    for (url, body) in [
        (nar.url(), damaged.as_slice()),
        (nar.url(), &nar.bytes[..nar.bytes.len() - 8]),
        (nar.url(), &[&nar.bytes[..], b"more"].concat()),
        (nar.url(), b""),
        (text_url, text),
        (format!("{}.xz", nar.url()), &nar.bytes),
        (format!("{}.zst", nar.url()), &nar.bytes),
    ] {
        let answer = lab.put(&url, &token, body);
        assert_eq!(answer.status, 422, "{url}: {}", answer.text());
        assert!(answer.body.len() < 1024 && answer.text().ends_with('\n'), "{}", answer.text());
        assert_eq!(lab.send("HEAD", &url, "", &[], b"").status, 404, "{url}");
    }
    assert_eq!(lab.put(&nar.url(), &token, &nar.bytes).status, 201);
}

#[test]
fn a_truncated_upload_leaves_nothing() {
    let lab = Lab::new();
    let token = lab.token("push");
    for size in [1000, 500_000] {
        let nar = Nar::of(&vec![7; size]);
        let mut stream = lab.server.connect();
        let head = format!(
            "PUT {} HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer {token}\r\nContent-Length: {}\r\n\r\n",
            nar.url(),
            nar.bytes.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(&nar.bytes[..nar.bytes.len() - 1]).unwrap();
        drop(stream);
        assert_eq!(lab.send("HEAD", &nar.url(), "", &[], b"").status, 404);
        assert_eq!(lab.put(&nar.url(), &token, &nar.bytes).status, 201);
    }
    lab.nothing_incoming();
}

#[test]
fn a_narinfo_without_its_nar_or_its_references_is_409_and_says_what_is_missing() {
    let lab = Lab::new();
    let token = lab.token("push");
    let nar = Nar::of(b"x");
    let early = lab.put(&narinfo_url(PATH), &token, nar.narinfo(PATH, &[]).as_bytes());
    assert!(matches!(early.status, 409 | 422), "{}: {}", early.status, early.text());
    assert_eq!(lab.get(&narinfo_url(PATH)).status, 404);
    assert_eq!(lab.put(&nar.url(), &token, &nar.bytes).status, 201);
    let answer = lab.put(&narinfo_url(PATH), &token, nar.narinfo(PATH, &[OTHER]).as_bytes());
    assert_eq!(answer.status, 409, "{}", answer.text());
    assert!(answer.text().contains(OTHER) && answer.text().contains("--refresh"), "{}", answer.text());
    publish(&lab, &token, OTHER, &nar, &[]);
    publish(&lab, &token, PATH, &nar, &[OTHER, PATH]);
    assert_eq!(lab.get(&narinfo_url(PATH)).status, 200);
}

#[test]
fn another_nar_for_a_path_is_409_unless_the_token_may_replace() {
    let lab = Lab::new();
    let token = lab.token("push");
    let (one, two) = (Nar::of(b"one"), Nar::of(b"two"));
    publish(&lab, &token, PATH, &one, &[]);
    assert_eq!(lab.put(&two.url(), &token, &two.bytes).status, 201);
    let refused = lab.put(&narinfo_url(PATH), &token, two.narinfo(PATH, &[]).as_bytes());
    assert_eq!(refused.status, 409, "{}", refused.text());
    assert!(lab.get(&narinfo_url(PATH)).text().contains(&one.hash.to_nix32()));
    publish(&lab, &lab.token("push,replace"), PATH, &two, &[]);
    // The narinfo was remembered; it is never served stale.
    assert!(lab.get(&narinfo_url(PATH)).text().contains(&two.hash.to_nix32()));
}

#[test]
fn malformed_narinfos_are_refused() {
    let lab = Lab::new();
    let token = lab.token("push");
    let nar = Nar::of(b"x");
    assert_eq!(lab.put(&nar.url(), &token, &nar.bytes).status, 201);
    let good = nar.narinfo(PATH, &[]);
    for (what, text) in [
        ("empty", String::new()),
        ("another path", nar.narinfo(OTHER, &[])),
        ("another size", good.replace(&format!("NarSize: {}", nar.bytes.len()), "NarSize: 1")),
        ("another store directory", good.replace("/nix/store/", "/other/store/")),
        ("another URL", good.replace("URL: nar/", "URL: http://evil.example/nar/")),
        ("a URL that leads away", good.replace("URL: nar/", "URL: ../nar/")),
        ("not UTF-8", good.replace("test", "t\u{fffd}st")),
    ] {
        let answer = lab.put(&narinfo_url(PATH), &token, text.as_bytes());
        assert!(matches!(answer.status, 400 | 409 | 422), "{what}: {} {}", answer.status, answer.text());
        assert_eq!(lab.get(&narinfo_url(PATH)).status, 404, "{what}");
    }
    let large = format!("{good}X-Filler: {}\n", "x".repeat(1 << 20));
    assert_eq!(lab.put(&narinfo_url(PATH), &token, large.as_bytes()).status, 413);
    assert_eq!(lab.put(&narinfo_url(PATH), &token, good.as_bytes()).status, 201);
    assert_eq!(lab.put(&narinfo_url(PATH), &token, good.as_bytes()).status, 200, "again");
}

#[test]
fn content_encodings_are_decoded_on_receipt() {
    let lab = Lab::new();
    let token = lab.token("push");
    let nar = Nar::of(b"x");
    let compressed = zstd::bulk::compress(&nar.bytes, 3).unwrap();
    assert_eq!(lab.send("PUT", &nar.url(), &token, &["Content-Encoding: zstd"], &compressed).status, 201);
    let text = nar.narinfo(PATH, &[]);
    let coded = zstd::bulk::compress(text.as_bytes(), 3).unwrap();
    let unknown = lab.send("PUT", &narinfo_url(PATH), &token, &["Content-Encoding: rot13"], &coded);
    assert_eq!(unknown.status, 415);
    let cut = lab.send("PUT", &narinfo_url(PATH), &token, &["Content-Encoding: zstd"], &coded[..coded.len() - 3]);
    assert_eq!(cut.status, 400, "{}", cut.text());
    assert_eq!(lab.send("PUT", &narinfo_url(PATH), &token, &["Content-Encoding: zstd"], &coded).status, 201);
    let answer = lab.get(&narinfo_url(PATH));
    assert_eq!((answer.status, answer.field("content-encoding")), (200, None));
    assert!(answer.text().starts_with("StorePath: "));
}

/// 408 would follow after half a minute.
#[test]
fn an_answer_that_needs_no_body_does_not_wait_for_one() {
    let lab = Lab::new();
    let nar = Nar::of(b"x");
    let [right, wrong] = [lab.token("push"), WRONG.to_owned()].map(|token| format!("Authorization: Bearer {token}"));
    for (method, path, authorization, length, status) in [
        ("PATCH", "/nix-cache-info".to_owned(), &right, 500, 405),
        ("PUT", nar.url(), &wrong, 500, 401),
        ("PUT", format!("/other{}", narinfo_url(PATH)), &right, 500, 404),
        ("PUT", narinfo_url(PATH), &right, 10_000_000, 413),
    ] {
        let answer = lab.server.ask(method, &path, &[authorization, &format!("Content-Length: {length}")]);
        assert_eq!(answer.status, status, "{method} {path}: {}", answer.text());
    }
}

#[test]
fn unknown_uploads_and_nix_cache_info() {
    let lab = Lab::new();
    let token = lab.token("push");
    assert_eq!(lab.put("/build-trace-v3/x/out.doi", &token, b"{}").status, 201);
    assert_eq!(lab.get("/build-trace-v3/x/out.doi").status, 200);
    assert_eq!(lab.put("/nix-cache-info", &token, b"StoreDir: /nix/store\n").status, 200);
    let other = lab.put("/nix-cache-info", &token, b"StoreDir: /other/store\n");
    assert_eq!(other.status, 409, "{}", other.text());
    assert_eq!(lab.put("/nix-cache-info", &token, b"\xff").status, 400);
    let info = lab.get("/nix-cache-info");
    assert!(info.text().starts_with("StoreDir: /nix/store\n") && info.text().contains("NarvalPush: _narval/v1\n"));
    for (method, path) in
        [("PATCH", narinfo_url(PATH)), ("POST", narinfo_url(PATH)), ("DELETE", "/nix-cache-info".into())]
    {
        assert_eq!(lab.send(method, &path, &token, &[], b"").status, 405, "{method}");
    }
}

#[test]
fn heads_ranges_and_conditions_of_an_uploaded_nar() {
    let lab = Lab::new();
    let token = lab.token("push");
    let nar = Nar::of(&vec![9; 300_000]);
    assert_eq!(lab.put(&nar.url(), &token, &nar.bytes).status, 201);
    let whole = lab.get(&nar.url());
    assert_eq!((whole.status, whole.body == nar.bytes), (200, true));
    let head = lab.send("HEAD", &nar.url(), "", &[], b"");
    assert_eq!(head.field("content-length"), Some(&*nar.bytes.len().to_string()));
    let part = lab.send("GET", &nar.url(), "", &["Range: bytes=1000-"], b"");
    assert_eq!((part.status, part.body == nar.bytes[1000..]), (206, true));
    let etag = whole.field("etag").unwrap().to_owned();
    assert_eq!(lab.send("GET", &nar.url(), "", &[&format!("If-None-Match: {etag}")], b"").status, 304);
    assert_eq!(lab.send("GET", &nar.url(), "", &["Range: bytes=999999999-"], b"").status, 416);
}

#[test]
fn a_private_cache_answers_an_absent_and_a_forbidden_name_alike() {
    let lab = Lab::with(&["--private"]);
    let (push, pull) = (lab.token("push"), lab.token("pull"));
    let nar = Nar::of(b"x");
    publish(&lab, &push, PATH, &nar, &[]);
    let answer = |token: &str, path: &str| {
        let answer = lab.send("GET", path, token, &[], b"");
        (answer.status, answer.body)
    };
    for (there, absent) in [
        (narinfo_url(PATH), narinfo_url(OTHER)),
        (nar.url(), Nar::of(b"absent").url()),
        (format!("/{}.ls", hash_part(PATH)), format!("/{}.ls", hash_part(OTHER))),
    ] {
        for token in ["", WRONG, &push] {
            assert_eq!(answer(token, &there), answer(token, &absent), "{there} with {token:?}");
        }
        assert_eq!(answer("", &there).0, 401);
        assert_eq!(answer(&push, &there).0, 404);
        assert_eq!(answer(&pull, &there).0, 200);
        assert_eq!(answer(&pull, &absent).0, 404);
    }
    assert_eq!(answer("", "/nix-cache-info").0, 401);
    assert_eq!(answer(&push, "/nix-cache-info").0, 200, "whoever may push has to know that this is a cache");
    assert_eq!(answer("", "/health").0, 200);
    let batch = |token: &str| lab.post("/batch-lookup-v1", token, hash_part(PATH).as_bytes());
    assert_eq!((batch("").status, batch(&pull).status), (401, 200));
    assert!(batch(&pull).text().contains("StorePath"));
}

#[test]
fn wrong_tokens_do_not_lock_out_right_ones_behind_the_same_address() {
    let lab = Lab::new();
    let asked = |token: &str| lab.send("GET", "/nix-cache-info", token, &[], b"");
    assert!(asked(WRONG).text().contains("unknown, expired or revoked"));
    assert!((0..20).any(|_| asked(WRONG).text().contains("too many wrong tokens")));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let known = lab.token("push");
        // Of an unknown id, and of a known one.
        let secret = known.rsplit('_').next().unwrap();
        let other = known.replace(secret, &secret.chars().rev().collect::<String>());
        for wrong in [WRONG.to_owned(), other] {
            let (is_over, asked) = (&is_over, &asked);
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    assert_eq!(asked(&wrong).status, 401);
                }
            });
        }
        // Each is used for the first time. Its neighbours have made many attempts in between.
        for _ in 0..10 {
            assert_eq!(asked(&lab.token("push")).status, 200);
        }
        assert_eq!(asked(&known).status, 200, "somebody else presents its id with another secret");
        is_over.store(true, Ordering::Relaxed);
    });
    assert_eq!(lab.get("/nix-cache-info").status, 200, "without credentials nothing changes");
    assert_eq!(lab.get("/metrics").figure("narval_logins_failed_total"), Some(10));
}

#[test]
fn metrics_and_the_audit_log_tell_of_uploads() {
    let lab = Lab::new();
    let token = lab.token("push");
    let nar = Nar::of(b"x");
    publish(&lab, &token, PATH, &nar, &[]);
    publish(&lab, &token, PATH, &nar, &[]);
    let metrics = lab.get("/metrics");
    for (name, count) in [
        ("narval_uploads_stored_total", 1),
        ("narval_uploads_known_total", 1),
        ("narval_upload_bytes_total", nar.bytes.len() as u64),
        ("narval_requests_total{route=\"nar\",status=\"201\"}", 1),
        ("narval_requests_total{route=\"narinfo\",status=\"201\"}", 1),
    ] {
        assert_eq!(metrics.figure(name), Some(count), "{name}: {}", metrics.text());
    }
    let audit = std::fs::read_to_string(lab.data_path().join("audit.jsonl")).unwrap();
    let id = token.split('_').nth(1).unwrap();
    assert!(
        audit.lines().any(|line| line.contains(id) && line.contains(PATH) && line.contains("127.0.0.1")),
        "{audit}"
    );
    assert!(!audit.contains(&token));
}

#[test]
fn logs_realisations_and_debug_information_are_stored() {
    let lab = Lab::new();
    let token = lab.token("push");
    let drv = "00bgd045z0d4icpbc2yyz4gx48ak44la-test.drv";
    let hash = "0".repeat(64);
    for (path, body) in [
        (format!("/log/{drv}"), "said\n"),
        (format!("/build-trace-v2/{drv}/out.doi"), r#"{"outPath":"x","signatures":[]}"#),
        (format!("/realisations/sha256:{hash}!out.doi"), r#"{"outPath":"x"}"#),
        ("/debuginfo/0123456789abcdef0123456789abcdef01234567.debug".to_owned(), r#"{"archive":"../nar/x"}"#),
    ] {
        let put = lab.put(&path, &token, body.as_bytes());
        assert_eq!(put.status, 201, "{path}: {}", put.text());
        let got = lab.get(&path);
        assert_eq!((got.status, got.text()), (200, body), "{path}");
        assert_eq!(lab.send("HEAD", &path, "", &[], b"").status, 200, "{path}");
    }
    assert_eq!(lab.put("/debuginfo/../x", &token, b"x").status, 404);
}

/// What the scopes `pin` and `delete` are for: a CI job pins what it releases, and somebody removes a path that should not be there.
#[test]
fn pins_and_deletions_over_http_need_their_scopes() {
    let lab = Lab::new();
    let push = lab.token("push");
    let (one, two) = (Nar::of(b"one"), Nar::of(b"two"));
    let other = "7gx4kiv5m0i7d7qkixq2cwzbr10lvxwc-other";
    publish(&lab, &push, PATH, &one, &[]);
    publish(&lab, &push, other, &two, &[PATH]);
    let (pin, delete) = (lab.token("pin"), lab.token("delete"));
    let ask = |method: &str, below: &str, token: &str, body: serde_json::Value| {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let answer = lab.send(method, &format!("/_narval/api/v1/caches/default/{below}"), token, &[], body.as_bytes());
        (answer.status, serde_json::from_str::<serde_json::Value>(answer.text()).unwrap_or_default())
    };
    let nothing = serde_json::Value::Null;
    let release = serde_json::json!({"path": format!("/nix/store/{other}"), "keep": 3});
    let path = format!("paths/{PATH}");
    for (method, below) in [
        ("PUT", "pins/release-1.2"),
        ("DELETE", "pins/release-1.2"),
        ("GET", "pins"),
        ("GET", "stats"),
        ("DELETE", path.as_str()),
    ] {
        assert_eq!(ask(method, below, "", release.clone()).0, 401, "{method} {below}");
        assert_eq!(ask(method, below, &push, release.clone()).0, 403, "{method} {below}");
        let wrong = if below == path { &pin } else { &delete };
        assert_eq!(ask(method, below, wrong, release.clone()).0, 403, "{method} {below}");
    }
    let made = ask("PUT", "pins/release-1.2", &pin, release);
    assert_eq!((made.0, made.1["name"].as_str(), made.1["path"].as_str()), (200, Some("release-1.2"), Some(other)));
    let old = serde_json::json!({"path": PATH, "seconds": 30 * 24 * 60 * 60});
    assert_eq!(ask("PUT", "pins/old", &pin, old).0, 200);
    let pins = ask("GET", "pins", &pin, nothing.clone()).1;
    assert_eq!(
        (&pins["items"][1]["name"], &pins["items"][1]["path"], &pins["items"][1]["keep"]),
        (&"release-1.2".into(), &other.into(), &3.into())
    );
    let [until, created] = ["until", "created"].map(|name| pins["items"][0][name].as_u64().unwrap());
    assert_eq!(until - created, 30 * 24 * 60 * 60);
    for body in [
        serde_json::json!({}),
        serde_json::json!({"path": "nothing"}),
        serde_json::json!({"path": "/nix/store/x"}),
        serde_json::json!({"path": PATH, "keep": "x"}),
        serde_json::json!({"path": PATH, "paths": PATH}),
    ] {
        assert_eq!(ask("PUT", "pins/x", &pin, body.clone()).0, 400, "{body}");
    }
    let absent = serde_json::json!({"path": "00000000000000000000000000000000-absent"});
    assert_eq!(ask("PUT", "pins/x", &pin, absent).0, 404);
    assert_eq!(ask("POST", "pins/x", &pin, nothing.clone()).0, 405);
    assert_eq!(ask("DELETE", "pins/old", &pin, nothing.clone()), (200, serde_json::json!({"removed": 1})));
    assert_eq!(ask("DELETE", "pins/old", &pin, nothing.clone()).0, 404);

    let (status, message) = ask("DELETE", &path, &delete, nothing.clone());
    let detail = message["detail"].as_str().unwrap();
    assert!(status == 409 && detail.contains(other) && detail.contains("?referrers=1"), "{status}: {message}");
    assert_eq!(ask("DELETE", &format!("{path}?referrers=all"), &delete, nothing.clone()).0, 400);
    let (status, message) = ask("DELETE", &format!("{path}?referrers=1"), &delete, nothing.clone());
    assert_eq!((status, &message["files"], &message["paths"]), (200, &2.into(), &2.into()));
    assert_eq!([narinfo_url(PATH), narinfo_url(other), one.url()].map(|path| lab.get(&path).status), [404; 3]);
    assert_eq!(ask("DELETE", &path, &delete, nothing).0, 404);
    let audit = std::fs::read_to_string(lab.data_path().join("audit.jsonl")).unwrap();
    assert!(audit.contains("\"action\":\"pin\"") && audit.contains("\"action\":\"delete\""), "{audit}");
}

#[test]
fn the_program_says_what_is_wrong_with_a_data_folder() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut command = std::process::Command::new(NARVAL);
    command.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(file.path());
    let output = command.output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("--data") && error.contains(file.path().to_str().unwrap()), "{error}");
}
