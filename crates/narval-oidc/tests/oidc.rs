//! Tokens of OpenID Connect, against an issuer that runs here: a small HTTP server with keys of its own.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails may say so")]

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::{KeyPair as RsaKeyPair, KeySize};
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair, RSA_PKCS1_SHA256};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use narval_http::{Listen, ListenAddress, Request, Response, Server, ServerHandle, StatusCode};
use narval_oidc::{Claim, FETCHES_MAX, Issuer, KEYS_LEN_MAX, OidcError, Rule, Verifier};
use serde_json::{Value, json};

const AUDIENCE: &str = "https://cache.example.org";

/// A key that tokens are signed with.
enum Key {
    Rsa(RsaKeyPair),
    P256(EcdsaKeyPair),
}

impl Key {
    fn rsa() -> Self {
        Self::Rsa(RsaKeyPair::generate(KeySize::Rsa2048).unwrap())
    }

    fn p256() -> Self {
        Self::P256(EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap())
    }

    fn algorithm(&self) -> &'static str {
        match self {
            Self::Rsa(_) => "RS256",
            Self::P256(_) => "ES256",
        }
    }

    fn jwk(&self, kid: &str) -> Value {
        match self {
            Self::Rsa(pair) => {
                let public = pair.public_key();
                let n = URL_SAFE_NO_PAD.encode(public.modulus().big_endian_without_leading_zero());
                let e = URL_SAFE_NO_PAD.encode(public.exponent().big_endian_without_leading_zero());
                json!({ "kty": "RSA", "use": "sig", "alg": "RS256", "kid": kid, "n": n, "e": e })
            }
            Self::P256(pair) => {
                // 0x04, x, y: SEC 1 section 2.3.3.
                let point = pair.public_key().as_ref();
                let (x, y) = (URL_SAFE_NO_PAD.encode(&point[1..33]), URL_SAFE_NO_PAD.encode(&point[33..65]));
                json!({ "kty": "EC", "crv": "P-256", "use": "sig", "kid": kid, "x": x, "y": y })
            }
        }
    }

    fn sign(&self, message: &[u8]) -> Vec<u8> {
        match self {
            Self::Rsa(pair) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), message, &mut signature).unwrap();
                signature
            }
            Self::P256(pair) => pair.sign(&SystemRandom::new(), message).unwrap().as_ref().to_vec(),
        }
    }

    fn token(&self, kid: &str, claims: &Value) -> String {
        self.token_with(&json!({ "alg": self.algorithm(), "typ": "JWT", "kid": kid }), claims)
    }

    fn token_with(&self, header: &Value, claims: &Value) -> String {
        let message = message(header, claims);
        let signature = URL_SAFE_NO_PAD.encode(self.sign(message.as_bytes()));
        format!("{message}.{signature}")
    }
}

fn message(header: &Value, claims: &Value) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    format!("{}.{}", part(header), part(claims))
}

/// An issuer: what its two documents are, and how often they were asked for.
struct Ci {
    server: Option<ServerHandle>,
    address: SocketAddr,
    keys: Arc<Mutex<String>>,
    asked: Arc<AtomicUsize>,
}

impl Ci {
    fn start() -> Self {
        Self::start_as(|address| format!("http://{address}"))
    }

    /// `says` is what its discovery document calls it.
    fn start_as(says: fn(SocketAddr) -> String) -> Self {
        let (keys, asked) = (Arc::new(Mutex::new(String::new())), Arc::new(AtomicUsize::new(0)));
        let (text, count, own) = (Arc::clone(&keys), Arc::clone(&asked), Arc::new(Mutex::new(None::<SocketAddr>)));
        let address = Arc::clone(&own);
        let handler = move |request: Request| {
            let address = address.lock().unwrap().unwrap();
            match request.path() {
                "/.well-known/openid-configuration" => {
                    let document = json!({ "issuer": says(address), "jwks_uri": format!("http://{address}/keys") });
                    Response::text(StatusCode::OK, document.to_string())
                }
                "/keys" => {
                    count.fetch_add(1, Ordering::SeqCst);
                    Response::text(StatusCode::OK, text.lock().unwrap().clone())
                }
                _ => Response::text(StatusCode::NOT_FOUND, "no"),
            }
        };
        let server = Server::builder(handler).listen(Listen::Tcp("127.0.0.1:0".parse().unwrap())).build().unwrap();
        let ListenAddress::Tcp(address) = server.addresses()[0].clone() else { panic!("no TCP") };
        *own.lock().unwrap() = Some(address);
        Self { server: Some(server.spawn().unwrap()), address, keys, asked }
    }

