//! docs/releases.md: releases over HTTP.

use narval_nix::{Release, TrustedKeys};
use serde_json::Value;

use crate::lab::{Lab, Nar};
use crate::support::{NARVAL, Store};

const NAMES: [&str; 2] = ["0i4073ldk2aplbmaarmp5c8gf3wmbl84-api-1.4.2", "1i4073ldk2aplbmaarmp5c8gf3wmbl84-api-1.5"];

/// A cache with a key and two paths; and the key.
pub fn signing(more: &[&str]) -> (Lab, TrustedKeys) {
    let store = Store::new();
    let key = std::process::Command::new(NARVAL).args(["key", "generate", "cache-1"]).output().unwrap();
    let file = store.path("cache.sec");
    std::fs::write(&file, &key.stdout).unwrap();
    let secret = narval_nix::SecretKey::parse_file(&String::from_utf8(key.stdout).unwrap()).unwrap();
    let server = crate::lab::serve(&store, &[&["--sign-key", file.to_str().unwrap()], more].concat());
    let lab = Lab { store, server };
    let token = lab.token("push");
    for (at, name) in NAMES.iter().enumerate() {
        let nar = Nar::of(format!("contents {at}").as_bytes());
        assert_eq!(lab.put(&nar.url(), &token, &nar.bytes).status, 201);
        let narinfo = format!("/{}.narinfo", &name[..32]);
        assert_eq!(lab.put(&narinfo, &token, nar.narinfo(name, &[]).as_bytes()).status, 201);
    }
    (lab, [secret.public_key()].into_iter().collect())
}

fn body(system: &str, path: &str, version: Option<&str>) -> Vec<u8> {
    let path = format!("/nix/store/{path}");
    let mut body = serde_json::json!({"systems": {system: {"out": path}}, "notes": {"git": "0123abc"}});
    if let Some(version) = version {
        body["version"] = version.into();
    }
    body.to_string().into_bytes()
}

fn said(answer: &crate::support::Answer) -> String {
    String::from_utf8_lossy(&answer.body).into_owned()
}

