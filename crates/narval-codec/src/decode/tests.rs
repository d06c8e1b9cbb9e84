//! Tests each format with the usual compression program, if there is one, and with damaged data.

use std::io::{self, BufReader, Read, Write};
use std::process::{Command, Stdio};

use narval_nix::Compression;

use super::*;

/// Compressible text, several buffers long.
fn sample() -> Vec<u8> {
    (0..12_000u32).flat_map(|n| format!("line {n} {}\n", n.wrapping_mul(2_654_435_761)).into_bytes()).collect()
}

fn piped(program: &str, arguments: &[&str], input: &[u8]) -> Vec<u8> {
    let mut child = Command::new(program).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let writer = std::thread::spawn(move || stdin.write_all(&input).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(output.status.success(), "{program}");
    output.stdout
}

fn lz4(input: &[u8]) -> Vec<u8> {
    let mut encoder = lz4_flex::frame::FrameEncoder::new(Vec::new());
    encoder.write_all(input).unwrap();
    encoder.finish().unwrap()
}

fn zstd_frame(input: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(zstd_safe::compress_bound(input.len()));
    zstd_safe::compress(&mut out, input, 3).unwrap();
    out
}

/// Frames with and without their length, an empty one, one with a checksum, and a skippable one.
fn zstd_mixture(text: &[u8]) -> Vec<u8> {
    let mut out = vec![0x53, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3];
    for (number, part) in text.chunks(7000).enumerate() {
        match number % 4 {
            0 => out.extend(zstd_frame(part)),
            1 => out.extend(piped("zstd", &["-3", "--check"], part)),
            2 => out.extend([zstd_frame(b""), zstd_frame(part)].concat()),
            _ => out.extend([&[0x50, 0x2a, 0x4d, 0x18, 0, 0, 0, 0][..], &zstd_frame(part)].concat()),
        }
    }
    out
}

fn samples() -> Vec<(Compression, Vec<u8>)> {
    let text = sample();
    let halves = text.split_at(text.len() / 2);
    let twice = |make: &dyn Fn(&[u8]) -> Vec<u8>| [make(halves.0), make(halves.1)].concat();
    let blocks = ["-1", "-T2", "--block-size=50000"];
    vec![
        (Compression::None, text.clone()),
        (Compression::Xz, piped("xz", &["-6"], &text)),
        (Compression::Xz, piped("xz", &blocks, &text)),
        (Compression::Xz, twice(&|part| piped("xz", &blocks, part))),
        (Compression::Xz, twice(&|part| piped("xz", &["-1"], part))),
        (Compression::Lzma, piped("xz", &["--format=lzma"], &text)),
        (Compression::Bzip2, twice(&|part| piped("bzip2", &[], part))),
        (Compression::Gzip, twice(&|part| piped("gzip", &[], part))),
        (Compression::Lz4, twice(&lz4)),
        (Compression::Zstd, twice(&zstd_frame)),
        (Compression::Zstd, zstd_mixture(&text)),
    ]
}

fn decode(compression: &Compression, bytes: &[u8], threads: usize) -> io::Result<(Vec<u8>, usize)> {
    // A buffer size that divides nothing evenly, to hit every boundary inside the formats.
    let mut decoder = Decoder::new(compression, BufReader::with_capacity(4099, bytes), threads).unwrap();
    let (mut out, mut chunk) = (Vec::new(), vec![0; 10_007]);
    loop {
        match decoder.read(&mut chunk)? {
            0 => break,
            len => out.extend_from_slice(&chunk[..len]),
        }
    }
    let mut rest = Vec::new();
    decoder.source_mut().read_to_end(&mut rest)?;
    Ok((out, rest.len()))
}

#[test]
fn all_formats_decode() {
    let text = sample();
    for (compression, bytes) in samples() {
        for threads in [1, 3] {
            let (out, rest) = decode(&compression, &bytes, threads).unwrap();
            assert!(out == text, "{compression}: {} bytes instead of {}", out.len(), text.len());
            assert_eq!(rest, 0, "{compression}");
        }
    }
}

#[test]
fn brotli_decodes_and_leaves_what_follows() {
    // "hello" as an uncompressed metablock, then three bytes that are not brotli's.
    let stream = [0x0b, 0x02, 0x80, b'h', b'e', b'l', b'l', b'o', 0x03, b'x', b'y', b'z'];
    let (out, rest) = decode(&Compression::Brotli, &stream, 1).unwrap();
    assert_eq!((out.as_slice(), rest), (&b"hello"[..], 3));
    assert!(decode(&Compression::Brotli, &stream[..6], 1).is_err());
}

#[test]
fn cut_files_are_errors() {
    for (compression, bytes) in samples() {
        if matches!(compression, Compression::None) {
            continue;
        }
        for (cut, threads) in [(bytes.len() - 1, 1), (bytes.len() / 3, 1), (bytes.len() - 1, 3), (bytes.len() / 3, 3)] {
            let cut_short = decode(&compression, &bytes[..cut], threads).map(|(out, _)| out.len());
            // A missing end mark of an lz4 frame goes unnoticed; the NAR's size detects it.
            let unnoticed = compression == Compression::Lz4 || compression == Compression::Lzma;
            assert!(cut_short.is_err() || unnoticed, "{compression} cut at {cut}");
        }
    }
}

#[test]
fn xz_that_asks_for_too_much_memory_is_refused() {
    let bytes = piped("xz", &["--lzma2=preset=0,dict=256MiB"], &sample());
    let error = decode(&Compression::Xz, &bytes, 1).unwrap_err();
    assert!(error.to_string().contains("damaged"), "{error}");
}
