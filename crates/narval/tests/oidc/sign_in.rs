//! People sign in with the issuer of their organisation: `narval login` and the device flow (RFC 8628). The issuer runs here.

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::platform::Platform;
use crate::support::{NARVAL, Server, Store};

/// A server that people sign in to, and its jobs have another audience of the same issuer.
fn serve(store: &Store, platform: &Platform) -> Server {
    serve_with(store, platform, "")
}

/// The same, with these scopes more that people ask the issuer for.
fn serve_with(store: &Store, platform: &Platform, scopes: &str) -> Server {
    let issuer = format!("http://{}", platform.address);
    let config = format!(
        "listen = '127.0.0.1:0'\ndata = 'data'\npublic = false\n\n[[oidc]]\nname = 'jobs'\nissuer = '{issuer}'\naudience = 'jobs'\n\n\
         [[oidc.rule]]\nclaims = {{ repository = 'our-org/*' }}\nscopes = 'pull'\n\n[[oidc]]\nname = 'our-org'\nissuer = '{issuer}'\n\
         client-id = 'narval-cache'\nclient-scopes = ['email', 'groups'{scopes}]\ntoken-lifetime = '8h'\n\n\
         [[oidc.rule]]\nclaims = {{ groups = 'cache-admins' }}\nscopes = ['pull', 'admin']\n\n\
         [[oidc.rule]]\nclaims = {{ email = '*@our.org' }}\nscopes = 'pull'\n"
    );
    let file = store.path("narval.toml");
    std::fs::write(&file, config).unwrap();
    let mut command = Command::new(NARVAL);
    command.args(["serve", "--config"]).arg(&file);
    Server::start(command, &[("XDG_CACHE_HOME", store.path("cache").to_str().unwrap())])
}

fn narval(store: &Store, args: &[&str]) -> Command {
    let mut command = Command::new(NARVAL);
    command.args(args).env("HOME", store.dir.path()).env_remove("XDG_CONFIG_HOME").env_remove("NARVAL_DATA");
    command.stdin(Stdio::null()).env("NARVAL_LOG", "trace");
    command
}

fn said(output: &Output) -> String {
    String::from_utf8([output.stdout.clone(), output.stderr.clone()].concat()).unwrap()
}

/// Has the issuer give out a code, and these answers to those who ask whether it was entered.
fn issue(platform: &Platform, polls: &[(u16, Value)]) {
    let address = platform.address;
    let device = json!({
        "device_code": "secret-device-code", "user_code": "WDJB-MJHT", "verification_uri": format!("http://{address}/activate"),
        "verification_uri_complete": format!("http://{address}/activate?user_code=WDJB-MJHT"), "expires_in": 600, "interval": 0,
    });
    platform.answer("/device", &[(200, device)]);
    platform.answer("/poll", polls);
}

fn pending() -> (u16, Value) {
    (400, json!({"error": "authorization_pending"}))
}

fn given(token: &str) -> (u16, Value) {
    (
        200,
        json!({"access_token": "of-the-issuer", "token_type": "Bearer", "id_token": token, "refresh_token": "refresh-1"}),
    )
}

