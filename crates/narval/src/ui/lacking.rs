//! What a push would send.

use std::collections::BTreeMap;

use narval_install::human_bytes;
use narval_nix::{StoreDir, StorePath};
use serde_json::json;

use super::json;
use super::output::{note, out, paths};

/// Shows paths with the sizes of their NARs in bytes, and the sum.
pub(crate) fn show_lacking(lacking: &BTreeMap<StorePath, u64>, store_dir: &StoreDir, as_json: bool) {
    let bytes: u64 = lacking.values().sum();
    for (path, nar_size) in lacking {
        let path = store_dir.display(path);
        if as_json {
            json::event("lacking", json!({"path": path.to_string(), "nar_size": nar_size}));
        } else {
            out!("{path}\t{nar_size}");
        }
    }
    if as_json {
        json::summary(json!({"dry_run": true, "paths": lacking.len(), "nar_bytes": bytes}));
    } else {
        note!("Would push {}, {} before compression", paths(lacking.len()), human_bytes(bytes));
    }
}
