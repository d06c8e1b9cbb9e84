//! An evaluation: attributes with the paths of their outputs, as `nix-env -qaP --json --out-path` and `nix-eval-jobs` write them.

use std::io::{BufRead, Read};

use narval_nix::{StoreDir, StorePath};
use serde::Deserialize;
use serde::de::DeserializeSeed;

use crate::bounded::{ENTRY_LEN_MAX, PACKAGES_LEN_MAX};
use crate::builder::Builder;
use crate::error::NamesError;
use crate::packages::{Entries, Entry, read_json};

/// How many bytes tell the two formats apart.
const BEGIN_LEN: usize = 64;

/// Reads an evaluation: the object of `nix-env -qaP --json --out-path --meta`, or the lines of `nix-eval-jobs --meta`. Attributes that could not
/// be evaluated are left out. Returns how many have paths.
///
/// # Errors
/// If it cannot be read, is not what it should be, exceeds a limit, or has no paths.
pub fn read_evaluation(mut source: impl BufRead, builder: &mut Builder) -> Result<usize, NamesError> {
    let mut begin = Vec::with_capacity(BEGIN_LEN);
    source.by_ref().take(BEGIN_LEN as u64).read_to_end(&mut begin)?;
    let text: String = String::from_utf8_lossy(&begin).split_whitespace().collect();
    let is_lines = text.starts_with("{\"attr\":") || text.starts_with("{\"attrPath\":");
    let source = begin.as_slice().chain(source);
    let count = if is_lines { read_jobs(source, builder)? } else { read_object(source, builder)? };
    match count {
        0 => Err(NamesError::Invalid {
            what: "the evaluation".to_owned(),
            reason: "no attribute has the path of an output: nix-env needs --out-path".to_owned(),
        }),
        count => Ok(count),
    }
}

fn read_object(source: impl Read, builder: &mut Builder) -> Result<usize, NamesError> {
    let (what, mut count) = ("the evaluation", 0);
    let mut take = |attribute: &str, entry: Entry| {
        count += usize::from(add(attribute, None, entry, builder)?);
        Ok(())
    };
    let ((), read) = read_json(source, (what, PACKAGES_LEN_MAX), |deserializer, entry| {
        Entries { take: &mut take, entry }.deserialize(deserializer)
    });
    read.map_err(|source| NamesError::Json { what, source })?;
    Ok(count)
}

/// A line of nix-eval-jobs.
#[derive(Deserialize)]
struct Job {
    attr: String,
    error: Option<String>,
    #[serde(flatten)]
    entry: Entry,
}

fn read_jobs(source: impl BufRead, builder: &mut Builder) -> Result<usize, NamesError> {
    let what = "a line of the evaluation";
    let (mut source, mut line, mut count) = (source.take(PACKAGES_LEN_MAX), Vec::new(), 0);
    loop {
        line.clear();
        let read = source.by_ref().take(ENTRY_LEN_MAX + 1).read_until(b'\n', &mut line)?;
        if read as u64 > ENTRY_LEN_MAX {
            return Err(NamesError::Limit { what, limit: ENTRY_LEN_MAX, unit: "bytes" });
        }
        if read == 0 {
            return Ok(count);
        }
        if line.trim_ascii().is_empty() {
            continue;
        }
        let job: Job = serde_json::from_slice(&line).map_err(|source| NamesError::Json { what, source })?;
        if job.error.is_none() {
            // A set of several systems: `x86_64-linux.hello`, `hello.x86_64-linux`.
            count += usize::from(add(&job.attr, job.entry.system.clone(), job.entry, builder)?);
        }
    }
}

/// Adds an attribute and its paths; whether it has any.
fn add(attribute: &str, system: Option<String>, entry: Entry, builder: &mut Builder) -> Result<bool, NamesError> {
    let attribute = match &system {
        Some(system) => {
            let plain = attribute.strip_prefix(&format!("{system}.")).unwrap_or(attribute);
            plain.strip_suffix(&format!(".{system}")).unwrap_or(plain)
        }
        None => attribute,
    };
    let outputs: Vec<_> =
        entry.outputs.0.iter().filter_map(|(name, path)| Some((name.clone(), path.clone()?))).collect();
    let package = entry.package(attribute)?;
    for (output, path) in &outputs {
        let base = path.strip_prefix(StoreDir::DEFAULT).and_then(|below| below.strip_prefix('/'));
        let invalid = |reason: String| NamesError::Invalid { what: format!("the path of {attribute}"), reason };
        let base = base.ok_or_else(|| invalid(format!("it does not begin with {}/", StoreDir::DEFAULT)))?;
        let path = StorePath::parse(base).map_err(|error| invalid(error.to_string()))?;
        builder.add_exact(attribute, &package.system, output, &path)?;
    }
    builder.add_package(&package)?;
    Ok(!outputs.is_empty())
}
