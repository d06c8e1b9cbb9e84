//! Compressed NARs that cost more than they hold: padding, and windows of which there is only so much memory.

use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use narval_nix::Sha256;
use zstd::zstd_safe::CParameter;

use crate::lab::{Lab, Nar};
use crate::support::{Answer, noise};

/// How many uploads with the largest windows are sent at once.
const HOSTILE: usize = 64;

fn url(file: &[u8], extension: &str) -> String {
    format!("/nar/{}.nar.{extension}", Sha256::of(file).to_nix32())
}

fn skippable(len: u32) -> Vec<u8> {
    [&0x184D_2A50u32.to_le_bytes()[..], &len.to_le_bytes(), &vec![7; len as usize]].concat()
}

#[test]
fn padding_is_refused() {
    let lab = Lab::new();
    let token = lab.token("push");
    let nar = Nar::of(&b"contents ".repeat(30));
    let good = zstd::encode_all(&nar.bytes[..], 3).unwrap();
    let bzip2 = piped("bzip2", &[], &nar.bytes);
    let empty = piped("bzip2", &[], b"");
    for (what, extension, bad) in [
        ("a skippable frame before", "zst", [&skippable(13), &good[..]].concat()),
        ("a skippable frame after", "zst", [&good[..], &skippable(0)].concat()),
        ("a large skippable frame", "zst", [&good[..], &skippable(30 << 20)].concat()),
        ("zeros after", "zst", [&good[..], &[0; 5]].concat()),
        ("empty streams", "bz2", [&bzip2[..], &empty.repeat(10_000)].concat()),
    ] {
        let put = lab.put(&url(&bad, extension), &token, &bad);
        assert_eq!(put.status, 422, "{what}: {}", put.text());
        assert_eq!(lab.get(&url(&bad, extension)).status, 404, "{what}");
    }
    // Two frames are one NAR, and what does not compress is slightly larger.
    let (start, end) = nar.bytes.split_at(100);
    let frames = [zstd::encode_all(start, 3).unwrap(), zstd::encode_all(end, 3).unwrap()].concat();
    assert_eq!(lab.put(&url(&frames, "zst"), &token, &frames).status, 201);
    let noise = Nar::of(&noise(1, 1 << 20));
    let compressed = piped("bzip2", &[], &noise.bytes);
    assert!(compressed.len() > noise.bytes.len());
    assert_eq!(lab.put(&url(&compressed, "bz2"), &token, &compressed).status, 201);
}

fn piped(program: &str, args: &[&str], bytes: &[u8]) -> Vec<u8> {
    let mut command = Command::new(program);
    command.args(args).arg("-c").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || stdin.write_all(bytes).unwrap());
        let mut out = Vec::new();
        child.stdout.take().unwrap().read_to_end(&mut out).unwrap();
        assert!(child.wait().unwrap().success());
        out
    })
}

/// With a window of 128 MiB.
fn zstd_with_large_window(nar: &[u8]) -> Vec<u8> {
    let mut encoder = zstd::Encoder::new(Vec::new(), 1).unwrap();
    encoder.set_parameter(CParameter::WindowLog(27)).unwrap();
    encoder.write_all(nar).unwrap();
    encoder.finish().unwrap()
}

fn metric(lab: &Lab, name: &str) -> u64 {
    let metrics = lab.get("/metrics");
    metrics.figure(name).unwrap()
}

fn resident_bytes(lab: &Lab) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", lab.server.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() << 10
}

#[test]
fn windows_of_all_uploads_stay_within_their_memory_and_ordinary_ones_finish_meanwhile() {
    let lab = Lab::new();
    let token = lab.token("push");
    // What fills the window compresses to nothing, and what follows does not, so that the window is full before the file ends.
    let nar = Nar::of(&[vec![0; 130 << 20], noise(1, 1 << 20)].concat());
    let files = [
        ("zst", zstd_with_large_window(&nar.bytes)),
        ("xz", piped("xz", &["--lzma2=preset=0,dict=128MiB"], &nar.bytes)),
    ];
    let before = resident_bytes(&lab);
    let (answered, answers) = channel();
    let held: Vec<_> = (0..HOSTILE)
        .map(|number| {
            let (extension, file) = &files[number % 2];
            let head = format!(
                "PUT {} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nAuthorization: Bearer {token}\r\nContent-Length: {}\r\n\r\n",
                url(file, extension),
                file.len()
            );
            let mut stream = lab.server.connect();
            stream.write_all(head.as_bytes()).unwrap();
            let (mut sender, most) = (stream.try_clone().unwrap(), file[..file.len() - 200_000].to_vec());
            let answered = answered.clone();
            std::thread::spawn(move || {
                // The server stops reading what it refuses.
                sender.write_all(&most).ok();
                sender.set_read_timeout(Some(Duration::from_secs(600))).unwrap();
                let mut raw = Vec::new();
                sender.read_to_end(&mut raw).ok();
                if let Some(answer) = Answer::parse(&raw) {
                    answered.send(answer).ok();
                }
            });
            stream
        })
        .collect();
    // All but one: two do not fit, and those that wait do so for a limited time.
    for _ in 0..HOSTILE - 1 {
        let answer = answers.recv_timeout(Duration::from_secs(300)).unwrap();
        assert_eq!(answer.status, 503, "{}", answer.text());
        assert!(answer.field("retry-after").is_some());
    }
    let (used, max) = (metric(&lab, "narval_decode_memory_bytes"), metric(&lab, "narval_decode_memory_max_bytes"));
    assert!((128 << 20..=max).contains(&used), "{used} of {max}");
    let grown = resident_bytes(&lab).saturating_sub(before);
    assert!(grown <= max + (64 << 20), "{} MiB", grown >> 20);
    assert!(metric(&lab, "narval_decode_memory_refused_total") >= HOSTILE as u64 - 1);
    // While one of them holds its window.
    let ordinary = Nar::of(&noise(1, 9 << 20));
    let file = piped("xz", &["-6"], &ordinary.bytes);
    assert_eq!(lab.put(&url(&file, "xz"), &token, &file).status, 201);
    drop(held);
}
