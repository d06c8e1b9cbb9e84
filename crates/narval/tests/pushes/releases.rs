//! docs/releases.md: releases over HTTP.

use narval_nix::{Release, TrustedKeys};
use serde_json::Value;

use crate::lab::{Lab, Nar};
use crate::support::{NARVAL, Nix, Store};

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

pub fn said(answer: &crate::support::Answer) -> String {
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

    // The answer was lost, and the request is sent again.
    let with_key =
        String::from_utf8(body("x86_64-linux", NAMES[1], None)).unwrap().replacen('{', "{\"key\":\"k-1\",", 1);
    let twice = [(); 2].map(|()| post("api-key", &token, with_key.as_bytes()));
    assert!(twice[0].status == 201 && twice[0].body == twice[1].body, "{}", said(&twice[1]));
    assert_eq!(Release::parse(&lab.get("/releases/api-key/latest").body).unwrap().revision, 1);

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
    let pinned = lab.put("/_narval/api/v1/caches/default/releases/api/1/pin", &pin, b"");
    assert_eq!(pinned.status, 200, "{}", said(&pinned));
    let remove = |below: &str, token: &str| {
        lab.send("DELETE", &format!("/_narval/api/v1/caches/default/releases/{below}"), token, &[], b"").status
    };
    assert_eq!(remove("api/1/pin", &token), 403);
    assert_eq!(remove("api/3", &delete), 409, "the newest");
    assert_eq!(remove("api/1", &delete), 204);
    assert_eq!(lab.get("/releases/api/1").status, 404);
}

