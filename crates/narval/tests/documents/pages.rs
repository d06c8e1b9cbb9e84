//! The pages, each on a machine of its own, and what is true afterwards.

use crate::page::{find, is_installed, read, section};
use crate::reader::Reader;

const CACHE: &str = "https://cache.example.org";

/// Builds a path of this name, which was not there; and a command that succeeds once the cache has it.
fn build_new(reader: &Reader, name: &str) -> (String, String) {
    let rest = "system = builtins.currentSystem; builder = \"/bin/sh\"; args = [ \"-c\" \"echo new > $out\" ];";
    let expression = format!("derivation {{ name = \"{name}\"; {rest} }}");
    let out = reader.machine.run(&format!("nix-build --no-out-link --expr '{expression}' 2>/dev/null"));
    let path = out.trim().to_owned();
    let narinfo = format!("curl -sSf {CACHE}/{}.narinfo", &path["/nix/store/".len()..][..32]);
    (path, narinfo)
}

/// A reader with packages, who has followed the page about a team's cache.
pub(crate) fn with_a_team_cache(shared: &std::path::Path) -> Option<Reader> {
    let mut reader = Reader::new(shared)?;
    reader.build();
    reader.cache_nixos_org();
    reader.prepare("server", "cp /shared/authority/*.pem ~");
    reader.follow(&read("docs/team-cache.md"));
    reader.installs(CACHE, &reader.key(CACHE), &reader.path("app"));
    Some(reader)
}

#[test]
fn a_cache_that_takes_uploads() {
    let shared = tempfile::tempdir().unwrap();
    let Some(mut reader) = Reader::new(shared.path()) else { return };
    reader.build();
    reader.install();
    reader.cache_nixos_org();
    let page = read("docs/cache.md");
    let (first, rest) = page.split_once("\n## Upstreams\n").unwrap();
    reader.follow(first);
    let cache = "http://cache:5000";
    reader.installs(cache, &reader.key(cache), &reader.path("app"));
    let secret = reader.path("secret");
    reader.prepare("laptop", &format!("narval push {secret} --to {cache}"));
    reader.follow(rest);
    let status = |path: &str| {
        let hash = &path["/nix/store/".len()..][..32];
        reader.machine.run(&format!("curl -s -o /dev/null -w '%{{http_code}}' {cache}/{hash}.narinfo"))
    };
    assert_eq!((status(&secret), status(&reader.path("app"))), ("404".to_owned(), "200".to_owned()));
}

