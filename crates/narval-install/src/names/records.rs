//! The build records of a release: the evaluation that its `src-url` names knows which path each attribute has.

use narval_client::{Client, HttpError, Request, Url, escaped};
use narval_nix::{StoreDir, StorePath};
use serde_json::Value;

use super::channel::ACCEPTS_JSON;

/// The largest record.
const RECORD_LEN_MAX: u64 = 4 * 1024 * 1024;

/// What the record of a build says.
#[derive(Debug)]
pub(crate) struct Record {
    /// The outputs and their paths.
    pub(crate) outputs: Vec<(String, StorePath)>,
}

/// Asks for the record of an attribute on a system; `None` if the evaluation has no such job, or it was not built.
pub(crate) fn ask(
    client: &Client,
    evaluation: &Url,
    attribute: &str,
    system: &str,
) -> Result<Option<Record>, HttpError> {
    // In the evaluations of NixOS, the packages are below `nixpkgs`; in those of nixpkgs, they are at the top.
    let plain = attribute.replace('"', "");
    for prefix in ["nixpkgs.", ""] {
        let job = format!("{prefix}{plain}.{system}");
        let url = evaluation.child(&format!("job/{}", escaped(&job)))?;
        let request = Request { extra: ACCEPTS_JSON, accepts_coding: true, ..Request::get(&url) };
        let answer = client.retrying(&url, || client.small_answer(&request, RECORD_LEN_MAX))?;
        if let Some(answer) = answer {
            return Ok(read(&answer, system));
        }
    }
    Ok(None)
}

fn read(answer: &[u8], system: &str) -> Option<Record> {
    let answer: Value = serde_json::from_slice(answer).ok()?;
    // Whose system is another one is not the job that was asked for.
    if answer.get("system").and_then(Value::as_str).is_some_and(|other| other != system) {
        return None;
    }
    let outputs = answer.get("buildoutputs")?.as_object()?;
    let path = |output: &Value| {
        let text = output.get("path")?.as_str()?;
        StorePath::parse(text.strip_prefix(StoreDir::DEFAULT)?.strip_prefix('/')?).ok()
    };
    let outputs = outputs.iter().filter_map(|(name, output)| Some((name.clone(), path(output)?)));
    Some(Record { outputs: outputs.collect() })
}
