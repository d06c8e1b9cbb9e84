//! Commits narinfos, which makes paths visible.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;

use narval_nix::{HashPart, NarHash, NarInfo, StorePath};

use super::trust::{Signed, Trust, is_signed};
use crate::access::grant::{Grant, Scope};
use crate::cache::Cache;
use crate::name::NarFileName;
use crate::receive::contents::Checked;
use crate::records::paths::{Commit, NamedNar, NarRecord, PathRecord, Used};
use crate::rejection::Rejection;
use crate::rule::holds;
use crate::settings::CacheSettings;
use narval_client::clock;

/// The maximum number of narinfos in one commit.
pub const COMMIT_MAX: usize = 100_000;

/// How often a commit is tried while others change the same paths.
pub(crate) const ATTEMPTS_MAX: usize = 16;

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

/// What is known of the paths of a commit.
struct Known<'a> {
    settings: &'a CacheSettings,
    trust: Trust<'a>,
    /// Hash parts that NARs mention and that exist.
    mentioned: HashSet<HashPart>,
    checked: Checked,
}

/// A path as a client wants it, and what there is of it.
struct Claimed<'a> {
    info: &'a NarInfo,
    file: String,
    nar: NarRecord,
    old: Option<PathRecord>,
    /// The same path in an upstream, which this one would hide.
    hidden: Option<NarInfo>,
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
    ) -> Result<Vec<Committed>, Rejection> {
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
            Err(rejection) => {
                let first = narinfos.first().map(|(part, _)| part.to_string()).unwrap_or_default();
                self.audit(grant, "narinfo", &first, &Err(rejection.to_string()));
                self.notice_shortage(rejection);
            }
        }
        result
    }

    fn try_commit<T: AsRef<[u8]>>(
        &self,
        narinfos: &[(HashPart, T)],
        grant: &Grant,
    ) -> Result<Vec<Committed>, Rejection> {
        if narinfos.len() > COMMIT_MAX {
            return Err(Rejection::too_large(format_args!("more than {COMMIT_MAX} narinfos in one commit")));
        }
        let settings = self.settings();
        let mut batch = HashMap::new();
        for (part, text) in narinfos {
            let info = parse(part, text.as_ref(), &settings)?;
            if batch.insert(*part, info).is_some() {
                return Err(Rejection::malformed(format_args!("'{part}' is in the commit twice")));
            }
        }
        self.check_room_for_commit()?;
        let _no_collection = self.no_collection()?;
        let mut known = Known {
            settings: &settings,
            trust: Trust::new(&settings, self.sign_keys()),
            mentioned: HashSet::new(),
            checked: Checked::default(),
        };
        for _ in 0..ATTEMPTS_MAX {
            let needed = self.check_references(&batch, &settings)?;
            let claimed: Vec<&NarInfo> = narinfos.iter().filter_map(|(part, _)| batch.get(part)).collect();
            let nars = self.nars_of(&claimed)?;
            known.mentioned = self.known_of_found(&claimed, &nars, &batch)?;
            let parts: Vec<HashPart> = claimed.iter().map(|info| info.path.hash_part()).collect();
            let old = self.index().paths(self.id(), &parts)?;
            let hidden = self.hidden(&claimed, &old, &known.trust, grant);
            let mut prepared = Vec::with_capacity(narinfos.len());
            for (((info, (file, nar)), old), hidden) in claimed.into_iter().zip(nars).zip(old).zip(hidden) {
                prepared.push(self.prepare(Claimed { info, file, nar, old, hidden }, &mut known, grant)?);
            }
            if !self.use_again(&prepared)? {
                continue;
            }
            let changed: Vec<PathRecord> = prepared
                .iter()
                .filter(|prepared| prepared.committed.outcome != Outcome::Unchanged)
                .map(|prepared| prepared.record.clone())
                .collect();
            if changed.is_empty() || self.publish_all(&changed, &needed)? == Commit::Done {
                return Ok(prepared.into_iter().map(|prepared| prepared.committed).collect());
            }
        }
        Err(Rejection::conflict("other clients are committing the same paths; try again"))
    }

    /// Paths that existed also count as pushed: once that is recorded, no collection hides them. Returns `false` if one was hidden before.
    fn use_again(&self, prepared: &[Prepared]) -> Result<bool, Rejection> {
        let unchanged = prepared.iter().filter(|prepared| prepared.committed.outcome == Outcome::Unchanged);
        let parts: Vec<HashPart> = unchanged.map(|prepared| prepared.record.hash_part).collect();
        if parts.is_empty() {
            return Ok(true);
        }
        if !holds!(Unchanged) {
            parts.iter().for_each(|part| self.note_used(part));
            return Ok(true);
        }
        let (cache, time) = (self.id(), self.now());
        let used: Vec<Used> = parts.iter().map(|part| Used { cache, path: Some(*part), file: None, time }).collect();
        self.index().used(&used)?;
        Ok(!self.index().present(cache, &parts)?.contains(&false))
    }

    /// Files are written before the commit in the index, and renamed after it.
    pub(crate) fn publish_all(&self, changed: &[PathRecord], needed: &[HashPart]) -> Result<Commit, Rejection> {
        let failed = |error: io::Error| Rejection::of_file("write", "a narinfo", &error);
        // The files of a large commit are written after it, because each stays open until it is renamed.
        let early = if changed.len() <= WRITTEN_EARLY_MAX { changed } else { &[] };
        let mut written = Vec::with_capacity(early.len());
        for record in early {
            written.push(self.files().write_narinfo(&record.narinfo).map_err(failed)?);
        }
        self.files().sync_nars().map_err(failed)?;
        // Before the commit takes effect: after a pause, requests for it may be another server's work.
        let began = clock::instant();
        let Some(up_to) = self.index().commit_numbered(self.id(), changed.to_vec(), needed, self.now())? else {
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
    ) -> Result<Vec<HashPart>, Rejection> {
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
            && let Some(other_sources) = self.other_sources()
        {
            let have = other_sources.contain(self.name(), &missing.iter().collect::<Vec<_>>());
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
        Err(Rejection::conflict(message).because("reference"))
    }

    /// For each path, what the upstreams have of it if this cache does not have it, nor vouches for it: clients that trust an upstream
    /// would get the one of this cache instead. A token that may replace paths may also hide them.
    fn hidden(
        &self,
        claimed: &[&NarInfo],
        old: &[Option<PathRecord>],
        trust: &Trust<'_>,
        grant: &Grant,
    ) -> Vec<Option<NarInfo>> {
        let mut hidden = vec![None; claimed.len()];
        let other_sources = self.other_sources().filter(|_| !grant.allows(self.name(), Scope::Replace));
        let Some(other_sources) = other_sources else { return hidden };
        let is_asked = |(_, (info, old)): &(usize, (&&NarInfo, &Option<PathRecord>))| {
            old.is_none() && !trust.vouches_for(&self.signed(info, &trust.fingerprint(info), grant))
        };
        let queried: Vec<usize> = claimed.iter().zip(old).enumerate().filter(is_asked).map(|(at, _)| at).collect();
        let paths: Vec<&StorePath> = queried.iter().filter_map(|at| claimed.get(*at)).map(|info| &info.path).collect();
        if !paths.is_empty() {
            for (at, found) in queried.into_iter().zip(other_sources.shadowed(self.name(), &paths)) {
                if let Some(hidden) = hidden.get_mut(at) {
                    *hidden = found;
                }
            }
        }
        hidden
    }

    fn signed<'a>(&self, claimed: &'a NarInfo, fingerprint: &'a str, grant: &Grant) -> Signed<'a> {
        Signed { fingerprint, signatures: &claimed.signatures, may_sign: grant.allows(self.name(), Scope::Sign) }
    }

    fn prepare(&self, claimed: Claimed<'_>, known: &mut Known<'_>, grant: &Grant) -> Result<Prepared, Rejection> {
        let Claimed { info: claimed, file, nar, old, hidden } = claimed;
        let (part, settings) = (claimed.path.hash_part(), known.settings);
        let undeclared = undeclared(claimed, &nar, &known.mentioned);
        if settings.strict_references
            && let Some(first) = undeclared.first()
        {
            let message = format!(
                "'{}' refers to {first} and {} others, which its narinfo does not name",
                claimed.path,
                undeclared.len() - 1
            );
            return Err(Rejection::unprocessable(message).because("reference"));
        }
        let before = old.as_ref().and_then(|old| NarInfo::parse(&old.narinfo, &settings.store_dir).ok());
        if before.as_ref().is_none_or(|before| before.ca != claimed.ca || before.nar_hash != claimed.nar_hash) {
            self.check_contents(claimed, (&file, &nar), settings, &mut known.checked)?;
        }
        let fingerprint = known.trust.fingerprint(claimed);
        let signed = self.signed(claimed, &fingerprint, grant);
        known.trust.check_required(claimed, &signed)?;
        let mut info = NarInfo::new(&claimed.path_info(0), format!("nar/{file}"), nar.compression);
        info.file_hash = Some(nar.file_hash.into());
        info.file_size = Some(nar.file_size);
        if let Some(seconds) = claimed.build_seconds() {
            info.set_build_seconds(seconds);
        }
        let (mut outcome, mut signatures) = (Outcome::Added, Vec::new());
        if let Some(old) = &old {
            match before {
                Some(mut before) if is_same(&before, &info) => {
                    signatures = std::mem::take(&mut before.signatures);
                    // If its NAR is lost, this one replaces it.
                    let exists = self.has_nar_of(&part)?;
                    outcome = if exists { Outcome::Unchanged } else { Outcome::Signed };
                    if exists {
                        std::mem::swap(&mut info, &mut before);
                    }
                    info.ca = info.ca.or(before.ca);
                    info.deriver = info.deriver.take().or(before.deriver);
                }
                before => {
                    // A path that nobody trusted has signed gives way: otherwise, whoever pushes first could keep it from being signed.
                    let had_vouched = before.is_some_and(|before| known.trust.has_vouched_for(&before));
                    let gives_way = !had_vouched && known.trust.vouches_for(&signed);
                    if !gives_way && !grant.allows(self.name(), Scope::Replace) {
                        let advice = "delete it ('narval cache delete'), or push with a token that may replace";
                        return Err(differs(old.nar_hash, &info, "is here", advice));
                    }
                    outcome = Outcome::Replaced;
                }
            }
        }
        match hidden {
            Some(hidden) if !is_same(&hidden, &info) => {
                let advice = "clients get that one; push with a token that may replace or sign";
                return Err(differs(hidden.nar_hash, &info, "is in an upstream of this cache", advice));
            }
            // Clients that trust the upstream's key go on with this copy.
            Some(hidden) => signatures = hidden.signatures,
            None => {}
        }
        info.signatures = known.trust.signatures(&signed, &signatures)?;
        let is_signed = known.trust.signs(&signed) || is_signed(&info, &fingerprint, &self.sign_keys());
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
    fn has_nar_of(&self, part: &HashPart) -> Result<bool, Rejection> {
        Ok(self.missing(&[*part], None)?.is_empty())
    }

    /// The NARs of narinfos. They must be in this cache and match their narinfos.
    fn nars_of(&self, claimed: &[&NarInfo]) -> Result<Vec<NamedNar>, Rejection> {
        let names = claimed.iter().map(|info| nar_name(info)).collect::<Result<Vec<String>, _>>()?;
        let found = self.index().files_named(self.id(), &names.iter().map(String::as_str).collect::<Vec<_>>())?;
        let mut nars = Vec::with_capacity(claimed.len());
        for ((info, name), found) in claimed.iter().zip(names).zip(found) {
            let found = match found {
                Some((own, nar)) if self.has_nar((&own, &nar))? => Some((own, nar)),
                Some(_) => self.stored(&name)?,
                None => None,
            };
            let found = found.ok_or_else(|| {
                let path = &info.path;
                let message = format!(
                    "'{path}': its NAR 'nar/{name}' is missing; push the path again (with 'nix copy --refresh')"
                );
                Rejection::conflict(message)
            })?;
            check_nar_hash(info, &found.1)?;
            nars.push(found);
        }
        Ok(nars)
    }

    /// Of the hash parts that NARs mention, those of paths in this cache or the same commit. Each is looked up once: many narinfos may
    /// share one NAR that mentions thousands.
    fn known_of_found(
        &self,
        claimed: &[&NarInfo],
        nars: &[(String, NarRecord)],
        batch: &HashMap<HashPart, NarInfo>,
    ) -> Result<HashSet<HashPart>, Rejection> {
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
}

/// The name below `nar/` that a narinfo gives to its NAR.
pub(crate) fn nar_name(info: &NarInfo) -> Result<String, Rejection> {
    let name = info.url.strip_prefix("nar/").map(|name| name.split('?').next().unwrap_or(name));
    let name = name.and_then(|name| NarFileName::parse(name).ok()).ok_or_else(|| {
        let message = format!(
            "'{}': its URL '{}' is not 'nar/<FileHash>.nar' with the extension of a compression",
            info.path, info.url
        );
        Rejection::unprocessable(message).because("malformed")
    })?;
    Ok(name.to_string())
}

/// Whether a narinfo says of its NAR what was found when that was received.
fn check_nar_hash(info: &NarInfo, nar: &NarRecord) -> Result<(), Rejection> {
    if (info.nar_hash, info.nar_size) == (nar.nar_hash, nar.nar_size) {
        return Ok(());
    }
    let message = format!(
        "'{}': its NAR has {} and {} bytes, and the narinfo says {} and {}: the store that it comes from is damaged \
         ('nix-store --verify-path' says so)",
        info.path, nar.nar_hash, nar.nar_size, info.nar_hash, info.nar_size
    );
    Err(Rejection::unprocessable(message))
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

fn parse(part: &HashPart, text: &[u8], settings: &CacheSettings) -> Result<NarInfo, Rejection> {
    let invalid = |reason: &dyn std::fmt::Display| {
        Rejection::unprocessable(format_args!("'{part}.narinfo' is refused: {reason}")).because("malformed")
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
pub(crate) fn is_same(one: &NarInfo, other: &NarInfo) -> bool {
    one.path == other.path
        && (one.nar_hash, one.nar_size) == (other.nar_hash, other.nar_size)
        && one.reference_set() == other.reference_set()
}

fn differs(there: NarHash, info: &NarInfo, how: &str, advice: &str) -> Rejection {
    let what = if there == info.nar_hash { "other references" } else { "other contents" };
    let path = &info.path;
    let message = format!("'{path}' {how} with {what} ({there}): it was built twice with different results; {advice}");
    Rejection::conflict(message)
}