#[test]
fn a_person_signs_in_administers_and_signs_out() {
    let (store, platform) = (Store::new(), Platform::start());
    let server = serve(&store, &platform);
    let url = server.url();
    let identity = platform.person("narval-cache", &[("groups", json!(["users", "cache-admins"]))]);
    issue(&platform, &[pending(), pending(), given(&identity)]);
    let output = narval(&store, &["login", &url, "--name", "work"]).output().unwrap();
    let text = said(&output);
    assert!(output.status.success(), "{text}");
    for part in
        ["/activate\n", "enter the code WDJB-MJHT\n", "activate?user_code=WDJB-MJHT", "for up to 10m", "saved 'work'"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(text.contains("'our-org: 00u1 ann@our.org' allows pull,admin in *, and ends in "), "{text}");
    for secret in [identity.as_str(), "secret-device-code", "of-the-issuer", "nv1_"] {
        assert!(!text.contains(secret), "{secret} is nobody's to read: {text}");
    }
    let asked = platform.asked("/device");
    assert!(asked.len() == 1 && asked[0].ends_with("client_id=narval-cache&scope=email+groups+openid"), "{asked:?}");
    let polls = platform.asked("/poll");
    let form = "grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Adevice_code&device_code=secret-device-code&client_id=narval-cache";
    assert!(polls.len() == 3 && polls.iter().all(|poll| poll.ends_with(form)), "{polls:?}");
    let file = store.path(".config/narval/logins.json");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let token = || {
        let saved: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        saved["work"]["token"].as_str().unwrap().to_owned()
    };

    assert!(!std::fs::read_to_string(&file).unwrap().contains("refresh-1"), "nobody asked for it");

    let run = |args: &[&str]| {
        let output = narval(&store, args).output().unwrap();
        (output.status.code(), said(&output))
    };
    assert_eq!(run(&["cache", "create", "team", "--at", "work"]).0, Some(0));
    let (_, audit) = run(&["cache", "audit", "--at", "work"]);
    assert!(audit.contains("our-org: 00u1 ann@our.org"), "{audit}");
    let (_, listed) = run(&["login"]);
    assert!(listed.contains(&format!("work  {url}  ends in ")), "{listed}");

    // Again, with less: the file has one entry.
    let first = token();
    issue(&platform, &[given(&platform.person("narval-cache", &[]))]);
    let output = narval(&store, &["login", "work", "--json"]).output().unwrap();
    let lines: Vec<Value> =
        output.stdout.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect();
    assert_eq!(lines.len(), 2, "{}", said(&output));
    assert_eq!((&lines[0]["type"], &lines[0]["user_code"]), (&json!("sign_in"), &json!("WDJB-MJHT")));
    assert_eq!((&lines[1]["name"], &lines[1]["token"]["scopes"]), (&json!("work"), &json!("pull")));
    assert_eq!(run(&["login", "--json"]).1.matches("\"login\"").count(), 1);
    let (code, refused) = run(&["cache", "create", "other", "--at", "work"]);
    assert!(code != Some(0) && refused.contains("lacks the scope"), "{refused}");

    // What has expired says how to go on.
    let text = std::fs::read_to_string(&file).unwrap();
    let mut saved: Value = serde_json::from_str(&text).unwrap();
    saved["work"]["expires"] = json!(7);
    std::fs::write(&file, saved.to_string()).unwrap();
    let (code, expired) = run(&["cache", "audit", "--at", "work"]);
    assert!(code == Some(2) && expired.contains("'narval login work' gets another one"), "{expired}");
    assert!(run(&["login"]).1.contains("expired: narval login work"));
    std::fs::write(&file, text).unwrap();

    // Signing out ends the token at the server; the first one lives on until it expires.
    let bearer = |token: &str| format!("Authorization: Bearer {token}");
    let last = token();
    let is_valid = |token: &str| server.ask("GET", "/nix-cache-info", &[&bearer(token)]).status == 200;
    assert!(is_valid(&first) && is_valid(&last) && first != last);
    let (code, out) = run(&["logout", "work"]);
    assert!(code == Some(0) && out.contains("forgot 'work', and revoked its token"), "{out}");
    assert!(is_valid(&first) && !is_valid(&last) && !std::fs::read_to_string(&file).unwrap().contains("nv1_"));
    let (code, unknown) = run(&["logout", "work"]);
    assert!(code == Some(2) && unknown.contains("no server is saved as 'work'"), "{unknown}");
}

/// With `offline_access`, a token that has ended is replaced without its owner, until the issuer says no or they sign out.
#[test]
fn a_token_is_renewed_without_a_browser() {
    let (store, platform) = (Store::new(), Platform::start());
    let server = serve_with(&store, &platform, ", 'offline_access'");
    let (url, address) = (server.url(), platform.address);
    let discovery = json!({
        "issuer": format!("http://{address}"), "jwks_uri": format!("http://{address}/keys"), "token_endpoint": format!("http://{address}/poll"),
        "device_authorization_endpoint": format!("http://{address}/device"), "revocation_endpoint": format!("http://{address}/revoke"),
    });
    platform.answer("/.well-known/openid-configuration", &[(200, discovery)]);
    platform.answer("/revoke", &[(200, json!(""))]);
    let person = || platform.person("narval-cache", &[("groups", json!(["cache-admins"]))]);
    issue(&platform, &[given(&person())]);
    let run = |args: &[&str]| {
        let output = narval(&store, args).output().unwrap();
        let text = said(&output);
        assert!(!text.contains("refresh-") && !text.contains("nv1_"), "{text}");
        (output.status.code(), text)
    };
    let (code, text) = run(&["login", &url, "--name", "work"]);
    assert!(code == Some(0) && text.contains("it is renewed when it is used after that"), "{text}");
    let file = store.path(".config/narval/logins.json");
    let expire = || {
        let mut saved: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        saved["work"]["expires"] = json!(7);
        // Whatever the server names now, it is the issuer of then that is asked.
        assert_eq!(saved["work"]["renewal"]["issuer"], format!("http://{address}"));
        std::fs::write(&file, saved.to_string()).unwrap();
    };
    let audit = ["cache", "audit", "--at", "work"];
    expire();
    assert!(run(&["login"]).1.contains("  is renewed when it is used"));
    let renewed = json!({"id_token": person(), "refresh_token": "refresh-2"});
    platform.answer("/poll", &[(200, renewed), (400, json!({"error": "invalid_grant"}))]);
    // Several at the same time need one.
    let all: Vec<_> =
        (0..4).map(|_| narval(&store, &audit).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()).collect();
    for one in all {
        let output = one.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
    }
    let polls = platform.asked("/poll");
    let form = "grant_type=refresh_token&refresh_token=refresh-1&client_id=narval-cache";
    assert!(polls.len() == 2 && polls[1].ends_with(form), "{polls:?}");
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains("refresh-2") && !text.contains("refresh-1"), "another one came");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);

    // The issuer has had enough; the server does, too.
    expire();
    let (code, text) = run(&audit);
    assert!(
        code == Some(2) && text.contains("invalid_grant") && text.contains("'narval login work' signs you"),
        "{text}"
    );
    let stranger = platform.person("narval-cache", &[("email", json!("ann@other.org"))]);
    platform.answer("/poll", &[(200, json!({"id_token": stranger, "refresh_token": "refresh-3"}))]);
    let (code, text) = run(&audit);
    assert!(code == Some(2) && text.contains("no rule of this server matches"), "{text}");
    assert!(std::fs::read_to_string(&file).unwrap().contains("refresh-3"), "the one of before may count for nothing");

    platform.answer("/poll", &[(200, json!({"id_token": person()}))]);
    assert_eq!(run(&audit).0, Some(0));
    let (code, text) = run(&["logout", "work"]);
    assert!(code == Some(0) && text.contains("revoked its token, and signed out at the issuer"), "{text}");
    let revoked = platform.asked("/revoke");
    let form = "token=refresh-3&token_type_hint=refresh_token&client_id=narval-cache";
    assert!(revoked.len() == 1 && revoked[0].ends_with(form), "{revoked:?}");
    assert!(!std::fs::read_to_string(&file).unwrap().contains("refresh-"));
}

