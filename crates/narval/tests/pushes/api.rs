//! docs/api.md: administration over HTTP, and by the same commands here and there.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::contract::narinfo_url;
use crate::lab::{Lab, Nar};
use crate::support::{NARVAL, Store};

const API: &str = "/_narval/api/v1";
const PATH: &str = "0i4073ldk2aplbmaarmp5c8gf3wmbl84-hello";

/// A server with a public cache at `/`, and a private one at `/hidden`, signed by a key.
pub fn lab() -> Lab {
    let store = Store::new();
    let (key, _) = store.key("own-1");
    let text = format!("data = 'data'\nsign-keys = '{}'\n[[cache]]\nname = 'hidden'\npublic = false\n", key.display());
    Lab::configured(store, &text)
}

pub fn ask(lab: &Lab, method: &str, below: &str, token: &str, body: &Value) -> (u16, Value) {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let below = if below.is_empty() { API.to_owned() } else { format!("{API}/{below}") };
    let answer = lab.send(method, &below, token, &[], body.as_bytes());
    (answer.status, serde_json::from_slice(&answer.body).unwrap_or_default())
}

fn id_of(token: &str) -> &str {
    token.split('_').nth(1).unwrap()
}

/// Every route, with nothing, tokens that may not, and those of another cache: nothing is done, and nothing is learned of what there is.
#[test]
fn every_route_refuses_who_may_not() {
    let lab = lab();
    let (owner, other) = (lab.token("admin"), lab.token_for("default", "admin"));
    let (pull, push) = (lab.token_for("default", "pull"), lab.token_for("default", "pull,push,sign,release:*,report"));
    let hidden = lab.token_for("hidden", "pull");
    let description = narval_serve::openapi();
    let mut routes = 0;
    for (path, methods) in description["paths"].as_object().unwrap() {
        let below = path.strip_prefix(API).unwrap().trim_start_matches('/');
        for method in methods.as_object().unwrap().keys().map(|method| method.to_uppercase()) {
            routes += 1;
            let at = |cache: &str, token: &str| {
                let parts = [
                    ("{name}", "web"),
                    ("{which}", "1"),
                    ("{path}", PATH),
                    ("{id}", id_of(&owner)),
                    ("{cache}", cache),
                ];
                let below = parts.iter().fold(below.to_owned(), |below, (name, value)| below.replace(name, value));
                let (status, answer) =
                    ask(&lab, &method, &below, token, &json!({"label": "x", "caches": ["hidden"], "scopes": "pull"}));
                (status, answer.to_string().replace(cache, "CACHE"))
            };
            if below == "openapi.json" {
                assert_eq!(at("hidden", "").0, 200);
                continue;
            }
            let what = format!("{method} {below}");
            assert_eq!(at("hidden", "").0, 401, "{what}");
            assert_eq!(at("hidden", "nv1_wrong_wrong").0, 401, "{what}");
            if below == "token" {
                // Everybody may end their own.
                let own = lab.token_for("default", "pull");
                assert_eq!((at("hidden", &own).0, at("hidden", &own).0), (204, 401));
                continue;
            }
            for token in [&pull, &push, &other] {
                let (there, absent) = (at("hidden", token), at("nowhere", token));
                assert_eq!(there, absent, "{what}: whether it exists is not said");
                let for_some = below.is_empty() || below == "caches";
                let of_some_cache = token == &other && (below.starts_with("tokens") || below == "audit");
                match (for_some, of_some_cache) {
                    (true, _) => assert!(there.0 == 200 && !there.1.contains("hidden"), "{what}: {there:?}"),
                    // The owner's token and another cache's are none of theirs.
                    (_, true) => {
                        let is_listed = method == "GET" && there.0 == 200 && !there.1.contains(id_of(&owner));
                        assert!(is_listed || matches!(there.0, 403 | 404), "{what}: {there:?}");
                    }
                    _ => assert!(matches!(there.0, 403 | 404), "{what}: {there:?}"),
                }
            }
            // A token that only reads this cache changes nothing in it.
            if method != "GET" {
                assert!(matches!(at("hidden", &hidden).0, 403 | 404), "{what}");
            }
        }
    }
    assert!(routes > 20, "{routes}");
    // Nothing was done by any of them.
    let (_, tokens) = ask(&lab, "GET", "tokens", &owner, &Value::Null);
    let tokens = tokens["items"].as_array().unwrap();
    let revoked = tokens.iter().filter(|token| !token["revoked"].is_null()).count();
    assert!(tokens.len() == 6 && revoked == 1, "{tokens:?}");
    assert_eq!(ask(&lab, "GET", "caches/hidden", &owner, &Value::Null).0, 200);
    // Routes and methods that are none.
    for (method, below, status) in [
        ("GET", "nothing", 404),
        ("POST", "caches", 405),
        ("GET", "caches/hidden/", 404),
        ("DELETE", "caches/hidden/releases//pin", 404),
        ("PUT", "caches/..%2f..%2fetc", 404),
        ("PUT", "caches/nar", 400),
    ] {
        let (is, answer) = ask(&lab, method, below, &owner, &json!({}));
        assert_eq!(is, status, "{method} {below}: {answer}");
        assert_eq!(answer["status"], status, "{answer}");
    }
}