    fn publish(&self, keys: &[Value]) {
        *self.keys.lock().unwrap() = json!({ "keys": keys }).to_string();
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    fn stop(&mut self) {
        if let Some(server) = self.server.take() {
            server.shutdown(Duration::from_secs(5));
        }
    }

    /// Claims that are all right, as GitHub makes them.
    fn claims(&self) -> Value {
        json!({
            "iss": self.url(), "aud": AUDIENCE, "sub": "repo:our-org/app:ref:refs/heads/main", "exp": now() + 300, "nbf": now() - 5,
            "repository": "our-org/app", "ref": "refs/heads/main", "environment": "release",
            "job_workflow_ref": "our-org/ci/.github/workflows/build.yml@refs/heads/main",
        })
    }

    /// Main may push, and pull requests may pull.
    fn verifier(&self) -> Verifier<&'static str> {
        let claim = |name, pattern: &str| Claim::new(name, &[pattern]).unwrap();
        let main = vec![claim("repository", "our-org/*"), claim("ref", "refs/heads/main")];
        let requests = vec![claim("repository", "our-org/*"), claim("ref", "refs/pull/**")];
        let rules = vec![Rule::new(main, "push").unwrap(), Rule::new(requests, "pull").unwrap()];
        Verifier::new(vec![Issuer::new("ci", &self.url(), AUDIENCE, rules).unwrap()])
    }
}

