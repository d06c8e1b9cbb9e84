use super::*;

const PATH: &str = "/nix/store/7gx4kiv5m0i7d7qkixq2cwzbr10lvxwc-api-1.4.2";
const HASH: &str = "sha256:0lxjvvpr59c2mdram7ympy5ay741f180kv3349hvfc3f8nrmbqf6";

fn release() -> Release {
    let released = ReleasedPath { path: StoreDir::default().parse(PATH).unwrap(), nar_hash: HASH.parse().unwrap() };
    let outputs = BTreeMap::from([("out".parse().unwrap(), released)]);
    Release {
        store_dir: StoreDir::default(),
        cache: "1234-team".to_owned(),
        name: "api".parse().unwrap(),
        revision: 41,
        created: 1_764_000_000,
        version: Some("1.4.2".parse().unwrap()),
        promoted_from: None,
        percent: None,
        paths: BTreeMap::from([("x86_64-linux".parse().unwrap(), outputs)]),
        notes: BTreeMap::from([("git".to_owned(), "0123abc".to_owned())]),
        signatures: Vec::new(),
    }
}

#[test]
fn canonical_text() {
    let text = "narval-release-1\nstore /nix/store\ncache 1234-team\nname api\nrevision 41\ncreated 1764000000\nversion 1.4.2\n\
        path x86_64-linux out /nix/store/7gx4kiv5m0i7d7qkixq2cwzbr10lvxwc-api-1.4.2 \
        sha256:0lxjvvpr59c2mdram7ympy5ay741f180kv3349hvfc3f8nrmbqf6\nnote git 0123abc\n";
    assert_eq!(release().signed_text(), text);
    let moved = Release { promoted_from: Some(("api".parse().unwrap(), 41)), ..release() };
    assert!(moved.signed_text().contains("\nfrom api 41\n"));
    let some = Release { percent: Some(10), ..moved };
    assert!(some.signed_text().contains("\nfrom api 41\npercent 10\n"));
    assert!(some.is_for(0) && some.is_for(9) && !some.is_for(10) && release().is_for(SHARE_OF_ALL));
}

#[test]
fn shares_are_even_and_only_grow() {
    for name in ["web", "api", "a"] {
        let name: ReleaseName = name.parse().unwrap();
        let shares: Vec<u8> = (0..1000).map(|at| share_of(&format!("machine-{at}"), &name)).collect();
        let mut before: Vec<usize> = Vec::new();
        for percent in [1, 10, 25, 50, 90, 99, 100] {
            let some = Release { percent: Some(percent).filter(|percent| *percent < 100), ..release() };
            let chosen: Vec<usize> = (0..1000).filter(|at| some.is_for(shares[*at])).collect();
            // Four standard deviations around the percentage of 1,000.
            let (expected, p) = (10 * usize::from(percent), f64::from(percent) / 100.0);
            let limit = 4.0 * (1000.0 * p * (1.0 - p)).sqrt();
            assert!(chosen.len().abs_diff(expected) as f64 <= limit, "{percent} %: {} of 1,000", chosen.len());
            assert!(before.iter().all(|at| chosen.contains(at)), "{percent} % has no longer all that it had");
            before = chosen;
        }
        assert_eq!(before.len(), 1000);
    }
    // Which machines are first differs from release to release.
    let first = |name: &str| {
        let name: ReleaseName = name.parse().unwrap();
        (0..1000).filter(|at| share_of(&format!("m{at}"), &name) < 10).collect::<Vec<_>>()
    };
    let (web, api) = (first("web"), first("api"));
    assert!(web.iter().filter(|at| api.contains(at)).count() < 30);
}