/// What a browser that has signed in may do, another site cannot have it do.
#[test]
fn sessions_need_their_page_and_its_proof() {
    let lab = lab();
    let token = lab.token("admin");
    let origin = "Origin: http://test";
    let signed_in = lab.send("POST", "/_narval/page/session", &token, &[origin, "Sec-Fetch-Site: same-origin"], b"");
    assert_eq!(signed_in.status, 204, "{}", signed_in.text());
    let cookie = format!("Cookie: {}", signed_in.field("set-cookie").unwrap().split(';').next().unwrap());
    let session: Value =
        serde_json::from_slice(&lab.send("GET", "/_narval/page/session", "", &[&cookie], b"").body).unwrap();
    let proof = format!("X-Narval-Csrf: {}", session["proof"].as_str().unwrap());
    let create = |fields: &[&str]| {
        let body = json!({"label": "x", "caches": ["*"], "scopes": "pull"}).to_string();
        lab.send("POST", &format!("{API}/tokens"), "", fields, body.as_bytes()).status
    };
    let (same, cross) = ("Sec-Fetch-Site: same-origin", "Sec-Fetch-Site: cross-site");
    assert_eq!(create(&[]), 401);
    assert_eq!(create(&[&cookie, origin, same]), 403, "without the proof");
    assert_eq!(create(&[&cookie, "Origin: http://evil", cross, &proof]), 403);
    assert_eq!(create(&[&cookie, origin, same, "X-Narval-Csrf: x"]), 403);
    assert_eq!(create(&[&cookie, origin, same, &proof]), 201);
    let list = lab.send("GET", &format!("{API}/tokens"), "", &[&cookie], b"");
    assert_eq!(list.status, 200);
}

#[test]
fn bodies_have_a_limit_before_they_are_there() {
    let lab = lab();
    let token = lab.token("admin");
    let mut stream = lab.server.connect();
    let head = format!(
        "POST {API}/tokens HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer {token}\r\nContent-Length: 1000000000000\r\n\r\n"
    );
    std::io::Write::write_all(&mut stream, &[head.as_bytes(), &[b' '; 128 * 1024]].concat()).unwrap();
    let mut answer = [0; 4096];
    let got = std::io::Read::read(&mut stream, &mut answer).unwrap();
    let answer = String::from_utf8_lossy(&answer[..got]).into_owned();
    assert!(answer.starts_with("HTTP/1.1 413") && answer.contains("application/problem+json"), "{answer}");
    let deep = format!("{}{}", "[".repeat(60_000), "]".repeat(60_000));
    assert_eq!(lab.post(&format!("{API}/tokens"), &token, deep.as_bytes()).status, 400);
    let many = format!("{{\"label\":\"x\",\"caches\":[{}\"*\"],\"scopes\":\"pull\"}}", "\"a\",".repeat(10_000));
    assert_eq!(lab.post(&format!("{API}/tokens"), &token, many.as_bytes()).status, 400);
}

