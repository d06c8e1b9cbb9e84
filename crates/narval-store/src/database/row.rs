//! Converts the columns of `ValidPaths` to the types of narval-nix.

use narval_nix::{ContentAddress, HashPart, NarHash, PathInfo, StoreDir, StorePath};
use rusqlite::Row;
use rusqlite::types::ValueRef;

use super::connection::QueryError;
use crate::error::StoreError;
use crate::signatures::split_signatures;

/// Reads rows of a store with this logical directory.
#[derive(Debug)]
pub(super) struct Rows {
    pub(super) store_dir: StoreDir,
}

/// A row of `ValidPaths`, without the references.
pub(super) struct InfoRow {
    pub(super) id: i64,
    pub(super) full: String,
    pub(super) info: PathInfo,
}

impl Rows {
    pub(super) fn full(&self, path: &StorePath) -> String {
        self.store_dir.display(path).to_string()
    }

    /// The common prefix of all paths with this hash part. No other path sorts between it and them.
    pub(super) fn first_with(&self, hash_part: &HashPart) -> String {
        format!("{}/{hash_part}-", self.store_dir)
    }

    pub(super) fn path(&self, full: &str, column: &'static str, of: &str) -> Result<StorePath, QueryError> {
        self.store_dir.parse(full).map_err(|error| bad(of, column, error))
    }

    /// The row with this path, from the columns `id, path, hash, registrationTime, deriver, narSize, ultimate, sigs,
    /// ca`.
    pub(super) fn path_info(&self, row: &Row<'_>, full: String) -> Result<InfoRow, QueryError> {
        let path = self.path(&full, "path", &full)?;
        let hash: String = row.get(2)?;
        let deriver: Option<String> = row.get(4)?;
        let signatures: Option<String> = row.get(7)?;
        let ca: Option<String> = row.get(8)?;
        let info = PathInfo {
            nar_hash: NarHash::parse(&hash).map_err(|error| bad(&full, "hash", error))?,
            nar_size: unsigned(row.get(5)?).ok_or_else(|| bad(&full, "narSize", "negative"))?,
            deriver: filled(deriver.as_deref()).map(|deriver| self.path(deriver, "deriver", &full)).transpose()?,
            registration_time: unsigned(row.get(3)?).ok_or_else(|| bad(&full, "registrationTime", "negative"))?,
            ultimate: row.get::<_, Option<i64>>(6)? == Some(1),
            signatures: split_signatures(signatures.as_deref()),
            ca: filled(ca.as_deref())
                .map(str::parse::<ContentAddress>)
                .transpose()
                .map_err(|error| bad(&full, "ca", error))?,
            references: Default::default(),
            path,
        };
        Ok(InfoRow { id: row.get(0)?, full, info })
    }
}

/// A column's text, or `None` if it is not text and so not a path. Invalid UTF-8 fails to parse as a path later.
pub(super) fn text(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<String>> {
    Ok(match row.get_ref(column)? {
        ValueRef::Text(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        _ => None,
    })
}

fn filled(column: Option<&str>) -> Option<&str> {
    column.filter(|text| !text.is_empty())
}

/// A number that Nix writes as NULL when it is zero.
fn unsigned(column: Option<i64>) -> Option<u64> {
    u64::try_from(column.unwrap_or(0)).ok()
}

fn bad(path: &str, column: &'static str, reason: impl ToString) -> QueryError {
    QueryError::Row(StoreError::Row { path: path.to_owned(), column, reason: reason.to_string() })
}
