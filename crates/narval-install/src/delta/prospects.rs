//! Which paths of a closure will come as deltas, as far as their caches say.

use std::cmp::Reverse;
use std::sync::Arc;

use narval_cache::{Cache, DELTA_BATCH_MAX, DeltaProspect, Found};
use narval_nix::{HashPart, NarHash, StorePath};

use super::Deltas;

/// A path that is expected to come as a delta.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedDelta {
    /// The path of the store that it is the difference to.
    pub base: StorePath,
    /// Its size in bytes; `None` if it is made when it is requested, or if the cache does not say.
    pub size: Option<u64>,
}

/// The deltas that are expected for these paths, in their order. Each cache is asked once, about the largest NARs; if it
/// does not answer, every base counts.
pub(crate) fn prospects(deltas: &Deltas<'_>, found: &[Found]) -> Vec<Option<PlannedDelta>> {
    let bases: Vec<_> = found.iter().map(|one| deltas.base_for(one)).collect();
    let mut planned: Vec<_> = bases
        .iter()
        .map(|base| base.as_ref().map(|base| PlannedDelta { base: base.path.clone(), size: None }))
        .collect();
    let mut caches: Vec<&Arc<Cache>> = Vec::new();
    for one in found {
        if !caches.iter().any(|cache| Arc::ptr_eq(cache, &one.cache)) {
            caches.push(&one.cache);
        }
    }
    for cache in caches {
        let with_base = found.iter().zip(&bases).filter(|(one, _)| Arc::ptr_eq(&one.cache, cache));
        let mut pairs: Vec<(u64, (HashPart, HashPart, NarHash))> = with_base
            .filter_map(|(one, base)| {
                let base = base.as_ref()?;
                Some((one.info.nar_size, (one.info.path.hash_part(), base.path.hash_part(), base.nar_hash)))
            })
            .collect();
        if pairs.is_empty() {
            continue;
        }
        pairs.sort_by_key(|(nar_size, _)| Reverse(*nar_size));
        let pairs: Vec<_> = pairs.into_iter().map(|(_, pair)| pair).take(DELTA_BATCH_MAX).collect();
        let answer = cache.delta_prospects(&pairs);
        // Nothing depends on it.
        let answer = answer.inspect_err(|error| tracing::debug!(%error, "the sizes of deltas are not known"));
        let Ok(Some(answer)) = answer else { continue };
        for (one, planned) in found.iter().zip(&mut planned).filter(|(one, _)| Arc::ptr_eq(&one.cache, cache)) {
            match (answer.get(&one.info.path.hash_part()), &mut *planned) {
                (Some(DeltaProspect::Ready(len)), Some(planned)) => planned.size = Some(*len),
                (Some(DeltaProspect::None), planned) => *planned = None,
                _ => {}
            }
        }
    }
    planned
}
