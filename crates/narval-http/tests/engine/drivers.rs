use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};

use crate::harness::Client;
use crate::stopping::{Process, example};

/// As the default filters of Docker and containerd do: io_uring_setup, io_uring_enter and io_uring_register fail with EPERM.
fn spawn_without_uring(driver: &'static str) -> Child {
    // A filter holds for its thread and the processes that thread starts.
    let spawned = std::thread::spawn(move || {
        let rules: BTreeMap<_, _> = (425..=427).map(|syscall| (syscall, Vec::new())).collect();
        let arch = std::env::consts::ARCH.try_into().unwrap();
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(1), arch).unwrap();
        let program: BpfProgram = filter.try_into().unwrap();
        apply_filter(&program).unwrap();
        let mut command = Command::new(example("client_headers"));
        command.args(["--port", "0", "--driver", driver]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    });
    spawned.join().unwrap()
}

#[test]
fn if_io_uring_is_denied_auto_serves_and_uring_reports_why() {
    let refused = spawn_without_uring("uring").wait_with_output().unwrap();
    assert!(!refused.status.success());
    let error = String::from_utf8_lossy(&refused.stderr);
    assert!(error.contains("io_uring") && error.contains("not permitted"), "{error}");
    let mut process = Process { child: spawn_without_uring("auto") };
    let mut line = String::new();
    BufReader::new(process.child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().rsplit('/').next().unwrap().to_owned();
    let mut client = Client::new(TcpStream::connect(address).unwrap());
    for path in ["/", "/worker"] {
        assert_eq!(client.get(path).status, 200);
    }
}