impl Drop for Ci {
    fn drop(&mut self) {
        self.stop();
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// The claims with some of them changed; `null` takes one away.
fn with(mut claims: Value, changed: Value) -> Value {
    for (name, value) in changed.as_object().unwrap() {
        let claims = claims.as_object_mut().unwrap();
        match value {
            Value::Null => drop(claims.remove(name)),
            value => drop(claims.insert(name.clone(), value.clone())),
        }
    }
    claims
}

#[test]
fn both_algorithms_and_the_first_matching_rule() {
    let (ci, rsa, p256) = (Ci::start(), Key::rsa(), Key::p256());
    ci.publish(&[rsa.jwk("a"), p256.jwk("b")]);
    let verifier = ci.verifier();
    for (key, kid) in [(&rsa, "a"), (&p256, "b")] {
        let verified = verifier.verify(&key.token(kid, &ci.claims())).unwrap();
        assert_eq!((*verified.allows, &*verified.label), ("push", "ci: repo:our-org/app:ref:refs/heads/main"));
        let pull = with(ci.claims(), json!({ "ref": "refs/pull/7/merge" }));
        assert_eq!(*verifier.verify(&key.token(kid, &pull)).unwrap().allows, "pull");
        for claims in
            [json!({ "repository": "other/app" }), json!({ "ref": "refs/heads/main2" }), json!({ "repository": null })]
        {
            let refused = verifier.verify(&key.token(kid, &with(ci.claims(), claims))).unwrap_err();
            assert!(matches!(refused, OidcError::NoRule(_)), "{refused:?}");
        }
    }
    assert_eq!(ci.asked(), 1, "the keys are remembered");
}

/// Whether a refusal has the right reason.
type Is = fn(&OidcError) -> bool;

/// A token that must be refused, and why.
struct Refused {
    what: String,
    token: String,
    is: Is,
}

fn refused(what: impl ToString, token: String, is: Is) -> Refused {
    Refused { what: what.to_string(), token, is }
}

/// RFC 8725 section 2.1: a token must not choose how it is verified.
fn of_confused_algorithms(ci: &Ci, rsa: &Key, p256: &Key) -> Vec<Refused> {
    let mut all = Vec::new();
    let is_algorithm = |error: &OidcError| matches!(error, OidcError::Algorithm(_));
    for algorithm in ["none", "None", "NONE", "", "HS256", "HS512", "RS512", "PS256", "ES384", "EdDSA", "rs256"] {
        let message = message(&json!({ "alg": algorithm, "kid": "a" }), &ci.claims());
        for signature in ["", "AAAA"] {
            all.push(refused(algorithm, format!("{message}.{signature}"), is_algorithm));
        }
    }
    let Key::Rsa(pair) = rsa else { panic!() };
    let message = message(&json!({ "alg": "HS256", "kid": "a" }), &ci.claims());
    let secret = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, pair.public_key().as_ref());
    let tag = URL_SAFE_NO_PAD.encode(aws_lc_rs::hmac::sign(&secret, message.as_bytes()));
    all.push(refused("the public key as a secret, which everybody knows", format!("{message}.{tag}"), is_algorithm));
    for (key, algorithm, kid) in [(rsa, "ES256", "a"), (p256, "RS256", "b"), (rsa, "RS256", "b"), (p256, "ES256", "a")]
    {
        let token = key.token_with(&json!({ "alg": algorithm, "kid": kid }), &ci.claims());
        let what = format!("a right signature as {algorithm} of {kid}");
        all.push(refused(what, token, |error| matches!(error, OidcError::UnknownKey { .. })));
    }
    let own = Key::rsa();
    let header = json!({ "alg": "RS256", "kid": "a", "jwk": own.jwk("a"), "jku": "http://127.0.0.1:1/keys" });
    let is_signature = |error: &OidcError| *error == OidcError::Signature;
    all.push(refused("a key that it brings along", own.token_with(&header, &ci.claims()), is_signature));
    let critical = json!({ "alg": "RS256", "kid": "a", "crit": ["b64"], "b64": false });
    let is_malformed = |error: &OidcError| matches!(error, OidcError::Malformed(_));
    all.push(refused("a critical extension", rsa.token_with(&critical, &ci.claims()), is_malformed));
    all
}

/// Expired, not valid yet, for somebody else, and by somebody else.
fn of_other_times_and_places(ci: &Ci, key: &Key) -> Vec<Refused> {
    let is_claim = |error: &OidcError| matches!(error, OidcError::Claim(_));
    let is_audience = |error: &OidcError| matches!(error, OidcError::Audience(_));
    let changed: [(Value, Is); 16] = [
        (json!({ "exp": now() - 90 }), |error| *error == OidcError::Expired),
        (json!({ "exp": 1 }), |error| *error == OidcError::Expired),
        (json!({ "nbf": now() + 90 }), |error| *error == OidcError::NotYet),
        (json!({ "exp": null }), is_claim),
        (json!({ "exp": "never" }), is_claim),
        (json!({ "exp": true }), is_claim),
        (json!({ "exp": [now() + 300] }), |_| true),
        (json!({ "exp": -5 }), is_claim),
        (json!({ "aud": "https://other.example.org" }), is_audience),
        (json!({ "aud": [] }), is_audience),
        (json!({ "aud": ["a", "b"] }), is_audience),
        (json!({ "aud": "https://cache.example.org/" }), is_audience),
        (json!({ "aud": "https://CACHE.example.org" }), is_audience),
        (json!({ "aud": null }), is_claim),
        (json!({ "iss": "https://gitlab.com" }), |error| matches!(error, OidcError::UnknownIssuer(_))),
        (json!({ "iss": [ci.url()] }), is_claim),
    ];
    changed
        .into_iter()
        .map(|(changed, is)| refused(&changed, key.token("b", &with(ci.claims(), changed.clone())), is))
        .collect()
}

/// Claims that look like those of a rule (`our-org/*` and `refs/heads/main`, or `refs/pull/*/merge`): a pattern stands for the whole claim, byte by byte.
fn of_resembling_claims(ci: &Ci, key: &Key) -> Vec<Refused> {
    let repositories = [
        "our-org",
        "our-org2/app",
        "xour-org/app",
        "our-org/app/fork",
        "stranger/our-org/app",
        "OUR-ORG/app",
        "Our-Org/app",
        " our-org/app",
        "\tour-org/app",
        "\nour-org/app",
        "our-org\n/app",
        "our-org%2Fapp",
        "our-org\\app",
        "our-org\u{2215}app",
        "our\u{2010}org/app",
        "our-\u{43e}rg/app",
        "our-org//app",
        "../our-org/app",
        "our-org/a/../app",
        "*/app",
        "our-*/app",
        "our-org/app\nour-org/",
        "stranger/app\nour-org/app",
        "{our-org,x}/app",
        "[o]ur-org/app",
        "",
    ];
    let refs = [
        "main",
        "heads/main",
        "refs/heads/main/",
        "refs/heads/main2",
        "refs/heads/mai",
        "refs/heads/Main",
        "refs/heads/main\n",
        "refs/heads/main\0",
        " refs/heads/main",
        "refs/heads/*",
        "refs/heads/x/main",
        "refs/tags/main",
        "refs//heads/main",
        "refs/heads/main refs/heads/x",
        "refs/heads/m\u{430}in",
        "",
    ];
    let values = [
        json!(["stranger/app"]),
        json!({ "our-org": "app" }),
        json!(true),
        json!(7),
        json!([["our-org/app"]]),
        json!([]),
        json!(null),
    ];
    let repositories = repositories.iter().map(|text| json!({ "repository": text }));
    let refs = refs.iter().map(|text| json!({ "ref": text }));
    let all = repositories.chain(refs).chain(values.into_iter().map(|value| json!({ "repository": value })));
    let token = |changed: &Value| key.token("b", &with(ci.claims(), changed.clone()));
    all.map(|changed| refused(&changed, token(&changed), |error| matches!(error, OidcError::NoRule(_)))).collect()
}

/// What is no token, and what others have signed.
fn of_other_forms(ci: &Ci, key: &Key) -> Vec<Refused> {
    let right = key.token("b", &ci.claims());
    let parts: Vec<_> = right.split('.').collect();
    let without_kid = key.token_with(&json!({ "alg": "ES256" }), &ci.claims());
    let malformed = ["".to_owned(), "a.b".to_owned(), "....".to_owned(), "nv1_abc_def".to_owned(), without_kid];
    let malformed = malformed.into_iter().chain([format!("{right}.x"), format!("{}.e30", parts[0])]);
    let is_malformed = |error: &OidcError| matches!(error, OidcError::Malformed(_));
    let mut all: Vec<_> = malformed.map(|token| refused(token.clone(), token, is_malformed)).collect();
    all.push(refused("too long", "a".repeat(17_000), |error| *error == OidcError::TooLong));
    let is_signature = |error: &OidcError| *error == OidcError::Signature;
    for changed in [json!({ "environment": "other" }), json!({ "exp": now() + 3000 })] {
        let payload = URL_SAFE_NO_PAD.encode(with(ci.claims(), changed).to_string());
        let token = format!("{}.{payload}.{}", parts[0], parts[2]);
        all.push(refused("other claims under the same signature", token, is_signature));
    }
    all.push(refused("another key of the same name", Key::p256().token("b", &ci.claims()), is_signature));
    all
}

/// None of these tokens is accepted. The server refuses a token that comes twice: `tests/oidc.rs` of the program.
#[test]
fn a_table_of_tokens_that_are_refused() {
    let (ci, rsa, p256) = (Ci::start(), Key::rsa(), Key::p256());
    ci.publish(&[rsa.jwk("a"), p256.jwk("b")]);
    let verifier = ci.verifier();
    verifier.verify(&rsa.token("a", &ci.claims())).unwrap();
    let table = [
        of_confused_algorithms(&ci, &rsa, &p256),
        of_other_times_and_places(&ci, &p256),
        of_resembling_claims(&ci, &p256),
        of_other_forms(&ci, &p256),
    ];
    let counts: Vec<usize> = table.iter().map(Vec::len).collect();
    assert_eq!(counts, [29, 16, 49, 11]);
    for Refused { what, token, is } in table.into_iter().flatten() {
        match verifier.verify(&token) {
            Err(error) => assert!(is(&error), "{what}: {error:?}"),
            Ok(verified) => panic!("{what}: {}", verified.allows),
        }
    }
    assert_eq!(*verifier.verify(&format!(" {}\n", p256.token("b", &ci.claims()))).unwrap().allows, "push");
}

#[test]
fn times_within_the_leeway_and_several_audiences() {
    let (ci, key) = (Ci::start(), Key::p256());
    ci.publish(&[key.jwk("a")]);
    let verifier = ci.verifier();
    for changed in
        [json!({ "exp": now() - 30, "nbf": now() + 30 }), json!({ "nbf": null }), json!({ "aud": ["a", AUDIENCE] })]
    {
        let token = key.token("a", &with(ci.claims(), changed.clone()));
        assert_eq!(verifier.verify(&token).map(|verified| *verified.allows), Ok("push"), "{changed}");
    }
}

#[test]
fn keys_rotate() {
    let (ci, old, new) = (Ci::start(), Key::rsa(), Key::rsa());
    ci.publish(&[old.jwk("2025")]);
    let verifier = ci.verifier();
    verifier.verify(&old.token("2025", &ci.claims())).unwrap();
    ci.publish(&[new.jwk("2026")]);
    verifier.verify(&new.token("2026", &ci.claims())).unwrap();
    assert_eq!(ci.asked(), 2);
    // The old key has been withdrawn.
    let refused = verifier.verify(&old.token("2025", &ci.claims())).unwrap_err();
    assert!(matches!(refused, OidcError::UnknownKey { .. }), "{refused:?}");
    // The same id with another key: that of the token is not published.
    assert_eq!(verifier.verify(&old.token("2026", &ci.claims())).unwrap_err(), OidcError::Signature);
}

/// Tokens with made-up key ids must not flood the issuer with requests.
#[test]
fn fetches_of_unknown_keys_are_limited() {
    let (ci, key) = (Ci::start(), Key::p256());
    ci.publish(&[key.jwk("a")]);
    let verifier = ci.verifier();
    for at in 0..50 {
        let refused = verifier.verify(&key.token(&format!("made-up-{at}"), &ci.claims())).unwrap_err();
        assert!(matches!(refused, OidcError::UnknownKey { .. }), "{refused:?}");
    }
    assert_eq!(ci.asked(), FETCHES_MAX);
    verifier.verify(&key.token("a", &ci.claims())).unwrap();
}

#[test]
fn concurrent_tokens_fetch_the_keys_once() {
    let (ci, key) = (Ci::start(), Key::p256());
    ci.publish(&[key.jwk("a")]);
    let (verifier, token) = (ci.verifier(), key.token("a", &ci.claims()));
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| verifier.verify(&token).unwrap());
        }
    });
    assert_eq!(ci.asked(), 1);
}

