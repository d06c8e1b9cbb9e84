//! How full a cache is.

use std::time::{Duration, Instant};

use narval_nix::SecretKey;

use super::*;

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
    forged.info.signatures = vec![SecretKey::generate("own-1").unwrap().sign(b"something")];
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
