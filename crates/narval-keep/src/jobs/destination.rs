//! Where jobs may copy caches to: what the operator's settings name, never what a request says.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use narval_client::Url;
use serde_json::Value;

use super::{JobKind, TO};
use crate::{Data, DataError, DataOptions, Database, Rejection, StorageLocation};

/// A place that jobs may copy caches to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    /// A plain binary cache for each cache, below this address: `file:///folder` or `s3://bucket`.
    Export(Url),
    /// The data of other servers.
    Migrate {
        /// Where it is.
        place: StorageLocation,
        /// Where its index is, if not there.
        database: Option<Database>,
    },
}

impl Destination {
    const fn kind(&self) -> JobKind {
        match self {
            Self::Export(_) => JobKind::Export,
            Self::Migrate { .. } => JobKind::Migrate,
        }
    }

    /// Opens the data of other servers, or makes it.
    pub(super) fn open(place: &StorageLocation, database: Option<Database>) -> Result<Data, DataError> {
        Data::open(place, DataOptions { database, ..DataOptions::default() })
    }
}

impl Data {
    /// Sets where jobs may copy caches to, by name. All servers of the same data should have the same: any of them does a job.
    pub fn set_destinations(&self, destinations: BTreeMap<String, Destination>) {
        *self.shared().destinations.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(destinations);
    }

    /// The destination that a job of this kind names in its options.
    pub(super) fn destination(&self, kind: JobKind, options: &Value) -> Result<Destination, Rejection> {
        let all = Arc::clone(&self.shared().destinations.read().unwrap_or_else(PoisonError::into_inner));
        let name = options.get(TO).and_then(Value::as_str).unwrap_or_default();
        if let Some(found) = all.get(name).filter(|destination| destination.kind() == kind) {
            return Ok(found.clone());
        }
        let names: Vec<&str> = all.iter().filter(|(_, to)| to.kind() == kind).map(|(name, _)| &**name).collect();
        let there = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        let message = format!(
            "there is no destination '{name}' for a job '{kind}' in the settings of this server ('[[destination]]'); there are: {there}"
        );
        Err(Rejection::malformed(message))
    }
}
