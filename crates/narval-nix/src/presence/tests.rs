use super::*;
use crate::signing::keys::{SecretKey, TrustedKeys};
use crate::store_path::{HashPart, StoreDir};

/// Keys that are as uniform as hash parts, and differ between `series`.
fn keys(series: u64, count: u64) -> impl Iterator<Item = u64> {
    (0..count).map(move |at| {
        let mut hash = (series << 40 | at).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        hash ^ (hash >> 31)
    })
}

#[test]
fn nothing_is_wrongly_absent_and_little_wrongly_present() {
    for count in [0, 1, 2, 3, 10, 100, 1000, 100_000, 300_000] {
        let filter = Filter::build(keys(1, count).collect()).unwrap();
        assert!(keys(1, count).all(|key| filter.contains(key)), "{count}");
        let wrong = keys(2, 100_000).filter(|key| filter.contains(*key)).count();
        assert!(wrong < 500, "{wrong} of 100,000 with {count}");
        let encoded = filter.encode();
        assert_eq!(Filter::decode(&encoded).as_ref(), Ok(&filter), "{count}");
        assert!(count < 100_000 || encoded.len() as u64 * 10 <= count * 12, "{} of {count}", encoded.len());
        assert_eq!(Filter::decode(&encoded[..encoded.len() - 1]), Err(FilterError::Length));
        assert_eq!(Filter::decode(&[encoded, vec![0]].concat()), Err(FilterError::Length));
    }
    // The same path twice.
    let twice: Vec<u64> = keys(1, 1000).chain(keys(1, 1000)).collect();
    assert_eq!(Filter::build(twice), Filter::build(keys(1, 1000).collect()));
}

#[test]
fn lengths_are_checked_before_anything_is_allocated() {
    let segment = |log: u8, starts: u32| [&[0][..], &[0; 8], &[log], &starts.to_le_bytes()].concat();
    assert_eq!(Filter::decode(&[]), Err(FilterError::Length));
    assert_eq!(Filter::decode(&[64]), Err(FilterError::Segment));
    assert_eq!(Filter::decode(&[10]), Err(FilterError::Length));
    assert_eq!(Filter::decode(&segment(19, 1)), Err(FilterError::Segment));
    assert_eq!(Filter::decode(&segment(18, u32::MAX)), Err(FilterError::Segment));
    assert_eq!(Filter::decode(&segment(18, 1 << 24)), Err(FilterError::Length));
    assert!(!Filter::decode(&segment(0, 0)).unwrap().contains(7));
}

#[test]
fn only_what_a_trusted_key_has_signed_is_taken() {
    let (store_dir, key) = (StoreDir::default(), SecretKey::generate("cache-1").unwrap());
    let trusted = TrustedKeys::from_iter([key.public_key()]);
    let other = TrustedKeys::from_iter([SecretKey::generate("cache-1").unwrap().public_key()]);
    let snapshot = Snapshot { instance: 7, sequence: 12, filter: Filter::build(keys(1, 1000).collect()).unwrap() };
    let file = snapshot.render(&store_dir, [&key]).unwrap();
    assert_eq!(Snapshot::parse(&file, &store_dir, Some(&trusted)).as_ref(), Ok(&snapshot));
    assert_eq!(Snapshot::parse(&file, &store_dir, Some(&other)), Err(PresenceError::Untrusted));
    assert_eq!(
        Snapshot::parse(&snapshot.render(&store_dir, []).unwrap(), &store_dir, Some(&trusted)),
        Err(PresenceError::Untrusted)
    );
    assert_eq!(Snapshot::parse(&snapshot.render(&store_dir, []).unwrap(), &store_dir, None).as_ref(), Ok(&snapshot));
    assert_eq!(Snapshot::parse(&file, &"/other".parse().unwrap(), Some(&trusted)), Err(PresenceError::StoreDir));
    let head = file.windows(2).position(|pair| pair == b"\n\n").unwrap() + 2;
    for at in (0..head).step_by(7).chain([head - 1, head, file.len() - 1]) {
        let mut changed = file.clone();
        changed[at] ^= 1;
        assert!(Snapshot::parse(&changed, &store_dir, Some(&trusted)).is_err(), "{at}");
        assert!(Snapshot::parse(&file[..at], &store_dir, Some(&trusted)).is_err(), "{at}");
    }
    let changes =
        Changes { instance: 7, since: 12, sequence: 15, nonce: u128::MAX - 99, keys: keys(2, 1000).collect() };
    let file = changes.render(&store_dir, [&key]).unwrap();
    assert!(file.len() < 9000, "{}", file.len());
    assert_eq!(Changes::parse(&file, &store_dir, Some(&trusted)), Ok(changes));
    assert_eq!(Snapshot::parse(&file, &store_dir, Some(&trusted)), Err(PresenceError::Line("NarvalPresence")));
}

#[test]
fn the_key_of_a_path_is_the_start_of_its_hash() {
    let digest: [u8; 20] = std::array::from_fn(|at| u8::try_from(at).unwrap() * 13);
    assert_eq!(key(&HashPart::from_digest(&digest)), 0x000d_1a27_3441_4e5b);
}

proptest::proptest! {
    #[test]
    fn no_file_panics(file in proptest::collection::vec(proptest::num::u8::ANY, 0..200), key in proptest::num::u64::ANY) {
        if let Ok(filter) = Filter::decode(&file) {
            let _ = filter.contains(key);
        }
        let _ = Snapshot::parse(&file, &StoreDir::default(), None);
        let _ = Changes::parse(&file, &StoreDir::default(), None);
    }
}
