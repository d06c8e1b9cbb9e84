//! A CI job exchanges its platform's token for one of the cache, and pushes with stock Nix. The platform runs here.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails may say so")]

#[path = "../support/platform.rs"]
mod platform;
mod sign_in;
#[path = "../support/mod.rs"]
mod support;

use std::process::Command;
use std::sync::atomic::Ordering;

use platform::{AUDIENCE, Platform};
use serde_json::json;
use support::{Answer, NARVAL, Nix, Server, Store, hash_part};

/// A private cache: the main branch of a repository pushes, its other branches read.
fn serve(store: &Store, platform: &Platform) -> Server {
    serve_with(store, platform, "")
}

/// With another key of the platform.
fn serve_with(store: &Store, platform: &Platform, key: &str) -> Server {
    let config = format!(
        "listen = '127.0.0.1:0'\ndata = 'data'\npublic = false\n\n[[oidc]]\nname = 'ci'\nissuer = 'http://{}'\naudience = '{AUDIENCE}'\n{key}\n\
         [[oidc.rule]]\nclaims = {{ repository = 'our-org/*', ref = ['refs/heads/main', 'refs/tags/v*'] }}\nscopes = ['pull', 'push']\ncaches = 'default'\n\n\
         [[oidc.rule]]\nclaims = {{ repository = 'our-org/*' }}\nscopes = 'pull'\n\n[[cache]]\nname = 'team'\n",
        platform.address
    );
    let file = store.path("narval.toml");
    std::fs::write(&file, config).unwrap();
    let mut command = Command::new(NARVAL);
    command.args(["serve", "--config"]).arg(&file);
    Server::start(command, &[("XDG_CACHE_HOME", store.path("cache").to_str().unwrap())])
}

fn exchange(server: &Server, token: &str) -> Answer {
    exchange_at(server, "", token)
}

/// At the address of one of the server's caches.
fn exchange_at(server: &Server, cache: &str, token: &str) -> Answer {
    let head = format!(
        "POST {cache}/_narval/v1/oidc HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        token.len()
    );
    Answer::parse(&server.send(format!("{head}{token}").as_bytes())).unwrap()
}