#[test]
fn keys_that_cannot_be_fetched() {
    let key = Key::p256();
    let unavailable =
        |ci: &Ci, verifier: &Verifier<_>| match verifier.verify(&key.token("a", &ci.claims())).unwrap_err() {
            error @ OidcError::Unavailable { .. } if error.is_temporary() => format!("{error:?}"),
            other => panic!("{other:?}"),
        };
    // A set of keys that is too long, has too many, is none.
    let ci = Ci::start();
    *ci.keys.lock().unwrap() = format!("{{\"keys\": [], \"a\": \"{}\"}}", "a".repeat(KEYS_LEN_MAX as usize));
    assert!(unavailable(&ci, &ci.verifier()).contains("larger than"));
    ci.publish(&vec![json!({ "kty": "oct", "kid": "a", "k": "AAAA" }); 129]);
    assert!(unavailable(&ci, &ci.verifier()).contains("more than 128 keys"));
    *ci.keys.lock().unwrap() = "<html>".to_owned();
    assert!(unavailable(&ci, &ci.verifier()).contains("not JSON"));
    // Keys of other kinds beside ours do no harm; alone they are none.
    let others = [json!({ "kty": "oct", "kid": "a", "k": "AAAA" }), json!({ "kty": "new", "kid": "a" }), json!(7)];
    ci.publish(&others);
    assert!(unavailable(&ci, &ci.verifier()).contains("no key for RS256 or ES256"));
    ci.publish(&[&others[..], &[key.jwk("a")]].concat());
    ci.verifier().verify(&key.token("a", &ci.claims())).unwrap();
    // One for encryption, and one for another algorithm.
    for (name, value) in [("use", "enc"), ("alg", "ES384")] {
        ci.publish(&[with(key.jwk("a"), json!({ name: value }))]);
        unavailable(&ci, &ci.verifier());
    }
    // The discovery document is somebody else's.
    let liar = Ci::start_as(|_| "https://token.actions.githubusercontent.com".to_owned());
    liar.publish(&[key.jwk("a")]);
    assert!(unavailable(&liar, &liar.verifier()).contains("another issuer"));
}

#[test]
fn an_unreachable_issuer() {
    let (mut ci, key) = (Ci::start(), Key::p256());
    ci.publish(&[key.jwk("a")]);
    let verifier = ci.verifier();
    verifier.verify(&key.token("a", &ci.claims())).unwrap();
    ci.stop();
    // Known keys are used; unknown ones may become available later. The message does not mention the network.
    verifier.verify(&key.token("a", &ci.claims())).unwrap();
    let refused = verifier.verify(&key.token("b", &ci.claims())).unwrap_err();
    assert!(refused.is_temporary(), "{refused:?}");
    assert_eq!(
        refused.to_string(),
        format!("the keys of the issuer '{}' cannot be fetched now; try again later", ci.url())
    );
    assert!(ci.verifier().verify(&key.token("a", &ci.claims())).unwrap_err().is_temporary());
}
