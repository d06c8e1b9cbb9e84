//! Finding a path in several caches: the best first, the next one as well if that takes long, and none that keeps failing.

use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use narval_client::{Client, HttpError, Url};
use narval_nix::{Algorithm, ContentsCheck, ContentsClaim, HashPart, HashedContents, NarInfo, StoreDir, TrustedKeys};

use crate::advice::signature_advice;
use crate::cache::{BinaryCache, Patience};
use crate::error::CacheError;
use crate::wanted::Wanted;

/// How long one cache may take before the next is queried as well.
pub const HEDGE_AFTER: Duration = Duration::from_millis(100);

/// A narinfo that has passed the trust rule, and the cache it came from.
#[derive(Clone)]
pub struct TrustedNarInfo {
    /// The narinfo.
    pub info: NarInfo,
    /// The cache.
    pub cache: Arc<BinaryCache>,
}

/// All caches, the best first.
pub struct BinaryCaches {
    list: Vec<Arc<BinaryCache>>,
    /// Those that did not respond.
    left_out: Vec<String>,
    trust: Arc<Trust>,
}

/// Which keys are trusted.
pub(crate) struct Trust {
    pub(crate) keys: TrustedKeys,
    pub(crate) check_signatures: bool,
    pub(crate) store_dir: StoreDir,
}

impl Trust {
    /// The rule (Nix `path-info.cc checkSignatures`): a signature by a trusted key, or a content-addressed path (which
    /// is verified when the NAR is fetched).
    ///
    /// No signature covers `CA`. One that does not match the path, or that cannot be checked, is dropped, so that it
    /// never gets into a store unverified.
    pub(crate) fn check(&self, cache: &BinaryCache, info: &mut NarInfo) -> Result<(), CacheError> {
        let known = info.path_info(0);
        let (mut named, mut remark) = (false, String::new());
        match known.contents_claim(&self.store_dir) {
            ContentsClaim::Check(check) => {
                if let ContentsCheck::Hash { expected, of: HashedContents::Nar } = check
                    && expected.algorithm() == Algorithm::Sha256
                {
                    // The narinfo contradicts itself: there is no need to fetch anything.
                    return Err(CacheError::Mismatch {
                        cache: cache.url().to_string(),
                        path: info.path.clone(),
                        what: "NarHash",
                        actual: info.nar_hash.to_string(),
                        expected: format!("CA: {expected}"),
                    });
                }
                named = true;
            }
            ContentsClaim::Untrue | ContentsClaim::Unsupported => {
                let ca = info.ca.take().map(|ca| ca.to_string()).unwrap_or_default();
                tracing::debug!(path = %info.path, ca, "the CA is wrong or not supported; it is ignored");
                remark = format!("; its CA {ca} does not match it, or is not supported");
            }
            ContentsClaim::None => {}
        }
        let fingerprint = info.fingerprint(&self.store_dir);
        if !self.check_signatures || named || self.keys.find_valid(fingerprint.as_bytes(), &info.signatures).is_some() {
            return Ok(());
        }
        let name = cache.url().to_string();
        let advice = signature_advice(&name, &fingerprint, &info.signatures, cache.published()) + &remark;
        Err(CacheError::Untrusted { cache: name, path: info.path.clone(), advice })
    }
}