/// `nix copy --to` with a token in the netrc file.
fn push(server: &Server, store: &Store, token: &str, path: &str) -> Result<(), String> {
    let netrc = store.path("netrc");
    std::fs::write(&netrc, format!("machine 127.0.0.1 login any password {token}\n")).unwrap();
    let (url, from) = (server.url(), store.uri());
    let args =
        ["copy", "--refresh", "--to", &url, "--from", &from, "--option", "netrc-file", netrc.to_str().unwrap(), path];
    let output = Nix::Newest.nix(store.dir.path(), &args);
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

/// attic#104: pushing from CI without a secret that is kept there.
#[test]
fn a_job_pushes_with_the_token_that_it_was_given() {
    let (store, platform) = (Store::new(), Platform::start());
    let server = serve(&store, &platform);
    let path = store.add_file("result", "built by a job");
    let narinfo = format!("/{}.narinfo", hash_part(&path));
    assert_eq!(server.get(&narinfo).status, 401);

    let given = exchange(&server, &platform.token(&[]));
    assert_eq!((given.status, given.field("cache-control")), (201, Some("no-store")), "{given:?}");
    assert!(given.field("narval-token-expires").unwrap().parse::<u64>().unwrap() > 0);
    let token = given.text().trim().to_owned();
    assert!(token.starts_with("nv1_") && token.lines().count() == 1);
    push(&server, &store, &token, &path).unwrap();
    let bearer = |token: &str| format!("Authorization: Bearer {token}");
    assert_eq!(server.ask("GET", &narinfo, &[&bearer(&token)]).status, 200);

    // Another branch reads, and pushes nothing.
    let reader = exchange(&server, &platform.token(&[("ref", json!("refs/heads/feature"))])).text().trim().to_owned();
    assert_eq!(server.ask("GET", &narinfo, &[&bearer(&reader)]).status, 200);
    let other = store.add_file("other", "not for this branch");
    let refused = push(&server, &store, &reader, &other).unwrap_err();
    assert!(refused.contains("403"), "{refused}");

    // One exchange serves all caches; that of a private one tells no more than that of none.
    let given = exchange_at(&server, "/team", &platform.token(&[]));
    assert_eq!(given.status, 201, "{given:?}");
    let at_team = server.ask("GET", "/team/nix-cache-info", &[&bearer(given.text().trim())]);
    assert_eq!(at_team.status, 404, "the rule is for the cache at '/'");
    let of = |cache: &str| exchange_at(&server, cache, "nonsense");
    assert_eq!((of("/team").status, of("/team").body), (of("/nosuch").status, of("/nosuch").body));
    assert_eq!(exchange_at(&server, "/nosuch", &platform.token(&[])).status, 201);

    // Who it was, and what became of it.
    let audit = std::fs::read_to_string(store.path("data/audit.jsonl")).unwrap();
    assert!(
        audit
            .lines()
            .any(|line| line.contains("\"oidc\"") && line.contains("ci: repo:our-org/app:ref:refs/heads/main")),
        "{audit}"
    );
}

#[test]
fn rules_explain_themselves() {
    let (store, platform) = (Store::new(), Platform::start());
    let server = serve(&store, &platform);
    let test = |token: &str, options: &[&str]| {
        std::fs::write(store.path("jwt"), token).unwrap();
        let mut command = Command::new(NARVAL);
        command.args(["oidc", "test"]).arg(store.path("narval.toml")).arg("--token-file").arg(store.path("jwt"));
        let output = command.args(options).output().unwrap();
        let message = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(message).unwrap())
    };
    let token = platform.token(&[]);
    let (code, message) = test(&token, &[]);
    assert!(code == Some(0) && message.contains("rule 1 grants pull,push for default for 1h"), "{message}");
    assert!(
        message.contains("rule 2 matches, too") && message.contains("claim  repository = \"our-org/app\""),
        "{message}"
    );
    assert_eq!(exchange(&server, &token).status, 201, "it was not used up");
    let (code, message) = test(&platform.token(&[("ref", json!("refs/heads/feature"))]), &[]);
    let why = "rule 1 does not match: ref is \"refs/heads/feature\" and must match refs/heads/main or refs/tags/v*";
    assert!(code == Some(0) && message.contains(why) && message.contains("rule 2 grants pull for *"), "{message}");
    let (code, message) = test(&platform.token(&[("repository", json!("stranger/app"))]), &["--json"]);
    let summary: serde_json::Value = serde_json::from_str(message.lines().next().unwrap()).unwrap();
    assert!(
        code == Some(1) && summary["granted"].is_null() && summary["rules"].as_array().unwrap().len() == 2,
        "{message}"
    );
    let (code, message) = test(&platform.token(&[("aud", json!("https://other.example.org"))]), &[]);
    assert!(code == Some(1) && message.contains("audience"), "{message}");
}

/// RFC 8693: a form, answered with JSON, and never more than the rule grants.
#[test]
fn a_form_is_answered_with_json() {
    let (store, platform) = (Store::new(), Platform::start());
    let server = serve(&store, &platform);
    let grant = "urn:ietf:params:oauth:grant-type:token-exchange";
    let jwt = "urn:ietf:params:oauth:token-type:jwt";
    let ask = |fields: &[(&str, &str)]| {
        let form: Vec<_> = fields.iter().map(|(name, value)| format!("{name}={}", value.replace('+', "%2B"))).collect();
        let form = form.join("&");
        let head = format!(
            "POST /_narval/v1/oidc HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Type: application/x-www-form-urlencoded\r\n\
             Content-Length: {}\r\n\r\n",
            form.len()
        );
        Answer::parse(&server.send(format!("{head}{form}").as_bytes())).unwrap()
    };
    let exchange = |token: &str, scope: Option<&str>| {
        let mut fields = vec![("grant_type", grant), ("subject_token", token), ("subject_token_type", jwt)];
        fields.extend(scope.map(|scope| ("scope", scope)));
        ask(&fields)
    };
    let answer = exchange(&platform.token(&[]), None);
    assert_eq!((answer.status, answer.field("cache-control")), (200, Some("no-store")), "{answer:?}");
    let given: serde_json::Value = serde_json::from_str(answer.text()).unwrap();
    assert_eq!((&given["scope"], &given["token_type"]), (&json!("pull push"), &json!("Bearer")));
    assert_eq!(given["expires_in"], json!(3600));
    assert_eq!(given["issued_token_type"], json!("urn:ietf:params:oauth:token-type:access_token"));
    // The least rights that the job needs.
    let answer = exchange(&platform.token(&[]), Some("pull%20delete"));
    let given: serde_json::Value = serde_json::from_str(answer.text()).unwrap();
    assert_eq!(given["scope"], json!("pull"), "{answer:?}");
    let bearer = format!("Authorization: Bearer {}", given["access_token"].as_str().unwrap());
    assert_eq!(server.ask("POST", "/_narval/v1/missing", &[&bearer, "Content-Length: 0"]).status, 403);
    assert_eq!(server.ask("GET", "/nix-cache-info", &[&bearer]).status, 200);
    let token = platform.token(&[]);
    assert_eq!(exchange(&token, Some("delete")).status, 403);
    assert_eq!(exchange(&token, Some("everything")).status, 400);
    assert_eq!(exchange("nonsense", None).status, 401);
    for fields in [
        &[("grant_type", "authorization_code"), ("subject_token", &token), ("subject_token_type", jwt)][..],
        &[("grant_type", grant), ("subject_token", &token), ("subject_token_type", "x")],
        &[("grant_type", grant), ("subject_token_type", jwt)],
        &[],
    ] {
        let answer = ask(fields);
        assert_eq!(answer.status, 400, "{answer:?}");
    }
    // It was not used up by what was refused.
    assert_eq!(exchange(&token, None).status, 200);
    assert_eq!(exchange(&token, None).status, 401, "once");
}

