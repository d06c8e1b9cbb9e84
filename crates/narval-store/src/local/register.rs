//! Registers paths as valid, a whole closure in one transaction.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{SystemTime, UNIX_EPOCH};

use narval_nix::{PathInfo, StorePath, derivation};
use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};

use super::incoming::OnDisk;
use super::{LocalStore, LocalStoreError};
use crate::signatures::join_signatures;

/// The maximum size of a derivation.
const DERIVATION_LEN_MAX: u64 = 64 << 20;

/// The maximum number of paths registered in a transaction: each is locked meanwhile, which takes a file descriptor.
const BATCH_MAX: usize = 256;

/// A path that could not be registered, because another process changed it after it was unpacked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unregistered {
    /// The path.
    pub info: PathInfo,
    /// Why.
    pub why: LeftOut,
}

/// Why a path was not registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeftOut {
    /// It does not exist.
    Missing,
    /// It was changed.
    Changed,
    /// It refers to a path that was not registered.
    Reference,
}

impl LocalStore {
    /// Registers paths as valid. They must be in the store directory, and their references valid or among them. Paths
    /// that are already valid are unchanged, except that signatures are added if the contents are the same. A
    /// registration time of 0 means now.
    ///
    /// Each path is locked while it is checked and registered, so that nobody can replace it in between. Up to 256
    /// paths are registered in a transaction; if there are more, references come first.
    ///
    /// # Errors
    /// [`LocalStoreError`]. Either nothing has changed, or some of the paths are valid with their closures.
    pub fn register(&self, infos: &[PathInfo]) -> Result<(), LocalStoreError> {
        let left = self.register_unchanged(infos)?;
        // The first error is the cause of the others.
        left.into_iter().next().map_or(Ok(()), |Unregistered { info, why }| match why {
            LeftOut::Missing => Err(LocalStoreError::Missing { path: info.path }),
            LeftOut::Changed | LeftOut::Reference => Err(LocalStoreError::Changed { path: info.path }),
        })
    }

    /// Like [`LocalStore::register`], but skips paths whose files are missing or changed, and paths that refer to
    /// those. They are returned, each after its references.
    ///
    /// # Errors
    /// See [`LocalStore::register`].
    pub fn register_unchanged(&self, infos: &[PathInfo]) -> Result<Vec<Unregistered>, LocalStoreError> {
        let mut left: Vec<Unregistered> = Vec::new();
        let mut left_paths: BTreeSet<StorePath> = BTreeSet::new();
        let ordered = references_first(infos)?;
        for batch in ordered.chunks(BATCH_MAX) {
            let mut names: Vec<&StorePath> = batch.iter().map(|info| &info.path).collect();
            // In a global order, so that processes cannot deadlock.
            names.sort();
            names.dedup();
            let locks = names.into_iter().map(|path| self.lock(path)).collect::<Result<Vec<_>, _>>()?;
            let mut ready = Vec::new();
            for info in batch {
                let why = if info.references.iter().any(|path| left_paths.contains(path)) {
                    Some(LeftOut::Reference)
                } else if self.reader.is_valid(&info.path)? {
                    None
                } else {
                    match self.look_at(info)? {
                        OnDisk::Right => None,
                        OnDisk::Missing => Some(LeftOut::Missing),
                        OnDisk::Other => Some(LeftOut::Changed),
                    }
                };
                match why {
                    None => ready.push((*info).clone()),
                    Some(why) => {
                        left_paths.insert(info.path.clone());
                        left.push(Unregistered { info: (*info).clone(), why });
                    }
                }
            }
            self.register_locked(&ready)?;
            drop(locks);
        }
        Ok(left)
    }

    /// Registers paths whose locks the caller holds, and whose files were checked or which are already valid.
    pub(super) fn register_locked(&self, infos: &[PathInfo]) -> Result<(), LocalStoreError> {
        let outputs = self.outputs_of_derivations(infos)?;
        let mut connection = self.writer.lock();
        let fail = |error| self.database_error(error);
        let transaction = Transaction::new(&mut connection, TransactionBehavior::Immediate).map_err(fail)?;
        let mut added = Vec::new();
        for info in infos {
            if self.insert(&transaction, info).map_err(fail)? {
                added.push(info);
            }
        }
        for info in added {
            let referrer = self.id(&transaction, &info.path).map_err(fail)?;
            for reference in &info.references {
                let Some(reference_id) = self.id(&transaction, reference).map_err(fail)? else {
                    return Err(LocalStoreError::Reference { path: info.path.clone(), reference: reference.clone() });
                };
                insert_reference(&transaction, referrer, reference_id).map_err(fail)?;
            }
            for (name, path) in outputs.get(&info.path).into_iter().flatten() {
                let sql = "insert or replace into DerivationOutputs (drv, id, path) values (?1, ?2, ?3)";
                let row = params![referrer, name, self.full(path)];
                transaction.prepare_cached(sql).and_then(|mut statement| statement.execute(row)).map_err(fail)?;
            }
        }
        transaction.commit().map_err(fail)?;
        drop(connection);
        let mut complete = self.complete.lock();
        for info in infos {
            complete.remove(&info.path);
        }
        Ok(())
    }

