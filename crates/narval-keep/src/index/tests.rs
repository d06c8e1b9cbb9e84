//! What both databases have to do in the same way.

use std::collections::BTreeSet;
use std::time::Duration;

use narval_nix::release::ReleaseSystem;
use narval_nix::{Compression, HashPart, NarHash, Sha256};

use serde_json::{Value, json};

use super::*;
use crate::index::sql::nars::FORMER_MAX;
use crate::name::{CacheName, NarFileName};
use crate::records::jobs::{JOBS_KEPT_MAX, Job, JobKind, JobState};
use crate::records::paths::{Commit, Cutoff, NarRecord, PathRecord};
use crate::records::releases::{Recorded, ReleaseRecord, ReleaseRefused, ReleaseRequest, ReleaseToRecord};

fn part(name: &str) -> HashPart {
    HashPart::from_digest(Sha256::of(name.as_bytes()).as_bytes()[..20].try_into().unwrap())
}

/// A stored NAR, and the name of its file.
fn nar(contents: &str, file: &str, file_size: u64) -> (String, NarRecord) {
    let (nar_hash, file_hash) = (Sha256::of(contents.as_bytes()), Sha256::of(file.as_bytes()));
    let (nar_size, compression, listing_size) = (10, Compression::Zstd, None);
    let nar = NarRecord { nar_hash, nar_size, compression, file_hash, file_size, listing_size, found: Vec::new() };
    (NarFileName::new(file_hash, compression).to_string(), nar)
}

impl dyn Index + '_ {
    /// Records a NAR.
    pub(crate) fn add_file(&self, cache: CacheId, name: &str, nar: &NarRecord, now: u64) -> Result<(), IndexError> {
        self.record_all(cache, vec![(name.to_owned(), nar.clone())], (now, u64::MAX))
    }

    /// Removes what is due.
    pub(crate) fn discard_some(
        &self,
        fence: Fence,
        cache: CacheId,
        before: u64,
    ) -> Result<Vec<(String, u64)>, IndexError> {
        self.discard(fence, cache, Cutoff { orphaned: before, used: before }, (9, 1))
    }
}

/// An entry that was taken over has another number: whoever had the old one settles nothing.
pub(super) fn entries_are_taken_over([one, other]: [&dyn Index; 2]) {
    let cache = one.create_cache(&CacheName::default(), "{}", 1).unwrap().id;
    let note = |name: &str| one.note_pending(cache, part(name)).unwrap();
    let numbers = || one.pending().unwrap().into_iter().map(|(number, ..)| number).collect::<Vec<_>>();
    let old = [note("a"), note("a"), note("b")];
    let file = note("c");
    let mut taken = one.take_over(&[old[0], old[1], old[2], i64::MAX]).unwrap();
    taken.sort_by_key(|(.., part)| part.to_string());
    let mut parts = [part("a"), part("b")];
    parts.sort_by_key(ToString::to_string);
    assert_eq!(taken.iter().map(|(_, of, part)| (*of, *part)).collect::<Vec<_>>(), parts.map(|part| (cache, part)));
    assert!(taken.iter().all(|(number, ..)| *number > file));
    // Somebody else was late, and those that had these numbers settle nothing.
    assert_eq!(other.take_over(&old).unwrap(), Vec::new());
    other.settle_these(&old).unwrap();
    other.settle_alone(cache, &parts, file).unwrap();
    assert_eq!(numbers().len(), 3);
    // While others change the same path, nobody settles it.
    let later = note("a");
    let all: Vec<i64> = taken.iter().map(|(number, ..)| *number).chain([file]).collect();
    one.settle_these(&all).unwrap();
    one.settle_alone(cache, &parts, later).unwrap();
    let of_a = taken.iter().find(|(.., of)| *of == part("a")).unwrap().0;
    assert_eq!(numbers(), [of_a, later]);
    // Until one of them takes over all.
    let merged = other.take_over(&[of_a, later]).unwrap();
    assert_eq!((merged.len(), numbers()), (1, vec![merged[0].0]));
    other.settle_these(&[merged[0].0]).unwrap();
    assert!(numbers().is_empty());
}

