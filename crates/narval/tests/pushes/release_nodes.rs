//! Releases of one name by two jobs at two servers that share an index in PostgreSQL, and are killed meanwhile.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use narval_nix::Release;

use crate::lab::Nar;
use crate::ports::free_port;
use crate::postgres::PostgresServer;
use crate::support::{Answer, NARVAL, Server, Store};

/// How many releases each job records.
const RELEASES: usize = 100;
/// A server is killed after so many answers.
const KILLED_EVERY: usize = 20;
/// How long anything may take before the test gives up.
const PATIENCE: Duration = Duration::from_secs(180);

const NAME: &str = "0i4073ldk2aplbmaarmp5c8gf3wmbl84-api";

fn serve(store: &Store, database: &str, port: u16) -> Server {
    let mut command = Command::new(NARVAL);
    command.args(["serve", "--listen", &format!("127.0.0.1:{port}"), "--database", database, "--sign-key"]);
    command.arg(store.path("cache.sec")).arg("--data").arg(store.path("data"));
    Server::start(command, &[("XDG_CACHE_HOME", store.path("cache").to_str().unwrap())])
}

/// A request on a connection of its own; `None` without a whole answer.
fn ask(port: u16, method: &str, path: &str, token: &str, body: &str) -> Option<Answer> {
    let mut stream = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nAuthorization: Bearer {token}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes()).ok()?;
    let mut raw = Vec::new();
    stream.read_to_end(&mut raw).ok()?;
    Answer::parse(&raw).filter(|answer| answer.complete)
}

#[test]
fn two_jobs_at_two_servers_that_are_killed_get_revisions_in_one_order() {
    let Some(postgres) = PostgresServer::new() else { return };
    let (store, database) = (Store::new(), postgres.database());
    let key = Command::new(NARVAL).args(["key", "generate", "cache-1"]).output().unwrap();
    std::fs::write(store.path("cache.sec"), &key.stdout).unwrap();
    let ports = [free_port(), free_port()];
    let servers = ports.map(|port| Mutex::new(Some(serve(&store, &database, port))));
    let create = ["token", "create", "--push", "--release", "api", "ci", "--database", &database, "--data"];
    let token = Command::new(NARVAL).args(create).arg(store.path("data")).output().unwrap();
    let token = crate::support::stdout(token).trim().to_owned();
    let nar = Nar::of(b"contents");
    for (path, body) in [
        (nar.url(), String::from_utf8(nar.bytes.clone()).unwrap()),
        (format!("/{}.narinfo", &NAME[..32]), nar.narinfo(NAME, &[])),
    ] {
        let answer = ask(ports[0], "PUT", &path, &token, &body).unwrap();
        assert_eq!(answer.status, 201, "{}", String::from_utf8_lossy(&answer.body));
    }
    let (answered, ended, kills) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    let until = Instant::now() + PATIENCE;
    let record = |job: usize| {
        let mut revisions: Vec<u64> = Vec::new();
        let mut attempt = 0;
        while revisions.len() < RELEASES {
            assert!(Instant::now() < until, "job {job} has recorded only {}", revisions.len());
            // A server may take longer to start again than the other one takes for all releases.
            if answered.load(Ordering::SeqCst) >= (kills.load(Ordering::SeqCst) + 2) * KILLED_EVERY {
                std::thread::sleep(Duration::from_millis(5));
                continue;
            }
            attempt += 1;
            let note = format!("{job}-{}", revisions.len());
            let body =
                format!(r#"{{"systems":{{"x86_64-linux":{{"out":"/nix/store/{NAME}"}}}},"notes":{{"job":"{note}"}}}}"#);
            let answer = ask(ports[(job + attempt) % 2], "POST", "/_narval/v1/releases/api", &token, &body);
            match answer {
                Some(answer) if answer.status == 201 => {
                    revisions.push(Release::parse(&answer.body).unwrap().revision);
                    answered.fetch_add(1, Ordering::SeqCst);
                }
                // A server that stops, or starts.
                Some(answer) => assert!([503, 500].contains(&answer.status), "{}: {}", answer.status, answer.text()),
                None => std::thread::sleep(Duration::from_millis(20)),
            }
        }
        ended.fetch_add(1, Ordering::SeqCst);
        revisions
    };
    let record = &record;
    let recorded: Vec<Vec<u64>> = std::thread::scope(|scope| {
        let jobs: Vec<_> = (0..2).map(|job| scope.spawn(move || record(job))).collect();
        while ended.load(Ordering::SeqCst) < 2 && !jobs.iter().any(std::thread::ScopedJoinHandle::is_finished) {
            let killed = kills.load(Ordering::SeqCst);
            if answered.load(Ordering::SeqCst) >= (killed + 1) * KILLED_EVERY {
                let at = killed % 2;
                let mut server = servers[at].lock().unwrap();
                server.take().unwrap().end("-KILL");
                *server = Some(serve(&store, &database, ports[at]));
                kills.store(killed + 1, Ordering::SeqCst);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        jobs.into_iter().map(|job| job.join().unwrap()).collect()
    });
    let kills = kills.into_inner();
    assert!(kills >= 2 * RELEASES / KILLED_EVERY - 2, "only {kills} servers were killed");
    let mut all: Vec<u64> = recorded.concat();
    assert!(recorded.iter().all(|own| own.is_sorted()), "later releases have later revisions");
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 2 * RELEASES, "revisions are unique");
    for (job, own) in recorded.iter().enumerate() {
        for (at, revision) in own.iter().enumerate() {
            let answer = ask(
                ports[usize::from(revision.is_multiple_of(2))],
                "GET",
                &format!("/releases/api/{revision}"),
                &token,
                "",
            );
            let answer = answer.unwrap();
            assert_eq!(answer.status, 200, "revision {revision} was answered, and is lost");
            let release = Release::parse(&answer.body).unwrap();
            assert_eq!((release.revision, &*release.notes["job"]), (*revision, &*format!("{job}-{at}")));
        }
    }
    // What had no answer may be there, too: no revision is left out.
    let newest = ask(ports[0], "GET", "/releases/api/latest", &token, "").unwrap();
    let newest = Release::parse(&newest.body).unwrap().revision;
    let (mut listed, mut after): (Vec<u64>, _) = (Vec::new(), String::new());
    loop {
        let list = ask(ports[1], "GET", &format!("/releases/api{after}"), &token, "").unwrap();
        let list: serde_json::Value = serde_json::from_slice(&list.body).unwrap();
        listed.extend(list["releases"].as_array().unwrap().iter().map(|row| row["revision"].as_u64().unwrap()));
        let Some(next) = list["next"].as_str() else { break };
        after = format!("?after={next}");
    }
    assert_eq!(listed, (1..=newest).rev().collect::<Vec<_>>());
}
