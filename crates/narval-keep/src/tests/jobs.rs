//! Jobs: who may change something for one, and what their options are.

use narval_files::Work;
use narval_nix::SecretKey;
use serde_json::json;

use super::*;

fn admin() -> Grant {
    Grant::administrator("test")
}

fn start(fixture: &Fixture, kind: JobKind, options: &serde_json::Value) -> Result<Job, Rejection> {
    fixture.cache.start_job(kind, options, None, &admin()).map(|(job, _)| job)
}

/// A process that was paused goes on when another one does its job already.
#[test]
fn a_job_that_was_taken_over_changes_nothing() {
    let fixture = Fixture::new();
    let (cache, index) = (&fixture.cache, &fixture.data.shared().index);
    let job = start(&fixture, JobKind::Rotate, &json!({})).unwrap();
    let paused = index.claim_job().unwrap().unwrap();
    assert_eq!((&paused.id, index.claim_job().unwrap()), (&job.id, None));
    assert!(index.as_job(&paused.id, paused.fence, || cache.rotate_key(0, &admin())).is_ok());
    fixture.folder.sql("update jobs set until = 0");
    let other = index.claim_job().unwrap().unwrap();
    let refused = index.as_job(&paused.id, paused.fence, || cache.rotate_key(0, &admin()));
    assert_eq!(refused.unwrap_err().kind, RejectionKind::Conflict);
    let path = TestPath::new("a", &[]);
    let refused = index.as_job(&paused.id, paused.fence, || path.push(cache));
    assert_eq!(refused.unwrap_err().kind, RejectionKind::Conflict);
    assert!(cache.list().unwrap().is_empty() && cache.keys().unwrap().len() == 1);
    // Another thread is no job, and nor is this one any more.
    path.push(cache).unwrap();
    assert!(index.as_job(&other.id, other.fence, || cache.rotate_key(0, &admin())).is_ok());
    assert!(index.end_job(&other.id, other.fence, (JobState::Done, "{}".to_owned())).unwrap());
    let refused = index.as_job(&other.id, other.fence, || cache.rotate_key(0, &admin()));
    assert_eq!(refused.unwrap_err().kind, RejectionKind::Conflict, "it has ended");
}

/// One that was killed goes on with the key that it has made, and signs nothing that no key of the cache has signed.
#[test]
fn a_rotation_makes_one_key_and_signs_what_the_old_ones_have() {
    let fixture = Fixture::new();
    let cache = &fixture.cache;
    cache.rotate_key(0, &admin()).unwrap();
    let first = fixture.data.signing_keys().unwrap().remove(cache.name()).unwrap();
    let own = SecretKey::generate("own-1").unwrap();
    let signer = Grant { scopes: "push,sign".parse().unwrap(), ..admin() };
    let push = |name: &str, keys: Vec<SecretKey>, grant: &Grant| {
        cache.set_sign_keys(keys);
        let path = TestPath::new(name, &[]);
        path.send(cache, Compression::Zstd).unwrap();
        cache.commit_narinfos(&[path.narinfo(Compression::Zstd)], grant).unwrap();
        path.part()
    };
    let signed = push("signed", first.clone(), &signer);
    let by_file = push("by-the-key-of-a-file", vec![own.clone()], &signer);
    let unsigned = push("unsigned", vec![own.clone()], &pusher());
    let job = start(&fixture, JobKind::Rotate, &json!({"overlapSeconds": 60})).unwrap();
    // Stopped before it has signed anything, and done again.
    let stopped = Work::new();
    stopped.stop();
    cache.set_sign_keys([first.clone(), vec![own.clone()]].concat());
    let made = cache.rotate(60, job.created, &admin(), &stopped).unwrap().key;
    cache.set_sign_keys([first, vec![own]].concat());
    let done = cache.rotate(60, job.created, &admin(), Work::unwatched()).unwrap();
    assert_eq!((&done.key, cache.keys().unwrap().len()), (&made, 2));
    assert_eq!(done.signed.failed, 0);
    let names = |part| -> Vec<String> {
        let info = cache.narinfo(&part).unwrap().unwrap();
        let info = NarInfo::parse(&info, &StoreDir::default()).unwrap();
        info.signatures.iter().map(|signature| signature.key_name().to_owned()).collect()
    };
    assert!(names(signed).contains(&"default-2".to_owned()) && names(by_file).contains(&"default-2".to_owned()));
    assert!(names(unsigned).is_empty(), "nobody has vouched for it");
    // The next one in the same second makes another key.
    let next = start(&fixture, JobKind::Rotate, &json!({})).unwrap_err();
    assert_eq!(next.kind, RejectionKind::Conflict, "one of a kind");
    fixture.folder.sql("delete from jobs");
    let next = start(&fixture, JobKind::Rotate, &json!({})).unwrap();
    let done = cache.rotate(60, next.created, &admin(), Work::unwatched()).unwrap();
    assert_eq!((done.key.public_key.name(), cache.keys().unwrap().len()), ("default-3", 3));
}

#[test]
fn options_and_destinations() {
    let fixture = Fixture::new();
    let folder = tempfile::tempdir().unwrap();
    let url = format!("file://{}", folder.path().display());
    let migrated = Destination::Migrate { place: folder.path().join("data").as_path().into(), database: None };
    let all = [("mirror", Destination::Export(url.parse().unwrap())), ("new", migrated)];
    fixture.data.set_destinations(all.map(|(name, to)| (name.to_owned(), to)).into());
    let malformed = [
        (JobKind::Export, json!({"to": url})),
        (JobKind::Export, json!({"to": "new"})),
        (JobKind::Export, json!({})),
        (JobKind::Migrate, json!({"to": "mirror"})),
        (JobKind::Recompress, json!({"to": "mirror"})),
        (JobKind::Rotate, json!({"overlapSeconds": -1})),
        (JobKind::Gc, json!({"dryRun": 1})),
    ];
    for (kind, options) in malformed {
        assert_eq!(start(&fixture, kind, &options).unwrap_err().kind, RejectionKind::Malformed, "{kind} {options}");
    }
    let some = Grant { caches: CachePatterns::new(&["default"]).unwrap(), ..admin() };
    let may = |kind, to: &str| fixture.cache.start_job(kind, &json!({"to": to}), None, &some);
    assert_eq!(may(JobKind::Migrate, "new").unwrap_err().kind, RejectionKind::Forbidden);
    assert!(may(JobKind::Export, "mirror").unwrap().1);
    assert!(start(&fixture, JobKind::Migrate, &json!({"to": "new"})).is_ok());
}