/// A cache has one job of a kind at a time, which one server does. Of those that have ended, the newest are kept.
pub(super) fn jobs_are_done_by_one([one, other]: [&dyn Index; 2]) {
    let cache = CacheName::default();
    let job = |number: u64| Job {
        id: format!("job-{number:04}"),
        cache: cache.clone(),
        kind: JobKind::Gc,
        options: json!({}),
        token: String::new(),
        label: String::new(),
        state: JobState::Waiting,
        server: None,
        created: number,
        started: None,
        ended: None,
        progress: json!({}),
        result: Value::Null,
        fence: 0,
        is_cancelled: false,
    };
    assert!(one.add_job(job(0)).unwrap().is_none());
    assert_eq!(other.add_job(job(1)).unwrap().unwrap().id, job(0).id, "it is under way");
    let first = one.claim_job().unwrap().unwrap();
    assert!(other.claim_job().unwrap().is_none(), "somebody does it");
    one.release_job(&first.id, first.fence).unwrap();
    let second = other.claim_job().unwrap().unwrap();
    assert!(second.fence > first.fence);
    // Whoever had it before changes nothing any more.
    assert_eq!(one.renew_job(&first.id, first.fence, "{}".to_owned()).unwrap(), None);
    let done = || (JobState::Done, "null".to_owned());
    assert!(!one.end_job(&first.id, first.fence, done()).unwrap());
    assert!(one.cancel_job(&first.id).unwrap());
    assert_eq!(other.renew_job(&first.id, second.fence, "{}".to_owned()).unwrap(), Some(true), "it was cancelled");
    assert!(other.end_job(&first.id, second.fence, done()).unwrap() && !one.cancel_job(&first.id).unwrap());
    for number in 1..JOBS_KEPT_MAX + 5 {
        assert!(one.add_job(job(number)).unwrap().is_none());
        let claimed = one.claim_job().unwrap().unwrap();
        assert!(one.end_job(&claimed.id, claimed.fence, done()).unwrap());
    }
    assert!(one.add_job(job(JOBS_KEPT_MAX + 5)).unwrap().is_none());
    let kept = |number: u64| one.job(&job(number).id).unwrap().is_some();
    assert!((0..5).all(|number| !kept(number)) && (5..JOBS_KEPT_MAX + 6).all(kept));
}

/// NARs are recorded together, and once. A name means the NAR that has it, or one with the hash in it.
pub(super) fn nars_are_found_by_name_and_by_hash([one, other]: [&dyn Index; 2]) {
    let cache = one.create_cache(&CacheName::default(), "{}", 1).unwrap().id;
    let unique =
        |(name, nar): (String, NarRecord)| (NarFileName::parse(&name).unwrap().unique().unwrap().to_string(), nar);
    let nars = [unique(nar("a", "file of a", 5)), unique(nar("b", "file of b", 7))];
    for index in [one, other] {
        index.record_all(cache, nars.to_vec(), (1, u64::MAX)).unwrap();
        let usage = index.usage(cache).unwrap();
        assert_eq!((usage.files, usage.bytes), (2, 12));
    }
    let late = one.record_all(cache, vec![unique(nar("c", "file of c", 5))], (1, 1)).unwrap_err();
    assert!(matches!(late, IndexError::Late { .. }), "{late:?}");
    let of = |hash: Sha256| NarFileName::new(hash, Compression::Zstd).to_string();
    let found = |name: &str| other.file(cache, name).unwrap();
    for (name, record) in &nars {
        let all = [name.clone(), of(record.file_hash), of(record.nar_hash)];
        for name in &all {
            assert_eq!(found(name).unwrap().1, *record, "{name}");
        }
        assert_eq!(found(&all[1].replace(".zst", ".xz")), None);
        assert_eq!(found(&all[1].replace(".nar", "-0123456789abcdfg.nar")).unwrap().0, *name, "what was here before");
    }
    let former = Sha256::of(b"another file of a");
    assert_eq!(found(&of(former)), None);
    one.remember_former(cache, former, nars[0].1.nar_hash).unwrap();
    assert_eq!(found(&of(former)).unwrap(), nars[0]);
    let many: Vec<Sha256> = (0..2 * FORMER_MAX).map(|number| Sha256::of(number.to_string().as_bytes())).collect();
    for file in &many {
        one.remember_former(cache, *file, nars[1].1.nar_hash).unwrap();
        assert_eq!(found(&of(*file)).unwrap(), nars[1], "the latest one");
    }
    let known = many.iter().filter(|file| found(&of(**file)).is_some()).count();
    assert!(known <= FORMER_MAX as usize + 1, "{known} of {} are remembered", many.len());
    assert_eq!(found(&of(former)).unwrap(), nars[0], "of another NAR");
    let elsewhere = one.create_cache(&CacheName::parse("other").unwrap(), "{}", 1).unwrap().id;
    assert_eq!(one.file(elsewhere, &nars[0].0).unwrap(), None);
    assert_eq!(one.file(elsewhere, &of(former)).unwrap(), None);
    // The latest one: others may be lost.
    let again = unique(nar("a", "file of a", 5));
    one.record_all(cache, vec![again.clone()], (1, u64::MAX)).unwrap();
    assert_eq!((found(&of(again.1.file_hash)), found(&nars[0].0)), (Some(again), Some(nars[0].clone())));
}