/// Each is refused by the server, or by the rules, after the issuer has let the person in.
#[test]
fn identities_that_are_refused() {
    let (store, platform) = (Store::new(), Platform::start());
    let server = serve(&store, &platform);
    let url = server.url();
    let stranger = Platform::start();
    for (token, says) in [
        (platform.person("narval-cache", &[("email", json!("ann@other.org"))]), "no rule of this server matches"),
        (platform.person("another-client", &[]), "is not for the audience"),
        (platform.person("narval-cache", &[("jti", json!(""))]), "no claim 'jti'"),
        (platform.person("narval-cache", &[("exp", json!(1))]), "has expired"),
        (stranger.person("narval-cache", &[]), "not accepted here"),
        // A job chooses the audience of its token, and has the groups of whoever started it.
        (
            platform.token(&[("aud", json!("narval-cache")), ("groups", json!(["cache-admins"]))]),
            "it is that of a job, and only people sign in",
        ),
        ("nonsense".to_owned(), "not an OpenID Connect token"),
    ] {
        issue(&platform, &[given(&token)]);
        let output = narval(&store, &["login", &url]).output().unwrap();
        let text = said(&output);
        assert!(!output.status.success() && text.contains(says), "{says}: {text}");
        assert!(!text.contains(&token) || token == "nonsense", "{text}");
    }
    // The same issuer's jobs have their own rules.
    let job = crate::exchange(&server, &platform.token(&[("aud", json!("jobs"))]));
    assert_eq!(job.status, 201, "{job:?}");
    assert!(!store.path(".config/narval/logins.json").exists(), "nothing is saved");
}

