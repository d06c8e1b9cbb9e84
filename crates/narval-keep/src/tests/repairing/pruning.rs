//! Old backups are removed with what only they need, whatever happens meanwhile.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::time::Duration;

use narval_files::Work;

use super::super::*;
use super::backups::{Destination, WHOLE, administrator, backup, path, run, whole};
use super::migrating::other_kind;
use crate::location::StorageLocation;
use crate::upkeep::Removed;

const DAY: u64 = 24 * 60 * 60;

const fn newest(count: usize) -> NonZeroUsize {
    NonZeroUsize::new(count).unwrap()
}

/// All but the last backup, as if that were two days old.
pub(super) fn remove(data: &Data, place: &StorageLocation) {
    let last = Data::backups(place).unwrap().pop().unwrap();
    data.prune_at(place, newest(1), last.created + 2 * DAY, Work::unwatched()).unwrap();
}

fn parts(paths: &[&TestPath]) -> BTreeSet<HashPart> {
    paths.iter().map(|path| path.part()).collect()
}

/// The paths of a backup, each verified in the place that it is restored to.
fn restored(fixture: &Fixture, from: &StorageLocation, id: &str, name: &str) -> BTreeSet<HashPart> {
    restored_to(&Destination::new(&fixture.folder, name).unwrap(), from, id)
}

fn restored_to(to: &Destination, from: &StorageLocation, id: &str) -> BTreeSet<HashPart> {
    let restored =
        Data::restore((from, Some(id)), &to.place, to.database.clone(), &administrator(), Work::unwatched()).unwrap();
    whole(&restored.0)
}

fn delete(fixture: &Fixture, path: &TestPath) {
    fixture.cache.delete(&path.part(), true, &with_scopes("delete")).unwrap();
}

#[test]
fn old_backups_go_with_what_only_they_need() {
    let fixture = Fixture::new();
    let folder = tempfile::tempdir().unwrap();
    let Some((place, _server)) = other_kind(&fixture.folder, &folder.path().join("b"), "pruned") else { return };
    let data = &fixture.data;
    let [always, first, second, third] = ["always", "first", "second", "third"].map(path);
    always.push(&fixture.cache).unwrap();
    let mut ids = Vec::new();
    for (new, old) in [(&first, None), (&second, Some(&first)), (&third, Some(&second))] {
        new.push(&fixture.cache).unwrap();
        old.iter().for_each(|old| delete(&fixture, old));
        ids.push(backup(data, &place).backup);
    }
    let last = ids[2].created;
    let listed = || Data::backups(&place).unwrap().into_iter().map(|backup| backup.id).collect::<Vec<_>>();
    let prune = |keep: usize, now: u64| data.prune_at(&place, newest(keep), now, Work::unwatched()).unwrap();
    // A restore may be reading the one that was the second newest a moment ago.
    assert_eq!(prune(2, last + DAY - 1), Removed::default());
    assert_eq!(prune(3, last + 9 * DAY), Removed::default());
    let removed = prune(2, last + DAY);
    assert_eq!((removed.backups, removed.nars), (1, 1), "{removed:?}");
    assert!(removed.nar_bytes > 0 && listed() == [&*ids[1].id, &*ids[2].id]);
    assert_eq!(prune(2, last + DAY), Removed::default());
    assert_eq!(restored(&fixture, &place, &ids[1].id, "second-kept"), parts(&[&always, &second]));
    assert_eq!(restored(&fixture, &place, &ids[2].id, "third-kept"), parts(&[&always, &third]));
    // What was removed is saved again if it comes back.
    first.push(&fixture.cache).unwrap();
    let done = data.backup(&place, BackupOptions { keep: Some(newest(1)), ..WHOLE }, Work::unwatched()).unwrap();
    assert_eq!((done.nars, done.removed), (1, Removed::default()), "none of them has been there for a day");
    let removed = prune(1, done.backup.created + DAY);
    assert_eq!((removed.backups, removed.nars), (2, 1), "{removed:?}");
    assert_eq!(restored(&fixture, &place, &done.backup.id, "last-kept"), parts(&[&always, &third, &first]));
}

#[test]
fn a_backup_that_cannot_be_read_may_need_everything() {
    let fixture = Fixture::new();
    let Some(to) = Destination::new(&fixture.folder, "all-kept") else { return };
    let folder = tempfile::tempdir().unwrap();
    let place = StorageLocation::Folder(folder.path().join("b"));
    let path = path("one");
    path.push(&fixture.cache).unwrap();
    let first = backup(&fixture.data, &place).backup;
    delete(&fixture, &path);
    let last = backup(&fixture.data, &place).backup;
    let strange = folder.path().join("b/caches/default/_narval/backups/00000000000001-00000000.json");
    std::fs::write(&strange, "of a later version").unwrap();
    let prune = || fixture.data.prune_at(&place, newest(1), last.created + DAY, Work::unwatched());
    let error = prune().unwrap_err().to_string();
    assert!(error.contains("is damaged"), "{error}");
    std::fs::remove_file(strange).unwrap();
    assert_eq!(restored_to(&to, &place, &first.id), parts(&[&path]));
    assert_eq!(prune().unwrap().backups, 1);
}

