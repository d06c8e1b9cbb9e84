//! What producing NARs costs: plans and streams the closure of a store path several times, and prints the CPU time per GB,
//! beside that of opening and reading the same files in the same order without any NAR. Before that, that of the questions
//! that come with each narinfo; and every NAR's hash is compared with what the store says.
//!
//! ```text
//! cargo run --release -p narval-store --example nar_bench -- /nix/store/… [read-ahead threads] [rounds]
//! ```
#![allow(clippy::print_stdout, reason = "a program that prints")]

use std::collections::BTreeSet;
use std::error::Error;
use std::io::Read;
use std::sync::Arc;
use std::time::{Duration, Instant};

use narval_nix::{Sha256Hasher, StorePath};
use narval_store::{Environment, NarLayout, NarNode, NarReader, NarStream, ReadAhead, Step, Store, StoreConfig};

fn cpu() -> Duration {
    let usage = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(usage.tv_sec).unwrap_or(0), u32::try_from(usage.tv_nsec).unwrap_or(0))
}

fn measure(
    what: &str,
    bytes: u64,
    entries: usize,
    run: impl FnOnce() -> Result<(), Box<dyn Error>>,
) -> Result<(), Box<dyn Error>> {
    let (wall, before) = (Instant::now(), cpu());
    run()?;
    let (wall, cpu) = (wall.elapsed(), cpu() - before);
    let per_gb = cpu.as_secs_f64() / (bytes as f64 / 1e9);
    let per_entry = cpu.as_secs_f64() * 1e6 / entries as f64;
    println!(
        "{what:24} {:8.1} ms wall {:8.1} ms CPU {per_gb:7.3} CPU s/GB {per_entry:6.2} µs CPU/entry",
        wall.as_secs_f64() * 1e3,
        cpu.as_secs_f64() * 1e3
    );
    Ok(())
}

/// What is asked for each narinfo.
fn questions(store: &Store, closure: &BTreeSet<StorePath>) -> Result<(), Box<dyn Error>> {
    const TIMES: u32 = 200;
    let count = TIMES * u32::try_from(closure.len())?;
    let before = cpu();
    for _ in 0..count {
        store.stamp().ok_or("the database is in motion")?;
    }
    println!("{:24} {:8.2} µs CPU", "stamp", (cpu() - before).as_secs_f64() * 1e6 / f64::from(count));
    let before = cpu();
    for _ in 0..TIMES {
        for path in closure {
            store.path_info_by_hash_part(&path.hash_part())?.ok_or("a path that isn't valid")?;
        }
    }
    println!("{:24} {:8.2} µs CPU", "path info by hash part", (cpu() - before).as_secs_f64() * 1e6 / f64::from(count));
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let top = arguments.next().ok_or("usage: nar_bench STORE-PATH [THREADS] [ROUNDS]")?;
    let threads = arguments.next().map_or(Ok(2), |text| text.parse())?;
    let rounds: usize = arguments.next().map_or(Ok(3), |text| text.parse())?;
    let store = Store::new(StoreConfig::from_environment(&Environment::of_process())?);
    let mut closure = BTreeSet::new();
    let mut next = vec![store.store_dir().parse(&top)?];
    while let Some(path) = next.pop() {
        if closure.insert(path.clone()) {
            next.extend(store.references(&path)?);
        }
    }
    let roots: Vec<_> = closure.iter().map(|path| store.real_path(path)).collect();
    let layouts = || roots.iter().map(|path| NarLayout::scan(path).map(Arc::new)).collect::<Result<Vec<_>, _>>();
    let planned = layouts()?;
    let bytes: u64 = planned.iter().map(|layout| layout.size_bytes()).sum();
    let entries: usize = planned.iter().map(|layout| layout.entry_count()).sum();
    let memory: usize = planned.iter().map(|layout| layout.memory_bytes()).sum();
    println!(
        "{} paths, {entries} entries, {bytes} bytes of NAR, {:.1} bytes of memory per entry",
        roots.len(),
        memory as f64 / entries as f64
    );
    let ahead = Arc::new(ReadAhead::start(threads, 16 << 20)?);
    questions(&store, &closure)?;
    let mut sink = vec![0; 256 * 1024];
    measure("stream and hash", bytes, entries, || {
        for path in &closure {
            let info = store.path_info(path)?.ok_or("a path that isn't valid")?;
            let (mut nar, mut hasher) = (NarReader::open(&store.real_path(path))?, Sha256Hasher::new());
            loop {
                match nar.read(&mut sink)? {
                    0 => break,
                    read => hasher.update(sink.get(..read).unwrap_or_default()),
                }
            }
            if hasher.finish() != info.nar_hash {
                return Err(format!("'{path}' has another hash than the store says").into());
            }
        }
        Ok(())
    })?;
    for _ in 0..rounds {
        measure("plan", bytes, entries, || {
            layouts()?;
            Ok(())
        })?;
        measure("open, read, close", bytes, entries, || {
            for (layout, root) in planned.iter().zip(&roots) {
                let mut paths: Vec<std::path::PathBuf> = Vec::new();
                for entry in layout.entries() {
                    let name = <std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(entry.name);
                    let path = paths.get(entry.parent).map_or_else(|| root.clone(), |parent| parent.join(name));
                    if matches!(entry.node, NarNode::Regular { .. }) {
                        let mut file = std::fs::File::open(&path)?;
                        while file.read(&mut sink)? > 0 {}
                    }
                    paths.push(path);
                }
            }
            Ok(())
        })?;
        for (what, ahead) in [("stream", None), ("stream, read ahead", Some(&ahead))] {
            measure(what, bytes, entries, || {
                let mut total = 0;
                let mut buffer = Vec::new();
                for (layout, root) in planned.iter().zip(&roots) {
                    let mut stream = NarStream::open(layout.clone(), root, 0..layout.size_bytes(), ahead.cloned())?;
                    loop {
                        buffer.clear();
                        let step = stream.fill(&mut buffer, 256 * 1024)?;
                        total += buffer.len() as u64;
                        match step {
                            Step::More => {}
                            // Read as a sender without sendfile would.
                            Step::File(part) => {
                                let mut at = part.offset;
                                let end = part.offset + part.length;
                                while at < end {
                                    let wanted = usize::try_from(end - at)?.min(sink.len());
                                    let read =
                                        rustix::io::pread(&*part.file, sink.get_mut(..wanted).unwrap_or_default(), at)?;
                                    at += read as u64;
                                    total += read as u64;
                                }
                            }
                            Step::Done => break,
                        }
                    }
                }
                if total == bytes { Ok(()) } else { Err("a short NAR".into()) }
            })?;
        }
    }
    Ok(())
}
