//! Narinfos that were verified: in memory and on disk.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use narval_codec::delta::DELTA_NAR_BYTES_MIN;
use narval_nix::{Compression, HashPart, NarInfo, SignError};

use super::answer::Unavailable;
use super::race::{Pace, race};
use super::remote::Remote;
use super::shared::Shared;
use super::shared::known::{KEPT_FIRST, Known, kept_name};
use super::shared::nar_name::NarName;
use super::shared::question::Patience;
use super::standing::health::Standing;

impl Shared {
    /// A lookup in memory and on disk.
    pub(super) fn known(&self, hash_part: &HashPart) -> Option<Arc<Known>> {
        if let Some(known) = self.narinfos.get(hash_part) {
            return Some(known);
        }
        let bytes = self.kept.read(&kept_name(hash_part))?;
        self.take_up(*hash_part, &bytes)
    }

    /// Parses a stored narinfo; `None` if its upstream is no longer configured or its signature no longer trusted.
    pub(super) fn take_up(&self, hash_part: HashPart, bytes: &[u8]) -> Option<Arc<Known>> {
        let text = str::from_utf8(bytes).ok()?;
        let (url, text) = text.strip_prefix(KEPT_FIRST)?.split_once("\n\n")?;
        let remote = self.remotes().iter().find(|remote| remote.url().to_string() == url).cloned()?;
        let info = remote.take_up(hash_part, text.as_bytes()).ok()?;
        if remote.skips(info.path.name()) {
            return None;
        }
        self.remember(info, &remote).inspect_err(|error| tracing::error!("{error}")).ok()
    }

    pub(super) fn remember(&self, info: NarInfo, remote: &Arc<Remote>) -> Result<Arc<Known>, SignError> {
        self.learn_names(&info.references);
        let mut served = info.clone();
        let plain = info.nar_size >= DELTA_NAR_BYTES_MIN && self.is_plain(&info, remote);
        let name = if plain { NarName::plain(&info) } else { NarName::of(&info) };
        if plain {
            (served.compression, served.file_hash, served.file_size) = (Compression::None, None, None);
        }
        served.url = format!("nar/{name}");
        if remote.is_signed() {
            let fingerprint = info.fingerprint(&self.store_dir);
            for key in self.sign_keys.read().iter() {
                let signature = key.sign(fingerprint.as_bytes())?;
                if !served.signatures.contains(&signature) {
                    served.signatures.push(signature);
                }
            }
        }
        let text = served.render(&self.store_dir).into_bytes().into();
        let known = Arc::new(Known { info: Arc::new(info), remote: Arc::clone(remote), name, plain, text });
        let hash_part = known.info.path.hash_part();
        self.narinfos.insert(hash_part, Arc::clone(&known));
        // The upstreams may have been replaced since this one was queried.
        if !self.remotes().iter().any(|current| Arc::ptr_eq(current, remote)) {
            self.narinfos.remove(&hash_part);
        }
        Ok(known)
    }

    /// Whether a NAR is kept uncompressed, because its upstream sends deltas. While that is not known, what is kept of it says so.
    fn is_plain(&self, info: &NarInfo, remote: &Arc<Remote>) -> bool {
        if let Some(deltas) = remote.sends_deltas() {
            return deltas;
        }
        let is_kept = |name: NarName| self.kept.has(&format!("nar/{}", name.file));
        if is_kept(NarName::plain(info)) {
            return true;
        }
        // One that has been waited for already is not waited for again.
        if is_kept(NarName::of(info)) || remote.standing() != Standing::Good {
            return false;
        }
        let remotes = std::slice::from_ref(remote);
        let asked =
            race(remotes, &self.hedges, Pace::ranked("nix-cache-info", self.absent_after()), Remote::asks_for_deltas);
        asked.is_ok_and(|asked| asked.is_some_and(|(_, deltas)| deltas))
    }

    pub(super) fn keep(&self, known: &Known) {
        let name = kept_name(&known.info.path.hash_part());
        let text = format!("{KEPT_FIRST}{}\n\n{}", known.remote.url(), known.info.render(&self.store_dir));
        if let Err(error) = self.kept.keep_bytes(&name, text.as_bytes()) {
            tracing::warn!("upstreams: the narinfo of {} cannot be stored: {error}", known.info.path);
        }
    }

    /// The narinfos of the paths that are kept.
    pub(super) fn kept_narinfos(&self) -> Vec<NarInfo> {
        let parse = |name: Arc<str>| {
            let text = String::from_utf8(self.kept.read(&name)?).ok()?;
            NarInfo::parse(text.split_once("\n\n")?.1.as_bytes(), &self.store_dir).ok()
        };
        self.kept.names("narinfo/").into_iter().filter_map(parse).collect()
    }

    pub(super) fn forget(&self, known: &Known) {
        let hash_part = known.info.path.hash_part();
        self.narinfos.remove(&hash_part);
        self.kept.forget(&kept_name(&hash_part));
        self.forgotten.fetch_add(1, Ordering::AcqRel);
    }

    /// The path of a NAR's name.
    pub(super) fn by_name(&self, name: &str) -> Result<Option<Arc<Known>>, Unavailable> {
        let Some(hash_part) = NarName::hash_part(name) else { return Ok(None) };
        let known = self.lookup(&hash_part, Patience::Client)?;
        Ok(known.and_then(|known| known.named(name)))
    }
}
