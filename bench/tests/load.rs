//! The measuring client against the echo server: every request answered once, every byte counted,
//! and a wrong answer noticed.

#![allow(clippy::unwrap_used, reason = "a test ends where its preparations fail")]

use std::collections::HashMap;
use std::net::TcpListener;

use narval_bench::client::{BaseUrl, Request};
use narval_bench::echo;
use narval_bench::load::Load;

const LARGE: u64 = 3_000_001;

fn echo_server() -> BaseUrl {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let base = format!("http://{}/sub/", listener.local_addr().unwrap()).parse().unwrap();
    let sizes = [("/sub/empty", 0), ("/sub/small", 600), ("/sub/large", LARGE)];
    let sizes = sizes.map(|(target, size)| (target.to_owned(), size)).into_iter().collect::<HashMap<_, _>>();
    std::thread::spawn(move || echo::serve(&listener, sizes));
    base
}

fn requests(base: &BaseUrl) -> Vec<Request> {
    let sized = |target, size| Request { body_bytes: Some(size), ..Request::get(base, target, "", 200) };
    vec![sized("/empty", 0), sized("/small", 600), sized("/large", LARGE), Request::get(base, "/absent", "", 404)]
}

#[test]
fn every_request_is_answered_once_and_every_byte_counted() {
    let base = echo_server();
    for (connections, close) in [(1, false), (1, true), (7, false), (7, true)] {
        let done = Load { connections, passes: 5, close }.run(&base, &requests(&base)).unwrap();
        assert_eq!(done.requests, 20, "{connections} connections, close {close}");
        assert_eq!(done.bytes, 5 * (600 + LARGE + 9), "{connections} connections, close {close}");
        assert_eq!(done.latencies_ns.len(), if connections == 1 && !close { 20 } else { 0 });
    }
}

#[test]
fn a_wrong_status_and_a_wrong_length_end_the_run() {
    let base = echo_server();
    let wrong_status = Request::get(&base, "/absent", "", 200);
    let wrong_length = Request { body_bytes: Some(601), ..Request::get(&base, "/small", "", 200) };
    for (connections, request) in [(1, &wrong_status), (3, &wrong_status), (1, &wrong_length), (3, &wrong_length)] {
        let result = Load { connections, passes: 1, close: false }.run(&base, std::slice::from_ref(request));
        let message = result.unwrap_err().to_string();
        assert!(message.contains(" in place of "), "{message}");
    }
}

#[test]
fn the_comparison_of_both_ways_to_encrypt_has_lines_and_json() {
    let bench = |args: &[&str]| {
        std::process::Command::new(env!("CARGO_BIN_EXE_narval-bench")).arg("tls").args(args).output().unwrap()
    };
    let output = bench(&["--size-mb", "2", "--downloads", "2", "--json"]);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let line: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&line["file_bytes"], &line["downloads"]), (&2_000_000.into(), &2.into()));
    assert!(line["user"]["bytes_per_cpu_second"].as_f64().unwrap() > 0.0);
    assert!(line["kernel"].is_null() != line["kernel_error"].is_null());
    let output = bench(&["--size-mb", "2", "--downloads", "1"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && text.contains("user space") && text.contains("--ktls "), "{text}");
    let output = bench(&["--size-mb", "0"]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(2) && text.contains("'--size-mb <N>': 0 is not in 1..=65536"), "{text}");
}