/// However many there are, a page has a limit, and everybody who lists them reads all pages.
#[test]
fn lists_come_in_pages() {
    let (lab, _) = signing(&[]);
    let token = lab.token("release:*");
    let record =
        |name: &str| lab.post(&format!("/_narval/v1/releases/{name}"), &token, &body("x86_64-linux", NAMES[0], None));
    (0..205).for_each(|_| assert_eq!(record("api").status, 201));
    (0..205).for_each(|at| assert_eq!(record(&format!("name-{at}")).status, 201));
    for (below, rows) in [("/releases/api", 205), ("/releases", 206)] {
        let first: Value = serde_json::from_slice(&lab.get(below).body).unwrap();
        let next = format!("{below}?after={}", first["next"].as_str().unwrap());
        let second: Value = serde_json::from_slice(&lab.get(&next).body).unwrap();
        let of = |page: &Value| page["releases"].as_array().unwrap().clone();
        assert_eq!((of(&first).len(), of(&second).len(), &second["next"]), (200, rows - 200, &Value::Null));
        let html = |below: &str| said(&lab.send("GET", below, "", &["Accept: text/html"], b""));
        let (page, last) = (html(below), html(&next));
        let link = next.rsplit('/').next().unwrap().split_once('?').unwrap().1;
        assert!(page.contains(&format!("rel=\"next\" href=\"?{link}\"")), "{page}");
        assert!(!last.contains("rel=\"next\"") && last.contains("api-1.4.2"), "{last}");
    }
    for bad in ["/releases?after=x", "/releases/api?after=api@x@y"] {
        assert_eq!(lab.get(bad).status, 400, "{bad}");
    }
    std::fs::write(lab.store.path("token"), &token).unwrap();
    assert_eq!(done(&narval(&lab, "machine", &["releases", "api"])).lines().count(), 205);
    assert_eq!(done(&narval(&lab, "machine", &["releases", "--json"])).lines().count(), 207);
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

/// A cache below `/NAME` that is private hides which names there are, and `/releases` is still that of the cache at `/`.
#[test]
fn releases_beside_a_private_cache() {
    let (lab, keys) = signing(&[]);
    let token = lab.token("release:api");
    let made = lab.post("/_narval/v1/releases/api", &token, &body("x86_64-linux", NAMES[0], None));
    assert_eq!(made.status, 201, "{}", said(&made));
    let Lab { store, server } = lab;
    server.terminate();
    let (data, key) = (store.path("data"), store.path("cache.sec"));
    let text = format!(
        "data = '{}'\nsign-keys = ['{key}']\n[[cache]]\nname = 'default'\n[[cache]]\nname = 'team'\npublic = false\nsign-keys = ['{key}']\n",
        data.display(),
        key = key.display()
    );
    let lab = Lab::configured(store, &text);
    let latest = lab.get("/releases/api/latest");
    assert_eq!(latest.status, 200, "{}", said(&latest));
    assert!(Release::parse(&latest.body).unwrap().find_valid(&keys).is_some());
    assert_eq!(lab.get("/team/releases/api/latest").status, 401);
    assert_eq!(lab.send("GET", "/team/releases/api/latest", &lab.token("pull"), &[], b"").status, 404);
    let other = lab.post("/team/_narval/v1/releases/api", &lab.token_for("default", "release:api"), b"{}");
    assert_eq!(other.status, 403, "a token of another cache: {}", said(&other));
}

/// A command of a user of this cache, with a home of its own.
pub fn narval(lab: &Lab, home: &str, args: &[&str]) -> std::process::Output {
    let mut command = std::process::Command::new(NARVAL);
    let home = lab.store.path(home);
    std::fs::create_dir_all(&home).unwrap();
    command.args(args).env("HOME", &home).env_remove("NARVAL_STORE").env("NARVAL_CACHES", lab.server.url());
    let key = std::fs::read_to_string(lab.store.path("cache.sec")).unwrap();
    let key = narval_nix::SecretKey::parse_file(&key).unwrap().public_key().to_string();
    command.env("NARVAL_TRUSTED_KEYS", key).env("NARVAL_TOKEN_FILE", lab.store.path("token")).output().unwrap()
}

#[track_caller]
pub fn done(output: &std::process::Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[track_caller]
pub fn failed(output: &std::process::Output, code: i32) -> String {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{said}");
    said
}

#[test]
fn from_a_job_to_a_machine() {
    let (lab, _) = signing(&[]);
    let token = lab.token("push,sign,release:api,release:prod,pin,delete");
    std::fs::write(lab.store.path("token"), &token).unwrap();
    let (uri, url) = (lab.store.uri(), lab.server.url());
    let paths: Vec<String> = (0..3).map(|at| lab.store.add_file(&format!("api-1.{at}"), format!("{at}"))).collect();
    let push = |path: &str, release: &str| {
        done(&narval(&lab, "ci", &["push", "--json", "--store", &uri, "--to", &url, path, "--release", release]))
    };
    let said = push(&paths[0], "api@1.0");
    assert!(said.contains(r#""release":"@api@1""#), "{said}");
    push(&paths[1], "api");
    let run = |args: &[&str]| narval(&lab, "machine", args);
    let has = |output: &std::process::Output, path: &str| done(output).contains(path.rsplit('/').next().unwrap());
    assert!(has(&run(&["path-info", "@api"]), &paths[1]));
    assert!(has(&run(&["path-info", "@api@1.0"]), &paths[0]) && has(&run(&["path-info", "@api@1"]), &paths[0]));
    // Wherever a path is taken: the newest, a revision, a version.
    for (release, path) in [("@api", &paths[1]), ("@api@1", &paths[0]), ("@api@1.0", &paths[0])] {
        let base = path.rsplit('/').next().unwrap();
        for args in [
            &["path-info", release][..],
            &["tree", release],
            &["why", release, release],
            &["install", "--json", release],
            &["info", release],
            // It is a file, and has no program: what it is has been found out.
            &["run", release],
        ] {
            let output = run(args);
            let (printed, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            assert!(printed.contains(base) || said.contains(base), "{args:?}: {printed}{said}");
            assert!(output.status.success() || args[0] == "run", "{args:?}: {said}");
        }
        for (command, from) in [("copy", ["--from", &url]), ("push", ["--store", &uri])] {
            let to = lab.store.path(&format!("{command}{release}"));
            done(&run(&[&[command], &from[..], &["--to", &format!("file://{}", to.display()), release]].concat()));
            assert!(to.join(format!("{}.narinfo", &base[..32])).exists(), "{command} {release}");
        }
    }
    let differ = done(&run(&["diff", "--json", "@api@1", "@api"]));
    let [before, after] = [&paths[0], &paths[1]].map(|path| path.rsplit('/').next().unwrap());
    assert!(differ.contains(&format!(r#""pathsBefore":["{before}"]"#)), "{differ}");
    assert!(differ.contains(&format!(r#""pathsAfter":["{after}"]"#)), "{differ}");
    assert_eq!(done(&run(&["diff", "--quiet", "@api@1.0", "@api"])), "api: 1.0 → 1.1, +0 B\n");
    let to = format!("file://{}", lab.store.path("copied").display());
    done(&run(&["copy", "--from", &url, "--to", &to, "@api@1.0"]));
    done(&run(&["push", "--store", &uri, "--to", &to, "@api"]));
    assert_eq!(
        std::fs::read_dir(lab.store.path("copied"))
            .unwrap()
            .filter(|file| file.as_ref().unwrap().path().extension().is_some_and(|end| end == "narinfo"))
            .count(),
        2
    );

    let listed = done(&run(&["releases"]));
    assert!(listed.starts_with("@api@2") && listed.lines().count() == 1, "{listed}");
    assert_eq!(done(&run(&["releases", "api"])).lines().count(), 2);
    let shown = done(&run(&["release", "show", "api@1.0"]));
    assert!(shown.contains("@api@1  1.0") && shown.contains("signed by cache-1"), "{shown}");
    let release = |args: &[&str]| narval(&lab, "ci", &[&["release"], args, &["--to", &url]].concat());
    let promoted = done(&release(&["promote", "api", "2", "--as", "prod"]));
    assert!(promoted.contains("@prod@1") && promoted.contains("from @api@2"), "{promoted}");
    done(&release(&["promote", "api", "1.0", "--as", "prod"]));
    assert!(has(&run(&["install", "--json", "@prod"]), &paths[0]));
    // For some machines: whoever is none of them has the one for all, unless it is named.
    let some = done(&release(&["promote", "api", "2", "--as", "prod", "--percent", "10"]));
    assert!(some.contains("@prod@3") && some.contains("for 10 %"), "{some}");
    assert!(has(&run(&["path-info", "@prod"]), &paths[0]) && has(&run(&["path-info", "@prod@3"]), &paths[1]));
    let newest = done(&run(&["releases"]));
    assert!(newest.contains("@prod@3") && newest.contains("for 10 %") && newest.contains("@prod@2"), "{newest}");
    let page = self::said(&lab.send("GET", "/releases/prod", "", &["Accept: text/html"], b""));
    assert!(page.contains(">10 %<"), "{page}");
    assert!(failed(&release(&["promote", "api", "2", "--as", "prod", "--percent", "0"]), 2).contains("1..=100"));
    done(&release(&["pin", "api", "1"]));
    assert!(done(&run(&["releases", "api"])).contains("pinned"));
    done(&release(&["pin", "api", "1", "--remove"]));
    done(&release(&["forget", "api", "1"]));
    assert!(failed(&release(&["forget", "api", "2"]), 1).contains("is the newest"));

    // What is wrong.
    assert!(failed(&run(&["install", "@web"]), 3).contains("no cache has a release @web"));
    assert!(failed(&run(&["install", "@api@9"]), 3).contains("@api@9"));
    assert!(failed(&run(&["install", "@api@@"]), 2).contains("version"));
    assert!(failed(&run(&["install", "--offline", "@api"]), 2).contains("--offline"));
    let other = ["push", "--store", &uri, "--to", &url, &paths[2], "--release", "web"];
    assert!(failed(&narval(&lab, "ci", &other), 5).contains("--add-scope release:web"));
    let folder = ["push", "--store", &uri, "--to", &to, &paths[2], "--release", "api"];
    assert!(failed(&narval(&lab, "ci", &folder), 2).contains("not a Narval server"));
    let twice = ["push", "--store", &uri, "--to", &url, &paths[1], &paths[2], "--release", "api"];
    assert!(failed(&narval(&lab, "ci", &twice), 2).contains("both the output"));
    let untrusted = std::process::Command::new(NARVAL)
        .args(["path-info", "@api", "--from", &url])
        .env("HOME", lab.store.path("other"))
        .output()
        .unwrap();
    assert!(failed(&untrusted, 4).contains("no trusted key has signed it"));
}

/// What was installed from a release is upgraded to its newest revision; never to an older one, whatever the machine has forgotten.
#[test]
fn a_release_in_a_profile_moves_on_and_never_back() {
    let (lab, _) = signing(&[]);
    std::fs::write(lab.store.path("token"), lab.token("push,sign,release:api,release:web,delete")).unwrap();
    let (uri, url) = (lab.store.uri(), lab.server.url());
    let paths: Vec<String> = (0..3).map(|at| lab.store.add_file(&format!("api-1.{at}"), format!("{at}"))).collect();
    let push = |path: &str, release: &str| {
        done(&narval(&lab, "ci", &["push", "--store", &uri, "--to", &url, path, "--release", release]))
    };
    let run = |args: &[&str]| narval(&lab, "machine", args);
    push(&paths[0], "api@1.0");
    done(&run(&["install", "@api"]));
    let listed = done(&run(&["list"]));
    assert!(listed.starts_with("api  1.0  @api@1 of http://"), "{listed}");
    assert!(done(&run(&["history"])).contains("+api-1.0 (@api@1 of http://"));
    let upgrade = |args: &[&str]| run(&[&["upgrade"], args].concat());
    assert!(String::from_utf8_lossy(&upgrade(&[]).stderr).contains("nothing newer"));
    // A release of less: what is newest is what the team says, not what the version says.
    push(&paths[2], "api");
    push(&paths[1], "api");
    let shown = done(&upgrade(&["--dry-run", "@api"]));
    assert!(shown.contains("api  1.0 → 1.1"), "{shown}");
    done(&upgrade(&["api"]));
    assert!(done(&run(&["list"])).starts_with("api  1.1  @api@3 of "), "{}", done(&run(&["list"])));
    // Another release of the same package is another element, and so is one that has the same path.
    push(&paths[2], "web");
    let other = lab.store.path("other").display().to_string();
    let in_other = |args: &[&str]| done(&run(&[args, &["--profile", &other]].concat()));
    let elements =
        || in_other(&["list"]).lines().map(|line| line.split("  ").next().unwrap().to_owned()).collect::<Vec<_>>();
    in_other(&["install", "@api"]);
    in_other(&["install", "@web"]);
    in_other(&["install", "@api@2"]);
    assert_eq!(elements(), ["api", "web"], "both have one path now");
    in_other(&["remove", "@api"]);
    assert_eq!(elements(), ["web"]);
    // Another element, of a revision that was asked for: it stays.
    let webs: Vec<String> = (0..2).map(|at| lab.store.add_file(&format!("web-1.{at}"), format!("{at}"))).collect();
    push(&webs[0], "web");
    done(&run(&["install", "@web@2"]));
    push(&webs[1], "web");
    assert!(String::from_utf8_lossy(&upgrade(&[]).stderr).contains("nothing newer"));
    // The machine has forgotten what it saw, and the cache has lost revisions: the profile still knows.
    let home = lab.store.path("machine");
    std::fs::remove_dir_all(home.join(".local/state/narval/releases")).unwrap();
    let profile = home.join(".local/state/narval/profile/manifest.json");
    let manifest = std::fs::read_to_string(&profile).unwrap();
    assert!(manifest.contains("\"@api@3\""));
    std::fs::write(&profile, manifest.replace("\"@api@3\"", "\"@api@9\"")).unwrap();
    let said = failed(&upgrade(&["api"]), 4);
    assert!(said.contains("has @api@3, and the profile @api@9: --allow-downgrade goes back"), "{said}");
    let elsewhere = run(&["upgrade", "api", "--from", "file:///nowhere"]);
    assert!(failed(&elsewhere, 2).contains("is not among the caches"));
    // Two releases of one path, and of one package: each is upgraded alone.
    let alone = lab.store.path("alone").display().to_string();
    let in_alone = |args: &[&str]| done(&run(&[args, &["--profile", &alone]].concat()));
    for release in ["api", "web"] {
        push(&paths[0], release);
    }
    in_alone(&["install", "@api", "@web"]);
    for release in ["api", "web"] {
        push(&paths[2], release);
    }
    for (name, versions) in [("@api", ["api  1.2", "web  1.0"]), ("web", ["api  1.2", "web  1.2"])] {
        in_alone(&["upgrade", name]);
        let listed = in_alone(&["list"]);
        assert!(versions.iter().all(|version| listed.contains(version)), "{name}: {listed}");
    }
}

/// On the server, without a token.
#[test]
fn releases_of_a_data_folder() {
    let (lab, keys) = signing(&[]);
    let answer = lab.post("/_narval/v1/releases/api", &lab.token("release:api"), &body("x86_64-linux", NAMES[0], None));
    assert_eq!(answer.status, 201, "{}", said(&answer));
    let config = lab.store.path("serve.toml");
    let (data, key) = (lab.data_path(), lab.store.path("cache.sec"));
    std::fs::write(&config, format!("data = '{}'\nsign-keys = ['{}']\n", data.display(), key.display())).unwrap();
    let run = |args: &[&str]| {
        let config = ["--config", config.to_str().unwrap()];
        narval(&lab, "admin", &[&["release"], args, &config].concat())
    };
    let promoted = done(&run(&["promote", "api", "1", "--as", "prod", "--percent", "50"]));
    assert!(promoted.contains("@prod@1") && promoted.contains("for 50 %"), "{promoted}");
    let found = Release::parse(&lab.get("/releases/prod/1").body).unwrap();
    assert!(found.percent == Some(50) && found.find_valid(&keys).is_some());
    done(&run(&["promote", "api", "1", "--as", "prod"]));
    done(&run(&["pin", "prod", "1"]));
    done(&run(&["pin", "prod", "1", "--remove"]));
    done(&run(&["forget", "prod", "1"]));
    assert_eq!((lab.get("/releases/prod/1").status, lab.get("/releases/prod/latest").status), (404, 200));
    assert!(failed(&run(&["forget", "prod", "2"]), 1).contains("is the newest"));
    assert!(failed(&run(&["pin", "prod", "7"]), 2).contains("has no release"));
}

/// Nix has no names of releases: it installs the path that the cache says, and verifies that path.
#[test]
fn nix_installs_a_release_by_its_path() {
    let (lab, keys) = signing(&[]);
    let token = lab.token("push,sign,release:api");
    std::fs::write(lab.store.path("token"), &token).unwrap();
    let path = lab.store.add_tree("api");
    let (uri, url) = (lab.store.uri(), lab.server.url());
    done(&narval(&lab, "ci", &["push", "--store", &uri, "--to", &url, &path, "--release", "api"]));
    let system = narval_install::names::machine_system();
    let curl = format!("{url}/releases/api/latest/path?system={system}");
    let found = std::process::Command::new("curl").args(["-sf", &curl]).output().unwrap();
    let found = done(&found).trim().to_owned();
    assert_eq!(found, path);
    let key = std::fs::read_to_string(lab.store.path("cache.sec")).unwrap();
    let key = narval_nix::SecretKey::parse_file(&key).unwrap().public_key();
    assert!(keys.contains(&key));
    let trusted = key.to_string();
    for nix in Nix::BOTH {
        let fresh = tempfile::tempdir().unwrap();
        let root = fresh.path().join("root");
        let (root, out) = (root.to_str().unwrap(), fresh.path().join("api"));
        let options = ["--option", "substituters", &url, "--option", "trusted-public-keys", &trusted];
        let args = [&["build", "--store", root, "--out-link", out.to_str().unwrap(), &found], &options[..]].concat();
        let output = nix.nix(fresh.path(), &args);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(std::fs::read_link(&out).unwrap().to_str().unwrap(), path);
        assert!(std::path::Path::new(&format!("{root}{path}/bin")).exists());
        std::process::Command::new("chmod").args(["-R", "u+w", root]).status().unwrap();
    }
}

/// Somebody puts back yesterday's index, or everything: clients that have seen more notice it, and others cannot.
#[test]
fn a_cache_that_is_put_back_to_yesterday_is_noticed() {
    let (lab, _) = signing(&[]);
    let key = lab.store.path("cache.sec");
    let token = lab.token("push,sign,release:api");
    std::fs::write(lab.store.path("token"), &token).unwrap();
    let release = |lab: &Lab, path: &str| {
        let answer =
            lab.post("/_narval/v1/releases/api", &token, &body(&narval_install::names::machine_system(), path, None));
        assert_eq!(answer.status, 201, "{}", said(&answer));
    };
    release(&lab, NAMES[0]);
    let Lab { store, server } = lab;
    server.terminate();
    let (data, yesterday) = (store.path("data"), store.path("yesterday"));
    let copy = |from: &std::path::Path, to: &std::path::Path| {
        assert!(std::process::Command::new("cp").arg("-a").args([from, to]).status().unwrap().success());
    };
    copy(&data, &yesterday);
    let serve = |store: Store| Lab { server: crate::lab::serve(&store, &["--sign-key", key.to_str().unwrap()]), store };
    let lab = serve(store);
    release(&lab, NAMES[1]);
    let at = lab.server.address;
    done(&narval(&lab, "machine", &["release", "show", "api"]));
    let Lab { store, server } = lab;
    server.terminate();
    std::fs::remove_dir_all(&data).unwrap();
    copy(&yesterday, &data);
    // At the same address, as after an attack or a restored backup.
    let mut command = std::process::Command::new(NARVAL);
    command.args(["serve", "--listen", &at.to_string(), "--sign-key", key.to_str().unwrap(), "--data"]).arg(&data);
    let server = crate::support::Server::start(command, &[("XDG_CACHE_HOME", store.path("cache").to_str().unwrap())]);
    let lab = Lab { store, server };
    let said = failed(&narval(&lab, "machine", &["release", "show", "api"]), 4);
    assert!(said.contains("revision 1, but revision 2 was seen before"), "{said}");
    failed(&narval(&lab, "machine", &["install", "@api"]), 4);
    done(&narval(&lab, "machine", &["release", "show", "api@1"]));
    done(&narval(&lab, "new", &["release", "show", "api"]));
    done(&narval(&lab, "machine", &["release", "show", "api", "--allow-downgrade"]));
    done(&narval(&lab, "machine", &["release", "show", "api"]));
}
