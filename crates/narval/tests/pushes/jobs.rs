//! docs/api.md: long work that a server does, whatever happens to it; keys, and a whole life of a cache by a generated client.

use std::process::Command;
use std::time::{Duration, Instant};

use narval_nix::{NarInfo, PublicKey, StoreDir};
use serde_json::{Value, json};

use crate::api::{ask, lab, until};
use crate::contract::narinfo_url;
use crate::lab::{Lab, Nar};
use crate::support::{NARVAL, Store, value};

/// How long a job may take, with servers that are killed meanwhile.
const PATIENCE: Duration = Duration::from_secs(180);

fn path_of(number: u32) -> String {
    let digits: String = format!("{number:032}");
    format!("{digits}-p{number}")
}

/// Pushes so many paths to a cache (`/team` or ``).
fn fill(lab: &Lab, below: &str, token: &str, paths: u32) {
    for number in 0..paths {
        let (path, nar) = (path_of(number), Nar::of(format!("{below} {number}").as_bytes()));
        assert_eq!(lab.put(&format!("{below}{}", nar.url()), token, &nar.bytes).status, 201);
        let narinfo = nar.narinfo(&path, &[]);
        assert_eq!(lab.put(&format!("{below}{}", narinfo_url(&path)), token, narinfo.as_bytes()).status, 201);
    }
}

fn start(lab: &Lab, cache: &str, token: &str, kind: &str, options: &Value) -> String {
    let (status, job) =
        ask(lab, "POST", &format!("caches/{cache}/jobs"), token, &json!({"kind": kind, "options": options}));
    assert_eq!(status, 201, "{job}");
    job["id"].as_str().unwrap().to_owned()
}

