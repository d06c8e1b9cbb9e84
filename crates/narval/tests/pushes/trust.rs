//! What each scope of a token allows, when the cache signs what was uploaded, and what it takes if it requires signatures.

use std::collections::BTreeSet;
use std::path::Path;

use crate::lab::{Lab, Nar};
use crate::support::{Nix, Store, hash_part, value};

const SCOPES: [&str; 7] = ["pull", "push", "sign", "pin", "delete", "replace", "admin"];

/// A store path that no other call gives.
fn new_path() -> String {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let digest = narval_nix::Sha256::of(&NUMBER.fetch_add(1, Ordering::Relaxed).to_le_bytes());
    format!("{}-x", narval_nix::HashPart::from_digest(digest.as_bytes()[..20].try_into().unwrap()))
}

fn narinfo_url(path: &str) -> String {
    format!("/{}.narinfo", hash_part(path))
}

fn publish(lab: &Lab, token: &str, path: &str, nar: &Nar) -> u16 {
    let put = lab.put(&nar.url(), token, &nar.bytes);
    if !matches!(put.status, 200 | 201) {
        return put.status;
    }
    lab.put(&narinfo_url(path), token, nar.narinfo(path, &[]).as_bytes()).status
}

/// What a token can do, tried out one by one.
fn tried(lab: &Lab, admin: &str, token: &str) -> BTreeSet<&'static str> {
    let mut can = BTreeSet::new();
    let there = new_path();
    assert_eq!(publish(lab, admin, &there, &Nar::of(there.as_bytes())), 201);
    let status = |method: &str, path: &str| lab.send(method, path, token, &[], b"").status;
    match status("GET", &narinfo_url(&there)) {
        200 => drop(can.insert("pull")),
        other => assert_eq!(other, 404, "as if it did not exist"),
    }
    let new = new_path();
    match publish(lab, token, &new, &Nar::of(new.as_bytes())) {
        201 => {
            can.insert("push");
            let narinfo = lab.send("GET", &narinfo_url(&new), admin, &[], b"");
            if value(narinfo.text(), "Sig").is_some_and(|signature| signature.starts_with("own-1:")) {
                can.insert("sign");
            }
        }
        other => assert_eq!(other, 403),
    }
    match publish(lab, token, &there, &Nar::of(b"something else")) {
        200 => drop(can.insert("replace")),
        other => assert!(matches!(other, 403 | 409), "{other}"),
    }
    let narinfo = lab.send("GET", &narinfo_url(&there), admin, &[], b"");
    let is_other = narinfo.text().contains(&Nar::of(b"something else").hash.to_nix32());
    assert_eq!(is_other, can.contains("replace"), "{}", narinfo.text());
    let pin = format!("{{\"path\":\"{there}\"}}");
    match lab.put("/_narval/api/v1/caches/default/pins/x", token, pin.as_bytes()).status {
        200 => drop(can.insert("pin")),
        other => assert_eq!(other, 403),
    }
    match status("DELETE", &format!("/_narval/api/v1/caches/default/paths/{there}")) {
        200 => drop(can.insert("delete")),
        other => assert_eq!(other, 403),
    }
    let is_there = lab.send("GET", &narinfo_url(&there), admin, &[], b"").status == 200;
    assert_eq!(is_there, !can.contains("delete"));
    can
}

fn own_key(store: &Store) -> String {
    store.key("own-1");
    format!("sign-keys = '{}'\n", store.path("own-1.sec").display())
}

#[test]
fn each_scope_allows_what_it_names_and_nothing_else() {
    let store = Store::new();
    let key = own_key(&store);
    let lab = Lab::configured(store, &format!("data = 'data'\npublic = false\n{key}"));
    let admin = lab.token("admin");
    let expect = |scopes: &str, can: &[&'static str]| {
        assert_eq!(tried(&lab, &admin, &lab.token(scopes)), can.iter().copied().collect(), "{scopes}");
        // The same for another cache: nothing of this one.
        assert_eq!(tried(&lab, &admin, &lab.token_for("other", scopes)), BTreeSet::new(), "{scopes}");
    };
    expect("pull", &["pull"]);
    expect("push", &["push"]);
    expect("pin", &["pin"]);
    expect("delete", &["delete"]);
    // These two say how a push is treated, and allow none.
    expect("sign", &[]);
    expect("replace", &[]);
    expect("push,sign", &["push", "sign"]);
    expect("push,replace", &["push", "replace"]);
    expect("admin", &["delete", "pin", "pull", "push", "replace", "sign"]);
    assert_eq!(SCOPES.join(",").parse::<narval_keep::Scopes>().unwrap().to_string(), SCOPES.join(","));
}