/// A restore of the last backup, which is the last one no more, of many, at its end.
#[test]
fn a_restore_ends_while_old_backups_are_removed() {
    let fixture = Fixture::new();
    let folder = tempfile::tempdir().unwrap();
    let Some((place, _server)) = other_kind(&fixture.folder, &folder.path().join("b"), "pruned-beside") else { return };
    let paths: Vec<TestPath> = (0..80).map(|number| path(&format!("path-{number}"))).collect();
    paths.iter().for_each(|path| drop(path.push(&fixture.cache).unwrap()));
    let id = backup(&fixture.data, &place).backup.id;
    let all = std::thread::scope(|scope| {
        let restore = scope.spawn(|| restored(&fixture, &place, &id, "beside"));
        for path in &paths {
            if restore.is_finished() {
                break;
            }
            delete(&fixture, path);
            let created = backup(&fixture.data, &place).backup.created;
            fixture.data.prune_at(&place, newest(1), created + 60 * 60, Work::unwatched()).unwrap();
        }
        restore.join().unwrap()
    });
    assert_eq!(all, parts(&paths.iter().collect::<Vec<_>>()));
}

#[test]
fn a_removal_that_is_killed_leaves_each_backup_whole_and_is_continued() {
    let fixture = Fixture::new();
    let folder = tempfile::tempdir().unwrap();
    let Some((place, _server)) = other_kind(&fixture.folder, &folder.path().join("b"), "pruned-killed") else { return };
    let always = path("always");
    always.push(&fixture.cache).unwrap();
    let (mut before, mut took, mut interrupted): (Vec<TestPath>, u64, usize) = (Vec::new(), 0, 0);
    for round in 0..4 {
        let new: Vec<TestPath> = (0..24).map(|number| path(&format!("path-{round}-{number}"))).collect();
        new.iter().for_each(|path| drop(path.push(&fixture.cache).unwrap()));
        before.iter().for_each(|path| delete(&fixture, path));
        before = new;
        backup(&fixture.data, &place);
        let begun = std::time::Instant::now();
        // The first one shows how long it takes.
        let ended = run(&fixture, "remove", &place, None, (round > 0).then(|| took * (round + 1) / 5));
        took = took.max(u64::try_from(begun.elapsed().as_millis()).unwrap());
        interrupted += usize::from(!ended);
        let expected: BTreeSet<HashPart> = before.iter().chain([&always]).map(TestPath::part).collect();
        let listed = Data::backups(&place).unwrap();
        for (at, backup) in listed.iter().enumerate() {
            let found = restored(&fixture, &place, &backup.id, &format!("killed-{round}-{at}"));
            assert!(found.contains(&always.part()) && found.len() == 25, "{backup:?} of {}", listed.len());
            assert!(at + 1 < listed.len() || found == expected, "the last one");
        }
        // A bucket is another's for some time after one was killed.
        while fixture.cache.index().held_since().unwrap().is_some() {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    eprintln!("{interrupted} rounds ended in the middle");
    let last = Data::backups(&place).unwrap().pop().unwrap();
    remove(&fixture.data, &place);
    assert_eq!(Data::backups(&place).unwrap(), std::slice::from_ref(&last));
    // Nothing is left but what it needs.
    let (nars, rows, removed) = stored(&place);
    assert!(nars == 25 && rows <= 4 && removed == 0, "{nars} NARs, {rows} rows, {removed} lists");
    assert_eq!(restored(&fixture, &place, &last.id, "killed-last").len(), 25);
}

/// How many NARs, files of rows, and lists of removed backups there are.
fn stored(place: &StorageLocation) -> (usize, usize, usize) {
    let files = match place {
        StorageLocation::Folder(folder) => folder.join("caches/default"),
        StorageLocation::Bucket { url, .. } => {
            let shown = url.to_string();
            s3::S3Server::shared().unwrap().root().join(shown.strip_prefix("s3://").unwrap())
        }
    };
    let count = |below: &str| std::fs::read_dir(files.join(below)).map_or(0, Iterator::count);
    (count("nar"), count("_narval/rows"), count("_narval/removed"))
}

/// Backups into one bucket exclude each other; one that was killed ends by itself.
#[test]
fn a_bucket_is_for_one_backup_at_a_time() {
    let fixture = Fixture::new();
    let index = fixture.cache.index();
    let held = index.hold_nars(Some("one")).unwrap().unwrap();
    assert!(index.hold_nars(Some("one")).unwrap().is_none());
    let other = index.hold_nars(Some("other")).unwrap().unwrap();
    assert!(index.hold_nars(None).unwrap().is_some() && index.hold_nars(None).unwrap().is_some());
    assert!(index.keep_hold(&held).unwrap() && index.keep_hold(&other).unwrap());
    index.end_hold(&held).unwrap();
    assert!(!index.keep_hold(&held).unwrap(), "what it needs may be gone");
    assert!(index.hold_nars(Some("one")).unwrap().is_some());
}