/// The job when it has ended.
fn ended(lab: &Lab, cache: &str, token: &str, id: &str) -> Value {
    let end = Instant::now() + PATIENCE;
    loop {
        let (_, job) = ask(lab, "GET", &format!("caches/{cache}/jobs/{id}"), token, &Value::Null);
        if job["ended"].is_u64() {
            return job;
        }
        assert!(Instant::now() < end, "{job}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn one_job_of_a_kind_at_a_time_is_watched_and_cancelled() {
    let store = Store::new();
    let ((key, _), text) = (
        store.key("own-1"),
        "data = 'data'\nsign-keys = 'KEY'\n[[destination]]\nname = 'mirror'\nurl = 'file://DIR/mirror'\n\
        [[destination]]\nname = 'new'\ndata = 'DIR/new'\n",
    );
    let folder = store.dir.path().to_str().unwrap().to_owned();
    let text = text.replace("KEY", key.to_str().unwrap()).replace("DIR", &folder);
    let lab = Lab::configured(store, &text);
    let admin = lab.token("admin");
    fill(&lab, "", &admin, 3);
    let jobs = "caches/default/jobs";
    let new = |kind: &str, options: Value| ask(&lab, "POST", jobs, &admin, &json!({"kind": kind, "options": options}));
    assert_eq!(new("nothing", json!({})).0, 400);
    assert_eq!(new("gc", json!({"contents": true})).0, 400);
    assert_eq!(new("gc", json!({"dryRun": 1})).0, 400);
    assert_eq!(new("delete", json!({})).0, 400);
    let (status, job) = new("gc", json!({"dryRun": true}));
    assert_eq!(status, 201);
    let (again, other) = (new("gc", json!({"dryRun": true})), new("gc", json!({})));
    // Unless it has ended by now.
    assert!(matches!((again.0, other.0), (200, 409) | (201, 201) | (201, 409)), "{again:?} {other:?}");
    let id = job["id"].as_str().unwrap();
    let events = lab.send("GET", &format!("/_narval/api/v1/{jobs}/{id}/events"), &admin, &[], b"");
    let text = String::from_utf8_lossy(&events.body).into_owned();
    assert!(text.contains("event: job") && text.contains("\"state\":\"done\""), "{text}");
    let done = ended(&lab, "default", &admin, id);
    assert_eq!((&done["state"], &done["result"]["kept"]), (&"done".into(), &3.into()), "{done}");
    assert_eq!(ask(&lab, "DELETE", &format!("{jobs}/{id}"), &admin, &Value::Null).0, 409, "it has ended");
    // One that waits for a server is cancelled before it begins.
    let id = start(&lab, "default", &admin, "fsck", &json!({}));
    if ask(&lab, "DELETE", &format!("{jobs}/{id}"), &admin, &Value::Null).0 == 200 {
        assert_eq!(ended(&lab, "default", &admin, &id)["state"], "cancelled");
    }
    let (_, list) = ask(&lab, "GET", jobs, &admin, &Value::Null);
    assert!(list["items"].as_array().unwrap().len() >= 2, "{list}");
    // The same by the commands.
    let token = lab.store.path("token");
    std::fs::write(&token, &admin).unwrap();
    let run = |args: &[&str]| {
        let at = ["--at", &*lab.server.url(), "--token-file", token.to_str().unwrap()];
        let output = Command::new(NARVAL).args(args).args(at).env("HOME", lab.store.dir.path()).output().unwrap();
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{args:?}: {message}");
        String::from_utf8(output.stdout).unwrap() + &message
    };
    let message = run(&["cache", "gc"]);
    assert!(message.contains("removed 0 paths, kept 3; deleted 0 NARs without a path"), "{message}");
    let message = run(&["cache", "fsck", "--contents"]);
    assert!(message.contains("3 paths, 3 NARs, 0 problems"), "{message}");
    let message = run(&["cache", "recompress"]);
    assert!(message.contains("recompressed 3 NARs; 0 could not be"), "{message}");
    let message = run(&["key", "rotate", "default"]);
    assert!(message.starts_with("default-1:") && message.contains("signed 3 paths with it"), "{message}");
    let message = run(&["cache", "export", "--destination", "mirror"]);
    assert!(message.contains("copied 3 paths with 3 NARs"), "{message}");
    assert!(lab.store.path("mirror/default/nix-cache-info").exists());
    let message = run(&["cache", "migrate", "--destination", "new"]);
    assert!(message.contains("copied 3 paths with 3 NARs"), "{message}");
    let message = run(&["cache", "jobs"]);
    assert!(message.contains("  fsck  done  started just now by test"), "{message}");
    // And on the data, by the same code.
    let here = |args: &[&str]| {
        let output = Command::new(NARVAL).args(args).arg("--data").arg(lab.data_path()).output().unwrap();
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{args:?}: {message}");
        String::from_utf8(output.stdout).unwrap() + &message
    };
    assert!(here(&["cache", "recompress"]).contains("recompressed 0 NARs"));
    let mirror = format!("file://{folder}/mirror");
    let message = here(&["cache", "export", "--destination", &mirror]);
    assert!(message.contains("copied 0 paths with 0 NARs (0 B) and 0 other files; 3 were there already"), "{message}");
    assert!(here(&["key", "rotate", "default"]).contains("signed 3 paths with it"));
    let mut nowhere = Command::new(NARVAL);
    nowhere.args(["cache", "export", "--destination", "nowhere", "--data"]).arg(lab.data_path());
    assert_eq!(nowhere.output().unwrap().status.code(), Some(2));
}

/// What is signed, by which keys, before, during and after a rotation.
#[test]
fn keys_rotate_without_a_stop() {
    let lab = lab();
    let admin = lab.token("admin");
    assert_eq!(ask(&lab, "PUT", "caches/team", &admin, &json!({"public": true})).0, 201);
    until(200, "it is served", || lab.get("/team/nix-cache-info").status);
    let names = |path: &str| -> Vec<String> {
        let narinfo = lab.get(&format!("/team{}", narinfo_url(path)));
        let info = NarInfo::parse(narinfo.text().as_bytes(), &StoreDir::default()).unwrap();
        info.signatures.iter().map(|signature| signature.key_name().to_owned()).collect()
    };
    let push = |number: u32| {
        let (path, nar) = (path_of(number), Nar::of(format!("{number}").as_bytes()));
        assert_eq!(lab.put(&format!("/team{}", nar.url()), &admin, &nar.bytes).status, 201);
        assert_eq!(
            lab.put(&format!("/team{}", narinfo_url(&path)), &admin, nar.narinfo(&path, &[]).as_bytes()).status,
            201
        );
        names(&path)
    };
    let told = || lab.get("/team/nix-cache-info").text().matches("PublicKey: ").count();
    until(1, "it has a key", || u16::try_from(told()).unwrap());
    assert_eq!(push(1), ["team-1"]);
    let rotate = |seconds: u64| {
        let id = start(&lab, "team", &admin, "rotate", &json!({"overlapSeconds": seconds}));
        let done = ended(&lab, "team", &admin, &id);
        assert_eq!(done["state"], "done", "{done}");
        done["result"].clone()
    };
    let key = rotate(3600);
    assert_eq!(key["name"], "team-2", "{key}");
    assert!(key["publicKey"].as_str().unwrap().parse::<PublicKey>().is_ok() && key["secret"].is_null());
    until(2, "clients are told both", || u16::try_from(told()).unwrap());
    assert_eq!(push(2), ["team-1", "team-2"]);
    // The ones of before end at once; what they have signed stays signed.
    rotate(0);
    until(1, "the third signs", || {
        let info = lab.get("/team/nix-cache-info");
        u16::from(info.text().contains("team-3:") && !info.text().contains("team-2:"))
    });
    assert_eq!(push(3), ["team-1", "team-3"]);
    for number in [1, 2] {
        assert_eq!(names(&path_of(number)), ["team-1", "team-2", "team-3"], "{number}");
    }
    let (_, keys) = ask(&lab, "GET", "caches/team/keys", &admin, &Value::Null);
    assert!(keys["items"][0]["ends"].is_u64() && keys["items"][2]["ends"].is_null(), "{keys}");
    // What the file says is another key's.
    assert!(value(lab.get("/nix-cache-info").text(), "PublicKey").unwrap().starts_with("own-1:"));
}

/// The operator's key signs for caches that the API creates, and none of theirs is in the index.
#[test]
fn caches_of_the_api_sign_with_a_key_that_is_elsewhere() {
    let store = Store::new();
    let key = store.key("hsm-1").0;
    let lab = Lab::configured(store, &format!("data = 'data'\nmanaged-sign-keys = ['{}']\n", key.display()));
    let admin = lab.token("admin");
    assert_eq!(ask(&lab, "PUT", "caches/team", &admin, &json!({"public": true})).0, 201);
    until(200, "it is served", || lab.get("/team/nix-cache-info").status);
    assert_eq!(ask(&lab, "GET", "caches/team/keys", &admin, &Value::Null).1["items"], json!([]));
    assert!(value(lab.get("/team/nix-cache-info").text(), "PublicKey").unwrap().starts_with("hsm-1:"));
    let (path, nar) = (path_of(1), Nar::of(b"1"));
    assert_eq!(lab.put(&format!("/team{}", nar.url()), &admin, &nar.bytes).status, 201);
    let narinfo = nar.narinfo(&path, &[]);
    assert_eq!(lab.put(&format!("/team{}", narinfo_url(&path)), &admin, narinfo.as_bytes()).status, 201);
    let served = lab.get(&format!("/team{}", narinfo_url(&path)));
    let info = NarInfo::parse(served.text().as_bytes(), &StoreDir::default()).unwrap();
    let names: Vec<_> = info.signatures.iter().map(|signature| signature.key_name()).collect();
    assert_eq!(names, ["hsm-1"]);
    let id = start(&lab, "team", &admin, "rotate", &json!({}));
    let refused = ended(&lab, "team", &admin, &id);
    assert!(refused["state"] == "failed" && refused.to_string().contains("managed-sign-keys"), "{refused}");
    let (status, _) = ask(&lab, "PATCH", "caches/team", &admin, &json!({"signKeys": ["/etc/passwd"]}));
    assert_eq!(status, 400, "no request names a key");
    // The commands on the data read the same file.
    for args in [&["cache", "create", "other"][..], &["key", "list", "other"]] {
        let output =
            Command::new(NARVAL).args(args).arg("--config").arg(lab.store.path("narval.toml")).output().unwrap();
        assert!(output.status.success() && !String::from_utf8_lossy(&output.stdout).contains("other-1"), "{output:?}");
    }
}

/// A client that a public generator has made of the description does a whole life of a cache.
#[test]
fn a_generated_client_does_a_whole_life_of_a_cache() {
    let folder = tempfile::tempdir().unwrap();
    let python = folder.path().join("venv/bin/python");
    let venv = Command::new("python3").args(["-m", "venv"]).arg(folder.path().join("venv")).output();
    let install = || Command::new(&python).args(["-m", "pip", "install", "--quiet", "openapi-python-client"]).output();
    if !venv.is_ok_and(|output| output.status.success()) || !install().is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: openapi-python-client cannot be installed here (python3 -m venv, pip)");
        return;
    }
    let lab = lab();
    let admin = lab.token("admin");
    let description = folder.path().join("openapi.json");
    std::fs::write(&description, lab.get("/_narval/api/v1/openapi.json").text()).unwrap();
    let made = Command::new(&python)
        .args([
            "-m",
            "openapi_python_client",
            "generate",
            "--fail-on-warning",
            "--meta",
            "none",
            "--output-path",
            "narval_client",
            "--path",
        ])
        .arg(&description)
        .env("PATH", format!("{}:{}", folder.path().join("venv/bin").display(), std::env::var("PATH").unwrap()))
        .current_dir(folder.path())
        .output()
        .unwrap();
    let message = String::from_utf8_lossy(&made.stdout).into_owned() + &String::from_utf8_lossy(&made.stderr);
    assert!(made.status.success(), "{message}");
    let output = Command::new(&python)
        .arg("-c")
        .arg(LIFE)
        .args([&lab.server.url(), &admin, NARVAL])
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).ends_with("done\n"));
}

