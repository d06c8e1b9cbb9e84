//! Commits narinfos, which makes paths visible.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;

use narval_nix::narinfo::SIGNATURES_MAX;
use narval_nix::{HashPart, NarInfo, Signature, StorePath, TrustedKeys};

use super::index::{Commit, NarRecord, PathRecord, Placed, Used};
use super::sign::is_signed;
use super::{Cache, CacheSettings, Grant, NarFileName, Refusal, RefusalKind, Scope};
use crate::rule::{Rule, holds};
use narval_client::clock;

/// The maximum number of narinfos in one commit.
pub const COMMIT_MAX: usize = 100_000;

/// How often a commit is tried while others change the same paths.
pub(super) const ATTEMPTS_MAX: usize = 16;

/// The maximum number of missing references in a message.
const NAMED_MAX: usize = 3;

/// What a commit did with a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It is new.
    Added,
    /// It existed; signatures were added.
    Signed,
    /// It existed with the same contents.
    Unchanged,
    /// It has other contents or references now.
    Replaced,
}

impl Outcome {
    /// The name in the audit log.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Added => "added",
            Self::Signed => "signed",
            Self::Unchanged => "unchanged",
            Self::Replaced => "replaced",
        }
    }
}

/// A committed path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// The path.
    pub path: StorePath,
    /// What was done.
    pub outcome: Outcome,
    /// Paths of this cache that its contents mention, but its narinfo does not.
    pub undeclared: Vec<HashPart>,
    /// Whether it has a valid signature of each of the cache's keys.
    pub is_signed: bool,
}

/// A path about to be committed.
struct Prepared {
    record: PathRecord,
    committed: Committed,
}

impl Cache {
    /// Makes paths visible, all or none. Their NARs must be in this cache, their references in this cache, in the same
    /// commit or in an upstream, and their narinfos correct. They are on disk when this returns.
    ///
    /// # Errors
    /// If one of them is refused; the message names it.
    pub fn commit_narinfos<T: AsRef<[u8]>>(
        &self,
        narinfos: &[(HashPart, T)],
        grant: &Grant,
    ) -> Result<Vec<Committed>, Refusal> {
        let result = grant.require(self.name(), Scope::Push).and_then(|()| self.try_commit(narinfos, grant));
        match &result {
            Ok(committed) => {
                for Committed { path, undeclared, .. } in committed {
                    if let Some(first) = undeclared.first() {
                        let more = undeclared.len() - 1;
                        let cache = self.name();
                        tracing::warn!(
                            "cache '{cache}': the contents of {path} mention {first} and {more} more paths that are not among its \
                             references"
                        );
                    }
                }
                self.audit_done(
                    grant,
                    "narinfo",
                    committed.iter().map(|done| (done.path.base_name(), done.outcome.name())),
                );
            }
            Err(refusal) => {
                let first = narinfos.first().map(|(part, _)| part.to_string()).unwrap_or_default();
                self.audit(grant, "narinfo", &first, &Err(refusal.to_string()));
                self.notice_shortage(refusal);
            }
        }
        result
    }

