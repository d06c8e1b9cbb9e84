//! The NARs that are kept uncompressed: bases for the deltas of other versions.

use std::collections::HashMap;
use std::io::Read;
use std::sync::OnceLock;

use narval_nix::{NarHash, NarInfo, PackageName, Sha256, StorePath, nearer_version};
use parking_lot::Mutex;

use super::nar_name::NarName;
use narval_codec::delta::{DeltaMemory, Reserved, delta_fits, delta_memory};
use narval_files::DiskCache;

/// A kept NAR.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::upstream) struct KeptNar {
    pub(in crate::upstream) path: StorePath,
    pub(in crate::upstream) nar_hash: NarHash,
    nar_size: u64,
}

type ByPackage = HashMap<(Box<str>, Box<str>), Vec<KeptNar>>;

/// The kept NARs by package and output. Evicted ones are detected when they are opened.
#[derive(Debug, Default)]
pub(in crate::upstream) struct Bases {
    kept: OnceLock<Mutex<ByPackage>>,
    /// For those that are being used.
    memory: DeltaMemory,
}

/// A base in memory.
pub(in crate::upstream) struct Base<'a> {
    pub(in crate::upstream) of: KeptNar,
    pub(in crate::upstream) nar: Vec<u8>,
    pub(in crate::upstream) memory: Reserved<'a>,
}

fn key(path: &StorePath) -> (Box<str>, Box<str>) {
    let name = PackageName::of(path.name());
    (name.package.into(), name.output.into())
}

impl Bases {
    /// All kept NARs. `narinfos` are those of the kept paths, and are read only the first time.
    fn all(&self, narinfos: impl FnOnce() -> Vec<NarInfo>) -> &Mutex<ByPackage> {
        self.kept.get_or_init(|| {
            let mut all = ByPackage::new();
            for info in narinfos() {
                all.entry(key(&info.path)).or_default().push(KeptNar::of(&info));
            }
            Mutex::new(all)
        })
    }

    /// Adds a NAR that was just kept.
    pub(in crate::upstream) fn add(&self, info: &NarInfo, narinfos: impl FnOnce() -> Vec<NarInfo>) {
        let mut all = self.all(narinfos).lock();
        let (paths, new) = (all.entry(key(&info.path)).or_default(), KeptNar::of(info));
        if !paths.contains(&new) {
            paths.push(new);
        }
    }

    /// The base for a path, verified. Waits until there is memory for it.
    pub(in crate::upstream) fn find(
        &self,
        info: &NarInfo,
        kept: &DiskCache,
        narinfos: impl FnOnce() -> Vec<NarInfo>,
    ) -> Option<Base<'_>> {
        let name = PackageName::of(info.path.name());
        let mut candidates = {
            let all = self.all(narinfos).lock();
            all.get(&key(&info.path))?.clone()
        };
        let version = |nar: &KeptNar| PackageName::of(nar.path.name()).version.to_owned();
        candidates.retain(|nar| {
            let other = nar.nar_hash != info.nar_hash && delta_fits(nar.nar_size, info.nar_size);
            other && kept.has(&nar.file())
        });
        let best =
            candidates.into_iter().min_by(|one, other| nearer_version(name.version, &version(one), &version(other)))?;
        let memory = self.memory.reserve(delta_memory(best.nar_size))?;
        let (file, _) = kept.get(&best.file())?;
        let mut nar = Vec::with_capacity(usize::try_from(best.nar_size).unwrap_or(0));
        file.take(best.nar_size + 1).read_to_end(&mut nar).ok()?;
        (Sha256::of(&nar) == best.nar_hash).then_some(Base { of: best, nar, memory })
    }
}

impl KeptNar {
    fn of(info: &NarInfo) -> Self {
        Self { path: info.path.clone(), nar_hash: info.nar_hash, nar_size: info.nar_size }
    }

    fn file(&self) -> String {
        format!("nar/{}", NarName::plain_file(&self.nar_hash))
    }
}