#[test]
fn signatures_cover_each_field() {
    let (key, other) = (SecretKey::generate("cache-1").unwrap(), SecretKey::generate("cache-1").unwrap());
    let mut signed = release();
    signed.sign(&key).unwrap();
    let keys: TrustedKeys = [key.public_key()].into_iter().collect();
    assert!(signed.find_valid(&keys).is_some());
    assert!(signed.find_valid(&[other.public_key()].into_iter().collect()).is_none());
    let again = Release::parse(signed.to_json().as_bytes()).unwrap();
    assert_eq!(again, signed);
    let changes: [fn(&mut Release); 10] = [
        |release| release.revision += 1,
        |release| release.created += 1,
        |release| release.cache.push('x'),
        |release| release.name = "web".parse().unwrap(),
        |release| release.version = None,
        |release| release.promoted_from = Some(("api".parse().unwrap(), 1)),
        |release| release.notes.clear(),
        |release| release.percent = Some(99),
        |release| {
            let outputs = release.paths.pop_first().unwrap().1;
            release.paths.insert("aarch64-linux".parse().unwrap(), outputs);
        },
        |release| {
            let mut outputs = release.paths.first_entry().unwrap();
            let released = outputs.get_mut().pop_first().unwrap().1;
            outputs.get_mut().insert("dev".parse().unwrap(), released);
        },
    ];
    for (number, change) in changes.iter().enumerate() {
        let mut changed = again.clone();
        change(&mut changed);
        assert!(changed.find_valid(&keys).is_none(), "change {number}");
    }
}

#[test]
fn names_versions_and_selectors() {
    for bad in ["", "-a", ".a", "a b", "a/b", "a@b", "ä", "a\n", &"a".repeat(65)] {
        assert!(bad.parse::<ReleaseName>().is_err(), "{bad}");
    }
    assert!("a".repeat(64).parse::<ReleaseName>().is_ok() && "41".parse::<ReleaseName>().is_ok());
    assert_eq!("41".parse::<ReleaseVersion>(), Err(ReleaseError::Version("41".to_owned())));
    assert!("latest".parse::<ReleaseVersion>().is_err() && "1.4".parse::<ReleaseVersion>().is_ok());
    let which = |text: &str| text.parse::<Selector>().map(|selector| selector.which);
    assert_eq!((which("@a"), which("@a@7")), (Ok(Which::Latest), Ok(Which::Revision(7))));
    assert_eq!(which("@a@1.4"), Ok(Which::Version("1.4".parse().unwrap())));
    for bad in ["a", "@", "@@", "@a@", "@a@0", "@a@1@2", "@a@99999999999999999999", "@a@9223372036854775808"] {
        assert!(which(bad).is_err(), "{bad}");
    }
}

#[test]
fn refused() {
    let refused = |change: fn(&mut Release)| {
        let mut changed = release();
        change(&mut changed);
        Release::parse(changed.to_json().as_bytes()).unwrap_err()
    };
    assert_eq!(refused(|release| release.revision = 0), ReleaseError::Revision);
    assert_eq!(refused(|release| release.percent = Some(0)), ReleaseError::Percent);
    assert_eq!(refused(|release| release.percent = Some(100)), ReleaseError::Percent);
    assert_eq!(refused(|release| release.paths.clear()), ReleaseError::Empty);
    assert_eq!(refused(|release| release.cache = "a\nname b".to_owned()), ReleaseError::Cache);
    let note = |release: &mut Release| drop(release.notes.insert("a".to_owned(), "x\nrevision 99".to_owned()));
    assert_eq!(refused(note), ReleaseError::Note("a".to_owned()));
    let many = |release: &mut Release| {
        let outputs = release.paths.first_entry().unwrap().into_mut();
        let released = outputs.first_key_value().unwrap().1.clone();
        (0..=RELEASE_PATHS_MAX).for_each(|n| drop(outputs.insert(format!("o{n}").parse().unwrap(), released.clone())));
    };
    assert_eq!(refused(many), ReleaseError::TooMany { what: "paths", limit: RELEASE_PATHS_MAX });
    assert_eq!(Release::parse(&vec![b' '; RELEASE_LEN_MAX + 1]), Err(ReleaseError::TooLong));
    assert!(matches!(Release::parse(b"{}"), Err(ReleaseError::Json(_))));
    let elsewhere = release().to_json().replace(PATH, "/gnu/store/7gx4kiv5m0i7d7qkixq2cwzbr10lvxwc-api-1.4.2");
    assert!(matches!(Release::parse(elsewhere.as_bytes()), Err(ReleaseError::Path(_))));
}
