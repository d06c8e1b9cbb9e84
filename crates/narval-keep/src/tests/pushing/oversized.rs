//! Caches that are larger than they may be.

use super::super::{Fixture, TestPath};
use crate::cache::Cache;
use crate::retention::oversized::Oversized;
use crate::settings::CacheSettings;

fn paths(cache: &Cache) -> u64 {
    cache.usage().unwrap().paths
}

#[test]
fn a_push_beyond_the_size_limit_triggers_a_collection_but_not_every_time() {
    let fixture = Fixture::new();
    let cache = &fixture.cache;
    let mut oversized = Oversized::default();
    TestPath::new("first", &[]).push(cache).unwrap();
    let settings = CacheSettings { size_max: Some(cache.usage().unwrap().bytes), ..CacheSettings::default() };
    cache.set_settings(&settings).unwrap();
    oversized.collect(&fixture.data);
    assert_eq!(paths(cache), 1, "as large as it may be");
    TestPath::new("second", &[]).push(cache).unwrap();
    assert_eq!(paths(cache), 2);
    oversized.collect(&fixture.data);
    let left = paths(cache);
    assert!(left < 2, "{left}");
    // Its bytes stay until the grace is over: that is no reason to forget more.
    oversized.collect(&fixture.data);
    assert_eq!(paths(cache), left);
    // One more within a minute: not yet.
    TestPath::new("third", &[]).push(cache).unwrap();
    oversized.collect(&fixture.data);
    assert_eq!(paths(cache), left + 1);
    Oversized::default().collect(&fixture.data);
    assert!(paths(cache) <= 1);
}