    fn try_commit<T: AsRef<[u8]>>(&self, narinfos: &[(HashPart, T)], grant: &Grant) -> Result<Vec<Committed>, Refusal> {
        if narinfos.len() > COMMIT_MAX {
            return Err(Refusal::new(
                RefusalKind::TooLarge,
                format_args!("more than {COMMIT_MAX} narinfos in one commit"),
            ));
        }
        let settings = self.settings();
        let mut batch = HashMap::new();
        for (part, text) in narinfos {
            let info = parse(part, text.as_ref(), &settings)?;
            if batch.insert(*part, info).is_some() {
                return Err(Refusal::new(RefusalKind::Malformed, format_args!("'{part}' is in the commit twice")));
            }
        }
        self.check_room_for_commit()?;
        let failed = |error: io::Error| Refusal::of_file("write", "a narinfo", &error);
        let _no_collection = self.storage().lock_shared().map_err(failed)?;
        self.record_receipts(&batch.values().collect::<Vec<_>>())?;
        for _ in 0..ATTEMPTS_MAX {
            let needed = self.check_references(&batch, &settings)?;
            let claimed: Vec<&NarInfo> = narinfos.iter().filter_map(|(part, _)| batch.get(part)).collect();
            let (nars, placed) = self.nars_of(&claimed)?;
            let known = self.known_of_found(&claimed, &nars, &batch)?;
            let parts: Vec<HashPart> = claimed.iter().map(|info| info.path.hash_part()).collect();
            let old = self.index().paths(self.id(), &parts)?;
            let mut prepared = Vec::with_capacity(narinfos.len());
            for ((info, nar), old) in claimed.into_iter().zip(nars).zip(old) {
                prepared.push(self.prepare(info, nar, old, &known, &settings, grant)?);
            }
            if !self.use_again(&prepared)? {
                continue;
            }
            let changed: Vec<PathRecord> = prepared
                .iter()
                .filter(|prepared| prepared.committed.outcome != Outcome::Unchanged)
                .map(|prepared| prepared.record.clone())
                .collect();
            if changed.is_empty() || self.publish_all(&changed, &needed, &placed)? == Commit::Done {
                return Ok(prepared.into_iter().map(|prepared| prepared.committed).collect());
            }
        }
        Err(Refusal::new(RefusalKind::Conflict, "other clients are committing the same paths; try again"))
    }

    /// Paths that existed also count as pushed: once that is recorded, no collection hides them. Returns `false` if one was hidden before.
    fn use_again(&self, prepared: &[Prepared]) -> Result<bool, Refusal> {
        let unchanged = prepared.iter().filter(|prepared| prepared.committed.outcome == Outcome::Unchanged);
        let parts: Vec<HashPart> = unchanged.map(|prepared| prepared.record.hash_part).collect();
        if parts.is_empty() {
            return Ok(true);
        }
        if !holds(Rule::Unchanged) {
            parts.iter().for_each(|part| self.note_used(part));
            return Ok(true);
        }
        let (cache, time) = (self.id(), self.now());
        let used: Vec<Used> = parts.iter().map(|part| Used { cache, path: Some(*part), file: None, time }).collect();
        self.index().used(&used)?;
        Ok(!self.index().present(cache, &parts)?.contains(&false))
    }

    /// Files are written before the commit in the index, and renamed after it.
    pub(super) fn publish_all(
        &self,
        changed: &[PathRecord],
        needed: &[HashPart],
        placed: &[Placed],
    ) -> Result<Commit, Refusal> {
        let failed = |error: io::Error| Refusal::of_file("write", "a narinfo", &error);
        // The files of a large commit are written after it, because each stays open until it is renamed.
        let early = if changed.len() <= WRITTEN_EARLY_MAX { changed } else { &[] };
        let mut written = Vec::with_capacity(early.len());
        for record in early {
            written.push(self.files().write_narinfo(&record.narinfo).map_err(failed)?);
        }
        self.files().sync_nars().map_err(failed)?;
        // Before the commit takes effect: after a pause, requests for it may be another server's work.
        let began = clock::instant();
        let Some(up_to) = self.index().commit_numbered(self.id(), changed.to_vec(), needed, placed, self.now())? else {
            return Ok(Commit::Changed);
        };
        self.publish_committed(changed, written, (began, up_to));
        Ok(Commit::Done)
    }

