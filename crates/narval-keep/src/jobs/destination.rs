//! Where jobs may copy caches to: what the operator's settings name, never what a request says.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use serde_json::Value;

use super::TO;
use crate::data::Data;
use crate::error::DataError;
use crate::location::{Database, StorageLocation};
use crate::options::{DataOptions, Destination};
use crate::records::jobs::JobKind;
use crate::rejection::Rejection;

const fn kind_of(destination: &Destination) -> JobKind {
    match destination {
        Destination::Export(_) => JobKind::Export,
        Destination::Migrate { .. } => JobKind::Migrate,
    }
}

/// Opens the data of other servers, or makes it.
pub(super) fn open(place: &StorageLocation, database: Option<Database>) -> Result<Data, DataError> {
    Data::open(place, DataOptions { database, ..DataOptions::default() })
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
        if let Some(found) = all.get(name).filter(|destination| kind_of(destination) == kind) {
            return Ok(found.clone());
        }
        let names: Vec<&str> = all.iter().filter(|(_, to)| kind_of(to) == kind).map(|(name, _)| &**name).collect();
        let there = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        let message = format!(
            "there is no destination '{name}' for a job '{kind}' in the settings of this server ('[[destination]]'); there are: {there}"
        );
        Err(Rejection::malformed(message))
    }
}