#[test]
fn tokens_that_are_refused() {
    let (store, platform) = (Store::new(), Platform::start());
    let server = serve(&store, &platform);
    let stranger = Platform::start();
    let ours = json!(format!("http://{}", platform.address));
    // The keys are fetched when they are first needed.
    platform.away.store(true, Ordering::Relaxed);
    let away = exchange(&server, &platform.token(&[]));
    assert_eq!((away.status, away.field("retry-after")), (503, Some("5")), "{away:?}");
    platform.away.store(false, Ordering::Relaxed);
    for (token, status, says) in [
        (platform.token(&[("aud", json!("https://other.example.org"))]), 401, "audience"),
        (platform.token(&[("exp", json!(1))]), 401, "expired"),
        (stranger.token(&[]), 401, "not accepted here"),
        (stranger.token(&[("iss", ours)]), 401, "signature"),
        ("nonsense".to_owned(), 401, "not an OpenID Connect token"),
        (platform.token(&[("repository", json!("other-org/app"))]), 403, "no rule"),
    ] {
        let answer = exchange(&server, &token);
        assert_eq!(answer.status, status, "{answer:?}");
        assert!(answer.text().contains(says) && answer.text().len() < 1024, "{}", answer.text());
    }
    let long = exchange(&server, &"a".repeat(20_000));
    assert_eq!(long.status, 400, "{long:?}");
    assert_eq!(server.get("/_narval/v1/oidc").status, 404, "nobody signs in with it");
    // Who is right is not locked out by others behind the same address.
    for _ in 0..20 {
        exchange(&server, "nonsense");
    }
    assert!(exchange(&server, "nonsense").text().contains("too many wrong tokens"));
    assert_eq!(exchange(&server, &platform.token(&[])).status, 201);
}

