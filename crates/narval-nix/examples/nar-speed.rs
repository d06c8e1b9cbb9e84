//! How fast the NAR decoder is: `cargo run --release -p narval-nix --example nar-speed -- FILE.nar [PIECE_BYTES]`.
//!
//! Reads the NAR into memory, decodes it ten times in pieces as they would come from a socket, and prints the median.

use std::error::Error;
use std::time::Instant;

use narval_nix::Sha256;
use narval_nix::nar::Decoder;

const RUNS: usize = 10;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: nar-speed FILE.nar [PIECE_BYTES]")?;
    let piece = arguments.next().map_or(Ok(256 * 1024), |text| text.parse::<usize>())?;
    let nar = std::fs::read(&path)?;
    let megabytes = nar.len() as f64 / 1e6;
    let mut events = 0;
    let decoding = median(|| events = decode(&nar, piece).unwrap_or(0));
    let hashing = median(|| {
        std::hint::black_box(Sha256::of(&nar));
    });
    if events == 0 {
        return Err(format!("{path} is no NAR").into());
    }
    println!("{megabytes:.1} MB, {events} events, pieces of {piece} bytes, median of {RUNS}");
    println!("decode  {:>9.0} MB/s  {:>6.1} ns/event", megabytes / decoding, decoding * 1e9 / events as f64);
    println!("sha256  {:>9.0} MB/s", megabytes / hashing);
    Ok(())
}

fn decode(nar: &[u8], piece: usize) -> Result<u64, Box<dyn Error>> {
    let mut decoder = Decoder::with_nar_size(nar.len() as u64);
    let mut events = 0;
    for mut input in nar.chunks(piece.max(1)) {
        while let (used, Some(event)) = decoder.next(input)? {
            std::hint::black_box(&event);
            events += 1;
            input = &input[used..];
        }
    }
    decoder.finish()?;
    Ok(events)
}

/// Seconds of the median run.
fn median(mut run: impl FnMut()) -> f64 {
    let mut seconds = [0.0; RUNS];
    for slot in &mut seconds {
        let start = Instant::now();
        run();
        *slot = start.elapsed().as_secs_f64();
    }
    seconds.sort_by(f64::total_cmp);
    seconds[RUNS / 2]
}