/// What the issuer and the cache may say, and what becomes of it.
#[test]
fn hostile_and_broken_issuers() {
    let (store, platform) = (Store::new(), Platform::start());
    let server = serve(&store, &platform);
    let (url, address) = (server.url(), platform.address);
    let login = |url: &str| {
        let begun = Instant::now();
        let output = narval(&store, &["login", url]).output().unwrap();
        let text = said(&output);
        assert!(!output.status.success(), "{text}");
        assert!(text.bytes().all(|byte| byte == b'\n' || !byte.is_ascii_control()), "{text:?}");
        (text, begun.elapsed())
    };
    let poll = |error: &str| [(400, json!({"error": error}))];
    for (answer, says) in [
        (poll("access_denied"), "access was denied at the issuer"),
        (poll("expired_token"), "was not entered in time"),
        (poll("invalid_client"), "refuses to sign anybody in: invalid_client"),
        ([(400, json!({"error": "no\u{1b}[31mway", "error_description": "x".repeat(9000)}))], "no[31mway: xxx"),
        ([(404, json!("<html>"))], "status 404"),
        ([(200, json!({"access_token": "only"}))], "must contain 'openid'"),
        ([(200, json!({"id_token": "with\nlines"}))], "must contain 'openid'"),
        ([(200, json!({"id_token": "a".repeat(20_000)}))], "must contain 'openid'"),
    ] {
        issue(&platform, &answer);
        let (text, _) = login(&url);
        assert!(text.contains(says) && text.len() < 4096, "{says}: {text}");
    }
    // One that is away for a moment, and wants to be asked less often.
    issue(
        &platform,
        &[(503, json!("later")), (400, json!({"error": "slow_down"})), (400, json!({"error": "access_denied"}))],
    );
    let (text, took) = login(&url);
    assert!(text.contains("denied") && took > Duration::from_secs(1 + 2 + 7), "{took:?}: {text}");
    // Nobody comes.
    issue(&platform, &[pending()]);
    let device = |changed: &[(&str, Value)]| {
        let mut device = json!({
            "device_code": "d", "user_code": "C", "verification_uri": format!("http://{address}/"), "expires_in": 600, "interval": 1,
        });
        changed.iter().for_each(|(name, value)| device[*name] = value.clone());
        device
    };
    platform.answer("/device", &[(200, device(&[("expires_in", json!(3))]))]);
    let (text, took) = login(&url);
    assert!(text.contains("was not entered in time") && took < Duration::from_secs(60), "{took:?}: {text}");

    for (changed, says) in [
        (("user_code", json!("A\u{1b}]0;x\u{7}B")), "'user_code' is missing or malformed"),
        (("user_code", json!("1".repeat(65))), "'user_code' is missing or malformed"),
        (("user_code", json!("\u{202e}abc")), "'user_code' is missing or malformed"),
        (("device_code", json!(7)), "'device_code' is missing or malformed"),
        (("verification_uri", json!("javascript:alert(1)")), "'verification_uri' is missing or malformed"),
        (("verification_uri", json!("http://example.org/device")), "'verification_uri' is missing or malformed"),
        (("verification_uri", json!(format!("https://a.org/{}", "a".repeat(2048)))), "'verification_uri' is missing"),
        (("pad", json!("a".repeat(70_000))), "larger than"),
    ] {
        platform.answer("/device", &[(200, device(&[changed]))]);
        let (text, _) = login(&url);
        assert!(text.contains(says), "{says}: {text}");
    }
    platform.answer("/device", &[(400, json!({"error": "unauthorized_client"}))]);
    assert!(login(&url).0.contains("refuses to sign anybody in: unauthorized_client"));

    let discovery = |changed: &[(&str, Value)]| {
        let mut document = json!({
            "issuer": format!("http://{address}"), "jwks_uri": format!("http://{address}/keys"),
            "device_authorization_endpoint": format!("http://{address}/device"), "token_endpoint": format!("http://{address}/poll"),
        });
        changed.iter().for_each(|(name, value)| document[*name] = value.clone());
        platform.answer("/.well-known/openid-configuration", &[(200, document)]);
    };
    for (changed, says) in [
        (("issuer", json!("https://other.example.org")), "document of another issuer"),
        (("device_authorization_endpoint", json!(null)), "no usable device_authorization_endpoint"),
        (("token_endpoint", json!("http://issuer.example.org/token")), "no usable token_endpoint"),
        (("token_endpoint", json!("file:///etc/passwd")), "no usable token_endpoint"),
    ] {
        discovery(&[changed]);
        let (text, _) = login(&url);
        assert!(text.contains(says), "{says}: {text}");
    }

    // The cache itself: another platform that plays one.
    let cache = Platform::start();
    let cache_url = format!("http://{}", cache.address);
    for (answer, says) in [
        ((200, json!("<html>")), "does not say with which issuer"),
        ((200, json!({"issuer": "https://a.org"})), "does not say with which issuer"),
        ((200, json!({"issuer": "https://a.org/\u{1b}[1m", "client_id": "a", "scope": "openid"})), "does not say"),
        ((200, json!({"issuer": "http://a.org", "client_id": "a", "scope": "openid"})), "give an https:// address"),
        (
            (200, json!({"issuer": "https://u:p@a.org", "client_id": "a", "scope": "openid"})),
            "not allowed in an issuer",
        ),
        ((200, json!({"pad": "a".repeat(70_000)})), "larger than"),
    ] {
        cache.answer("/_narval/v1/oidc", &[answer]);
        let (text, _) = login(&cache_url);
        assert!(text.contains(says), "{says}: {text}");
    }
}

/// Where nobody can sign in, a token is pasted as before; and with --paste everywhere.
#[test]
fn a_token_is_pasted_where_there_is_no_issuer() {
    let (store, platform) = (Store::new(), Platform::start());
    let server = serve(&store, &platform);
    let plain = crate::serve(&Store::new(), &platform);
    for args in [&["login", &plain.url()][..], &["login", &server.url(), "--paste"]] {
        let output = narval(&store, args).output().unwrap();
        assert!(output.status.code() == Some(2) && said(&output).contains("it is empty"), "{}", said(&output));
    }
}
