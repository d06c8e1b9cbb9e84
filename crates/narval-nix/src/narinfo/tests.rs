use proptest::prelude::*;

use super::*;
use crate::hash::Sha256;
use crate::store_path::{HashPart, StorePathName};

const FULL: &str = "\
StorePath: /nix/store/00bgd045z0d4icpbc2yyz4gx48ak44la-net-tools-1.60_p20170221182432
URL: nar/0lxjvvpr59c2mdram7ympy5ay741f180kv3349hvfc3f8nrmbqf6.nar.xz
Compression: xz
FileHash: sha256:0lxjvvpr59c2mdram7ympy5ay741f180kv3349hvfc3f8nrmbqf6
FileSize: 114980
NarHash: sha256:0lxjvvpr59c2mdram7ympy5ay741f180kv3349hvfc3f8nrmbqf6
NarSize: 464152
References: 7gx4kiv5m0i7d7qkixq2cwzbr10lvxwc-glibc-2.27
Deriver: 10dx1q4ivjb115y3h90mipaaz533nr0d-net-tools-1.60_p20170221182432.drv
Sig: cache.nixos.org-1:sn5s/RrqEI+YG6/PjwdbPjcAC7rcta7sJU4mFOawGvJBLsWkyLtBrT2EuFt/LJjWkTZ+ZWOI9NTtjo/woMdvAg==
CA: fixed:r:sha256:0lxjvvpr59c2mdram7ympy5ay741f180kv3349hvfc3f8nrmbqf6
";

fn parse(text: &str) -> Result<NarInfo, NarInfoError> {
    NarInfo::parse(text.as_bytes(), &StoreDir::default())
}

/// Parses, and checks that rendering gives the same text.
fn lossless(text: &str) -> NarInfo {
    let info = parse(text).unwrap();
    assert_eq!(info.render(&StoreDir::default()), text);
    info
}

/// [`FULL`] with the line of `key` replaced by `line`, which may be empty or several lines.
fn with(key: &str, line: &str) -> String {
    let replace = |old: &str| {
        let ours = old.split_once(':').is_some_and(|(name, _)| name == key);
        if ours { line.to_owned() } else { format!("{old}\n") }
    };
    FULL.lines().map(replace).collect()
}

#[test]
fn every_field() {
    let info = lossless(FULL);
    assert_eq!(info.compression, Compression::Xz);
    assert_eq!(info.file_size, Some(114_980));
    assert_eq!(info.references.len(), 1);
    assert_eq!(info.signatures.len(), 1);
    assert!(info.ca.is_some());
    let key = "cache.nixos.org-1:6NCHdD59X431o0gWypbMrAURkbJ16ZPMQFGspcDShjY=".parse().unwrap();
    let trusted = crate::TrustedKeys::from_iter([key]);
    assert!(trusted.find_valid(info.fingerprint(&StoreDir::default()).as_bytes(), &info.signatures).is_some());
}

#[test]
fn a_new_narinfo_has_the_order_of_nix() {
    let parsed = parse(FULL).unwrap();
    let mut fresh = NarInfo::new(&parsed.path_info(0), parsed.url.clone(), parsed.compression);
    (fresh.file_hash, fresh.file_size) = (parsed.file_hash, parsed.file_size);
    assert_eq!(fresh.render(&StoreDir::default()), FULL);
    assert!(fresh.add_unknown("PartialClosure", "1"));
    assert!(!fresh.add_unknown("NarSize", "1") && !fresh.add_unknown("a", "b\nNarSize: 1"));
    assert_eq!(fresh.render(&StoreDir::default()), format!("{FULL}PartialClosure: 1\n"));
}

#[test]
fn no_references() {
    let mut info = lossless(&with("References", "References: \n"));
    assert!(!info.omit_empty_references);
    info.omit_empty_references = true;
    assert_eq!(info.render(&StoreDir::default()), with("References", ""));
    assert!(lossless(&with("References", "")).omit_empty_references);
}

#[test]
fn quirks_survive() {
    let hex = "8e2d9aa0d1a6a56cfd1a4f8d7a4f8b0c3d8d5c8f3b2a1908172635445362718f";
    lossless(&with("FileHash", &format!("FileHash: sha256:{hex}\n")));
    lossless(&with("NarHash", &format!("NarHash: sha256:{hex}\n")));
    lossless(&with("NarHash", "NarHash: sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=\n"));
    lossless(&with("Deriver", "Deriver: unknown-deriver\n"));
    lossless(&with("CA", "System: x86_64-linux\nX: a: b\n"));
    lossless(&with("URL", "System: \n").replace("CA:", "URL: nar/a.nar?hash=b\nCA:"));
    let out_of_order = "References: 7gx4kiv5m0i7d7qkixq2cwzbr10lvxwc-b 00bgd045z0d4icpbc2yyz4gx48ak44la-a\n";
    let info = lossless(&with("References", out_of_order));
    assert!(info.fingerprint(&StoreDir::default()).ends_with("-a,/nix/store/7gx4kiv5m0i7d7qkixq2cwzbr10lvxwc-b"));
    for line in ["", "Compression: \n"] {
        assert_eq!(lossless(&with("Compression", line)).compression, Compression::Bzip2);
    }
    let mut reversed: Vec<&str> = FULL.lines().collect();
    reversed.reverse();
    lossless(&(reversed.join("\n") + "\n"));
}

