//! A standby of the database that takes over without the last transactions: what servers and operators notice, and what is not lost.

use std::process::{Command, Output};
use std::time::{Duration, Instant};

use crate::in_bucket::Place;
use crate::lab::{Lab, Nar};
use crate::postgres::PostgresServer;
use crate::support::NARVAL;

/// How long anything may take before a test gives up.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until something is so.
fn soon(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A NAR, and a path that has it.
struct Path {
    nar: Nar,
    name: String,
    narinfo: String,
    text: String,
}

impl Path {
    fn of(name: &str) -> Self {
        let nar = Nar::of(name.as_bytes());
        let digest = narval_nix::Sha256::of(name.as_bytes());
        let part = narval_nix::HashPart::from_digest(digest.as_bytes()[..20].try_into().unwrap());
        let text = nar.narinfo(&format!("{part}-{name}"), &[]);
        Self { nar, name: format!("/nix/store/{part}-{name}"), narinfo: format!("/{part}.narinfo"), text }
    }

    fn push_nar(&self, lab: &Lab, token: &str) -> u16 {
        lab.put(&self.nar.url(), token, &self.nar.bytes).status
    }

    /// The statuses of the NAR and the narinfo.
    fn push(&self, lab: &Lab, token: &str) -> (u16, u16) {
        (self.push_nar(lab, token), lab.put(&self.narinfo, token, self.text.as_bytes()).status)
    }

    fn narinfo_of(&self, lab: &Lab) -> u16 {
        lab.get(&self.narinfo).status
    }

    /// The contents, from a node that has nothing on its disk.
    fn is_whole(&self, lab: &Lab) -> bool {
        self.narinfo_of(lab) == 200 && lab.get(&self.nar.url()).body == self.nar.bytes
    }

    fn is_named_in(&self, problems: &str) -> bool {
        problems.contains(&self.narinfo[1..])
    }
}

/// Two nodes over a bucket, whose database has a standby. Each lists both hosts, in another order.
struct Cluster {
    place: Place,
    standby: PostgresServer,
    one: Lab,
    other: Lab,
    database: String,
}

impl Cluster {
    fn start() -> Option<Self> {
        let mut place = Place::new(true)?;
        let standby = place.postgres.as_ref().unwrap().standby();
        let [mine, its] = [place.postgres.as_ref().unwrap().port, standby.port];
        let database = place.database.take().unwrap();
        let name = database.split(['/', '?']).nth(3).unwrap().to_owned();
        let address = |first, second| {
            format!(
                "postgres://narval@127.0.0.1:{first},127.0.0.1:{second}/{name}?sslmode=disable&target_session_attrs=read-write"
            )
        };
        place.database = Some(address(its, mine));
        let other = place.lab();
        place.database = Some(address(mine, its));
        let one = place.lab();
        Some(Self { place, standby, one, other, database: name })
    }

    fn primary(&self) -> &PostgresServer {
        self.place.postgres.as_ref().unwrap()
    }

    fn labs(&self) -> [&Lab; 2] {
        [&self.one, &self.other]
    }

    /// A command of an operator, on a machine of its own.
    fn run(&self, args: &[&str]) -> Output {
        let mut command = Command::new(NARVAL);
        command.args(args).args(self.place.options(&self.one.store, "operator")).envs(self.place.environment());
        command.output().unwrap()
    }

    fn narval(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }

    /// The problems that a check finds.
    fn fsck(&self, args: &[&str]) -> String {
        let output = self.run(&[&["cache", "fsck", "--contents"], args].concat());
        String::from_utf8(output.stdout).unwrap()
    }

    /// The standby gets nothing from now on, and takes over when the primary has crashed.
    fn fail_over(&self, lost: impl FnOnce()) {
        self.primary().wait_for(&self.standby);
        self.standby.cut_off();
        lost();
        self.primary().crash();
        self.standby.promote();
    }
}

#[test]
fn a_standby_takes_over_without_the_last_transactions() {
    let Some(cluster) = Cluster::start() else { return };
    let [one, other] = cluster.labs();
    let token = cluster.narval(&["token", "create", "--push", "--pull", "ci"]);
    let revoked = cluster.narval(&["token", "create", "--push", "--pull", "revoked-in-the-lost-second"]);
    let id = |token: &str| token.split('_').nth(1).unwrap().to_owned();
    let path = |name: &str| {
        let path = Path::of(name);
        assert_eq!(path.push(one, &token), (201, 201));
        path
    };
    let [kept, deleted, deleted_last] = ["kept", "deleted", "deleted-last"].map(path);
    cluster.narval(&["cache", "delete", &deleted.name]);
    // NARs that were pushed long ago, and that are removed next: by a collection, and because there is no room.
    let [collected, swept] = ["collected", "swept"].map(Path::of);
    assert_eq!((collected.push_nar(one, &token), swept.push_nar(one, &token)), (201, 201));
    let long_ago = "update narval.nars set orphaned = 1, used = 1 where orphaned is not null";
    cluster.primary().sql(&cluster.database, long_ago).unwrap();
    for lab in [one, other] {
        assert_eq!((kept.narinfo_of(lab), deleted.narinfo_of(lab), deleted_last.narinfo_of(lab)), (200, 404, 200));
    }
    let [lost, pushed_again] = ["lost", "pushed-again"].map(Path::of);
    cluster.fail_over(|| {
        for path in [&lost, &pushed_again] {
            assert_eq!(path.push(one, &token), (201, 201));
            soon("a new path is seen", || path.narinfo_of(one) == 200 && path.narinfo_of(other) == 200);
        }
        cluster.narval(&["cache", "delete", &deleted_last.name]);
        cluster.narval(&["token", "revoke", &id(&revoked)]);
        cluster.narval(&["cache", "gc", "--unfinished"]);
        let files = "select count(*) from narval.nars where orphaned is not null";
        assert_eq!(cluster.primary().sql(&cluster.database, files).unwrap(), "0", "it is collected");
        for lab in [one, other] {
            soon("a revoked token", || kept.push_nar(lab, &revoked) == 401);
            soon("a deleted path", || deleted_last.narinfo_of(lab) == 404);
        }
        // In memory until something changes, and nothing does any more.
        std::thread::sleep(Duration::from_secs(1));
        for (lab, path) in [(one, &lost), (one, &pushed_again), (other, &lost), (other, &pushed_again)] {
            assert_eq!(path.narinfo_of(lab), 200);
        }
    });

    for lab in [one, other] {
        soon("nothing of the lost transactions is answered", || lost.narinfo_of(lab) == 404);
        assert_eq!(pushed_again.narinfo_of(lab), 404);
        assert_eq!(deleted.narinfo_of(lab), 404, "what was deleted before stays so");
        assert!(kept.is_whole(lab));
        soon("it says so", || lab.server.log().contains("a standby has taken over the index"));
    }
    // A deletion and a revocation that are lost are to be repeated.
    assert_eq!(kept.push_nar(one, &revoked), 200);
    cluster.narval(&["token", "revoke", &id(&revoked)]);
    soon("it is revoked again", || kept.push_nar(other, &revoked) == 401);
    // The bytes of NARs that were collected are still there for a while.
    for path in [&collected, &swept] {
        assert_eq!(path.push(other, &token), (200, 201));
        assert!(path.is_whole(one));
    }

    assert_eq!(pushed_again.push(other, &token).1, 201);
    assert!(pushed_again.is_whole(one));
    let problems = cluster.fsck(&[]);
    assert!(lost.is_named_in(&problems), "{problems}");
    assert!(deleted_last.is_named_in(&problems), "its narinfo is gone: {problems}");
    assert!(
        ![&kept, &deleted, &collected, &swept, &pushed_again].iter().any(|path| path.is_named_in(&problems)),
        "{problems}"
    );
    let nar = format!("/nar/{}-", deleted_last.nar.hash.to_nix32());
    assert!(problems.lines().any(|line| line.contains(&nar) && line.contains("' is missing")), "{problems}");
    cluster.fsck(&["--repair"]);
    assert_eq!(cluster.fsck(&[]), "");
    for lab in [one, other] {
        soon("it is removed", || deleted_last.narinfo_of(lab) == 404);
        assert_eq!(lost.narinfo_of(lab), 404);
        for path in [&kept, &collected, &swept, &pushed_again] {
            assert!(path.is_whole(lab));
        }
    }
    for path in [&lost, &deleted_last] {
        assert_eq!(path.push(other, &token).1, 201);
        assert!(path.is_whole(one));
    }
    cluster.narval(&["cache", "gc"]);
    assert_eq!(cluster.fsck(&[]), "");
}

/// The machine of the primary says nothing any more, and ends no connection.
#[test]
fn a_primary_that_is_silent_is_not_waited_for() {
    let Some(cluster) = Cluster::start() else { return };
    let [one, other] = cluster.labs();
    let token = cluster.narval(&["token", "create", "--push", "--pull", "ci"]);
    let [before, after] = ["before", "after"].map(Path::of);
    assert_eq!(before.push(one, &token), (201, 201));
    cluster.primary().wait_for(&cluster.standby);
    cluster.primary().freeze(true);
    let _thawed = Thawed(cluster.primary());
    cluster.standby.promote();
    for lab in [one, other] {
        soon("it is pushed", || after.push(lab, &token).1 / 100 == 2);
        soon("what was there is read", || before.is_whole(lab));
    }
    assert!(cluster.narval(&["token", "list"]).contains("ci"));
}

/// A server that is frozen would not end.
struct Thawed<'a>(&'a PostgresServer);

impl Drop for Thawed<'_> {
    fn drop(&mut self) {
        self.0.freeze(false);
    }
}
