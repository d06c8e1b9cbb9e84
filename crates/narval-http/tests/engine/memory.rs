use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use crate::harness::{PATIENCE, eventually};
use crate::stopping::{Process, example};

pub(crate) fn resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// What a burst of large messages took is not kept.
#[test]
#[cfg(target_env = "gnu")]
fn memory_is_given_back_after_a_burst() {
    let child = Command::new(example("websocket_echo")).args(["--port", "0"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut process = Process { child };
    let mut line = String::new();
    BufReader::new(process.child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().rsplit('/').next().unwrap().rsplit(' ').next().unwrap().to_owned();
    let pid = process.child.id();
    for _ in 0..3 {
        std::thread::scope(|scope| {
            for _ in 0..12 {
                scope.spawn(|| {
                    let stream = TcpStream::connect(&address).unwrap();
                    stream.set_read_timeout(Some(PATIENCE)).unwrap();
                    let config = tungstenite::protocol::WebSocketConfig::default()
                        .max_message_size(None)
                        .max_frame_size(None)
                        .write_buffer_size(0);
                    let url = format!("ws://{address}/");
                    let (mut socket, _) = tungstenite::client::client_with_config(url, stream, Some(config)).unwrap();
                    let message = tungstenite::Message::binary(vec![7; 12 << 20]);
                    socket.send(message.clone()).unwrap();
                    assert!(socket.read().unwrap() == message);
                });
            }
        });
    }
    eventually("it is given back", || resident_kib(pid) < 60_000);
}