#[test]
fn signatures_keep_their_places() {
    let sig = FULL.lines().find(|line| line.starts_with("Sig")).unwrap();
    let scattered = format!("{sig}\nX: 1\n{}", with("Sig", &format!("{sig}\n{}\n", sig.replace("nixos", "other"))));
    let mut info = lossless(&scattered);
    assert_eq!(info.signatures.len(), 3);
    info.signatures.push(info.signatures[0].clone());
    assert_eq!(parse(&info.render(&StoreDir::default())).unwrap().signatures, info.signatures);
    info.signatures.truncate(1);
    assert_eq!(parse(&info.render(&StoreDir::default())).unwrap().signatures, info.signatures);
}

#[test]
fn required_keys() {
    for key in ["StorePath", "URL", "NarHash", "NarSize"] {
        assert_eq!(parse(&with(key, "")), Err(NarInfoError::Missing { key }));
    }
}

#[test]
fn once_only() {
    for key in Key::ALL.into_iter().filter(|key| *key != Key::Sig).map(Key::name) {
        let line = FULL.lines().find(|line| line.starts_with(&format!("{key}:"))).unwrap();
        assert_eq!(parse(&format!("{FULL}{line}\n")), Err(NarInfoError::Duplicate { line: 12, key }));
    }
}

#[test]
fn bad_values_name_line_and_key() {
    for (line, key, value) in [
        (1, "StorePath", "00bgd045z0d4icpbc2yyz4gx48ak44la-a"),
        (1, "StorePath", "/gnu/store/00bgd045z0d4icpbc2yyz4gx48ak44la-a"),
        (1, "StorePath", "/nix/store/../00bgd045z0d4icpbc2yyz4gx48ak44la-a"),
        (2, "URL", ""),
        (2, "URL", "nar/a b"),
        (2, "URL", "nar/a\r"),
        (3, "Compression", "zip"),
        (4, "FileHash", "0lxjvvpr59c2mdram7ympy5ay741f180kv3349hvfc3f8nrmbqf6"),
        (5, "FileSize", "-1"),
        (5, "FileSize", "18446744073709551616"),
        (6, "NarHash", "sha1:00000000000000000000000000000000"),
        (7, "NarSize", "0"),
        (7, "NarSize", "9223372036854775808"),
        (7, "NarSize", "18446744073709551615"),
        (7, "NarSize", "+1"),
        (7, "NarSize", "01"),
        (7, "NarSize", ""),
        (8, "References", "/nix/store/7gx4kiv5m0i7d7qkixq2cwzbr10lvxwc-glibc-2.27"),
        (8, "References", "../../etc/passwd"),
        (9, "Deriver", ""),
        (11, "CA", "fixed:r:sha256:00"),
    ] {
        let error = parse(&with(key, &format!("{key}: {value}\n"))).unwrap_err();
        assert!(matches!(error, NarInfoError::Value { line: l, key: k, .. } if (l, k) == (line, key)), "{error}");
        assert!(error.to_string().starts_with(&format!("narinfo line {line}: {key}: ")), "{error}");
    }
}

#[test]
fn shapes() {
    assert_eq!(parse(""), Err(NarInfoError::NoFinalNewline));
    assert_eq!(parse(FULL.trim_end()), Err(NarInfoError::NoFinalNewline));
    assert_eq!(parse("\n"), Err(NarInfoError::Shape { line: 1 }));
    assert_eq!(parse(&format!("{FULL}\n")), Err(NarInfoError::Shape { line: 12 }));
    assert_eq!(parse(&format!("{FULL}nothing\n")), Err(NarInfoError::Shape { line: 12 }));
    // Nix would take the next line for the value.
    assert_eq!(parse(&with("References", "References:\n")), Err(NarInfoError::Shape { line: 8 }));
    assert_eq!(NarInfo::parse(b"URL: \xff\n", &StoreDir::default()), Err(NarInfoError::NotText));
    assert_eq!(parse(&with("URL", "URL:nar/x\n")), Err(NarInfoError::Shape { line: 2 }));
}