#[test]
fn a_platforms_token_is_exchanged_once_at_all_servers() {
    let (store, platform) = (Store::new(), Platform::start());
    let servers = [serve(&store, &platform), serve(&store, &platform)];
    let token = platform.token(&[]);
    let given = exchange(&servers[0], &token);
    assert_eq!(given.status, 201, "{given:?}");
    for server in &servers {
        let again = exchange(server, &token);
        assert_eq!(again.status, 401);
        assert!(again.text().contains("exchanged before"), "{}", again.text());
    }
    for (claims, says) in [
        (("jti", json!(null)), "no claim 'jti'"),
        (("jti", json!("")), "no claim 'jti'"),
        (("jti", json!(7)), "no claim 'jti'"),
        (("exp", json!(4_000_000_000_u64)), "lives shorter"),
    ] {
        let refused = exchange(&servers[0], &platform.token(&[claims]));
        assert_eq!(refused.status, 401);
        assert!(refused.text().contains(says), "{}", refused.text());
    }
    // Of many at a time, one is right.
    let token = platform.token(&[]);
    let statuses: Vec<_> = std::thread::scope(|scope| {
        let exchange = |at: usize| exchange(&servers[at % 2], &token).status;
        let threads: Vec<_> = (0..16).map(|at| scope.spawn(move || exchange(at))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(statuses.iter().filter(|status| **status == 201).count(), 1, "{statuses:?}");
    // A revoked one does not come back, and its neighbours are right.
    let id = given.text().split('_').nth(1).unwrap().to_owned();
    let revoked =
        Command::new(NARVAL).args(["token", "revoke", &id, "--data"]).arg(store.path("data")).output().unwrap();
    assert!(revoked.status.success(), "{revoked:?}");
    assert_eq!(exchange(&servers[0], &platform.token(&[])).status, 201);
    drop(servers);
    let server = serve_with(&store, &platform, "require-jti = false");
    let token = platform.token(&[("jti", json!(null))]);
    assert_eq!([(); 2].map(|()| exchange(&server, &token).status), [201, 201]);
    let token = platform.token(&[]);
    assert_eq!([(); 2].map(|()| exchange(&server, &token).status), [201, 401], "an id counts all the same");
}

/// Neither other exchanges nor other requests wait for an issuer that does not answer.
#[test]
fn an_issuer_that_does_not_answer_holds_nobody_up() {
    let (store, platform) = (Store::new(), Platform::start());
    let server = serve(&store, &platform);
    assert_eq!(exchange(&server, &platform.token(&[])).status, 201);
    platform.stalls.store(true, Ordering::Relaxed);
    // Keys that nobody knows: the issuer is asked, and each waits.
    let waiting: Vec<_> = (0..40)
        .map(|number| {
            let token = platform.token_of_key(&format!("unknown-{number}"), &[]);
            let mut stream = server.connect();
            let head =
                format!("POST /_narval/v1/oidc HTTP/1.1\r\nHost: test\r\nContent-Length: {}\r\n\r\n", token.len());
            std::io::Write::write_all(&mut stream, format!("{head}{token}").as_bytes()).unwrap();
            stream
        })
        .collect();
    for _ in 0..20 {
        assert_eq!(exchange(&server, &platform.token(&[])).status, 201, "its key is known");
        assert_eq!(server.get("/health").status, 200);
    }
    let more = exchange(&server, &platform.token_of_key("unknown", &[]));
    assert_eq!((more.status, more.field("retry-after")), (503, Some("5")), "{more:?}");
    drop(waiting);
}

#[test]
fn config_check_finds_invalid_rules() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("narval.toml");
    let github = "[[oidc]]\nissuer = 'https://token.actions.githubusercontent.com'\naudience = 'us'\n";
    for (text, says) in [
        (
            format!("{github}[[oidc.rule]]\nclaims = {{ ref = 'refs/heads/main' }}\nscopes = 'push'\n"),
            ":1: oidc: a rule for https://token",
        ),
        (
            format!("{github}[[oidc.rule]]\nclaims = {{ sub = 'repo:**' }}\nscopes = 'push'\n"),
            ":1: oidc: a rule for https://token",
        ),
        (
            format!("{github}[[oidc.rule]]\nclaims = {{ repository = 'o/r' }}\nscopes = 'admin'\n"),
            ":4: oidc.rule: scopes: a job cannot have",
        ),
        (
            format!("{github}[[oidc.rule]]\nclaims = {{ repository = 'o/r' }}\nscopes = 'psuh'\n"),
            ":4: oidc.rule: unknown scope 'psuh'",
        ),
        (format!("{github}[[oidc.rule]]\nscopes = 'push'\n"), ":4: oidc.rule: a rule needs at least one claim"),
        (
            format!("{github}[[oidc.rule]]\nclaims = {{ repository = 7 }}\nscopes = 'push'\n"),
            ":5: oidc.rule.claims.repository = 7: give a text",
        ),
        (
            "[[oidc]]\nissuer = 'https://a.org'\nclient-id = 'n'\naudience = 'm'\n".to_owned(),
            ":1: oidc: audience: people's tokens are for the client",
        ),
        (github.to_owned(), ":1: oidc: the issuer 'https://token.actions.githubusercontent.com' needs a rule"),
        ("[[oidc]]\nissuer = 'http://ci.example.org'\n".to_owned(), ":1: oidc: key 'audience' is missing"),
    ] {
        std::fs::write(&file, &text).unwrap();
        let output = Command::new(NARVAL).args(["config", "check"]).arg(&file).output().unwrap();
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(message.contains(&format!("narval.toml{says}")), "{text}: {message}");
    }
}