impl BinaryCaches {
    /// Opens all of them at once, and orders them by priority; equal ones stay in the given order. Once one of them has
    /// responded, the others have [`OPEN_PATIENCE`](narval_client::OPEN_PATIENCE), counted from the start: one that
    /// does not respond is skipped with a warning. If none responds, all of them are kept.
    ///
    /// # Errors
    /// If none of them can be used; the first one's error.
    pub fn open(
        urls: &[Url],
        client: &Arc<Client>,
        store_dir: &StoreDir,
        keys: TrustedKeys,
        check_signatures: bool,
    ) -> Result<Self, CacheError> {
        let opened = open_all(urls, client, store_dir);
        let (mut list, mut silent, mut left_out, mut refused) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (url, result) in urls.iter().zip(opened) {
            match result {
                Some(Ok(cache)) if cache.silent => silent.push(Arc::new(cache)),
                Some(Ok(cache)) => list.push(Arc::new(cache)),
                Some(Err(error)) => refused.push(error),
                None => left_out.push(url.to_string()),
            }
        }
        if list.is_empty() {
            list = silent;
        } else {
            left_out.extend(silent.iter().map(|cache| cache.url().to_string()));
        }
        for url in &left_out {
            tracing::warn!("{url} does not respond; this run continues without it");
        }
        // Without any other cache, the first error is that of this function.
        let error = (list.is_empty() && !refused.is_empty()).then(|| refused.remove(0));
        for error in refused {
            tracing::warn!("cache skipped: {error}");
        }
        if let Some(error) = error {
            return Err(error);
        }
        list.sort_by_key(|cache| cache.priority());
        let trust = Arc::new(Trust { keys, check_signatures, store_dir: store_dir.clone() });
        Ok(Self { list, left_out, trust })
    }

    /// The caches, the best first.
    pub fn list(&self) -> &[Arc<BinaryCache>] {
        &self.list
    }

    /// Whether one of them has answered when it was opened.
    pub fn have_answered(&self) -> bool {
        self.list.iter().any(|cache| !cache.silent)
    }

    /// The logical store directory that all of them are for.
    pub fn store_dir(&self) -> &StoreDir {
        &self.trust.store_dir
    }

    fn names(&self) -> String {
        self.list.iter().map(|cache| cache.url().to_string()).collect::<Vec<_>>().join(", ")
    }

    /// The narinfo of a path, from the cache with the best priority that has it with a trusted signature.
    pub fn find(&self, wanted: &Wanted) -> Result<TrustedNarInfo, CacheError> {
        self.find_except(wanted, &[])
    }