    /// Checks that each reference is in this cache, in the same commit, or in an upstream. Returns those that are in this cache, and
    /// must be so when the commit takes effect.
    fn check_references(
        &self,
        batch: &HashMap<HashPart, NarInfo>,
        settings: &CacheSettings,
    ) -> Result<Vec<HashPart>, Refusal> {
        let wanted: BTreeSet<&StorePath> = batch
            .values()
            .flat_map(|info| &info.references)
            .filter(|reference| !batch.contains_key(&reference.hash_part()))
            .collect();
        let keep = |wanted: Vec<&StorePath>, have: Vec<bool>| -> Vec<StorePath> {
            let have = have.into_iter().chain(std::iter::repeat(false));
            wanted.into_iter().zip(have).filter(|(_, have)| !have).map(|(path, _)| path.clone()).collect()
        };
        let parts = |paths: &mut dyn Iterator<Item = &StorePath>| -> Vec<HashPart> {
            paths.map(StorePath::hash_part).collect()
        };
        let present = self.index().present(self.id(), &parts(&mut wanted.iter().copied()))?;
        let found = wanted.iter().zip(&present).filter(|(_, present)| **present);
        let needed = found.map(|(reference, _)| reference.hash_part()).collect();
        let mut missing = keep(wanted.into_iter().collect(), present);
        if !missing.is_empty()
            && let Some(elsewhere) = self.elsewhere()
        {
            let have = elsewhere.have(self.name(), &parts(&mut missing.iter()));
            missing = keep(missing.iter().collect(), have);
        }
        let Some(first) = missing.first() else { return Ok(needed) };
        let referrer = batch.values().find(|info| info.references.contains(first));
        let referrer = referrer.map(|info| settings.store_dir.display(&info.path).to_string()).unwrap_or_default();
        let named: Vec<&str> = missing.iter().take(NAMED_MAX).map(StorePath::base_name).collect();
        let more = missing.len().saturating_sub(NAMED_MAX);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let message = format!(
            "'{referrer}' is refused: its closure lacks {}{more}. Push the whole closure; if Nix believes that it is here \
             already, use 'nix copy --refresh'",
            named.join(", ")
        );
        Err(Refusal::new(RefusalKind::Conflict, message))
    }

    fn prepare(
        &self,
        claimed: &NarInfo,
        (file, nar): (String, NarRecord),
        old: Option<PathRecord>,
        known: &HashSet<HashPart>,
        settings: &CacheSettings,
        grant: &Grant,
    ) -> Result<Prepared, Refusal> {
        let part = claimed.path.hash_part();
        let undeclared = undeclared(claimed, &nar, known);
        if settings.strict_references
            && let Some(first) = undeclared.first()
        {
            let message = format!(
                "'{}' refers to {first} and {} others, which its narinfo does not name",
                claimed.path,
                undeclared.len() - 1
            );
            return Err(Refusal::new(RefusalKind::Unprocessable, message));
        }
        let mut info = NarInfo::new(&claimed.path_info(0), format!("nar/{file}"), nar.compression);
        info.file_hash = Some(nar.file_hash.into());
        info.file_size = Some(nar.file_size);
        let mut outcome = Outcome::Added;
        if let Some(old) = &old {
            let before = NarInfo::parse(&old.narinfo, &settings.store_dir).ok();
            match before.filter(|before| is_same(before, &info)) {
                // Its NAR is lost: this one replaces it.
                Some(before) if !self.has_nar_of(&part)? => {
                    merge(&mut info, &before.signatures);
                    info.ca = info.ca.or(before.ca);
                    info.deriver = info.deriver.take().or(before.deriver);
                    outcome = Outcome::Signed;
                }
                Some(before) => {
                    // It is unchanged, except for new signatures.
                    let signatures = std::mem::replace(&mut info, before);
                    merge(&mut info, &signatures.signatures);
                    info.ca = info.ca.or(signatures.ca);
                    info.deriver = info.deriver.take().or(signatures.deriver);
                    outcome = Outcome::Unchanged;
                }
                None if grant.allows(self.name(), Scope::Replace) => outcome = Outcome::Replaced,
                None => return Err(differs(old, &info)),
            }
        }
        let is_signed = self.check_and_sign(&mut info, claimed, settings, grant)?;
        let text = info.render(&settings.store_dir).into_bytes();
        if outcome == Outcome::Unchanged && old.as_ref().is_some_and(|old| old.narinfo != text) {
            outcome = Outcome::Signed;
        }
        let record = PathRecord {
            hash_part: part,
            path: info.path.to_string(),
            nar_hash: info.nar_hash,
            file: info.url.strip_prefix("nar/").unwrap_or(&info.url).to_owned(),
            narinfo: text,
            references: info
                .references
                .iter()
                .map(StorePath::hash_part)
                .filter(|reference| *reference != part)
                .collect(),
            listing_size: nar.listing_size,
            version: old.map_or(0, |old| old.version),
        };
        Ok(Prepared { record, committed: Committed { path: info.path, outcome, undeclared, is_signed } })
    }

