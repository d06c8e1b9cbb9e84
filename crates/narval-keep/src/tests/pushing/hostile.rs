//! What clients may send: nothing of it panics, is taken for what it is not, or leaves anything.

use std::io::Read;

use proptest::prelude::*;

use super::super::*;

/// A reader that gives pieces of odd sizes, and fails where it is told to.
struct Pieces<'a> {
    bytes: &'a [u8],
    sizes: std::iter::Cycle<std::vec::IntoIter<usize>>,
    fails: bool,
}

impl Read for Pieces<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let len = self.sizes.next().unwrap().min(out.len()).min(self.bytes.len());
        if len == 0 && self.fails {
            return Err(std::io::Error::other("the connection is gone"));
        }
        out[..len].copy_from_slice(&self.bytes[..len]);
        self.bytes = &self.bytes[len..];
        Ok(len)
    }
}

fn receive(cache: &Cache, name: &str, body: &mut dyn Read) -> Result<Stored, Rejection> {
    match cache.begin_nar(name, None, &pusher())? {
        Begin::Known(stored) => Ok(stored),
        Begin::Receive(upload) => upload.receive(body),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// A file whose hash is right, and whose contents were changed anywhere: refused, or a NAR all the same.
    #[test]
    fn corrupted_nars_never_become_visible(
        contents in prop::collection::vec(any::<u8>(), 0..300),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in any::<prop::sample::Index>(),
        is_cut in any::<bool>(),
        kind in 0..5_usize,
        sizes in prop::collection::vec(1..100_usize, 1..4),
        fails in any::<bool>(),
    ) {
        let fixture = Fixture::new();
        let compression = [Compression::None, Compression::Zstd, Compression::Xz, Compression::Gzip, Compression::Lz4][kind];
        let mut file = compress(&nar_of(&contents), compression);
        for (at, byte) in changes {
            let at = at.index(file.len());
            file[at] = byte;
        }
        if is_cut {
            file.truncate(cut.index(file.len()));
        }
        let name = NarFileName::new(Sha256::of(&file), compression).to_string();
        let mut body = Pieces { bytes: &file, sizes: sizes.into_iter().cycle(), fails };
        match receive(&fixture.cache, &name, &mut body) {
            Ok(stored) => {
                prop_assert!(!fails);
                let kept = fixture.cache.nar_file(&name).unwrap().unwrap();
                let mut decoder = narval_codec::decode::Decoder::new(&stored.compression, std::io::BufReader::new(kept.file), 1).unwrap();
                let nar = read_all(&mut decoder);
                prop_assert_eq!((Sha256::of(&nar), nar.len() as u64), (stored.nar_hash, stored.nar_size));
                prop_assert!(narval_nix::Listing::of_nar(&nar).is_ok());
            }
            Err(rejection) => {
                prop_assert!(matches!(rejection.kind, RejectionKind::Unprocessable | RejectionKind::Malformed), "{}", rejection);
                prop_assert_eq!(fixture.files("caches/default/nar").len() + fixture.files("incoming").len(), 0);
            }
        }
    }

    /// Narinfos that were changed anywhere: refused, or one that says nothing untrue of its NAR.
    #[test]
    fn corrupted_narinfos_never_change_what_they_name(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)) {
        let fixture = Fixture::new();
        let path = TestPath::new("a", &[]);
        path.send(&fixture.cache, Compression::None).unwrap();
        let (part, mut text) = path.narinfo(Compression::None);
        for (at, byte) in changes {
            let at = at.index(text.len());
            text[at] = byte;
        }
        if fixture.cache.commit_narinfos(&[(part, text)], &pusher()).is_ok() {
            let served = fixture.cache.narinfo(&part).unwrap().unwrap();
            let info = NarInfo::parse(&served, &StoreDir::default()).unwrap();
            prop_assert_eq!((info.path.hash_part(), info.nar_hash, info.nar_size), (part, path.info.nar_hash, path.info.nar_size));
            prop_assert_eq!(plain(&info.url), format!("nar/{}", path.file_name(Compression::None)));
        } else {
            prop_assert_eq!(fixture.cache.narinfo(&part).unwrap(), None);
        }
    }

    #[test]
    fn arbitrary_names_and_tokens_do_no_harm(name in "\\PC{0,80}", bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        let fixture = Fixture::new();
        for kind in [SmallKind::Listing, SmallKind::Log, SmallKind::Realisation, SmallKind::BuildTrace, SmallKind::DebugInfo, SmallKind::CacheInfo] {
            if let Ok(Some((_, _))) = fixture.cache.small_file(kind, &name) {
                prop_assert_eq!(kind, SmallKind::CacheInfo);
            }
            let before = fixture.files("");
            if fixture.cache.put_small(kind, &name, &mut &b"x"[..], &pusher()).is_err() {
                let of_index = |files: Vec<String>| files.into_iter().filter(|file| file.starts_with("caches")).collect::<Vec<_>>();
                prop_assert_eq!(of_index(before), of_index(fixture.files("")));
            }
        }
        prop_assert!(fixture.cache.nar_file(&name).unwrap().is_none());
        prop_assert!(fixture.data.tokens().verify(name.as_bytes()).unwrap().is_none());
        prop_assert!(fixture.data.tokens().verify(&bytes).unwrap().is_none());
    }
}

/// What one upload may hold in memory besides its decoder's window: buffers, and what the scan remembers.
#[test]
fn an_upload_that_never_ends_is_bounded() {
    struct Endless(u64);
    impl Read for Endless {
        fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
            // Hash parts, one after another, without an end.
            for piece in out.chunks_mut(33) {
                let text = format!("{:032}-", self.0);
                piece.copy_from_slice(&text.as_bytes()[..piece.len()]);
                self.0 += 1;
            }
            Ok(out.len())
        }
    }
    let settings = CacheSettings { nar_size_max: 4 << 20, ..CacheSettings::default() };
    let fixture = Fixture::with(&settings);
    let head = nar_of(&[b'x'; 8]);
    // The head of a file that claims to be huge.
    let mut nar = head[..96].to_vec();
    nar[88..96].copy_from_slice(&(1_u64 << 40).to_le_bytes());
    let name = format!("{}.nar", Sha256::of(b"x").to_nix32());
    let rejection = receive(&fixture.cache, &name, &mut (&nar[..]).chain(Endless(0))).unwrap_err();
    assert_eq!(rejection.kind, RejectionKind::TooLarge);
    assert!(fixture.files("incoming").is_empty());
}