const LIFE: &str = r#"
import hashlib, json, subprocess, sys, time, urllib.request
from narval_client import AuthenticatedClient
from narval_client import models as m
from narval_client.api.caches import create_cache, get_cache, change_cache, delete_cache, list_caches, get_stats, list_keys
from narval_client.api.tokens import create_token, list_tokens, revoke_token
from narval_client.api.paths import list_paths
from narval_client.api.pins import pin, list_pins, unpin
from narval_client.api.releases import record_release, list_releases, pin_release, forget_releases
from narval_client.api.jobs import start_job, get_job, list_jobs
from narval_client.api.audit import list_audit

url, token, narval = sys.argv[1:]
client = AuthenticatedClient(base_url=url.rstrip("/"), token=token, raise_on_unexpected_status=True)

def good(answer, *expected):
    assert not isinstance(answer, m.Problem), answer
    return answer

made = good(create_cache.sync("life", client=client, body=m.Settings(public=True, retention_days=30)))
assert made.name == "life" and made.settings.retention_days == 30, made
ci = good(create_token.sync(client=client, body=m.NewToken(label="ci", caches=["life"], scopes="pull,push,sign,release:*,pin"), idempotency_key="one"))
again = good(create_token.sync(client=client, body=m.NewToken(label="ci", caches=["life"], scopes="pull,push,sign,release:*,pin"), idempotency_key="one"))
assert ci.token.startswith("nv1_") and again.id == ci.id and not again.token