#[test]
fn using_a_cache_and_pushing_to_it() {
    let shared = tempfile::tempdir().unwrap();
    let Some(mut reader) = with_a_team_cache(shared.path()) else { return };
    let page = read("docs/pushing.md");
    let (by_hand, _) = page.split_once("\n## Push every build\n").unwrap();
    reader.prepare("laptop", "nix-build -A git 2>/dev/null");
    reader.follow(by_hand);
    let key = reader.key(CACHE);
    reader.installs(CACHE, &key, &reader.path("git-2.47"));

    // The watcher pushes what is built from now on.
    reader.follow(&section(&page, "## Push every build"));
    let (path, narinfo) = build_new(&reader, "watched");
    reader.machine.wait_for(&narinfo);
    reader.installs(CACHE, &key, &path);
    // The hook is there, too, and the build waits for it: processor time, because the machine may be busy.
    let times = "TIMEFORMAT='%3U %3S'; time for _ in 1 2 3 4 5 6 7 8 9 10; do /etc/nix/post-build-hook; done";
    let output =
        reader.machine.command("env").arg(format!("OUT_PATHS={path}")).args(["bash", "-ec", times]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let seconds: f64 = said.lines().next_back().unwrap().split(' ').map(|time| time.parse::<f64>().unwrap()).sum();
    assert!(seconds / 10.0 < 0.05, "{} ms of processor time for one hook", seconds * 100.0);
    reader.machine.wait_for("[ -z \"$(ls /var/lib/narval-push/queue)\" ]");
}

/// The units alone, then what else an operator does with the cache of a team.
#[test]
fn operating_a_server() {
    let shared = tempfile::tempdir().unwrap();
    let Some(mut reader) = with_a_team_cache(shared.path()) else { return };
    let page = read("docs/operating.md");
    for heading in ["### Pushing every build", "## Health checks", "## Live figures"] {
        reader.follow(&section(&page, heading));
    }
    let (path, narinfo) = build_new(&reader, "for-the-watcher");
    reader.machine.wait_for(&narinfo);
    reader.installs(CACHE, &reader.key(CACHE), &path);
    reader.follow(&read("docs/upgrades.md"));
    reader.follow(&read("docs/configuration.md"));
}

#[test]
fn https_alone() {
    let shared = tempfile::tempdir().unwrap();
    let Some(mut reader) = Reader::new(shared.path()) else { return };
    reader.install();
    reader.prepare("server", "cp /shared/authority/*.pem ~");
    reader.follow(&read("docs/tls.md"));
    reader.machine.run("curl -sSf https://cache.example.org/nix-cache-info");
}

/// On a machine without Nix, from the caches that the page names.
#[test]
fn installing_without_nix() {
    let shared = tempfile::tempdir().unwrap();
    let Some(mut reader) = with_a_team_cache(shared.path()) else { return };
    let paths = ["hello-2.12", "git-2.47", "emacs-29.4"].map(|name| reader.path(name)).join(" ");
    reader.machine.run(&format!(
        "narval token create --push --sign all --data /shared/cache.nixos.org/data --out /srv/token
        narval push {paths} --to https://cache.nixos.org --token-file /srv/token --require-signed
        narval copy {paths} --from https://cache.nixos.org --to file:///media/cache --trusted-public-key $(cat /shared/cache.nixos.org/key.pub)
        mount -t tmpfs tmpfs /nix
        echo \"trusted-public-keys = $(cat /shared/cache.nixos.org/key.pub)\" > /etc/nix/nix.conf
        rm -r /shared/laptop/.config /usr/local/bin/nix*"
    ));
    let key = reader.key(CACHE);
    reader.replace("cache.example.org-1:…", &key);
    reader.follow(&read("docs/installing.md"));
}

/// Another cache server that is replaced, for which Narval stands in: private, with a key of its own.
fn replaced(page: &str, host: &str, cache: &str, key_name: &str) {
    let shared = tempfile::tempdir().unwrap();
    let Some(mut reader) = with_a_team_cache(shared.path()) else { return };
    let old = format!("https://{host}/{cache}");
    let old = old.trim_end_matches('/');
    let name = if cache.is_empty() { "default" } else { cache };
    reader.machine.run(&format!(
        "mkdir -p /shared/{host} && cd /shared/{host} && narval key generate {key_name} --out key.sec > key.pub
        printf 'data = \"data\"\\npublic = false\\n[[cache]]\\nname = \"{name}\"\\nsign-keys = \"key.sec\"\\n' > serve.toml"
    ));
    reader.stand_in(host, "serve --config serve.toml");
    let key = reader.machine.run(&format!("cat /shared/{host}/key.pub")).trim().to_owned();
    reader.replace(&format!("{key_name}:…"), &key);
    // Two paths are in the old cache, and one of them matters for long. The laptop is its client.
    let (kept, passing) = (reader.path("git-2.47"), reader.path("emacs-29.4"));
    reader.machine.run(&format!(
        "cd /shared/{host} && narval token create --data data --cache {name} --push --pull --sign old --out token
        narval push {kept} {passing} --to {old} --token-file token --require-signed
        cp token ~/attic.token && cp token ~/cachix.token && cp token /shared/laptop/old.token && echo {kept} > /shared/laptop/paths
        mkdir -p /var/lib/atticd
        sqlite3 /var/lib/atticd/server.db \"create table cache (name text, keypair text); insert into cache values ('team', '$(cat key.sec)')\""
    ));
    reader.prepare("laptop", &format!("narval use {old} --token-file old.token --yes"));
    reader.follow(&read(page));
    let new_key = reader.key(CACHE);
    reader.installs(CACHE, &new_key, &passing);
    reader.ends(host);
    reader.installs(CACHE, &new_key, &kept);
    // Where the old key has been taken along, clients need not trust another one.
    if page.contains("attic") {
        reader.installs(CACHE, &key, &kept);
        reader.installs(CACHE, &key, &reader.path("app"));
    }
}

#[test]
fn replacing_attic() {
    replaced("docs/replacing-attic.md", "attic.example.org", "team", "team");
}

#[test]
fn replacing_cachix() {
    replaced("docs/replacing-cachix.md", "mycache.cachix.org", "", "mycache.cachix.org-1");
}

#[test]
fn serving_a_store() {
    let shared = tempfile::tempdir().unwrap();
    let Some(mut reader) = Reader::new(shared.path()) else { return };
    reader.build();
    reader.install();
    reader.follow(&read("docs/serve-a-store.md"));
    let cache = "http://cache.example.org:5000";
    reader.installs(cache, &reader.key(cache), &reader.path("hello-2.12"));
}

/// Servers over PostgreSQL: what the page does without a bucket.
#[test]
fn scaling_out() {
    let shared = tempfile::tempdir().unwrap();
    if !is_installed("initdb") {
        eprintln!("note: skipped: there is no PostgreSQL here");
        return;
    }
    let Some(mut reader) = Reader::new(shared.path()) else { return };
    reader.build();
    reader.install();
    reader.machine.run(
        "PATH=$PATH:$(echo /usr/lib/postgresql/*/bin | tr ' ' :)
        install -d -o nobody /srv/db && cd /srv/db
        user='setpriv --reuid=65534 --regid=65534 --clear-groups'
        $user initdb -A trust -U narval --no-sync -D /srv/db/data > /dev/null
        setsid $user postgres -D /srv/db/data -k /srv/db -h 127.0.0.1 > log 2>&1 &
        until psql -h 127.0.0.1 -U narval -c 'create database narval' postgres; do sleep 0.1; done 2> /dev/null
        psql -h 127.0.0.1 -U narval -c 'create database moved' postgres
        narval token create --push --sign --data /var/lib/narval old --out /srv/old.token",
    );
    let page = read("docs/scale-out.md");
    reader.follow(page.split("\n## A server over a bucket\n").next().unwrap());
    let cache = "http://cache.example.org:5000";
    reader.installs(cache, &reader.key(cache), &reader.path("app"));
    let moved = "narval token list --data /var/lib/narval --database postgres://narval@db.example.org/moved";
    assert!(reader.machine.run(moved).contains("old"));
}

/// The same page, with a bucket.
#[test]
fn a_server_over_a_bucket_and_a_bucket_alone() {
    let shared = tempfile::tempdir().unwrap();
    let Some(program) = find("versitygw") else {
        eprintln!("note: skipped: there is no object store here; tools/setup-s3 installs versitygw");
        return;
    };
    std::fs::copy(program, shared.path().join("versitygw")).unwrap();
    let Some(mut reader) = Reader::new(shared.path()) else { return };
    reader.build();
    reader.install();
    reader.cache_nixos_org();
    let hello = reader.path("hello-2.12");
    reader.machine.run(&format!(
        "narval token create --push --sign all --data /shared/cache.nixos.org/data --out /srv/token
        narval push {hello} --to https://cache.nixos.org --token-file /srv/token --require-signed
        echo \"trusted-public-keys = $(cat /shared/cache.nixos.org/key.pub)\" >> /etc/nix/nix.conf
        mkdir -p /srv/s3/root/cache /srv/s3/side && cd /srv/s3
        ROOT_ACCESS_KEY=key ROOT_SECRET_KEY=secret setsid /shared/versitygw --region eu-central-1 --port 127.0.0.1:7070 -q posix --sidecar /srv/s3/side /srv/s3/root > log 2>&1 &"
    ));
    reader.machine.wait_for("curl -s -o /dev/null http://127.0.0.1:7070");
    // The object store of the page is Amazon's.
    reader.replace("?region=eu-central-1", "?region=eu-central-1&endpoint=127.0.0.1:7070&scheme=http");
    for terminal in ["server", "laptop"] {
        reader.prepare(terminal, "export AWS_ACCESS_KEY_ID=key AWS_SECRET_ACCESS_KEY=secret");
    }
    let page = read("docs/scale-out.md");
    reader.follow(&section(&page, "## A server over a bucket"));
    let cache = "http://cache.example.org:5000";
    reader.installs(cache, &reader.key(cache), &reader.path("app"));
    reader.follow(&section(&page, "## Caches in buckets"));
}

/// From an empty machine to a cache that is backed up, lost, restored, has a new key, and is watched: with the commands of the pages.
#[test]
fn a_whole_tour() {
    let shared = tempfile::tempdir().unwrap();
    let Some(mut reader) = with_a_team_cache(shared.path()) else { return };
    let backup = "mkdir -p /shared/backup && ln -s /shared/backup /srv/backup";
    let push =
        |what: &str| format!("nix-build -A {what} 2>/dev/null && narval push ./result --to {CACHE} --require-signed");
    reader.prepare("laptop", &push("secret"));
    reader.follow(&section(&read("docs/cache.md"), "## Retention"));
    let old_key = reader.key(CACHE);
    reader.machine.run(backup);
    reader.follow(&section(&read("docs/backup.md"), "## Backup"));
    drop(reader);

    // All is lost but the backup. What clients have still works.
    let mut reader = Reader::new(shared.path()).unwrap();
    reader.build();
    reader.cache_nixos_org();
    reader.machine.run(backup);
    reader.follow(&section(&read("docs/team-cache.md"), "## 1. Install"));
    reader.follow(&section(&read("docs/backup.md"), "## Restore"));
    reader.prepare("laptop", &push("git"));
    let paths = ["app", "git-2.47"].map(|name| reader.path(name));
    paths.iter().for_each(|path| reader.installs(CACHE, &old_key, path));
    assert!(reader.machine.run("narval pin list").contains("release-1.2"));

    reader.follow(&section(&read("docs/security.md"), "### Rotating a key"));
    let new_key = reader.key(CACHE);
    assert!(new_key.starts_with("cache.example.org-2:"), "{new_key}");
    paths.iter().for_each(|path| reader.installs(CACHE, &new_key, path));

    reader.follow(&section(&read("docs/operating.md"), "## Metrics"));
    reader.machine.run(&format!("curl -sSf {CACHE}/metrics | grep '^narval_cache_pins'"));
}
