//! A collection of a cache with many paths: its memory and its time.

use std::process::Command;
use std::time::Instant;

use super::super::*;

/// Paths in the index; ten million by `NARVAL_MARK_PATHS=10000000`.
const PATHS: u64 = 200_000;

/// Bytes of memory for each path. Ten million paths must not need more than 1 GiB.
const BYTES_PER_PATH: u64 = 107;

/// Says to the test program that it is the one to be measured.
const MEASURED: &str = "NARVAL_TEST_MEASURED";

fn paths() -> u64 {
    std::env::var("NARVAL_MARK_PATHS").ok().and_then(|paths| paths.parse().ok()).unwrap_or(PATHS)
}

/// Rows as pushes leave them: 5 to 10 references to earlier paths, most of them to a few hundred that everybody refers to. In steps,
/// in SQL that both databases know.
fn fill(fixture: &Fixture, paths: u64) {
    let cache = "(select min(id) from caches)";
    // 32 characters that a hash part may have, from a number.
    let part = |number: &str| {
        if place::is_on_postgres() {
            format!("translate(md5(({number})::text), 'e', 'g')")
        } else {
            format!("printf('%016d%016d', ({number}) * 7919 % 9999999967, {number})")
        }
    };
    let series = |from: u64, to: u64| {
        if place::is_on_postgres() {
            format!("(select generate_series({from}, {}) as i) s", to - 1)
        } else {
            format!(
                "(with recursive s(i) as (select {from} union all select i + 1 from s where i < {} - 1) select i from s) s",
                to
            )
        }
    };
    let blob = if place::is_on_postgres() {
        "decode(md5(i::text) || md5(i::text), 'hex')"
    } else {
        "cast(printf('%032d', i) as blob)"
    };
    let nars = format!(
        "insert into nars (cache, name, nar_hash, compression, nar_size, file_hash, file_size, listing_size, found, added, used) \
         select {cache}, i || '.nar.zst', {blob}, 'zstd', 100, {blob}, 50, 5, '', 1, 1 from"
    );
    // Without looking up each row that a row refers to, which takes PostgreSQL most of the time.
    let fast = if place::is_on_postgres() { "set session_replication_role = replica; " } else { "" };
    for from in (0..paths).step_by(1_000_000) {
        let series = series(from, (from + 1_000_000).min(paths));
        fixture.folder.sql(&format!("{fast}{nars} {series}"));
        let text = if place::is_on_postgres() { "convert_to(repeat('n', 700), 'UTF8')" } else { "zeroblob(700)" };
        fixture.folder.sql(&format!(
            "{fast}insert into paths (cache, hash_part, path, nar_hash, file, narinfo, listing_size, version, added, used) \
             select {cache}, {0}, {0} || '-name-1.0', {blob}, i || '.nar.zst', {text}, 5, 1, 1000, 1000 + i * 31 % 5000 from {series}",
            part("i")
        ));
        for number in 0..10 {
            // Every second path has 10 references, the others 5.
            let some = if number < 5 { "true" } else { "i % 2 = 0" };
            let to = match number {
                0..6 => format!("i * {} % (1 + i % 300)", number * 2 + 7),
                _ => format!("i / {} + {number}", number - 4),
            };
            fixture.folder.sql(&format!(
                "{fast}insert into refs (referrer, reference) select p.id, {} from {series} \
                 join paths p on p.cache = {cache} and p.hash_part = {} where i > 600 and {some} on conflict do nothing",
                part(&to),
                part("i")
            ));
        }
    }
}

/// The largest amount of memory that this process has had, in bytes.
fn memory_max() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

#[test]
#[ignore = "the process that is measured"]
fn marks_what_is_there() {
    let Some(folder) = std::env::var_os(MEASURED) else { return };
    let data = Place::told(folder.as_ref());
    let cache = data.cache(&CacheName::default()).unwrap().unwrap();
    // Half of all uses are before this.
    let settings = CacheSettings { retention_days: Some(1), ..CacheSettings::default() };
    cache.set_settings(&settings).unwrap();
    let before = memory_max();
    let begun = Instant::now();
    let (kept, forgotten) = cache.mark_only(24 * 60 * 60 + 3500).unwrap();
    println!(
        "{kept} kept, {forgotten} forgotten, {:.1} s, {} bytes",
        begun.elapsed().as_secs_f64(),
        memory_max() - before
    );
}

#[test]
fn a_collection_needs_little_memory_for_each_path() {
    if place::wants_bucket() {
        // The index is the same.
        return;
    }
    let (paths, fixture) = (paths(), Fixture::new());
    fill(&fixture, paths);
    let mut command = Command::new(std::env::current_exe().unwrap());
    let name = format!("{}::marks_what_is_there", module_path!().split_once("::").unwrap().1);
    command
        .args(["--exact", &name, "--ignored", "--nocapture", "--test-threads=1"])
        .env(MEASURED, fixture.folder.path());
    fixture.folder.tell(&mut command);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = said.lines().find(|line| line.contains("forgotten")).unwrap_or_else(|| panic!("{output:?}"));
    eprintln!("{paths} paths: {line}");
    let numbers: Vec<u64> = line.split([' ', '.']).filter_map(|word| word.parse().ok()).collect();
    assert_eq!(numbers[0] + numbers[1], paths);
    assert!(numbers[0] > paths / 10 && numbers[1] > paths / 100, "{line}");
    // Besides paths: connections, pages of the database, one step's rows.
    let bytes = *numbers.last().unwrap();
    assert!(bytes < paths * BYTES_PER_PATH + (16 << 20), "{line}");
}