/// A large commit takes no more time for each narinfo than a small one. `cpu_time` is that of all threads and processes that commit, so that other tests
/// and programs do not count.
pub(super) fn commits_take_time_in_proportion(index: &dyn Index, cpu_time: impl Fn() -> Duration) {
    let cache = index.create_cache(&CacheName::default(), "{}", 1).unwrap().id;
    let (name, nar) = nar("a", "file of a", 5);
    index.add_file(cache, &name, &nar, 1).unwrap();
    let commit = |round: usize, count: usize| {
        let record = |number: usize| {
            let hash_part = part(&format!("{round} {number}"));
            PathRecord {
                hash_part,
                path: format!("{hash_part}-path"),
                nar_hash: nar.nar_hash,
                file: name.clone(),
                narinfo: b"narinfo".to_vec(),
                references: Vec::new(),
                listing_size: None,
                version: 0,
            }
        };
        let paths = (0..count).map(record).collect();
        let before = cpu_time();
        assert_eq!(index.commit(cache, paths, &[], 1).unwrap(), Commit::Done);
        (cpu_time() - before) / u32::try_from(count).unwrap()
    };
    // In proportion to the square, it would be 16 times as long.
    let small = (0..4).map(|round| commit(round, 1000)).min().unwrap();
    let large = commit(4, 16_000);
    assert!(large < 4 * small, "{small:?} for each of 1,000, {large:?} for each of 16,000");
}

/// A table of machines is bounded: whoever is silent for a day makes room, and nobody else.
pub(super) fn machines_have_limits([one, other]: [&dyn Index; 2]) {
    use super::tx::{Arg, Kind, LARGE, Sql, args};
    use crate::records::machines::{MACHINES_MAX, MachineCursor, Noted, SILENT_FOR};
    static FILL: Sql = Sql::new(
        "insert into narval.machines (cache, name, release, seen, token, report) \
         select $1, r.name, '@web', r.seen, 'token', '{\"release\":\"@web\",\"state\":\"running\"}' from {rows}",
        &[Kind::Int],
        &[("name", Kind::Text), ("seen", Kind::Int)],
    );
    const NOW: u64 = 10 * SILENT_FOR;
    let cache = one.create_cache(&CacheName::default(), "{}", 1).unwrap().id;
    let elsewhere = one.create_cache(&CacheName::parse("other").unwrap(), "{}", 1).unwrap().id;
    one.write(LARGE, move |tx| {
        let names: Vec<String> = (0..MACHINES_MAX).map(|at| format!("m{at:05}")).collect();
        let rows: Vec<Arg<'_>> = names.iter().zip(NOW..).flat_map(|(name, seen)| args![name, seen]).collect();
        tx.execute_all(&FILL, &args![cache], &rows)
    })
    .unwrap();
    let note = |cache, name: &str, now: u64| {
        let key = MachineCursor { name: name.to_owned(), release: "@web".to_owned() };
        let report = r#"{"release":"@web","state":"stopped"}"#.to_owned();
        other.note_machine(cache, key, ("token".to_owned(), report), now).unwrap()
    };
    assert_eq!(note(cache, "new", NOW + SILENT_FOR), Noted::Full, "the first one was heard of a day ago, not longer");
    assert_eq!(note(elsewhere, "new", NOW), Noted::New, "each cache has its own");
    assert_eq!(note(cache, "m00000", NOW + SILENT_FOR), Noted::Again);
    // Now m00001 is the one that was silent for the longest time.
    assert_eq!(note(cache, "new", NOW + SILENT_FOR + 2), Noted::New);
    let after = |name: &str| Some(MachineCursor { name: name.to_owned(), release: "@web".to_owned() });
    let names = |after: Option<MachineCursor>, max| {
        let found = one.machines(cache, after.as_ref(), max).unwrap();
        found.into_iter().map(|machine| machine.name).collect::<Vec<_>>()
    };
    assert_eq!(names(None, 2), ["m00000", "m00002"]);
    assert_eq!(names(after("m09998"), 9), ["m09999", "new"]);
    assert!(one.forget_machine(cache, "m09999".to_owned()).unwrap());
    assert!(!one.forget_machine(cache, "m09999".to_owned()).unwrap());
    one.forget_machines(cache, NOW + SILENT_FOR).unwrap();
    assert_eq!(names(None, 9), ["m00000", "new"]);
    assert_eq!(one.machines(elsewhere, None, 9).unwrap().len(), 1);
}

