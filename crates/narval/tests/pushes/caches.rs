//! Several caches in one server: each with its place, keys, readers and limits; and reloads that change them.

use std::io::{Read, Write};
use std::process::Command;

use crate::lab::{Lab, Nar};
use crate::support::{Answer, NARVAL, Nix, Server, Store, hash_part, stdout, value};

const PATH: &str = "00bgd045z0d4icpbc2yyz4gx48ak44la-one";

/// `default` at `/`, `team` with a key of its own, `secret`, which only tokens read, and `hosted` at a host.
fn lab() -> (Lab, String) {
    let store = Store::new();
    let (_, default_key) = store.key("default-1");
    let (_, team_key) = store.key("team-1");
    let text = format!(
        "data = 'data'\nsign-keys = '{}'\n
         [[cache]]\nname = 'team'\nsign-keys = '{}'\npriority = 7\nwant-mass-query = false\n
         [[cache]]\nname = 'secret'\npublic = false\n
         [[cache]]\nname = 'hosted'\nhost = 'Hosted.example.org'\nhost-only = true\n",
        store.path("default-1.sec").display(),
        store.path("team-1.sec").display(),
    );
    assert!(!default_key.is_empty());
    (Lab::configured(store, &text), team_key)
}

fn url(lab: &Lab, cache: &str) -> String {
    format!("{}/{cache}", lab.server.url())
}

fn at_host(lab: &Lab, host: &str, path: &str) -> Answer {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    Answer::parse(&lab.server.send(request.as_bytes())).unwrap()
}

#[test]
fn both_nixes_push_to_a_cache_below_its_name_and_trust_only_its_key() {
    let (lab, team_key) = lab();
    let token = lab.token_for("team", "push,pull,sign");
    for nix in Nix::BOTH {
        let path = lab.store.add_file(&format!("file-{nix:?}"), format!("{nix:?}"));
        let to = url(&lab, "team");
        lab.nix(nix, &token, &["copy", "--refresh", "--to", &to, "--from", &lab.store.uri(), &path]).unwrap();
        let narinfo = format!("{}.narinfo", hash_part(&path));
        let answer = lab.get(&format!("/team/{narinfo}"));
        assert!(value(answer.text(), "Sig").unwrap().starts_with("team-1:"), "{}", answer.text());
        for elsewhere in ["", "/secret", "/hosted", "/nobody"] {
            assert_ne!(lab.get(&format!("{elsewhere}/{narinfo}")).status, 200, "{elsewhere}");
        }
        for puller in Nix::BOTH {
            let fresh = tempfile::tempdir().unwrap();
            let store = fresh.path().to_str().unwrap();
            let args =
                ["copy", "--refresh", "--from", &to, "--to", store, "--option", "trusted-public-keys", &team_key];
            let output = puller.nix(fresh.path(), &[&args[..], &[&path]].concat());
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            Command::new("chmod").args(["-R", "u+w", store]).status().unwrap();
        }
        // The token is for that cache alone.
        let refused =
            lab.nix(nix, &token, &["copy", "--refresh", "--to", &lab.url(""), "--from", &lab.store.uri(), &path]);
        assert!(refused.unwrap_err().contains("403"));
    }
    let info = lab.get("/team/nix-cache-info");
    assert!(info.text().contains("Priority: 7\n") && info.text().contains("WantMassQuery: 0\n"), "{}", info.text());
    assert!(info.text().contains(&format!("PublicKey: {team_key}")), "{}", info.text());
    assert_eq!(lab.get("/team/").status, 200);
    assert!(lab.get("/team").text().contains(&team_key));
    assert_eq!(lab.get("/team/health").status, 200);
    // Counted by cache; the engine's counters are those of the server.
    let (team, all) = (lab.get("/team/metrics"), lab.get("/metrics"));
    let stored = |cache: &str| format!("narval_uploads_stored_total{{cache=\"{cache}\"}}");
    assert_eq!(team.figure(&stored("team")), Some(2), "{}", team.text());
    assert!(!team.text().contains("narval_http_") && all.text().contains("narval_http_"));
    assert_eq!(all.figure(&stored("default")), Some(0), "{}", all.text());
}

