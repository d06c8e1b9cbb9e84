//! Signs paths that are in a cache already.
//!
//! A path is signed when it is committed, if the token may sign. One that was pushed by another token, or before a key was added, has no
//! signature of the cache, and no client that trusts only the cache's keys accepts it.

use std::ops::ControlFlow;

use narval_nix::{HashPart, NarInfo, TrustedKeys};

use crate::access::grant::Grant;
use crate::cache::Cache;
use crate::push::trust::is_signed;
use crate::rejection::Rejection;

/// The number of paths that are read, and signed in one commit.
const STEP: usize = 512;

/// What [`Cache::sign`] has done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SignReport {
    /// Paths that were looked at.
    pub paths: usize,
    /// Those of them that lacked a signature of one of the cache's keys.
    pub unsigned: usize,
    /// Those of these that were signed.
    pub signed: usize,
    /// Those of these that could not be signed; the log says why.
    pub failed: usize,
}

impl Cache {
    /// Of these paths, those that are here and lack a valid signature of one of the cache's keys. None if it has no key.
    ///
    /// # Errors
    /// If the index fails.
    pub fn unsigned(&self, hash_parts: &[HashPart]) -> Result<Vec<HashPart>, Rejection> {
        Ok(self.unsigned_narinfos(hash_parts, None)?.into_iter().map(|(part, _)| part).collect())
    }

    /// With `vouching`, only those that one of these has signed.
    fn unsigned_narinfos(
        &self,
        hash_parts: &[HashPart],
        vouching: Option<&TrustedKeys>,
    ) -> Result<Vec<(HashPart, Vec<u8>)>, Rejection> {
        let (keys, settings) = (self.sign_keys(), self.settings());
        if keys.is_empty() || hash_parts.is_empty() {
            return Ok(Vec::new());
        }
        let store_dir = &settings.store_dir;
        let narinfos = self.index().narinfos(self.id(), hash_parts)?;
        let with_text = hash_parts.iter().zip(narinfos).filter_map(|(part, text)| Some((*part, text?)));
        let lacks = |(_, text): &(HashPart, Vec<u8>)| {
            NarInfo::parse(text, store_dir).is_ok_and(|info| {
                let fingerprint = info.fingerprint(store_dir);
                let has = |keys: &TrustedKeys| keys.find_valid(fingerprint.as_bytes(), &info.signatures).is_some();
                vouching.is_none_or(has) && !is_signed(&info, &fingerprint, &keys)
            })
        };
        Ok(with_text.filter(lacks).collect())
    }

    /// Signs paths with the cache's keys: those that are named, or all. Those that have the signatures are left alone, so it can be interrupted and
    /// run again. With `dry_run`, they are only counted. `progress` is called after each step, and may end it.
    ///
    /// # Errors
    /// If the cache has no key, or the index fails.
    pub fn sign(
        &self,
        hash_parts: Option<&[HashPart]>,
        dry_run: bool,
        grant: &Grant,
        progress: impl FnMut(&SignReport) -> ControlFlow<()>,
    ) -> Result<SignReport, Rejection> {
        self.sign_if(hash_parts, None, dry_run, grant, progress)
    }

    /// The same, but with `vouching` only what one of these keys has signed.
    pub(crate) fn sign_if(
        &self,
        hash_parts: Option<&[HashPart]>,
        vouching: Option<&TrustedKeys>,
        dry_run: bool,
        grant: &Grant,
        mut progress: impl FnMut(&SignReport) -> ControlFlow<()>,
    ) -> Result<SignReport, Rejection> {
        if self.sign_keys().is_empty() {
            return Err(Rejection::malformed(format_args!("the cache '{}' has no key to sign with", self.name())));
        }
        let mut report = SignReport::default();
        let mut step = |parts: &[HashPart]| -> Result<ControlFlow<()>, Rejection> {
            let unsigned = self.unsigned_narinfos(parts, vouching)?;
            report.paths += parts.len();
            report.unsigned += unsigned.len();
            if !dry_run {
                self.sign_these(&unsigned, grant, &mut report);
            }
            Ok(progress(&report))
        };
        match hash_parts {
            Some(parts) => {
                for parts in parts.chunks(STEP) {
                    if step(parts)?.is_break() {
                        break;
                    }
                }
            }
            None => {
                let mut after = String::new();
                loop {
                    let paths = self.index().list(self.id(), &after, STEP)?;
                    let Some(last) = paths.last() else { break };
                    last.hash_part.as_str().clone_into(&mut after);
                    let parts: Vec<HashPart> = paths.iter().map(|path| path.hash_part).collect();
                    if step(&parts)?.is_break() {
                        break;
                    }
                }
            }
        }
        Ok(report)
    }

    /// Commits narinfos again, which signs them. One that is refused does not keep the others from being signed.
    fn sign_these(&self, narinfos: &[(HashPart, Vec<u8>)], grant: &Grant, report: &mut SignReport) {
        if narinfos.is_empty() {
            return;
        }
        if self.commit_narinfos(narinfos, grant).is_ok() {
            report.signed += narinfos.len();
            return;
        }
        for narinfo in narinfos {
            match self.commit_narinfos(std::slice::from_ref(narinfo), grant) {
                Ok(_) => report.signed += 1,
                Err(rejection) => {
                    tracing::warn!("cache '{}': '{}' is not signed: {rejection}", self.name(), narinfo.0);
                    report.failed += 1;
                }
            }
        }
    }
}
