//! Administration over HTTP, for tokens with the scopes `pin`, `delete`, `report` and `admin`: pins, deleting paths, figures, and machines (`docs/push-protocol.md`).
//! The commands `narval pin` and `narval cache` with `--to` send these requests.

use std::io::Read;

use narval_client::clock;
use narval_http::{HeaderValue, Response, StatusCode, header};
use narval_keep::{Cache, Grant, MachineCursor, MachineName, MachineReport, PinFor, REPORT_LEN_MAX};
use narval_nix::release::{ReleaseError, ReleaseName, Which};
use narval_nix::{HashPart, StorePath};
use serde::Serialize;
use serde_json::json;

use super::{read, releases, text};
use crate::error::ServeError;
use crate::gate::Administration;

const DAY_SECONDS: u64 = 24 * 60 * 60;

/// A request with its parsed query.
#[derive(Debug)]
pub(super) enum Command {
    ListPins,
    Pin { name: String, path: HashPart, keep: Option<u32>, seconds: Option<u64> },
    Unpin { name: String, path: Option<HashPart> },
    Delete { path: HashPart, referrers: bool },
    Release { name: String },
    PinRelease { name: ReleaseName, which: Which, is_pinned: bool },
    ForgetRelease { name: ReleaseName, revision: Option<u64> },
    Stats,
    Machines { after: Option<MachineCursor> },
    Report { name: MachineName },
    ForgetMachine { name: MachineName },
}

/// The parameters of a query. Each occurs at most once.
#[derive(Default)]
struct Query {
    path: Option<HashPart>,
    keep: Option<u32>,
    seconds: Option<u64>,
    referrers: bool,
    after: Option<MachineCursor>,
}

impl Query {
    fn parse(query: Option<&str>) -> Option<Self> {
        let mut parsed = Self::default();
        for pair in query.into_iter().flat_map(|query| query.split('&')) {
            let (key, value) = pair.split_once('=')?;
            let value = percent_encoding::percent_decode_str(value).decode_utf8().ok()?;
            match key {
                "path" => {
                    let base = value.rsplit('/').next()?;
                    let path = StorePath::parse(base).map(|path| path.hash_part());
                    parsed.path = Some(path.or_else(|_| HashPart::parse(base.as_bytes())).ok()?);
                }
                "keep" => parsed.keep = Some(value.parse().ok()?),
                "days" => parsed.seconds = Some(u64::from(value.parse::<u32>().ok()?) * DAY_SECONDS),
                "seconds" => parsed.seconds = Some(value.parse().ok()?),
                "after" => parsed.after = Some(value.parse().ok()?),
                "referrers" if value == "1" => parsed.referrers = true,
                _ => return None,
            }
        }
        Some(parsed)
    }
}

impl Command {
    /// # Errors
    /// 400 for an unknown parameter, or if the path is missing.
    pub(super) fn parse(asked: Administration<'_>, query: Option<&str>) -> Result<Self, ServeError> {
        let malformed = |said: &str| ServeError::Upload(said.to_owned());
        let parsed = Query::parse(query);
        match asked {
            Administration::ListPins => Ok(Self::ListPins),
            Administration::Stats => Ok(Self::Stats),
            Administration::Machines => match parsed {
                Some(Query { path: None, keep: None, seconds: None, referrers: false, after }) => {
                    Ok(Self::Machines { after })
                }
                _ => Err(malformed("the query is after=<next of the page before>, or nothing")),
            },
            Administration::Report(name) => Ok(Self::Report { name: name.parse()? }),
            Administration::ForgetMachine(name) => Ok(Self::ForgetMachine { name: name.parse()? }),
            Administration::Release(name) => Ok(Self::Release { name: name.to_owned() }),
            Administration::PinRelease(name, which, is_pinned) => {
                let (name, which) = (name.parse(), which.parse());
                let name = name.map_err(|error: ReleaseError| malformed(&error.to_string()))?;
                let which = which.map_err(|error: ReleaseError| malformed(&error.to_string()))?;
                Ok(Self::PinRelease { name, which, is_pinned })
            }
            Administration::ForgetRelease(name, revision) => {
                let name = name.parse().map_err(|error: ReleaseError| malformed(&error.to_string()))?;
                let revision = match revision.map(str::parse::<Which>) {
                    None => None,
                    Some(Ok(Which::Revision(revision))) => Some(revision),
                    Some(_) => return Err(malformed("a release is forgotten by its revision, a number")),
                };
                Ok(Self::ForgetRelease { name, revision })
            }
            Administration::Pin(name) => match parsed {
                Some(Query { path: Some(path), keep, seconds, referrers: false, after: None }) => {
                    Ok(Self::Pin { name: name.to_owned(), path, keep, seconds })
                }
                _ => Err(malformed("the query of a pin is path=<store path>, and keep=<revisions> or days=<number>")),
            },
            Administration::Unpin(name) => match parsed {
                Some(Query { path, keep: None, seconds: None, referrers: false, after: None }) => {
                    Ok(Self::Unpin { name: name.to_owned(), path })
                }
                _ => Err(malformed("the query is path=<store path>, or nothing for all revisions of the pin")),
            },
            Administration::Delete(path) => match parsed {
                Some(Query { path: None, keep: None, seconds: None, referrers, after: None }) => {
                    Ok(Self::Delete { path, referrers })
                }
                _ => Err(malformed("the query is referrers=1, or nothing")),
            },
        }
    }

