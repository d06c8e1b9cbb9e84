//! Browsers that sign in with a token, and manage the cache.

use serde_json::Value;

use crate::browser::Browser;
use crate::lab::{Lab, Session};
use crate::support::{hash_part, stdout};

/// Every write of the page, and the scope that it needs.
fn writes(path: &str) -> Vec<(&'static str, String, &'static str, &'static str)> {
    let hash = hash_part(path);
    vec![
        ("POST", "manage/tokens".into(), r#"{"label":"x","scopes":["pull"],"caches":["*"]}"#, "admin"),
        ("DELETE", "manage/tokens/0123456789abcdfg".into(), "", "admin"),
        ("POST", "manage/collection".into(), "", "admin"),
        ("POST", "manage/pins".into(), r#"{"name":"x","path":"HASH"}"#, "pin"),
        ("DELETE", format!("manage/pins/{hash}/x"), "", "pin"),
        ("DELETE", format!("manage/paths/{hash}"), "", "delete"),
        ("DELETE", "session".into(), "", ""),
    ]
}

fn json(answer: &crate::support::Answer) -> Value {
    assert_eq!(answer.status, 200, "{}", answer.text());
    serde_json::from_slice(&answer.body).unwrap()
}

/// The same without one of the fields, or with others.
fn refused(lab: &Lab, session: &Session, path: &str) {
    let [cookie, proof, origin, host] = session.fields();
    let evil = "Origin: http://evil.example";
    let bearer = format!("Authorization: Bearer {}", lab.token(&["--admin"]));
    let other = lab.sign_in(&lab.token(&["--admin"]));
    let cases: [(&str, &[&str], u16); 9] = [
        ("no cookie", &[proof, origin, host], 401),
        ("a token instead", &[proof, origin, host, &bearer], 401),
        ("no proof", &[cookie, origin, host], 403),
        ("a wrong proof", &[cookie, "X-Narval-CSRF: x", origin, host], 403),
        ("the proof of another session", &[cookie, &other.proof, origin, host], 403),
        ("another origin", &[cookie, proof, evil, host], 403),
        ("no origin", &[cookie, proof, host], 403),
        ("a null origin", &[cookie, proof, "Origin: null", host], 403),
        ("another site, says the browser", &[cookie, proof, origin, host, "Sec-Fetch-Site: cross-site"], 403),
    ];
    for (method, route, body, _) in writes(path) {
        let body = body.replace("HASH", hash_part(path));
        for (what, fields, status) in &cases {
            let answer = lab.ask(method, &route, fields, &body);
            assert_eq!(answer.status, *status, "{method} {route} with {what}: {}", answer.text());
        }
    }
}

#[test]
fn every_write_needs_the_session_its_proof_and_our_page() {
    let lab = Lab::new(&[]);
    let path = lab.store.add_tree("tree");
    lab.push(&path);
    let session = lab.sign_in(&lab.token(&["--admin"]));
    assert!(session.set_cookie.contains("; Path=/; ") && session.set_cookie.contains("; HttpOnly; SameSite=Strict"));
    assert!(!session.set_cookie.contains("Secure"), "there is no TLS");
    refused(&lab, &session, &path);
    assert!(lab.has(&path) && stdout(lab.run(&["pin", "list"])).is_empty());
    let tokens = stdout(lab.run(&["token", "list"]));
    assert!(!tokens.contains("  x  "), "{tokens}");
    // Signing in needs our page, too.
    let bearer = format!("Authorization: Bearer {}", lab.token(&["--admin"]));
    for origin in ["Origin: http://evil.example", "X: y"] {
        assert_eq!(lab.ask("POST", "session", &[origin, &bearer], "").status, 403, "{origin}");
    }
    // And with all of it, each does what it says.
    let fields = session.fields();
    let pin = format!(r#"{{"name":"keep <b>this</b>","path":"{path}","keep":2}}"#);
    json(&lab.ask("POST", "manage/pins", &fields, &pin));
    let pins = json(&lab.ask("GET", "manage/pins", &fields, ""));
    assert_eq!((&pins["pins"][0]["name"], &pins["pins"][0]["keep"]), (&"keep <b>this</b>".into(), &2.into()));
    assert!(stdout(lab.run(&["pin", "list"])).contains("keep <b>this</b>"));
    let hash = hash_part(&path);
    json(&lab.ask("DELETE", &format!("manage/pins/{hash}/keep%20%3Cb%3Ethis%3C%2Fb%3E"), &fields, ""));
    assert!(stdout(lab.run(&["pin", "list"])).is_empty());
    let would = json(&lab.ask("GET", "manage/collection", &fields, ""));
    assert_eq!((&would["total"], &would["kept"]), (&0.into(), &1.into()));
    let usage = json(&lab.ask("GET", "manage/usage", &fields, ""));
    assert_eq!((&usage["paths"], &usage["names"][0]["name"]), (&1.into(), &"tree".into()));
    assert_eq!((&usage["ages"][0]["paths"], &usage["ages"][0]["bytes"]), (&1.into(), &usage["names"][0]["bytes"]));
    json(&lab.ask("POST", "manage/collection", &fields, ""));
    assert!(lab.has(&path));
    let deleted = json(&lab.ask("DELETE", &format!("manage/paths/{hash}"), &fields, ""));
    assert_eq!(deleted["paths"], 1);
    assert!(!lab.has(&path));
    assert_eq!(lab.ask("DELETE", &format!("manage/paths/{hash}"), &fields, "").status, 404);
    assert_eq!(lab.ask("DELETE", "session", &fields, "").status, 204);
    assert_eq!(lab.ask("GET", "manage/pins", &fields, "").status, 401);
    let audit = std::fs::read_to_string(lab.store.path("data/audit.jsonl")).unwrap();
    assert!(audit.contains(r#""action":"sign-in""#) && audit.contains(r#""action":"delete""#), "{audit}");
}

#[test]
fn tokens_are_made_shown_once_and_revoked() {
    let lab = Lab::new(&["--private"]);
    let admin = lab.token(&["--admin", "--cache", "*"]);
    let session = lab.sign_in(&admin);
    let fields = session.fields();
    let wanted = r#"{"label":"<script>alert(1)</script>","scopes":["pull","pin"],"caches":["default"],"days":30}"#;
    let created = json(&lab.ask("POST", "manage/tokens", &fields, wanted));
    let (token, id) = (created["token"].as_str().unwrap(), created["id"].as_str().unwrap());
    let listed = lab.ask("GET", "manage/tokens", &fields, "");
    assert!(!listed.text().contains(token) && !listed.text().contains(&admin));
    let listed = json(&listed);
    let found = listed["tokens"].as_array().unwrap().iter().find(|one| one["id"] == id).unwrap();
    assert_eq!((&found["scopes"], &found["lastUsed"]), (&"pull,pin".into(), &Value::Null));
    for wrong in [
        "",
        "{}",
        r#"{"label":"x","scopes":[],"caches":["*"]}"#,
        r#"{"label":"x","scopes":["pull"],"caches":[]}"#,
        r#"{"label":"x","scopes":["all"],"caches":["*"]}"#,
        r#"{"label":"","scopes":["pull"],"caches":["*"]}"#,
        r#"{"label":"x","scopes":["pull"],"caches":["*"],"other":1}"#,
    ] {
        assert_eq!(lab.ask("POST", "manage/tokens", &fields, wrong).status, 400, "{wrong}");
    }
    // The new one works, sees what it may, and its sessions end with it.
    let bearer = format!("Authorization: Bearer {token}");
    assert_eq!(lab.ask("GET", "check", &[&bearer], "").status, 200);
    let theirs = lab.sign_in(token);
    assert_eq!(theirs.info["scopes"], serde_json::json!(["pull", "pin"]));
    for (method, route, body, scope) in writes("/nix/store/0i4073ldk2aplbmaarmp5c8gf3wmbl84-x") {
        let answer = lab.ask(method, &route, &theirs.fields(), body);
        let is_forbidden = answer.status == 403;
        assert_eq!(is_forbidden, ["admin", "delete"].contains(&scope), "{method} {route}: {}", answer.text());
        if route == "session" {
            break;
        }
    }
    let theirs = lab.sign_in(token);
    for route in ["manage/tokens", "manage/usage", "manage/collection"] {
        assert_eq!(lab.ask("GET", route, &theirs.fields(), "").status, 403, "{route}");
    }
    assert_eq!(lab.ask("GET", "check", &[&theirs.cookie], "").status, 200, "the session reads a private cache");
    let found = json(&lab.ask("GET", "manage/tokens", &fields, ""));
    let found = found["tokens"].as_array().unwrap().iter().find(|one| one["id"] == id).unwrap().clone();
    assert!(found["lastUsed"].is_u64(), "{found}");
    json(&lab.ask("DELETE", &format!("manage/tokens/{id}"), &fields, ""));
    assert_eq!(lab.ask("GET", "check", &[&theirs.cookie], "").status, 401);
    assert_eq!(lab.ask("GET", "manage/pins", &theirs.fields(), "").status, 401);
    // A session reads, but uploads and the like need the token itself.
    for method in ["PUT", "DELETE"] {
        let hash = "0i4073ldk2aplbmaarmp5c8gf3wmbl84";
        let request = format!(
            "{method} /{hash}.narinfo HTTP/1.1\r\n{}\r\n{}\r\n{}\r\n{}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
            fields[0], fields[1], fields[2], fields[3]
        );
        let answer = lab.server.send(request.as_bytes());
        assert!(answer.starts_with(b"HTTP/1.1 401 "), "{}", String::from_utf8_lossy(&answer));
    }
}

#[test]
fn an_administrator_of_one_cache_manages_the_tokens_of_that_cache() {
    let lab = Lab::new(&[]);
    let session = lab.sign_in(&lab.token(&["--admin", "--cache", "default"]));
    let other = lab.token(&["--admin", "--cache", "*"]);
    let fields = session.fields();
    let listed = lab.ask("GET", "manage/tokens", &fields, "");
    let other_id = other.split('_').nth(1).unwrap();
    assert!(!listed.text().contains(other_id) && json(&listed)["total"] == 1, "{}", listed.text());
    assert_eq!(lab.ask("DELETE", &format!("manage/tokens/{other_id}"), &fields, "").status, 404);
    let wanted = |caches: &str| format!(r#"{{"label":"x","scopes":["pull"],"caches":["{caches}"]}}"#);
    assert_eq!(lab.ask("POST", "manage/tokens", &fields, &wanted("*")).status, 403);
    assert_eq!(lab.ask("POST", "manage/tokens", &fields, &wanted("default")).status, 200);
    // A token for other caches cannot sign in here.
    let elsewhere = format!("Authorization: Bearer {}", lab.token(&["--admin", "--cache", "team"]));
    let answer = lab.ask("POST", "session", &[&lab.origin(), &elsewhere], "");
    assert_eq!((answer.status, answer.field("set-cookie")), (403, None));
}

#[test]
fn wrong_tokens_are_noted_until_there_are_too_many() {
    let lab = Lab::new(&[]);
    let guess = |secret: &str| {
        let bearer = format!("Authorization: Bearer {secret}");
        let answer = lab.ask("POST", "session", &[&lab.origin(), &bearer, "X-Narval-Page: 1"], "");
        assert_eq!((answer.status, answer.field("set-cookie")), (401, None));
        // A browser would ask for a password by itself.
        assert_eq!(answer.field("www-authenticate"), Some("Bearer"));
        answer.text().to_owned()
    };
    let texts: Vec<_> = (0..12).map(|number| guess(&format!("nv1_{number}"))).collect();
    assert!(texts[0].contains("unknown, expired or revoked"), "{texts:?}");
    assert!(texts[11].contains("too many wrong tokens"), "{texts:?}");
    let audit = std::fs::read_to_string(lab.store.path("data/audit.jsonl")).unwrap();
    let lines: Vec<_> = audit.lines().filter(|line| line.contains(r#""action":"sign-in""#)).collect();
    assert!(lines.len() == 10 && lines.iter().all(|line| line.contains("127.0.0.1") && line.contains("refused")));
    assert!(!audit.contains("nv1_0"));
}

#[test]
fn the_cookie_is_for_tls_and_for_the_cache() {
    let lab = Lab::new(&[]);
    let [cert, key] = crate::support::certificate(lab.store.dir.path()).map(|path| path.to_str().unwrap().to_owned());
    let token = lab.token(&["--admin"]);
    let secure = Lab::serve(&lab.store, &["--tls-cert", &cert, "--tls-key", &key]);
    let url = format!("https://localhost:{}/_narval/page/session", secure.address.port());
    let output = std::process::Command::new("curl")
        .args([
            "-sSk",
            "-D",
            "-",
            "-o",
            "/dev/null",
            "-X",
            "POST",
            "-H",
            &format!("Authorization: Bearer {token}"),
            "-H",
        ])
        .args([&format!("Origin: https://localhost:{}", secure.address.port()), &url])
        .output()
        .unwrap();
    let head = stdout(output);
    assert!(head.contains("SameSite=Strict; Secure"), "{head}");
}

#[test]
fn a_browser_signs_in_creates_a_token_pins_looks_and_deletes() {
    let Some(mut browser) = Browser::start() else { return };
    let lab = Lab::new(&["--private"]);
    let (one, two) = (lab.store.add_file("first-1.0", "one"), lab.store.add_file("second-2.0", "two"));
    lab.push(&one);
    lab.push(&two);
    let url = lab.server.url();
    browser.open(&format!("{url}/#/find"), "This cache is private");
    browser.fill("#token", "nv1_wrong");
    browser.press("Enter", 13);
    browser.shows("unknown, expired or revoked");
    browser.fill("#token", &lab.token(&["--admin"]));
    browser.press("Enter", 13);
    browser.shows("first 1.0");
    assert_eq!(browser.eval("document.cookie"), "", "no script reads the cookie");
    assert_eq!(browser.eval("Object.keys(sessionStorage).length + Object.keys(localStorage).length"), 0);
    // A token with a name that is HTML.
    browser.click("nav a", "Manage");
    browser.shows("NARs on disk");
    browser.shows("Nothing: everything is pinned, or was used recently enough.");
    browser.click("nav a", "Tokens");
    let label = "<img src=x onerror=document.title='run'>\u{202e}";
    browser.fill("#token-label", label);
    browser.eval("document.getElementById('scope-pull').click()");
    browser.click("button", "Create");
    browser.shows("cannot be shown again");
    let token = browser.eval("document.querySelector('#made pre').textContent");
    let token = token.as_str().unwrap().to_owned();
    assert_eq!(lab.sign_in(&token).info["scopes"], serde_json::json!(["pull"]));
    browser.shows(&label.replace('\u{202e}', "\u{fffd}"));
    assert_ne!(browser.eval("document.title"), "run");
    assert_eq!(browser.eval("document.querySelectorAll('main img').length"), 0);
    // A pin, from the page of a path.
    browser.click("nav a", "Packages");
    browser.click("a", "first 1.0");
    browser.click("button", "Pin");
    browser.fill("#pin-name", "release");
    browser.click("form button", "Pin");
    browser.wait("document.querySelector('dl')?.innerText.includes('release')");
    assert!(stdout(lab.run(&["pin", "list"])).contains("release"));
    // Escape leaves everything as it is; deleting deletes.
    browser.click("nav a", "Packages");
    browser.click("a", "second 2.0");
    browser.click("button", "Delete");
    browser.shows("Delete this path?");
    browser.press("Escape", 27);
    browser.wait("!document.querySelector('dialog')");
    let token = lab.token(&["--pull"]);
    let has = |path: &str| {
        let field = format!("Authorization: Bearer {token}");
        lab.server.ask("GET", &format!("/{}.narinfo", hash_part(path)), &[&field]).status == 200
    };
    assert!(has(&two));
    browser.click("button", "Delete");
    browser.click("dialog button", "Delete");
    browser.shows("1 path and 1 NAR were deleted");
    assert!(has(&one) && !has(&two));
    browser.click("nav a", "Status");
    browser.shows("All is well");
    browser.click("nav a", "Manage");
    browser.click("button", "Sign out");
    browser.shows("Sign in");
    assert_eq!(
        browser.eval(
            "fetch('/_narval/page/check', { headers: { 'X-Narval-Page': '1' } }).then((answer) => answer.status)"
        ),
        401
    );
    browser.complaints.retain(|complaint| !complaint.contains("status of 401"));
    assert!(browser.complaints.is_empty(), "{:?}", browser.complaints);
}