/// The names of the keys whose signatures a path has.
fn signers(lab: &Lab, path: &str) -> Vec<String> {
    let narinfo = lab.get(&narinfo_url(path));
    assert_eq!(narinfo.status, 200);
    let signatures = narinfo.text().lines().filter_map(|line| line.strip_prefix("Sig: "));
    let mut names: Vec<_> = signatures.map(|signature| signature.split(':').next().unwrap().to_owned()).collect();
    names.sort();
    names
}

fn signed_by(key: &Path) -> String {
    format!("secret-key={}", key.display())
}

/// ncps signed whatever anybody pushed, and so vouched for it.
#[test]
fn the_servers_signature_needs_the_scope_sign_or_a_trusted_keys_signature() {
    let store = Store::new();
    let (own, (ci, ci_key)) = (own_key(&store), store.key("ci-1"));
    let elsewhere = Store::new();
    // Another key of the same name.
    let (forged, _) = elsewhere.key("ci-1");
    let text = format!("data = 'data'\n{own}[[cache]]\nname = 'default'\ntrusted-keys = '{}'\n", ci_key.trim());
    let lab = Lab::configured(store, &text);
    let (push, sign) = (lab.token("push"), lab.token("push,sign"));
    for nix in Nix::BOTH {
        let path = |what: &str| lab.store.add_file(&format!("{what}-{nix:?}"), format!("{what} {nix:?}"));
        let (unsigned, trusted, forgery, by_scope) =
            (path("unsigned"), path("trusted"), path("forgery"), path("scope"));
        lab.push(nix, &push, "", &unsigned).unwrap();
        assert_eq!(signers(&lab, &unsigned), [""; 0], "{nix:?}");
        lab.push(nix, &push, &signed_by(&forged), &forgery).unwrap();
        assert_eq!(signers(&lab, &forgery), ["ci-1"], "{nix:?}: it is kept as it was sent");
        lab.push(nix, &push, &signed_by(&ci), &trusted).unwrap();
        assert_eq!(signers(&lab, &trusted), ["ci-1", "own-1"], "{nix:?}");
        lab.push(nix, &sign, "", &by_scope).unwrap();
        assert_eq!(signers(&lab, &by_scope), ["own-1"], "{nix:?}");
        // A later upload of the same path, with what is needed.
        let narinfo = lab.get(&narinfo_url(&unsigned)).text().to_owned();
        assert_eq!(lab.put(&narinfo_url(&unsigned), &sign, narinfo.as_bytes()).status, 200);
        assert_eq!(signers(&lab, &unsigned), ["own-1"], "{nix:?}");
    }
}

/// `required-keys`: what none of them has signed is refused, whoever sends it, and the client is told which keys there are.
#[test]
fn a_cache_that_requires_signatures_takes_no_others() {
    let store = Store::new();
    let (own, (ci, ci_key)) = (own_key(&store), store.key("ci-1"));
    let elsewhere = Store::new();
    let (forged, _) = elsewhere.key("ci-1");
    let (other, _) = elsewhere.key("other-1");
    let text = format!("data = 'data'\n{own}[[cache]]\nname = 'default'\nrequired-keys = '{}'\n", ci_key.trim());
    let lab = Lab::configured(store, &text);
    for scopes in ["push", "push,sign", "admin"] {
        let token = lab.token(scopes);
        for nix in Nix::BOTH {
            let path =
                lab.store.add_file(&format!("{}-{nix:?}", scopes.replace(',', "-")), format!("{scopes} {nix:?}"));
            for parameters in [String::new(), signed_by(&forged), signed_by(&other)] {
                let refused = lab.push(nix, &token, &parameters, &path).unwrap_err();
                assert!(refused.contains("422") && refused.contains("ci-1"), "{nix:?}: {refused}");
                assert_eq!(lab.get(&narinfo_url(&path)).status, 404, "{nix:?}");
            }
            lab.push(nix, &token, &signed_by(&ci), &path).unwrap();
            let expected = if scopes == "push" { vec!["ci-1"] } else { vec!["ci-1", "own-1"] };
            assert_eq!(signers(&lab, &path), expected, "{scopes}");
            lab.pull(nix, &path);
        }
    }
}