/// Waits until a request has this status: other threads and servers notice a change a moment later.
pub fn until(status: u16, what: &str, ask: impl Fn() -> u16) {
    let end = Instant::now() + Duration::from_secs(60);
    while ask() != status {
        assert!(Instant::now() < end, "{what}: {} and not {status}", ask());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_cache_from_its_beginning_over_http() {
    let mut lab = lab();
    let admin = lab.token("admin");
    assert_eq!(lab.get("/team/nix-cache-info").status, 401, "no cache, as a private one");
    let (status, made) = ask(&lab, "PUT", "caches/team", &admin, &json!({"retentionDays": 30}));
    assert_eq!(
        (status, &made["settings"]["public"], &made["settings"]["retentionDays"]),
        (201, &false.into(), &30.into())
    );
    assert_eq!(ask(&lab, "PUT", "caches/team", &admin, &json!({"retentionDays": 5})).0, 200, "it exists");
    until(200, "it is served", || lab.send("GET", "/team/nix-cache-info", &admin, &[], b"").status);
    assert_eq!(lab.get("/team/nix-cache-info").status, 401);

    // A token for it, once.
    let new = json!({"label": "ci", "caches": ["team"], "scopes": "pull,push", "expiresIn": 3600}).to_string();
    let create = |key: &str| {
        let answer =
            lab.send("POST", &format!("{API}/tokens"), &admin, &[&format!("Idempotency-Key: {key}")], new.as_bytes());
        (answer.status, serde_json::from_slice::<Value>(&answer.body).unwrap())
    };
    let (first, again, other) = (create("k-1"), create("k-1"), create("k-2"));
    assert_eq!((first.0, again.0, other.0), (201, 200, 201));
    assert_eq!((&again.1["id"], &again.1["token"]), (&first.1["id"], &Value::Null), "the secret is shown once");
    assert_ne!(first.1["id"], other.1["id"]);
    assert_eq!(create("k 1").0, 400);
    let ci = first.1["token"].as_str().unwrap().to_owned();
    let text = |value: &Value| value.to_string();
    assert!(!text(&ask(&lab, "GET", "tokens", &admin, &Value::Null).1).contains(&ci));

    // It pushes there, and nowhere else.
    let nar = Nar::of(b"of the team");
    assert_eq!(lab.put(&format!("/team{}", nar.url()), &ci, &nar.bytes).status, 201);
    assert_eq!(lab.put(&format!("/team{}", narinfo_url(PATH)), &ci, nar.narinfo(PATH, &[]).as_bytes()).status, 201);
    assert_eq!(lab.put(&nar.url(), &ci, &nar.bytes).status, 403);
    let (_, paths) = ask(&lab, "GET", "caches/team/paths", &ci, &Value::Null);
    assert_eq!(paths["items"][0]["path"], PATH);
    assert_eq!(ask(&lab, "GET", "caches/team/stats", &admin, &Value::Null).1["paths"], 1);

    // Its settings change, for a command beside the server, too.
    assert_eq!(ask(&lab, "PATCH", "caches/team", &admin, &json!({"public": true, "quota": 1})).0, 200);
    until(200, "it is public", || lab.get("/team/nix-cache-info").status);
    let more = Nar::of(b"more");
    assert_eq!(lab.put(&format!("/team{}", more.url()), &ci, &more.bytes).status, 507, "its quota is full");
    let data = lab.data_path();
    let output = Command::new(NARVAL)
        .args(["cache", "settings", "team", "--set", "public=false", "--data"])
        .arg(&data)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    until(401, "it is private again", || lab.get("/team/nix-cache-info").status);
    for wrong in [json!({"publicKeys": []}), json!({"nothing": 1}), json!({"quota": "x"}), json!([])] {
        assert_eq!(ask(&lab, "PATCH", "caches/team", &admin, &wrong).0, 400, "{wrong}");
    }
    // Who administers some caches does not lift what limits them.
    let of_some = lab.token_for("team*", "admin");
    for (method, path, body, status) in [
        ("PATCH", "caches/team", json!({"retentionDays": 9}), 200),
        ("PATCH", "caches/team", json!({"quota": null}), 403),
        ("PATCH", "caches/team", json!({"narSizeMax": 1_u64 << 40}), 403),
        ("PUT", "caches/team-2", json!({}), 403),
    ] {
        assert_eq!(ask(&lab, method, path, &of_some, &body).0, status, "{method} {path} {body}");
    }

    // After a restart it is still there, and its tokens are.
    let text = std::fs::read_to_string(lab.store.path("narval.toml")).unwrap();
    let new = crate::lab::configured(&lab.store, &text);
    std::mem::replace(&mut lab.server, new).end("-TERM");
    assert_eq!(lab.send("GET", &format!("/team{}", narinfo_url(PATH)), &ci, &[], b"").status, 200);
    assert_eq!(ask(&lab, "DELETE", &format!("tokens/{}", id_of(&ci)), &admin, &Value::Null).0, 200);
    assert_eq!(lab.send("GET", &format!("/team{}", narinfo_url(PATH)), &ci, &[], b"").status, 401);

    // Who did what.
    let (_, audit) = ask(&lab, "GET", "audit?limit=1000", &admin, &Value::Null);
    let did: BTreeSet<&str> =
        audit["items"].as_array().unwrap().iter().map(|line| line["action"].as_str().unwrap()).collect();
    for action in ["create cache", "change cache", "create token", "revoke"] {
        assert!(did.contains(action), "{action}: {did:?}");
    }
    let line = audit["items"].as_array().unwrap().iter().find(|line| line["action"] == "create cache").unwrap();
    assert_eq!(
        (&line["token"], &line["peer"], &line["cache"]),
        (&id_of(&admin).into(), &"127.0.0.1".into(), &"team".into())
    );
    assert!(line["time"].as_u64().unwrap() > 1_700_000_000 && !audit.to_string().contains(&ci));
}

#[test]
fn lists_come_in_pages() {
    let lab = lab();
    let admin = lab.token("admin");
    (0..7).for_each(|number| drop(lab.token_for(&format!("t-{number}"), "pull")));
    (0..3).for_each(|number| assert_eq!(ask(&lab, "PUT", &format!("caches/t-{number}"), &admin, &json!({})).0, 201));
    for (list, name, count) in [("tokens", "id", 8), ("caches", "name", 5), ("audit", "time", 6)] {
        let (mut seen, mut after) = (Vec::new(), String::new());
        loop {
            let (status, page) = ask(&lab, "GET", &format!("{list}?limit=2{after}"), &admin, &Value::Null);
            assert_eq!(status, 200, "{list}: {page}");
            let items = page["items"].as_array().unwrap();
            assert!(items.len() <= 2);
            seen.extend(items.iter().map(|item| item[name].clone()));
            let Some(next) = page["next"].as_str() else { break };
            after = format!("&after={next}");
        }
        assert_eq!(seen.len(), count, "{list}: {seen:?}");
    }
}

/// A command here and there says the same.
#[test]
fn the_same_commands_here_and_there() {
    let lab = lab();
    let home = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| -> Output {
        let mut command = Command::new(NARVAL);
        command.env("HOME", home.path()).env_remove("XDG_CONFIG_HOME").env_remove("NARVAL_DATA").args(args);
        command.output().unwrap()
    };
    let good = |args: &[&str]| {
        let output = run(args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let admin = lab.token("admin");
    let token_file = home.path().join("token");
    std::fs::write(&token_file, &admin).unwrap();
    let (url, data) = (lab.server.url(), lab.data_path().display().to_string());
    let wrong = run(&["login", &url, "--name", "work", "--token-file", "/dev/null"]);
    assert_eq!(wrong.status.code(), Some(2));
    good(&["login", &url, "--name", "work", "--token-file", token_file.to_str().unwrap()]);
    let saved = home.path().join(".config/narval/logins.json");
    assert_eq!(std::fs::metadata(&saved).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(good(&["login"]), format!("work  {url}\n"));

    let nar = Nar::of(b"hello");
    assert_eq!(lab.put(&nar.url(), &admin, &nar.bytes).status, 201);
    assert_eq!(lab.put(&narinfo_url(PATH), &admin, nar.narinfo(PATH, &[]).as_bytes()).status, 201);
    let places = [["--at", "work"], ["--at", &*url], ["--data", &*data]];
    for (number, place) in places.into_iter().enumerate() {
        let both = |args: &[&str]| good(&[args, &place].concat());
        let label = format!("ci-{number}");
        let token = both(&["token", "create", "--pull", &label]);
        let id = id_of(token.trim());
        assert!(both(&["token", "list"]).contains(&format!("{id}  {label}  pull  default  valid, never used")));
        both(&["token", "change", id, "--add-scope", "push"]);
        assert!(both(&["token", "list", "--json"]).contains("\"scopes\":\"pull,push\""));
        both(&["token", "revoke", id]);
        let unknown = run(&[&["token", "revoke", "nothing"], &place[..]].concat());
        assert_eq!(unknown.status.code(), Some(2), "{}", String::from_utf8_lossy(&unknown.stderr));
        assert_eq!(both(&["pin", "add", "p", PATH]), format!("p  {PATH}\n"));
        assert!(both(&["pin", "list"]).starts_with(&format!("p  {PATH}")));
        both(&["pin", "remove", "p"]);
        assert!(both(&["cache", "list"]).starts_with(PATH));
        assert!(both(&["cache", "stats"]).contains("default: 1 path, 1 NAR"));
        both(&["cache", "create", &format!("made-{number}")]);
        assert!(both(&["cache", "settings", &format!("made-{number}"), "--set", "quota=5"]).contains("quota = 5"));
        assert!(both(&["cache", "audit"]).contains("create token"));
        assert!(both(&["cache", "audit", "--json", "--cache", &format!("made-{number}")]).contains("\"lines\":3"));
    }
    let texts: BTreeSet<String> =
        places.iter().map(|place| good(&[&["token", "list", "--json"], &place[..]].concat())).collect();
    assert_eq!(texts.len(), 1, "the same output: {texts:?}");
    good(&["logout", "work"]);
    assert!(!std::fs::read_to_string(&saved).unwrap().contains("nv1_"));
}