/// Lists come in pages of limited size, whatever is in them, and names and systems have limits.
pub(super) fn releases_have_limits([one, other]: [&dyn Index; 2]) {
    use crate::records::releases::{ListMax, Listed, RELEASE_NAMES_MAX, RELEASE_SYSTEMS_MAX, ReleaseCursor};
    let cache = one.create_cache(&CacheName::default(), "{}", 1).unwrap().id;
    let record = |name: &str, revision: u64, system: &str, json: String| ReleaseRecord {
        name: name.to_owned(),
        revision,
        system: system.to_owned(),
        version: None,
        created: revision,
        is_pinned: false,
        hold: format!("@{name}@{revision} {system}"),
        json,
        is_kept: false,
        percent: None,
    };
    let restore = |records| one.restore_releases(cache, "id".to_owned(), records).unwrap();
    // Of each name, one system has releases until 3, and the other until 5.
    let of = |name: &str| {
        let rows = (1..=5).flat_map(|revision| ["arm", "x86"].map(|system| (revision, system)));
        let rows = rows.filter(|(revision, system)| *system == "x86" || *revision <= 3);
        rows.map(|(revision, system)| record(name, revision, system, "x".repeat(100))).collect::<Vec<_>>()
    };
    restore(["b", "a-b", "B"].into_iter().flat_map(of).collect());
    let pages = |listed: Listed<'_>, max: ListMax| {
        let (mut pages, mut after): (Vec<Vec<String>>, Option<ReleaseCursor>) = (Vec::new(), None);
        loop {
            let (found, is_more) = other.releases(cache, listed, after.as_ref(), max).unwrap();
            let rows = found.iter().map(|of| format!("{}@{}@{}", of.name, of.revision, of.system)).collect::<Vec<_>>();
            after = rows.last().map(|last| last.parse().unwrap());
            pages.push(rows);
            if !is_more {
                return pages;
            }
        }
    };
    let all = ["b@5@x86", "b@4@x86", "b@3@arm", "b@3@x86", "b@2@arm", "b@2@x86", "b@1@arm", "b@1@x86"];
    let newest = ["B@5@x86", "B@3@arm", "a-b@5@x86", "a-b@3@arm", "b@5@x86", "b@3@arm"];
    let every: Vec<String> =
        ["B", "a-b", "b"].iter().flat_map(|name| all.map(|row| row.replacen('b', name, 1))).collect();
    let every: Vec<&str> = every.iter().map(String::as_str).collect();
    for rows in [1, 2, 3, 100] {
        for (listed, expected) in
            [(Listed::Of("b"), &all[..]), (Listed::Newest, &newest[..]), (Listed::All, &every[..])]
        {
            let by_rows = pages(listed, ListMax { rows, bytes: 1 << 20 });
            assert_eq!(by_rows.concat(), expected, "{rows} rows");
            assert!(by_rows.iter().all(|page| page.len() <= rows as usize));
            let by_bytes = pages(listed, ListMax { rows: 100, bytes: u64::from(rows) * 100 + 50 });
            assert!(by_bytes.concat() == expected && by_bytes.iter().all(|page| page.len() <= rows as usize));
        }
    }
    // A row that is larger than a page has one of its own.
    assert_eq!(pages(Listed::Of("b"), ListMax { rows: 100, bytes: 1 }).len(), all.len());

    let add = |name: &str, system: &str| {
        let system: ReleaseSystem = system.parse().unwrap();
        let make = move |_: &str, revision: u64, _: &[(HashPart, String, NarHash)]| {
            let paths = vec![(system.clone(), part("a"), "a".to_owned())];
            Some((revision, ReleaseToRecord { version: None, percent: None, json: "{}".to_owned(), paths }))
        };
        let asked = ReleaseRequest { name: name.parse().unwrap(), key: None, new_uid: "id".to_owned() };
        match other.add_release(cache, asked, (BTreeSet::new(), 2, 1), make).unwrap() {
            Ok(Recorded::New(revision)) => Ok(revision),
            Ok(Recorded::Again(record)) => panic!("{record}"),
            Err(refused) => Err(refused),
        }
    };
    restore((4..=RELEASE_NAMES_MAX).map(|at| record(&format!("n{at}"), 1, "x86", "{}".to_owned())).collect());
    assert_eq!(add("new", "x86"), Err(ReleaseRefused::Names));
    assert_eq!(add("n7", "x86"), Ok(2), "those that are there go on");
    // What was forgotten makes room: the next name has its place.
    assert_eq!(one.forget_release(cache, "n8", None).unwrap(), Some(true));
    assert_eq!((add("new", "x86"), add("newer", "x86")), (Ok(1), Err(ReleaseRefused::Names)));
    for at in 1..RELEASE_SYSTEMS_MAX {
        assert!(add("n9", &format!("s{at}")).is_ok());
    }
    assert_eq!(add("n9", "one-more"), Err(ReleaseRefused::Systems));
    assert!(add("n9", "s1").is_ok());
}