    /// Whether the NAR of a path of this cache exists.
    fn has_nar_of(&self, part: &HashPart) -> Result<bool, Refusal> {
        Ok(self.missing(&[*part], None)?.is_empty())
    }

    /// The NARs of narinfos, under the names that they are served by. They must be in this cache and match their narinfos.
    fn nars_of(&self, claimed: &[&NarInfo]) -> Result<(NamedNars, Vec<Placed>), Refusal> {
        let names = claimed.iter().map(|info| nar_name(info)).collect::<Result<Vec<String>, _>>()?;
        let absent = |info: &NarInfo, name: &str| {
            let path = &info.path;
            let message =
                format!("'{path}': its NAR 'nar/{name}' is missing; push the path again (with 'nix copy --refresh')");
            Refusal::new(RefusalKind::Conflict, message)
        };
        let found = self.index().files_named(self.id(), &names.iter().map(String::as_str).collect::<Vec<_>>())?;
        let mut nars = Vec::with_capacity(claimed.len());
        for ((info, name), nar) in claimed.iter().zip(names).zip(found) {
            let Some(nar) = nar else { return Err(absent(info, &name)) };
            nars.push((name, nar));
        }
        let placed = self.files().placed(self.index(), self.id(), &nars)?;
        let mut all_placed = Vec::with_capacity(claimed.len());
        for ((info, (name, nar)), placed) in claimed.iter().zip(&nars).zip(placed) {
            all_placed.push(placed.ok_or_else(|| absent(info, name))?);
            check_nar_hash(info, nar)?;
        }
        let served = |(name, nar): (String, NarRecord)| (self.files().served_name(&name, &nar), nar);
        Ok((nars.into_iter().map(served).collect(), all_placed))
    }

    /// Of the hash parts that NARs mention, those of paths in this cache or the same commit. Each is looked up once: many narinfos may
    /// share one NAR that mentions thousands.
    fn known_of_found(
        &self,
        claimed: &[&NarInfo],
        nars: &[(String, NarRecord)],
        batch: &HashMap<HashPart, NarInfo>,
    ) -> Result<HashSet<HashPart>, Refusal> {
        let mentioning = claimed.iter().zip(nars).filter(|(info, _)| !info.path.is_derivation());
        let found: BTreeSet<HashPart> = mentioning.flat_map(|(_, (_, nar))| &nar.found).copied().collect();
        let mut known = HashSet::new();
        let found: Vec<HashPart> = found.into_iter().collect();
        for step in found.chunks(FOUND_STEP) {
            let present = self.index().present(self.id(), step)?;
            let is_known = |(part, present): &(&HashPart, bool)| *present || batch.contains_key(*part);
            known.extend(step.iter().zip(present).filter(is_known).map(|(part, _)| *part));
        }
        Ok(known)
    }

    /// Signs a path with the cache's keys, if permitted; refuses one without a signature that the cache requires. Returns whether it has
    /// signatures of all of these keys.
    fn check_and_sign(
        &self,
        info: &mut NarInfo,
        claimed: &NarInfo,
        settings: &CacheSettings,
        grant: &Grant,
    ) -> Result<bool, Refusal> {
        let fingerprint = info.fingerprint(&settings.store_dir);
        // Only signatures in this upload count: earlier ones say nothing about it.
        let is_signed_by = |keys: &[narval_nix::PublicKey]| {
            let keys: TrustedKeys = keys.iter().cloned().collect();
            keys.find_valid(fingerprint.as_bytes(), &claimed.signatures).is_some()
        };
        if !settings.required_keys.is_empty() && !is_signed_by(&settings.required_keys) {
            let names: Vec<&str> = settings.required_keys.iter().map(narval_nix::PublicKey::name).collect();
            let message = format!(
                "'{}' has no valid signature of {}, which this cache requires: sign it ('nix store sign') and push again",
                info.path,
                names.join(" or ")
            );
            return Err(Refusal::new(RefusalKind::Unprocessable, message));
        }
        if grant.allows(self.name(), Scope::Sign) || is_signed_by(&settings.trusted_keys) {
            let signatures: Vec<Signature> =
                self.sign_keys().iter().map(|key| key.sign(fingerprint.as_bytes())).collect();
            merge(info, &signatures);
            return Ok(true);
        }
        Ok(is_signed(info, &fingerprint, &self.sign_keys()))
    }
}

