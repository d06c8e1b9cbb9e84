//! How full a cache is.

use std::time::{Duration, Instant};

use narval_nix::SecretKey;

use super::super::*;

/// Until a thread has counted.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn paths_without_a_signature_of_each_key_are_counted() {
    let fixture = Fixture::new();
    let cache = &fixture.cache;
    TestPath::new("before", &[]).push(cache).unwrap();
    assert_eq!(cache.fullness().unwrap().unsigned, None, "it has no key");
    let own = SecretKey::generate("own-1").unwrap();
    cache.set_sign_keys(vec![own.clone()]);
    TestPath::new("signed", &[]).push_as(cache, &with_scopes("push,sign")).unwrap();
    // By the name of the key, but not by the key.
    let mut forged = TestPath::new("forged", &[]);
    forged.info.signatures = vec![SecretKey::generate("own-1").unwrap().sign(b"something").unwrap()];
    forged.push(cache).unwrap();
    let full = cache.fullness().unwrap();
    assert_eq!((full.paths, full.unsigned, full.files), (3, Some(2), 3));
    let usage = cache.usage().unwrap();
    assert!(full.nar_bytes > 0 && full.nar_bytes + full.listing_bytes == usage.bytes, "{full:?}");
    assert!(full.oldest_use.is_some() && full.collected.is_none() && full.pins == 0, "{full:?}");
    cache.set_sign_keys(vec![own, SecretKey::generate("own-2").unwrap()]);
    assert_eq!(cache.fullness().unwrap().unsigned, Some(3));
    cache.collect(&CollectOptions::default(), &pusher()).unwrap();
    assert!(cache.fullness().unwrap().collected.is_some() && cache.collections().last.is_some());
}

#[test]
fn a_survey_is_made_on_a_thread_and_lists_tokens_that_will_end() {
    let fixture = Fixture::new();
    TestPath::new("a", &[]).push(&fixture.cache).unwrap();
    let token = |label: &str, expires| NewToken {
        label: label.into(),
        caches: CachePatterns::all(),
        scopes: "pull".parse().unwrap(),
        expires,
    };
    let now = fixture.cache.now();
    let tokens = fixture.data.tokens();
    let (ends, _) = tokens.create(&token("ends", Some(now + 2 * 24 * 60 * 60))).unwrap();
    tokens.create(&token("a job's", Some(now + 3600))).unwrap();
    tokens.create(&token("for ever", None)).unwrap();
    let until = Instant::now() + PATIENCE;
    let survey = loop {
        match fixture.data.survey() {
            Some(survey) => break survey,
            None => assert!(Instant::now() < until),
        }
    };
    assert_eq!(survey.caches[&CacheName::default()].paths, 1);
    assert_eq!(survey.tokens.iter().map(|token| &*token.id).collect::<Vec<_>>(), [&*ends.id]);
}

#[test]
fn what_pins_keep_is_counted_once() {
    let fixture = Fixture::new();
    let cache = &fixture.cache;
    let used = || cache.usage().unwrap().bytes;
    let base = TestPath::new("base", &[]);
    base.push(cache).unwrap();
    let of_base = used();
    let (one, two) = (TestPath::new("one", &[&base]), TestPath::new("two", &[&base]));
    [&one, &two].iter().for_each(|path| drop(path.push(cache).unwrap()));
    let of_pinned = used();
    TestPath::new("alone", &[]).push(cache).unwrap();
    assert_eq!(cache.fullness().unwrap().pinned_bytes, 0);
    let grant = with_scopes("pin");
    for path in [&one, &two] {
        cache.pin("release", &path.info.path.hash_part(), PinFor::default(), &grant).unwrap();
    }
    let sizes = cache.pin_sizes(10).unwrap();
    assert_eq!(sizes.iter().map(|pin| pin.paths).collect::<Vec<_>>(), [2, 2]);
    assert_eq!(sizes.iter().map(|pin| pin.bytes).sum::<u64>(), of_pinned + of_base);
    assert_eq!(cache.fullness().unwrap().pinned_bytes, of_pinned);
    assert_eq!(cache.pin_sizes(1).unwrap().len(), 1);
}

#[test]
fn the_last_lines_of_the_audit_log_come_first() {
    let fixture = Fixture::new();
    let grant = with_scopes("push");
    for at in 0..20 {
        let outcome = if at % 2 == 0 { Ok(String::new()) } else { Err("no".to_owned()) };
        fixture.data.audit().note(&grant, None, "test", &at.to_string(), &outcome);
    }
    let subjects = |max, wanted: fn(&AuditLine) -> bool| -> Vec<String> {
        let wanted = |line: &AuditLine| line.action == "test" && wanted(line);
        fixture.data.last_audit(0, max, wanted).unwrap().into_iter().map(|line| line.subject).collect()
    };
    assert_eq!(subjects(3, |_| true), ["19", "18", "17"]);
    assert_eq!(subjects(2, |line| line.result == "refused"), ["19", "17"]);
    assert!(fixture.data.last_audit(u64::MAX, 3, |_| true).unwrap().is_empty());
}

/// A server records sizes by itself.
#[test]
fn sizes_are_recorded_by_the_day() {
    let fixture = Fixture::new();
    TestPath::new("a", &[]).push(&fixture.cache).unwrap();
    assert!(fixture.cache.sizes_by_day().is_empty());
    fixture.data.note_sizes();
    let sizes = fixture.cache.sizes_by_day();
    assert_eq!((sizes.len(), sizes[0].bytes), (1, fixture.cache.usage().unwrap().bytes));
}