    pub(super) fn run(self, cache: &Cache, body: &mut dyn Read, grant: &Grant) -> Result<Response, ServeError> {
        match self {
            Self::ListPins => json(&cache.pins()?),
            Self::Stats => json(&cache.figures()?),
            Self::Machines { after } => json(&cache.machines(after.as_ref())?),
            Self::Report { name } => {
                let report = MachineReport::parse(&read(body, REPORT_LEN_MAX)?)?;
                cache.report(&name, &report, grant)?;
                Ok(text(StatusCode::OK, "noted\n".to_owned()))
            }
            Self::ForgetMachine { name } => match cache.forget_machine(&name, grant)? {
                true => Ok(text(StatusCode::OK, "forgotten\n".to_owned())),
                false => Ok(text(StatusCode::NOT_FOUND, format!("There is no machine '{name}'.\n"))),
            },
            Self::Release { name } => releases::record(cache, &name, body, grant),
            Self::PinRelease { name, which, is_pinned } => {
                let release = cache.pin_release(&name, &which, is_pinned, grant)?;
                Ok(text(StatusCode::OK, format!("{}\n", release.selector())))
            }
            Self::ForgetRelease { name, revision } => {
                cache.forget_release(&name, revision, grant)?;
                Ok(text(StatusCode::OK, "forgotten\n".to_owned()))
            }
            Self::Pin { name, path, keep, seconds } => {
                let until = seconds.map(|seconds| clock::now().saturating_add(seconds));
                let pin = cache.pin(&name, &path, PinFor { keep, until }, grant)?;
                Ok(text(StatusCode::CREATED, format!("{}  {}\n", pin.name, pin.path)))
            }
            Self::Unpin { name, path } => match unpin(cache, &name, path, grant)? {
                0 => Ok(text(StatusCode::NOT_FOUND, format!("There is no pin '{name}'.\n"))),
                removed => Ok(text(StatusCode::OK, format!("removed {removed} pins\n"))),
            },
            Self::Delete { path, referrers } => {
                let deleted = cache.delete(&path, referrers, grant)?;
                json(&json!({ "paths": deleted.paths.len(), "files": deleted.files, "bytes": deleted.bytes }))
            }
        }
    }
}

/// Removes the pins of a name, or the one with this path. Returns their number.
fn unpin(cache: &Cache, name: &str, path: Option<HashPart>, grant: &Grant) -> Result<usize, ServeError> {
    let Some(part) = path else { return Ok(cache.unpin(name, None, grant)?) };
    let pins = cache.pins()?.into_iter().filter(|pin| pin.name == name);
    let path = pins.filter_map(|pin| StorePath::parse(&pin.path).ok()).find(|path| path.hash_part() == part);
    path.map_or(Ok(0), |path| Ok(cache.unpin(name, Some(&path), grant)?))
}

fn json(value: &impl Serialize) -> Result<Response, ServeError> {
    let json = serde_json::to_string(value).map_err(|error| ServeError::Upload(error.to_string()))?;
    let json_type = HeaderValue::from_static("application/json");
    Ok(text(StatusCode::OK, json + "\n").header(header::CONTENT_TYPE, json_type))
}