/// NARs with the names that they are served by.
type NamedNars = Vec<(String, NarRecord)>;

/// The name below `nar/` that a narinfo gives to its NAR.
pub(super) fn nar_name(info: &NarInfo) -> Result<String, Refusal> {
    let name = info.url.strip_prefix("nar/").map(|name| name.split('?').next().unwrap_or(name));
    let name = name.and_then(|name| NarFileName::parse(name).ok()).ok_or_else(|| {
        let message = format!(
            "'{}': its URL '{}' is not 'nar/<FileHash>.nar' with the extension of a compression",
            info.path, info.url
        );
        Refusal::new(RefusalKind::Unprocessable, message)
    })?;
    Ok(name.to_string())
}

/// Whether a narinfo says of its NAR what was found when that was received.
fn check_nar_hash(info: &NarInfo, nar: &NarRecord) -> Result<(), Refusal> {
    if (info.nar_hash, info.nar_size) == (nar.nar_hash, nar.nar_size) {
        return Ok(());
    }
    let message = format!(
        "'{}': its NAR has {} and {} bytes, and the narinfo says {} and {}: the store that it comes from is damaged \
         ('nix-store --verify-path' says so)",
        info.path, nar.nar_hash, nar.nar_size, info.nar_hash, info.nar_size
    );
    Err(Refusal::new(RefusalKind::Unprocessable, message))
}

/// The number of mentioned hash parts that are looked up at a time.
const FOUND_STEP: usize = 16_384;

/// Paths in this cache or the same commit that the NAR mentions, but the narinfo does not.
fn undeclared(info: &NarInfo, nar: &NarRecord, known: &HashSet<HashPart>) -> Vec<HashPart> {
    // A derivation mentions its outputs, which are not references.
    if info.path.is_derivation() {
        return Vec::new();
    }
    let declared: HashSet<HashPart> = info.references.iter().map(StorePath::hash_part).collect();
    nar.found.iter().filter(|part| known.contains(*part) && !declared.contains(*part)).copied().collect()
}

/// The maximum number of files that are written, and open, before their commit.
const WRITTEN_EARLY_MAX: usize = 128;

fn parse(part: &HashPart, text: &[u8], settings: &CacheSettings) -> Result<NarInfo, Refusal> {
    let invalid = |reason: &dyn std::fmt::Display| {
        Refusal::new(RefusalKind::Unprocessable, format_args!("'{part}.narinfo' is refused: {reason}"))
    };
    let info = NarInfo::parse(text, &settings.store_dir).map_err(|error| invalid(&error))?;
    if info.path.hash_part() != *part {
        return Err(invalid(&format_args!("it is one of '{}'", info.path)));
    }
    if let Some(ca) = &info.ca
        && !ca.names(&settings.store_dir, &info.path, &info.reference_set())
    {
        return Err(invalid(&format_args!("'{}' is not the path of its CA '{ca}'", info.path)));
    }
    Ok(info)
}

/// Whether two narinfos have the same contents and references, which signatures cover.
pub(super) fn is_same(one: &NarInfo, other: &NarInfo) -> bool {
    one.path == other.path
        && (one.nar_hash, one.nar_size) == (other.nar_hash, other.nar_size)
        && one.reference_set() == other.reference_set()
}

/// Adds new signatures, sorted as in Nix.
pub(super) fn merge(info: &mut NarInfo, signatures: &[Signature]) {
    let mut all: BTreeSet<Signature> = info.signatures.iter().cloned().collect();
    for signature in signatures {
        if all.len() < SIGNATURES_MAX {
            all.insert(signature.clone());
        }
    }
    info.signatures = all.into_iter().collect();
}

fn differs(old: &PathRecord, info: &NarInfo) -> Refusal {
    let what = if old.nar_hash == info.nar_hash { "other references" } else { "other contents" };
    let message = format!(
        "'{}' is here with {what} ({}): it was built twice with different results; delete it ('narval cache delete'), or push with \
         a token that may replace",
        info.path, old.nar_hash
    );
    Refusal::new(RefusalKind::Conflict, message)
}