    /// Like [`find`](Self::find), but does not query the caches that have failed for this path.
    pub fn find_except(&self, wanted: &Wanted, except: &[Arc<BinaryCache>]) -> Result<TrustedNarInfo, CacheError> {
        let left = |cache: &&Arc<BinaryCache>| !except.iter().any(|other| Arc::ptr_eq(other, cache));
        let all: Vec<_> = self.list.iter().filter(left).cloned().collect();
        let closed: Vec<_> = all.iter().filter(|cache| all.len() == 1 || !cache.breaker.is_open()).cloned().collect();
        if let [only] = all.as_slice() {
            return ask(only, &self.trust, wanted, Patience::Full)?.ok_or_else(|| self.absent(wanted));
        }
        let (found, mut failed) = self.race(&closed, wanted);
        if let Some(found) = found {
            return Ok(found);
        }
        // Skipped caches are queried if no other has the path, and those that were away are waited for: better late than wrong.
        let resting = all.iter().filter(|cache| !closed.iter().any(|other| Arc::ptr_eq(other, cache)));
        let mut failure = None;
        for cache in resting {
            match ask(cache, &self.trust, wanted, Patience::None) {
                Ok(Some(found)) => return Ok(found),
                Ok(None) => {}
                Err(error) => failed.push((Arc::clone(cache), error)),
            }
        }
        for (cache, error) in failed {
            let again = match error.is_outage() {
                true => ask(&cache, &self.trust, wanted, Patience::Full),
                false => Err(error),
            };
            match again {
                Ok(Some(found)) => return Ok(found),
                Ok(None) => {}
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        Err(failure.unwrap_or_else(|| self.absent(wanted)))
    }

    /// The error if no cache has the path, or if one that could not be queried may have it.
    fn absent(&self, wanted: &Wanted) -> CacheError {
        match self.left_out.first() {
            Some(cache) => {
                CacheError::Fetch { cache: cache.clone(), what: wanted.to_string(), source: HttpError::LeftOut }
            }
            None => CacheError::NotFound { what: wanted.to_string(), caches: self.names() },
        }
    }

    /// Queries the caches with a delay between them, and returns the first good result, or those that have failed.
    fn race(
        &self,
        caches: &[Arc<BinaryCache>],
        wanted: &Wanted,
    ) -> (Option<TrustedNarInfo>, Vec<(Arc<BinaryCache>, CacheError)>) {
        let (sender, receiver) = mpsc::channel();
        let mut waiting = caches.iter();
        let (mut queried, mut answered, mut failed) = (0, 0, Vec::new());
        while answered < caches.len() {
            if let Some(cache) = waiting.next() {
                let (cache, trust, sender) = (Arc::clone(cache), Arc::clone(&self.trust), sender.clone());
                let wanted = wanted.clone();
                queried += 1;
                // The receiver is gone if another cache was faster: this result is not needed then.
                std::thread::spawn(move || {
                    let answer = ask(&cache, &trust, &wanted, Patience::UntilBreakerOpens);
                    drop(sender.send((cache, answer)));
                });
            }
            let answer = if queried < caches.len() {
                match receiver.recv_timeout(HEDGE_AFTER) {
                    Ok(answer) => answer,
                    Err(_) => continue,
                }
            } else {
                match receiver.recv() {
                    Ok(answer) => answer,
                    // Not while this function has a sender.
                    Err(_) => break,
                }
            };
            answered += 1;
            match answer {
                (_, Ok(Some(found))) => return (Some(found), failed),
                (_, Ok(None)) => {}
                (cache, Err(error)) => failed.push((cache, error)),
            }
        }
        (None, failed)
    }

    /// Requests the closure of many paths from the cache with the best priority in one request, if it supports that.
    /// The result may be incomplete; each narinfo is verified like a single one. Failures are ignored.
    pub fn find_many(&self, hash_parts: &[HashPart]) -> Vec<TrustedNarInfo> {
        let Some(cache) = self.list.first().filter(|cache| cache.answers_batches()) else { return Vec::new() };
        match cache.batch(hash_parts) {
            Ok(infos) => {
                let trusted = infos.into_iter().filter_map(|mut info| {
                    // A single request for it will fail with the reason.
                    self.trust.check(cache, &mut info).ok()?;
                    Some(TrustedNarInfo { info, cache: Arc::clone(cache) })
                });
                trusted.collect()
            }
            Err(error) => {
                tracing::debug!(%error, "requesting one by one instead");
                Vec::new()
            }
        }
    }
}

/// Opens all of them at once; `None` for one that took too long.
fn open_all(urls: &[Url], client: &Arc<Client>, store_dir: &StoreDir) -> Vec<Option<Result<BinaryCache, CacheError>>> {
    let (sender, receiver) = mpsc::channel();
    let begun = Instant::now();
    for (index, url) in urls.iter().enumerate() {
        let (url, client, store_dir, sender) = (url.clone(), Arc::clone(client), store_dir.clone(), sender.clone());
        // Not joined: it ends with its request. The receiver may be gone by then, and the result is not needed.
        std::thread::spawn(move || drop(sender.send((index, BinaryCache::open(url, &client, &store_dir)))));
    }
    drop(sender);
    let mut opened: Vec<_> = urls.iter().map(|_| None).collect();
    let mut one_answered = false;
    loop {
        let answer = if one_answered {
            receiver.recv_timeout(client.open_patience().saturating_sub(begun.elapsed())).ok()
        } else {
            receiver.recv().ok()
        };
        let Some((index, result)) = answer else { break };
        one_answered |= result.as_ref().is_ok_and(|cache| !cache.silent);
        if let Some(slot) = opened.get_mut(index) {
            *slot = Some(result);
        }
    }
    opened
}

fn ask(
    cache: &Arc<BinaryCache>,
    trust: &Trust,
    wanted: &Wanted,
    patience: Patience,
) -> Result<Option<TrustedNarInfo>, CacheError> {
    let Some(mut info) = cache.narinfo(wanted, patience)? else { return Ok(None) };
    trust.check(cache, &mut info)?;
    Ok(Some(TrustedNarInfo { info, cache: Arc::clone(cache) }))
}
