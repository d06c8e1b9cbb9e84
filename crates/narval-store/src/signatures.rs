//! Signatures as one text, as Nix's database and its daemon have them.

use narval_nix::Signature;

/// The text of a column `sigs`.
pub(crate) fn join_signatures(signatures: &[Signature]) -> Option<String> {
    let texts: Vec<String> = signatures.iter().map(Signature::to_string).collect();
    if texts.is_empty() { None } else { Some(texts.join(" ")) }
}

/// The column `sigs`. A signature that cannot be parsed cannot be verified either, so it is omitted, and the path can
/// still be served with the others.
pub(crate) fn split_signatures(column: Option<&str>) -> Vec<Signature> {
    column.unwrap_or_default().split_ascii_whitespace().filter_map(|text| text.parse().ok()).collect()
}