# Pushes are not of this API.
def send(method, path, body):
    request = urllib.request.Request(url.rstrip("/") + path, data=body, method=method, headers={"Authorization": "Bearer " + ci.token})
    with urllib.request.urlopen(request) as answer:
        return answer.status
for _ in range(100):
    try:
        urllib.request.urlopen(url.rstrip("/") + "/life/nix-cache-info").read(); break
    except urllib.error.HTTPError:
        time.sleep(0.1)
def text(data):
    return len(data).to_bytes(8, "little") + data + b"\0" * (-len(data) % 8)
nar = b"".join(map(text, [b"nix-archive-1", b"(", b"type", b"regular", b"contents", b"hello", b")"]))
digits, digest = "0123456789abcdfghijklmnpqrsvwxyz", hashlib.sha256(nar).digest()
number = int.from_bytes(digest, "little")
nix32 = "".join(digits[(number >> (5 * at)) & 31] for at in reversed(range(52)))
send("PUT", f"/life/nar/{nix32}.nar", nar)
path = "0i4073ldk2aplbmaarmp5c8gf3wmbl84-hello"
narinfo = f"StorePath: /nix/store/{path}\nURL: nar/{nix32}.nar\nCompression: none\nFileHash: sha256:{nix32}\nFileSize: {len(nar)}\nNarHash: sha256:{nix32}\nNarSize: {len(nar)}\nReferences: \n"
send("PUT", "/life/0i4073ldk2aplbmaarmp5c8gf3wmbl84.narinfo", narinfo.encode())
assert [one.path for one in good(list_paths.sync("life", client=client)).items] == [path]