    /// Inserts a path; returns whether it was not valid before.
    fn insert(&self, connection: &Connection, info: &PathInfo) -> Result<bool, rusqlite::Error> {
        let full = self.full(&info.path);
        let hash = format!("sha256:{}", info.nar_hash.to_hex());
        let known: Option<(i64, Option<String>, String)> = connection
            .prepare_cached("select id, sigs, hash from ValidPaths where path = ?1")?
            .query_row([&full], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
            .optional()?;
        if let Some((id, signatures, known_hash)) = known {
            // The signatures are for other contents.
            if known_hash != hash {
                return Ok(false);
            }
            let known = signatures.unwrap_or_default();
            let mut all: BTreeSet<String> = known.split_ascii_whitespace().map(str::to_owned).collect();
            all.extend(info.signatures.iter().map(ToString::to_string));
            if all.len() > known.split_ascii_whitespace().count() {
                let all = all.into_iter().collect::<Vec<_>>().join(" ");
                connection
                    .prepare_cached("update ValidPaths set sigs = ?1 where id = ?2")?
                    .execute(params![all, id])?;
            }
            return Ok(false);
        }
        let time = if info.registration_time == 0 { now() } else { info.registration_time };
        let sql = "insert into ValidPaths (path, hash, registrationTime, deriver, narSize, ultimate, sigs, ca) \
                   values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
        connection.prepare_cached(sql)?.execute(params![
            full,
            hash,
            i64::try_from(time).unwrap_or(i64::MAX),
            info.deriver.as_ref().map(|deriver| self.full(deriver)),
            i64::try_from(info.nar_size).ok().filter(|size| *size != 0),
            info.ultimate.then_some(1),
            join_signatures(&info.signatures),
            info.ca.as_ref().map(ToString::to_string),
        ])?;
        Ok(true)
    }

    fn id(&self, connection: &Connection, path: &StorePath) -> Result<Option<i64>, rusqlite::Error> {
        let sql = "select id from ValidPaths where path = ?1";
        connection.prepare_cached(sql)?.query_row([self.full(path)], |row| row.get(0)).optional()
    }

    /// The outputs of the derivations among the paths, if the derivations determine their paths.
    #[allow(clippy::type_complexity, reason = "derivation to its outputs, used once")]
    fn outputs_of_derivations(
        &self,
        infos: &[PathInfo],
    ) -> Result<BTreeMap<StorePath, Vec<(String, StorePath)>>, LocalStoreError> {
        let mut all = BTreeMap::new();
        for info in infos.iter().filter(|info| info.path.is_derivation()) {
            let bad = |reason: String| LocalStoreError::Derivation { path: info.path.clone(), reason };
            let path = self.real_path(&info.path);
            let found = std::fs::symlink_metadata(&path).map_err(|error| LocalStoreError::io("read", &path, error))?;
            // A directory may have such a name, too (Nix checks only the name, and fails).
            if !found.is_file() || found.len() > DERIVATION_LEN_MAX {
                return Err(bad("it is not a file, or too large".into()));
            }
            let text = std::fs::read(&path).map_err(|error| LocalStoreError::io("read", &path, error))?;
            let outputs =
                derivation::parse_outputs(&text, &self.config.store_dir).map_err(|error| bad(error.to_string()))?;
            let known = outputs.into_iter().filter_map(|output| Some((output.name.to_string(), output.path?)));
            all.insert(info.path.clone(), known.collect());
        }
        Ok(all)
    }
}

fn insert_reference(connection: &Connection, referrer: Option<i64>, reference: i64) -> Result<(), rusqlite::Error> {
    let sql = "insert or ignore into Refs (referrer, reference) values (?1, ?2)";
    connection.prepare_cached(sql)?.execute(params![referrer, reference])?;
    Ok(())
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_secs())
}

/// Sorts the paths so that each follows its references. Nix allows no cycles except self-references
/// (`LocalStore::registerValidPaths`).
fn references_first(infos: &[PathInfo]) -> Result<Vec<&PathInfo>, LocalStoreError> {
    let index: BTreeMap<&StorePath, usize> = infos.iter().enumerate().map(|(at, info)| (&info.path, at)).collect();
    let edges = |info: &PathInfo| -> Vec<usize> {
        info.references.iter().filter(|path| **path != info.path).filter_map(|path| index.get(path).copied()).collect()
    };
    let mut unresolved: Vec<usize> = infos.iter().map(|info| edges(info).len()).collect();
    let mut referrers: Vec<Vec<usize>> = vec![Vec::new(); infos.len()];
    for (at, info) in infos.iter().enumerate() {
        for reference in edges(info) {
            if let Some(list) = referrers.get_mut(reference) {
                list.push(at);
            }
        }
    }
    let mut ready: Vec<usize> = (0..infos.len()).filter(|at| unresolved.get(*at) == Some(&0)).collect();
    let mut ordered = Vec::with_capacity(infos.len());
    while let Some(at) = ready.pop() {
        ordered.extend(infos.get(at));
        for referrer in referrers.get(at).into_iter().flatten() {
            if let Some(left) = unresolved.get_mut(*referrer) {
                *left -= 1;
                if *left == 0 {
                    ready.push(*referrer);
                }
            }
        }
    }
    match infos.iter().zip(&unresolved).find(|(_, left)| **left > 0) {
        Some((info, _)) => Err(LocalStoreError::Cycle { path: info.path.clone() }),
        None => Ok(ordered),
    }
}