/// What Nix reads over.
#[test]
fn odd_lines_are_kept_and_mean_nothing() {
    for odd in
        ["X:y", "X:", "a:b: c", "a key: x", "X:  two", "Sig: other-1:AAAA", "Sig: o 1:AAAA", "Sig: garbage", "Sig: "]
    {
        let (head, tail) = FULL.split_at(FULL.find("Sig: ").unwrap());
        let text = format!("{head}{odd}\n{tail}");
        let info = parse(&text).unwrap_or_else(|error| panic!("{odd}: {error}"));
        assert_eq!((info.signatures.len(), info.render(&StoreDir::default())), (1, text), "{odd}");
    }
    let bytes = [b"X: \xff\n\xfe: x\n", FULL.as_bytes()].concat();
    assert_eq!(NarInfo::parse(&bytes, &StoreDir::default()).unwrap().render(&StoreDir::default()), FULL);
}

#[test]
fn limits() {
    let filler = "X: ".to_owned() + &"x".repeat(NARINFO_LEN_MAX) + "\n";
    assert_eq!(parse(&format!("{FULL}{filler}")), Err(NarInfoError::TooLong));
    let sig = FULL.lines().find(|line| line.starts_with("Sig")).unwrap();
    let many = with("Sig", &format!("{sig}\n").repeat(SIGNATURES_MAX + 1));
    assert!(matches!(parse(&many), Err(NarInfoError::Value { error: ValueError::TooManySignatures, .. })));
}

fn any_path() -> impl Strategy<Value = StorePath> {
    (any::<[u8; 20]>(), "[a-zA-Z0-9+_?=][a-zA-Z0-9+._?=-]{0,40}").prop_map(|(digest, name)| {
        StorePath::from_parts(HashPart::from_digest(&digest), &StorePathName::parse(&name).unwrap())
    })
}

fn any_path_info() -> impl Strategy<Value = PathInfo> {
    let references = proptest::collection::btree_set(any_path(), 0..5);
    let signatures = proptest::collection::vec(any::<[u8; 32]>(), 0..3);
    let hash = any::<[u8; 32]>().prop_map(Sha256::from_bytes);
    (any_path(), hash, 1..=i64::MAX as u64, references, proptest::option::of(any_path()), signatures, any::<bool>())
        .prop_map(|(path, nar_hash, nar_size, references, deriver, signatures, has_ca)| PathInfo {
            path,
            nar_hash,
            nar_size,
            references,
            deriver,
            registration_time: 0,
            ultimate: false,
            signatures: signatures
                .into_iter()
                .map(|half| Signature::new("k-1", [half, half].concat().try_into().unwrap()).unwrap())
                .collect(),
            ca: has_ca.then(|| ContentAddress::new(crate::content_address::Method::Nar, nar_hash.into()).unwrap()),
        })
}

proptest! {
    #[test]
    fn round_trip(info in any_path_info(), compression in 0..13_usize, omit in any::<bool>()) {
        let store_dir = StoreDir::default();
        let mut narinfo = NarInfo::new(&info, "nar/x.nar", Compression::ALL[compression]);
        narinfo.omit_empty_references = omit;
        let text = narinfo.render(&store_dir);
        let back = NarInfo::parse(text.as_bytes(), &store_dir).unwrap();
        prop_assert_eq!(back.path_info(0), info);
        prop_assert_eq!(back.render(&store_dir), text);
    }

    #[test]
    fn rendering_and_parsing_again_changes_nothing(cut in 0..FULL.len(), byte in any::<u8>()) {
        let mut text = FULL.as_bytes().to_vec();
        text[cut] = byte;
        if let Ok(info) = NarInfo::parse(&text, &StoreDir::default()) {
            let again = info.render(&StoreDir::default());
            prop_assert_eq!(NarInfo::parse(again.as_bytes(), &StoreDir::default()), Ok(info));
        }
    }
}

#[test]
fn build_times_are_numbers_of_seconds() {
    let text = |line: &str| {
        format!(
            "StorePath: /nix/store/00bgd045z0d4icpbc2yyz4gx48ak44la-a\nURL: a\nNarHash: sha256:0ip26j2h11n1kgkz36rl4akv694yz65hr72q4kv4b3lxcbi65b3p\n\
             NarSize: 1\n{line}"
        )
    };
    let parse = |line: &str| NarInfo::parse(text(line).as_bytes(), &StoreDir::default()).unwrap();
    for (line, seconds) in [
        ("", None),
        ("NarvalBuildSeconds: 0\n", Some(0)),
        ("NarvalBuildSeconds: 2592000\n", Some(2_592_000)),
        ("NarvalBuildSeconds: 2592001\n", None),
        ("NarvalBuildSeconds: 99999999999999999999\n", None),
        ("NarvalBuildSeconds: -1\n", None),
        ("NarvalBuildSeconds:7\n", None),
    ] {
        assert_eq!(parse(line).build_seconds(), seconds, "{line}");
    }
    let mut info = parse("");
    info.set_build_seconds(u64::MAX);
    info.set_build_seconds(7);
    info.set_build_seconds(8);
    assert!(info.render(&StoreDir::default()).ends_with("NarvalBuildSeconds: 7\n") && info.build_seconds() == Some(7));
}
