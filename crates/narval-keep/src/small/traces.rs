//! Realisations and build traces: an upload adds signatures, and takes none away.

use narval_nix::narinfo::SIGNATURES_MAX;
use serde_json::{Map, Value};

use crate::push::trust::UNKNOWN_SIGNATURES_MAX;

/// The key of the only field that uploads without `replace` can change.
const SIGNATURES: &str = "signatures";

/// What the token of an upload allows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rights {
    pub(crate) may_replace: bool,
    pub(crate) may_sign: bool,
}

/// The text to store after an upload; `None` if the stored one stays.
pub(crate) fn merged(old: Option<&[u8]>, new: &[u8], rights: Rights) -> Option<Vec<u8>> {
    let stored = old.map(parse);
    let (Some((fields, brought)), Some(stored)) = (parse(new), stored.unwrap_or_else(|| Some(Default::default())))
    else {
        // Of a format that only a later version of Nix knows.
        return (old.is_none() || rights.may_replace).then(|| new.to_vec());
    };
    let max = if rights.may_sign { SIGNATURES_MAX } else { UNKNOWN_SIGNATURES_MAX };
    if old.is_none() && brought.len() <= max {
        return Some(new.to_vec());
    }
    let (stored_fields, mut signatures) = stored;
    if old.is_some() && fields != stored_fields {
        if !rights.may_replace {
            return None;
        }
        // They sign the other fields.
        signatures.clear();
    }
    let before = signatures.len();
    for signature in brought {
        if signatures.len() < max && !signatures.contains(&signature) {
            signatures.push(signature);
        }
    }
    if old.is_some() && fields == stored_fields && signatures.len() == before {
        return None;
    }
    let mut json = fields;
    json.insert(SIGNATURES.to_owned(), Value::Array(signatures));
    serde_json::to_vec(&json).ok()
}

/// The fields that signatures sign, and the signatures.
fn parse(text: &[u8]) -> Option<(Map<String, Value>, Vec<Value>)> {
    let mut fields: Map<String, Value> = serde_json::from_slice(text).ok()?;
    fields.get("outPath")?.as_str()?;
    let signatures = match fields.remove(SIGNATURES) {
        None => Vec::new(),
        Some(Value::Array(signatures)) => signatures,
        Some(_) => return None,
    };
    Some((fields, signatures))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PUSH: Rights = Rights { may_replace: false, may_sign: false };

    fn trace(out_path: &str, signatures: &[&str]) -> Vec<u8> {
        serde_json::json!({ "outPath": out_path, "dependentRealisations": {}, "signatures": signatures })
            .to_string()
            .into()
    }

    fn signatures(text: &[u8]) -> Vec<Value> {
        parse(text).unwrap().1
    }

    #[test]
    fn signatures_are_added_and_never_lost() {
        assert_eq!(merged(None, &trace("a", &["x"]), PUSH).unwrap(), trace("a", &["x"]));
        assert_eq!(signatures(&merged(Some(&trace("a", &["x"])), &trace("a", &["y"]), PUSH).unwrap()), ["x", "y"]);
        for kept in [trace("a", &[]), trace("a", &["x"]), trace("b", &["y"]), b"later".to_vec()] {
            assert_eq!(merged(Some(&trace("a", &["x"])), &kept, PUSH), None);
        }
        let replaced = merged(Some(&trace("a", &["x"])), &trace("b", &["y"]), Rights { may_replace: true, ..PUSH });
        assert_eq!(replaced.unwrap(), trace("b", &["y"]));
        assert_eq!(merged(Some(b"later"), b"later still", PUSH), None);
    }

    #[test]
    fn junk_leaves_room() {
        let junk: Vec<String> = (0..1000).map(|n| n.to_string()).collect();
        let junk = trace("a", &junk.iter().map(String::as_str).collect::<Vec<_>>());
        let stored = merged(None, &junk, PUSH).unwrap();
        assert_eq!(signatures(&stored).len(), UNKNOWN_SIGNATURES_MAX);
        let signed = merged(Some(&stored), &trace("a", &["real"]), Rights { may_sign: true, ..PUSH }).unwrap();
        assert!(signatures(&signed).contains(&Value::from("real")));
    }
}
