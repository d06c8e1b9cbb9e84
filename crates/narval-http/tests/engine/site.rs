//! Which system calls a static site makes, and on which thread.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use narval_http::files::{Site, SiteOptions};
use narval_http::semantics::date;
use narval_http::{Listen, Server};

use crate::harness::{Client, TestServer, on_each_driver};
use crate::stopping::Process;

/// How long cached metadata of a file is trusted in these tests.
const REVALIDATE_AFTER: Duration = Duration::from_millis(50);

/// The server of the test below.
#[test]
#[ignore = "started by another test, as a process of its own"]
fn a_site_by_itself() {
    let options = SiteOptions { revalidate_after: REVALIDATE_AFTER, ..SiteOptions::default() };
    let site = Site::open(std::env::var_os("SITE_FOLDER").unwrap(), options).unwrap();
    let listen = Listen::Tcp("127.0.0.1:0".parse().unwrap());
    let server = Server::builder(site).listen(listen).workers(2).shards(1).build().unwrap();
    println!("listening on {}", server.addresses()[0]);
    let _handle = server.spawn().unwrap();
    // Until the test closes it.
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).unwrap();
    std::process::exit(0);
}

/// RFC 9110 section 8.8.2.1.
#[test]
fn nothing_was_modified_after_it_is_sent() {
    let folder = tempfile::tempdir().unwrap();
    let file = std::fs::File::create(folder.path().join("page")).unwrap();
    file.set_modified(SystemTime::now() + Duration::from_secs(1_000_000)).unwrap();
    on_each_driver(|driver| {
        let site = Site::open(folder.path(), SiteOptions::default()).unwrap();
        let server = TestServer::start(driver, site);
        let answer = server.get("/page");
        let [modified, date] =
            ["last-modified", "date"].map(|name| date::parse(answer.header(name).unwrap().as_bytes()));
        assert!(modified.is_some() && modified <= date, "{}", answer.head);
    });
}

/// A file system may take its time to open a file: a shard, which serves all its connections, must not be the thread that waits.
#[test]
fn only_workers_revalidate_files() {
    let folder = tempfile::tempdir().unwrap();
    let (site, trace) = (folder.path().join("site"), folder.path().join("trace"));
    std::fs::create_dir(&site).unwrap();
    std::fs::write(site.join("page"), "the page").unwrap();
    let strace = ["-f", "-Y", "-qq", "-e", "trace=openat2,openat,statx,newfstatat,fstat"];
    let tried = Command::new("strace").args(strace).args(["-o", "/dev/null", "true"]).output();
    if !tried.is_ok_and(|output| output.status.success()) {
        println!("skipped: no strace here, or it may not trace");
        return;
    }
    let child = Command::new("strace")
        .args(strace)
        .arg("-o")
        .arg(&trace)
        .arg(std::env::current_exe().unwrap())
        .args(["site::a_site_by_itself", "--exact", "--ignored", "--nocapture", "--test-threads", "1"])
        .env("SITE_FOLDER", &site)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut process = Process { child };
    let mut lines = BufReader::new(process.child.stdout.take().unwrap()).lines();
    let address = lines.find_map(|line| Some(line.unwrap().split_once("listening on http://")?.1.to_owned())).unwrap();
    let mut client = Client::new(TcpStream::connect(address).unwrap());
    for _ in 0..5 {
        for _ in 0..20 {
            assert_eq!(client.get("/page").text(), "the page");
        }
        std::thread::sleep(2 * REVALIDATE_AFTER);
    }
    drop(process.child.stdin.take());
    process.child.wait().unwrap();
    let trace = std::fs::read_to_string(trace).unwrap();
    let of = |thread: &str| {
        let its = trace.lines().filter(|line| line.contains(thread)).filter(|line| !line.contains("resumed>"));
        its.collect::<Vec<_>>()
    };
    let by_workers = of("<worker-").iter().filter(|line| line.contains("openat2(")).count();
    println!("100 requests: {by_workers} openat2 by workers, {} calls by the shard", of("<shard-").len());
    // The file and its three compressed forms, each time.
    assert!(by_workers >= 8, "it was looked at again");
    assert!(of("<shard-").is_empty(), "{}", of("<shard-").join("\n"));
}
