//! A CI platform that gives its jobs tokens (OpenID Connect), as GitHub and GitLab do.

#![allow(dead_code, unreachable_pub, missing_docs, reason = "each test file uses its part")]

use std::collections::{HashMap, VecDeque};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

/// How many tokens were made: each has its own id.
static TOKENS: AtomicU64 = AtomicU64::new(0);

pub const AUDIENCE: &str = "https://cache.example.org";

/// A platform with one key.
pub struct Platform {
    pub address: SocketAddr,
    key: EcdsaKeyPair,
    pub away: Arc<AtomicBool>,
    /// Whether it takes connections and does not answer.
    pub stalls: Arc<AtomicBool>,
    /// What the job of a runner with this secret gets from `/token`.
    for_job: Arc<Mutex<Option<(String, String)>>>,
    script: Arc<Mutex<Script>>,
}

/// What is answered at a path, one after the other, the last one again and again; and what was asked there.
#[derive(Default)]
struct Script {
    answers: HashMap<String, VecDeque<(u16, String)>>,
    asked: Vec<(String, String)>,
}

impl Script {
    fn answer(&mut self, path: &str, request: &str) -> Option<(u16, String)> {
        let answers = self.answers.get_mut(path)?;
        self.asked.push((path.to_owned(), request.to_owned()));
        if answers.len() > 1 { answers.pop_front() } else { answers.front().cloned() }
    }
}

impl Platform {
    pub fn start() -> Self {
        let key = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let point = key.public_key().as_ref();
        let (x, y) = (URL_SAFE_NO_PAD.encode(&point[1..33]), URL_SAFE_NO_PAD.encode(&point[33..65]));
        let keys = json!({ "keys": [{ "kty": "EC", "crv": "P-256", "kid": "1", "x": x, "y": y }] }).to_string();
        let discovery = json!({ "issuer": format!("http://{address}"), "jwks_uri": format!("http://{address}/keys"),
            "device_authorization_endpoint": format!("http://{address}/device"), "token_endpoint": format!("http://{address}/poll") });
        let away = Arc::new(AtomicBool::new(false));
        let is_away = Arc::clone(&away);
        let stalls = Arc::new(AtomicBool::new(false));
        let is_stalling = Arc::clone(&stalls);
        let for_job = Arc::new(Mutex::new(None::<(String, String)>));
        let jobs = Arc::clone(&for_job);
        let script = Arc::new(Mutex::new(Script::default()));
        let scripted = Arc::clone(&script);
        thread::spawn(move || {
            let mut stalled = Vec::new();
            for socket in listener.incoming() {
                let mut socket = socket.unwrap();
                if is_stalling.load(Ordering::Relaxed) {
                    stalled.push(socket);
                    continue;
                }
                if is_away.load(Ordering::Relaxed) {
                    continue;
                }
                let mut request = [0; 4096];
                let len = socket.read(&mut request).unwrap_or(0);
                let request = String::from_utf8_lossy(&request[..len]).into_owned();
                let job = jobs.lock().unwrap().clone();
                let job = job.filter(|(secret, _)| {
                    let name = "\r\nauthorization: ";
                    let value = request.to_ascii_lowercase().find(name).and_then(|at| request.get(at + name.len()..));
                    value.is_some_and(|value| value.starts_with(&format!("bearer {secret}\r\n")))
                });
                let path = request.split(['?', ' ']).nth(1).unwrap_or_default();
                let said = scripted.lock().unwrap().answer(path, &request);
                let (status, body) = said.unwrap_or_else(|| match (path, job) {
                    ("/keys", _) => (200, keys.clone()),
                    ("/token", Some((_, token))) => (200, json!({ "count": 1, "value": token }).to_string()),
                    ("/token", None) => (401, "{}".to_owned()),
                    _ => (200, discovery.to_string()),
                });
                let head =
                    format!("HTTP/1.1 {status} Status\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
                drop(socket.write_all(format!("{head}{body}").as_bytes()));
            }
        });
        Self { address, key, away, stalls, for_job, script }
    }

    /// Has a path answer these, one after the other.
    pub fn answer(&self, path: &str, answers: &[(u16, Value)]) {
        let answers = answers
            .iter()
            .map(|(status, body)| (*status, body.as_str().map_or_else(|| body.to_string(), str::to_owned)));
        self.script.lock().unwrap().answers.insert(path.to_owned(), answers.collect());
    }

    /// What was asked at a path with such answers.
    pub fn asked(&self, path: &str) -> Vec<String> {
        let script = self.script.lock().unwrap();
        script.asked.iter().filter(|(at, _)| at == path).map(|(_, request)| request.clone()).collect()
    }

    /// Has `/token` give this token to whoever knows the secret, as GitHub's runners do.
    pub fn give(&self, secret: &str, token: String) {
        *self.for_job.lock().unwrap() = Some((secret.to_owned(), token));
    }

    /// A token for a job; `changed` says what is different from one that may push.
    pub fn token(&self, changed: &[(&str, Value)]) -> String {
        self.token_of_key("1", changed)
    }

    /// As [`token`](Self::token), and says that it is signed with another key.
    pub fn token_of_key(&self, key: &str, changed: &[(&str, Value)]) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let mut claims = json!({
            "iss": format!("http://{}", self.address), "aud": AUDIENCE, "sub": "repo:our-org/app:ref:refs/heads/main",
            "exp": now + 300, "repository": "our-org/app", "ref": "refs/heads/main",
            "jti": TOKENS.fetch_add(1, Ordering::Relaxed).to_string(),
        });
        for (name, value) in changed {
            claims[*name] = value.clone();
        }
        self.sign(key, &claims)
    }

    /// A token of a person who has signed in with a client.
    pub fn person(&self, client: &str, changed: &[(&str, Value)]) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let id = TOKENS.fetch_add(1, Ordering::Relaxed).to_string();
        let mut claims = json!({
            "iss": format!("http://{}", self.address), "aud": client, "sub": "00u1", "exp": now + 300, "jti": id, "email": "ann@our.org",
        });
        for (name, value) in changed {
            claims[*name] = value.clone();
        }
        self.sign("1", &claims)
    }

    fn sign(&self, key: &str, claims: &Value) -> String {
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let message = format!("{}.{}", part(&json!({ "alg": "ES256", "kid": key })), part(claims));
        let signature = self.key.sign(&SystemRandom::new(), message.as_bytes()).unwrap();
        format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref()))
    }
}
