//! How fast a presence filter is made and asked, and how large it is: `cargo run --release -p narval-nix --example presence-speed [PATHS]`.

use std::hint::black_box;
use std::time::Instant;

use narval_nix::presence::{Changes, Filter, PATHS_MAX, Snapshot, key};
use narval_nix::{HashPart, SecretKey, StoreDir, TrustedKeys};

/// A hash part, as uniform as real ones.
fn hash_part(series: u64, at: u64) -> HashPart {
    let mut digest = [0; 20];
    for (word, bytes) in digest.chunks_mut(8).enumerate() {
        let mut hash = (series << 40 | at).wrapping_add((word as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bytes.copy_from_slice(&(hash ^ (hash >> 31)).to_le_bytes()[..bytes.len()]);
    }
    HashPart::from_digest(&digest)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let paths: u64 = std::env::args().nth(1).map_or(Ok(10_000_000), |text| text.parse())?;
    if paths == 0 || paths > PATHS_MAX as u64 {
        return Err("PATHS is from 1 to 16777216".into());
    }
    let keys: Vec<u64> = (0..paths).map(|at| key(&hash_part(1, at))).collect();
    let began = Instant::now();
    let filter = Filter::build(keys.clone())?;
    println!("{paths} paths: made in {:.2} s", began.elapsed().as_secs_f64());
    let file = Snapshot { instance: 1, sequence: 1, filter: filter.clone() }.render(&StoreDir::default(), [])?;
    println!("{} bytes, {:.3} a path", file.len(), file.len() as f64 / paths as f64);

    let absences = keys.iter().filter(|key| !filter.contains(**key)).count();
    println!("{absences} of {paths} wrongly absent");
    let others: Vec<HashPart> = (0..1_000_000).map(|at| hash_part(2, at)).collect();
    let (mut presences, mut fastest) = (0, f64::INFINITY);
    // The fastest of many short rounds: a machine that is busy interrupts some of them.
    for round in others.chunks(20_000) {
        let began = Instant::now();
        presences += round.iter().filter(|part| filter.contains(black_box(key(part)))).count();
        fastest = fastest.min(began.elapsed().as_nanos() as f64 / round.len() as f64);
    }
    println!("{fastest:.0} ns a look-up");
    println!("{:.3} % wrongly present", presences as f64 * 100.0 / others.len() as f64);

    let secret = SecretKey::generate("bench-1")?;
    let trusted = TrustedKeys::from_iter([secret.public_key()]);
    let changed = keys.iter().copied().take(1000).collect();
    let changes = Changes { instance: 1, since: 1, sequence: 1001, nonce: 1, keys: changed };
    let update = changes.render(&StoreDir::default(), [&secret])?;
    println!("{} bytes an update of {} paths", update.len(), changes.keys.len());
    let began = Instant::now();
    let taken = Changes::parse(&update, &StoreDir::default(), Some(&trusted))?;
    println!("{:.0} us to verify it", began.elapsed().as_micros());
    if absences > 0 || taken != changes { Err("the filter is wrong".into()) } else { Ok(()) }
}