#[test]
fn narval_itself_pushes_installs_pins_and_uses_a_cache_by_its_name() {
    let (lab, team_key) = lab();
    let (tree, hello) = (lab.store.add_tree("tree"), lab.store.add_file("hello", "hello"));
    let (to, home) = (url(&lab, "team"), lab.store.dir.path().to_str().unwrap().to_owned());
    let netrc = lab.netrc(&lab.token_for("team", "push,pull,sign"));
    let run = |args: &[&str]| {
        let mut command = Command::new(NARVAL);
        command.args(args).env("HOME", &home).env("NETRC", &netrc).env("XDG_CONFIG_HOME", lab.store.path("config"));
        stdout(command.env_remove("NARVAL_STORE").env("NARVAL_DATA", lab.data_path()).output().unwrap())
    };
    let pushed = run(&["push", "--json", "--store", &lab.store.uri(), "--to", &to, &tree, &hello]);
    assert!(pushed.contains(r#""pushed":2"#), "{pushed}");
    // One question, two NARs, one commit: the push protocol, not the plain one.
    assert!(pushed.contains(r#""requests":4"#), "{pushed}");
    let body = format!("{}\n", hash_part(&tree));
    let batch = lab.send("POST", "/team/batch-lookup-v1", "", &[], body.as_bytes());
    assert_eq!((batch.status, batch.text().contains("StorePath: ")), (200, true), "{}", batch.text());
    let installed = tempfile::tempdir().unwrap();
    let root = installed.path().to_str().unwrap();
    run(&["install", "--store", root, "--from", &to, "--trusted-public-key", &team_key, &tree]);
    assert!(installed.path().join(&tree[1..]).exists());
    Command::new("chmod").args(["-R", "u+w", root]).status().unwrap();
    // Administration, beside the server.
    assert!(run(&["cache", "list", "--cache", "team"]).contains("-tree"));
    assert!(run(&["cache", "list"]).is_empty(), "the cache at '/' has nothing");
    run(&["pin", "add", "--cache", "team", "release", &tree]);
    assert!(run(&["pin", "list", "--cache", "team"]).starts_with("release  "));
    assert!(run(&["cache", "why", "--cache", "team", &tree]).starts_with("pin 'release'"));
    run(&["use", "--yes", &to]);
    let conf = std::fs::read_to_string(lab.store.path("config/nix/nix.conf")).unwrap();
    assert!(conf.contains(&to) && conf.contains(&team_key), "{conf}");
}

/// An answer without what differs from request to request.
fn said(lab: &Lab, method: &str, path: &str, fields: &[String], body: &[u8]) -> String {
    let fields: Vec<&str> = fields.iter().map(String::as_str).collect();
    let answer = lab.send(method, path, "", &fields, body);
    let head = answer.head.lines().filter(|line| !line.to_ascii_lowercase().starts_with("date:"));
    format!("{}\n{}", head.collect::<Vec<_>>().join("\n"), answer.text())
}

/// Whatever is asked, and with whatever token: a private cache answers as one that does not exist.
#[test]
fn a_private_cache_cannot_be_told_from_a_missing_one() {
    let (lab, _) = lab();
    let nar = Nar::of(b"secret");
    let owner = lab.token_for("secret", "push,pull");
    assert_eq!(lab.put(&format!("/secret{}", nar.url()), &owner, &nar.bytes).status, 201);
    let narinfo = nar.narinfo(PATH, &[]);
    assert_eq!(lab.put(&format!("/secret/{}.narinfo", hash_part(PATH)), &owner, narinfo.as_bytes()).status, 201);
    let get = |fields: &[String], path: &str| said(&lab, "GET", path, fields, b"");
    let bearer = |token: &str| vec![format!("Authorization: Bearer {token}")];
    assert!(get(&bearer(&owner), &format!("/secret/{}.narinfo", hash_part(PATH))).contains("StorePath"));
    let callers = [
        vec![],
        vec!["Authorization: Nonsense".to_owned()],
        bearer(&lab.token_for("team", "pull,push,sign,pin,delete,replace")),
        bearer(&lab.token_for("default", "pull")),
        // The last: after ten of them the address has to wait, with whatever token.
        bearer("nv1_wrong_wrong"),
    ];
    let paths = [
        "".to_owned(),
        "/".to_owned(),
        "/nix-cache-info".to_owned(),
        "/health".to_owned(),
        "/metrics".to_owned(),
        format!("/{}.narinfo", hash_part(PATH)),
        format!("/{}.ls", hash_part(PATH)),
        "/zz.narinfo".to_owned(),
        nar.url(),
        format!("/push{}", nar.url()),
        format!("/log/{PATH}"),
        "/realisations/x".to_owned(),
        "/batch-lookup-v1".to_owned(),
        "/_narval/v1/missing".to_owned(),
        "/_narval/v1/commit".to_owned(),
        "/_narval/v1/oidc".to_owned(),
        "/_narval/v1/releases/x".to_owned(),
        "/_narval/v1/paths?q=x".to_owned(),
        "/_narval/api/v1".to_owned(),
        "/_narval/api/v1/caches".to_owned(),
        "/_narval/api/v1/caches/default".to_owned(),
        "/_narval/api/v1/openapi.json".to_owned(),
        format!("/_narval/v1{}", nar.url()),
        "/a/b/c".to_owned(),
        "/unknown/folder/".to_owned(),
        "/other/x".to_owned(),
        "/incoming/x".to_owned(),
        "/index.html".to_owned(),
        "/.hidden/x".to_owned(),
        "/x%2fy".to_owned(),
        "/%6eix-cache-info".to_owned(),
    ];
    for caller in &callers {
        for method in ["GET", "HEAD", "PUT", "POST", "DELETE"] {
            for path in &paths {
                let of = |name: &str| said(&lab, method, &format!("/{name}{path}"), caller, b"").replace(name, "NAME");
                let (secret, none) = (of("secret"), of("nosuch"));
                // A throttled address is told to wait now and then, whatever it requests.
                let waits =
                    caller == &callers[4] && (method == "HEAD" || (secret.clone() + &none).contains("too many wrong"));
                if !waits {
                    assert_eq!(secret, none, "{method} {path} {caller:?}");
                }
                assert_eq!(secret.lines().next(), none.lines().next(), "{method} {path} {caller:?}");
            }
        }
    }
    // The cache at `/` answers what is its own, and health checks.
    assert_eq!((lab.get("/nix-cache-info").status, lab.get("/health").status, lab.get("/x").status), (200, 200, 401));
    assert_eq!(lab.get("/nar/x").status, 404);
}

/// A NAR that another cache has is no NAR of this one, until all of it was sent here.
#[test]
fn a_nar_of_another_cache_must_be_sent_whole() {
    let (lab, _) = lab();
    let nar = Nar::of(b"of the team");
    let (team, secret) = (lab.token_for("team", "push,pull"), lab.token_for("secret", "push,pull"));
    assert_eq!(lab.put(&format!("/secret{}", nar.url()), &secret, &nar.bytes).status, 201);
    let narinfo = nar.narinfo(PATH, &[]);
    let path = format!("{}.narinfo", hash_part(PATH));
    assert_eq!(lab.put(&format!("/secret/{path}"), &secret, narinfo.as_bytes()).status, 201);
    for name in [nar.url(), format!("/_narval/v1{}", nar.url())] {
        let head = lab.send("HEAD", &format!("/team{name}"), &team, &[], b"");
        assert_eq!(head.status, 404, "{name}");
        assert_eq!(lab.expect(&format!("/team{name}"), &team, nar.bytes.len() as u64).status, 100, "{name}");
    }
    let asked = format!("{}\n", hash_part(PATH));
    let missing = lab.post("/team/_narval/v1/missing", &team, asked.as_bytes());
    assert_eq!(missing.text(), format!("{asked}end 1\n"));
    assert_eq!(lab.put(&format!("/team/{path}"), &team, narinfo.as_bytes()).status, 409, "no NAR, no narinfo");
    assert_eq!(lab.put(&format!("/team{}", nar.url()), &team, &nar.bytes).status, 201);
    assert_eq!(lab.put(&format!("/team/{path}"), &team, narinfo.as_bytes()).status, 201);
    // Nothing that one cache does with its file shows in another.
    let links = Command::new("find").arg(lab.data_path()).args(["-name", "*.nar", "-links", "+1"]).output().unwrap();
    assert!(links.stdout.is_empty(), "each cache has its own file");
}

#[test]
fn a_cache_at_a_host_is_at_its_root_and_nowhere_else() {
    let (lab, _) = lab();
    let nar = Nar::of(b"hosted");
    let token = lab.token_for("hosted", "push");
    let fields = format!("Authorization: Bearer {token}\r\nConnection: close\r\nContent-Length: {}", nar.bytes.len());
    let head = format!("PUT {} HTTP/1.1\r\nHost: hosted.EXAMPLE.org:5000\r\n{fields}\r\n\r\n", nar.url());
    let answer = Answer::parse(&lab.server.send(&[head.as_bytes(), &nar.bytes].concat())).unwrap();
    assert_eq!(answer.status, 201, "{}", answer.text());
    assert_eq!(at_host(&lab, "hosted.example.org", &nar.url()).status, 200);
    for (host, path) in [
        ("other.example.org", nar.url()),
        ("hosted.example.org", format!("/team{}", nar.url())),
        ("test", format!("/hosted{}", nar.url())),
    ] {
        assert_ne!(at_host(&lab, host, &path).status, 200, "{host} {path}");
    }
}

/// It was answered 201 and kept beside the cache at `/`, as a file of an unknown kind; a NAR of more than 16 MiB was dropped.
#[test]
fn a_cache_that_does_not_exist_takes_nothing() {
    let lab = Lab::new();
    let (token, path) = (lab.token("push,pull"), lab.store.add_file("file", "for another cache"));
    for nix in Nix::BOTH {
        let args =
            ["copy", "--refresh", "--to", &format!("{}/tema", lab.server.url()), "--from", &lab.store.uri(), &path];
        let refused = lab.nix(nix, &token, &args).unwrap_err();
        assert!(refused.contains("does not appear to be a binary cache"), "{refused}");
    }
    let nar = Nar::of(b"for another cache");
    let narinfo = format!("/{}.narinfo", hash_part(PATH));
    for folder in ["/tema", "/a/b", "/a.b/c-d/e_f"] {
        for (name, body) in
            [(&nar.url(), &nar.bytes[..]), (&narinfo, b"StorePath: x"), (&"/nix-cache-info".into(), b"")]
        {
            let answer = lab.put(&format!("{folder}{name}"), &token, body);
            assert_eq!(answer.status, 404, "{folder}{name}");
            assert!(answer.text().contains(&format!("there is no cache '{}' here", &folder[1..])), "{}", answer.text());
        }
        assert_ne!(lab.post(&format!("{folder}/_narval/v1/missing"), &token, b"").status, 200);
    }
    assert!(!lab.data_path().join("caches/default/other").exists());
}

/// Caches, keys, quotas and upstreams, while uploads and downloads run.
#[test]
fn a_reload_adds_and_removes_caches_and_requests_in_flight_complete() {
    let store = Store::new();
    let (_, key) = store.key("new-1");
    let base = "data = 'data'\n[[cache]]\nname = 'team'\n";
    let mut lab = Lab::configured(store, base);
    let nar = Nar::of(&vec![7; 3_000_000]);
    let token = lab.token("push,pull,sign");
    // An upload that is under way when its cache goes.
    let mut upload = lab.server.connect();
    let fields = format!("Authorization: Bearer {token}\r\nConnection: close\r\nContent-Length: {}", nar.bytes.len());
    let head = format!("PUT /team{} HTTP/1.1\r\nHost: test\r\n{fields}\r\nExpect: 100-continue\r\n\r\n", nar.url());
    upload.write_all(head.as_bytes()).unwrap();
    // It has begun once the server asks for the body.
    let mut go_on = [0; b"HTTP/1.1 100 Continue\r\n\r\n".len()];
    upload.read_exact(&mut go_on).unwrap();
    assert!(go_on.starts_with(b"HTTP/1.1 100"), "{}", String::from_utf8_lossy(&go_on));
    upload.write_all(&nar.bytes[..1_000_000]).unwrap();
    let key_file = lab.store.path("new-1.sec");
    let other = format!("data = 'data'\n[[cache]]\nname = 'other'\nsign-keys = '{}'\n", key_file.display());
    let told = lab.reload(&other);
    assert!(told.contains("cache 'other' added; cache 'team' no longer served"), "{told}");
    upload.write_all(&nar.bytes[1_000_000..]).unwrap();
    let mut answer = Vec::new();
    upload.read_to_end(&mut answer).unwrap();
    assert_eq!(Answer::parse(&answer).unwrap().status, 201, "{}", lab.server.log());
    assert_eq!(lab.get("/team/nix-cache-info").status, 404);
    assert_eq!(lab.put(&format!("/team{}", nar.url()), &token, &nar.bytes).status, 404, "it is gone");
    assert!(lab.get("/other/nix-cache-info").text().contains(&key));
    // What was uploaded is there when the cache is back.
    let both = format!("{other}quota = 1\n[[cache]]\nname = 'team'\npublic = false\n");
    lab.reload(&both);
    assert_eq!(lab.get(&format!("/team{}", nar.url())).status, 401, "private now");
    let back = lab.send("GET", &format!("/team{}", nar.url()), &token, &[], b"");
    assert_eq!(back.status, 200, "{} {}", back.text(), lab.server.log());
    assert_eq!(lab.put(&format!("/other{}", nar.url()), &token, &nar.bytes).status, 507, "beyond the quota");
    // A wrong file changes nothing, and says why.
    for (wrong, why) in [
        (format!("{both}[[cache]]\nname = 'nar'\n"), "cache.name = 'nar': '/nar' is a path of the cache at '/'"),
        (format!("{both}[[cache]]\nname = 'team'\n"), "cache: the name 'team' is used twice"),
        (
            format!("{both}store-dir = '/elsewhere'\n"),
            "cache.store-dir: the paths of the cache 'team' are in '/nix/store'",
        ),
        (format!("{both}sign-keys = 'gone.sec'\n"), "sign-keys: cannot read secret key"),
    ] {
        let told = lab.reload(&wrong);
        assert!(told.contains(why) && told.contains("the old configuration stays in effect"), "{told}");
        assert_eq!(lab.get("/team/nix-cache-info").status, 401);
    }
    // A key for the cache at `/`, and none for the other: the next upload has it.
    lab.reload(&format!("sign-keys = '{}'\n{base}", key_file.display()));
    let small = Nar::of(b"small");
    assert_eq!(lab.put(&small.url(), &token, &small.bytes).status, 201);
    let narinfo = small.narinfo(PATH, &[]);
    assert_eq!(lab.put(&format!("/{}.narinfo", hash_part(PATH)), &token, narinfo.as_bytes()).status, 201);
    let signed = lab.get(&format!("/{}.narinfo", hash_part(PATH)));
    assert!(value(signed.text(), "Sig").unwrap().starts_with("new-1:"), "{}", signed.text());
}

#[test]
fn each_cache_has_its_own_upstreams_and_a_reload_changes_them() {
    let upstream_store = Store::new();
    let (secret, key) = upstream_store.key("upstream-1");
    let path = upstream_store.add_file("file", "of the upstream");
    let upstream = Server::narval(&upstream_store, &["--sign-key", secret.to_str().unwrap()]);
    let of = |cache: &str| format!("[[cache]]\nname = '{cache}'\n");
    let asks = format!("[[cache.upstream]]\nurl = '{}'\nkeys = '{key}'\n", upstream.url());
    let mut lab = Lab::configured(Store::new(), &format!("data = 'data'\n{}{asks}{}", of("one"), of("two")));
    let narinfo = format!("{}.narinfo", hash_part(&path));
    let status = |lab: &Lab, cache: &str| lab.get(&format!("{cache}/{narinfo}")).status;
    assert_eq!((status(&lab, "/one"), status(&lab, "/two"), status(&lab, "")), (200, 404, 404));
    let url = lab
        .get(&format!("/one/{narinfo}"))
        .text()
        .lines()
        .find_map(|line| line.strip_prefix("URL: ").map(str::to_owned));
    assert_eq!(lab.get(&format!("/one/{}", url.unwrap())).status, 200);
    assert!(lab.store.path("data/upstreams/one/narinfo").join(hash_part(&path)).exists());
    // The other cache gets it, this one has it no longer: what it kept is not served without its upstream.
    lab.reload(&format!("data = 'data'\n{}{}{asks}", of("one"), of("two")));
    assert_eq!((status(&lab, "/one"), status(&lab, "/two"), status(&lab, "")), (404, 200, 404));
    // The same upstream with another key: what is kept is not trusted any more.
    let (_, wrong) = upstream_store.key("wrong-1");
    let distrusts = asks.replace(&key, &wrong);
    lab.reload(&format!("data = 'data'\n{}{}{distrusts}", of("one"), of("two")));
    assert_eq!((status(&lab, "/one"), status(&lab, "/two")), (404, 404));
    lab.reload(&format!("data = 'data'\n{}{asks}{}{asks}", of("one"), of("two")));
    assert_eq!((status(&lab, "/one"), status(&lab, "/two")), (200, 200));
}

/// A client without a token is told which option gives one, whatever the cache answers to strangers; the URL may contain a token.
#[test]
fn a_push_without_a_token_says_how_to_give_one() {
    let (lab, _) = lab();
    let path = lab.store.add_file("file", "pushed with a token in the address");
    let push = |to: &str| {
        let mut command = Command::new(NARVAL);
        command.args(["push", "--store", &lab.store.uri(), "--to", to, &path]).env("HOME", lab.store.dir.path());
        command.env_remove("NARVAL_STORE").env_remove("NARVAL_TOKEN_FILE").env_remove("NETRC").output().unwrap()
    };
    for cache in ["team", "secret", "nosuch"] {
        let output = push(&url(&lab, cache));
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(5), "{said}");
        assert!(said.contains("--token-file") && said.contains("--netrc-file"), "{said}");
    }
    let token = lab.token_for("secret", "push,pull");
    for login in [format!("user:{token}"), format!(":{token}"), format!("x:{token}")] {
        let output = push(&url(&lab, "secret").replace("//", &format!("//{login}@")));
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8(said).unwrap();
        assert!(output.status.success() && !said.contains(&token), "{said}");
    }
    let output = push(&url(&lab, "secret").replace("//", "//user:nv1_wrong_wrong@"));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("the credentials of the address, which are wrong, expired or revoked"), "{said}");
    assert!(!said.contains("nv1_wrong_wrong"), "{said}");
}

/// The files can be served by nginx: what signs them stands beside them, and Nix ignores it.
#[test]
fn the_folder_of_a_cache_tells_its_keys_and_both_nixes_read_it() {
    let (lab, team_key) = lab();
    let path = lab.store.add_file("file", "in the folder");
    let token = lab.token_for("team", "push,sign");
    let to = url(&lab, "team");
    lab.nix(Nix::Newest, &token, &["copy", "--to", &to, "--from", &lab.store.uri(), &path]).unwrap();
    let folder = lab.data_path().join("caches/team");
    let info = std::fs::read_to_string(folder.join("nix-cache-info")).unwrap();
    assert!(info.contains(&format!("PublicKey: {}\n", team_key.trim())), "{info}");
    let from = format!("file://{}", folder.display());
    for nix in Nix::BOTH {
        let fresh = tempfile::tempdir().unwrap();
        let store = fresh.path().to_str().unwrap();
        let args = ["copy", "--from", &from, "--to", store, "--option", "trusted-public-keys", &team_key, &path];
        let output = nix.nix(fresh.path(), &args);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Command::new("chmod").args(["-R", "u+w", store]).status().unwrap();
    }
}
