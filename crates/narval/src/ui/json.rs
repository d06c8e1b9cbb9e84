//! What `--json` prints: one object per line, each with `"v": 1` and a type. The last line of a command is its summary, or the error that it
//! failed with.

use serde_json::{Value, json};

use crate::ui::failure::Failure;
use crate::ui::output::out;

/// Prints an object: `fields`, the version and the type.
pub(crate) fn event(kind: &str, mut fields: Value) {
    if let Some(fields) = fields.as_object_mut() {
        fields.insert("v".to_owned(), json!(1));
        fields.insert("type".to_owned(), json!(kind));
    }
    out!("{fields}");
}

/// Prints the last object of a command that has done its work.
pub(crate) fn summary(fields: Value) {
    event("summary", fields);
}

/// Prints the last object of a command that failed, if its output is JSON.
pub(crate) fn failure(failure: &Failure) {
    if is_asked_for() {
        event("error", json!({"code": failure.code(), "message": failure.to_string()}));
    }
}

/// Whether this process was started with `--json`: known also if its arguments are wrong.
pub(crate) fn is_asked_for() -> bool {
    std::env::args_os().skip(1).take_while(|argument| argument != "--").any(|argument| argument == "--json")
}