release = m.NewRelease.from_dict({"systems": {"x86_64-linux": {"out": "/nix/store/" + path}}})
recorded = good(record_release.sync("life", "hello", client=client, body=release, idempotency_key="first"))
assert good(record_release.sync("life", "hello", client=client, body=release, idempotency_key="first")).revision == recorded.revision == 1
assert [one.kept for one in good(list_releases.sync("life", client=client)).items] == [True]
good(pin_release.sync("life", "hello", "1", client=client))
good(pin.sync("life", "keep", client=client, body=m.NewPin(path=path)))
assert len(good(list_pins.sync("life", client=client)).items) >= 1
good(unpin.sync("life", "keep", client=client))

def done(new):
    job = good(start_job.sync("life", client=client, body=m.NewJob.from_dict(new), idempotency_key=new["kind"]))
    for _ in range(600):
        job = good(get_job.sync("life", job.id, client=client))
        if job.state not in ("waiting", "running"):
            break
        time.sleep(0.1)
    assert job.state == "done", job
    return job
job = done({"kind": "gc"})
assert good(get_stats.sync("life", client=client)).paths == 1
assert good(start_job.sync("life", client=client, body=m.NewJob(kind="gc"), idempotency_key="gc")).id == job.id

rotated = done({"kind": "rotate", "options": {"overlapSeconds": 60}})
assert rotated.result.to_dict()["name"] == "life-2" and len(good(list_keys.sync("life", client=client)).items) == 2
assert good(change_cache.sync("life", client=client, body=m.Settings(quota=10**9))).settings.quota == 10**9
assert good(revoke_token.sync(ci.id, client=client)).revoked
assert "life" in [one.name for one in good(list_caches.sync(client=client)).items]
deleted = good(delete_cache.sync("life", client=client))
assert isinstance(get_cache.sync("life", client=client), m.Problem)
for _ in range(600):
    deleted = good(get_job.sync("life", deleted.id, client=client))
    if deleted.ended:
        break
    time.sleep(0.1)
assert deleted.state == "done", deleted
actions = {line.action for line in good(list_audit.sync(client=client, limit=1000)).items}
assert {"create cache", "create token", "release", "start job", "rotate key", "delete cache"} <= actions, actions
print("done")
"#;