#[test]
fn releases_over_http() {
    let (lab, keys) = signing(&[]);
    let token = lab.token("push,release:api*");
    let post = |name: &str, token: &str, body: &[u8]| lab.post(&format!("/_narval/v1/releases/{name}"), token, body);
    let first = post("api", &token, &body("x86_64-linux", NAMES[0], Some("1.4.2")));
    assert_eq!(first.status, 201, "{}", said(&first));
    let release = Release::parse(&first.body).unwrap();
    assert!(release.revision == 1 && release.find_valid(&keys).is_some());
    assert_eq!(post("api", &token, &body("x86_64-linux", NAMES[1], None)).status, 201);
    assert_eq!(post("api", &token, &body("aarch64-linux", NAMES[1], None)).status, 201);

    let latest = lab.get("/releases/api/latest");
    assert_eq!((latest.status, Release::parse(&latest.body).unwrap().revision), (200, 3));
    let revision = |below: &str| Release::parse(&lab.get(&format!("/releases/api/{below}")).body).unwrap().revision;
    assert_eq!((revision("latest?system=x86_64-linux"), revision("1.4.2"), revision("2")), (2, 1, 2));
    let path = |below: &str| said(&lab.get(&format!("/releases/api/{below}")));
    assert_eq!(path("latest/path?system=x86_64-linux"), format!("/nix/store/{}\n", NAMES[1]));
    assert_eq!(path("1.4.2/path"), format!("/nix/store/{}\n", NAMES[0]));
    for (below, status) in [
        ("api/9", 404),
        ("api/0", 400),
        ("web", 404),
        ("a%20b/1", 400),
        ("api/latest?system=i686-linux", 404),
        ("api/1/path?output=dev", 404),
    ] {
        assert_eq!(lab.get(&format!("/releases/{below}")).status, status, "{below}");
    }
    let listed: Value = serde_json::from_slice(&lab.get("/releases/api").body).unwrap();
    let listed = listed["releases"].as_array().unwrap();
    assert_eq!(
        (listed.len(), &listed[2]["version"], &listed[0]["system"]),
        (3, &"1.4.2".into(), &"aarch64-linux".into())
    );
    let html = |below: &str| lab.send("GET", below, "", &["Accept: text/html"], b"");
    for below in ["/releases", "/releases/api", "/releases/api/latest"] {
        let page = html(below);
        assert!(page.status == 200 && said(&page).contains("api-1.5"), "{below}: {}", said(&page));
    }
    assert_eq!(html("/releases/web").status, 404);

    // What a token may not do, and what is wrong.
    let refusals = [
        ("web", token.clone(), body("x86_64-linux", NAMES[0], None), 403),
        ("api", lab.token("push,sign,pin"), body("x86_64-linux", NAMES[0], None), 403),
        ("api", String::new(), body("x86_64-linux", NAMES[0], None), 401),
        ("api", token.clone(), body("x86_64-linux", "2i4073ldk2aplbmaarmp5c8gf3wmbl84-absent", None), 404),
        ("api", token.clone(), body("x86_64-linux", NAMES[0], Some("41")), 400),
        ("api", token.clone(), b"{\"systems\":{}}".to_vec(), 400),
        ("api", token.clone(), b"{".to_vec(), 400),
        ("a%20b", token.clone(), body("x86_64-linux", NAMES[0], None), 400),
    ];
    for (name, token, body, status) in refusals {
        let answer = post(name, &token, &body);
        assert_eq!(answer.status, status, "{name}: {}", said(&answer));
    }
    let promote = br#"{"from":{"name":"api","which":"1"}}"#;
    assert_eq!(post("prod", &token, promote).status, 403, "another name needs its own right");
    let prod = post("prod", &lab.token("release:prod"), promote);
    assert_eq!(prod.status, 201, "{}", said(&prod));
    assert_eq!(Release::parse(&prod.body).unwrap().promoted_from, Some(("api".parse().unwrap(), 1)));
    let (pin, delete) = (lab.token("pin"), lab.token("delete"));
    let pinned = lab.put("/_narval/v1/releases/api/1/pin", &pin, b"");
    assert_eq!(pinned.status, 200, "{}", said(&pinned));
    assert_eq!(lab.send("DELETE", "/_narval/v1/releases/api/1/pin", &token, &[], b"").status, 403);
    assert_eq!(lab.send("DELETE", "/_narval/v1/releases/api/3", &delete, &[], b"").status, 409, "the newest");
    assert_eq!(lab.send("DELETE", "/_narval/v1/releases/api/1", &delete, &[], b"").status, 200);
    assert_eq!(lab.get("/releases/api/1").status, 404);
}

#[test]
fn releases_of_private_caches_and_of_caches_without_a_key() {
    let (lab, _) = signing(&["--private"]);
    let token = lab.token("release:api");
    let made = lab.post("/_narval/v1/releases/api", &token, &body("x86_64-linux", NAMES[0], None));
    assert_eq!(made.status, 201, "{}", said(&made));
    for below in ["/releases", "/releases/api", "/releases/api/latest", "/releases/api/latest/path", "/releases/absent"]
    {
        assert_eq!(lab.get(below).status, 401, "{below}");
        assert_eq!(lab.send("GET", below, &token, &[], b"").status, 404, "{below}: a token that may not read");
    }
    assert_eq!(lab.send("GET", "/releases/api/latest", &lab.token("pull"), &[], b"").status, 200);
    let without = Lab::new();
    let answer =
        without.post("/_narval/v1/releases/api", &without.token("release:*"), &body("x86_64-linux", NAMES[0], None));
    assert!(answer.status == 409 && said(&answer).contains("sign-keys"), "{}: {}", answer.status, said(&answer));
}
