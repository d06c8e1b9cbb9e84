//! Administration over HTTP, for tokens with the scopes `pin` and `delete`: pins, and deleting paths (`docs/push-protocol.md`).

use narval_client::clock;
use narval_http::{HeaderValue, Response, StatusCode, header};
use narval_keep::{Cache, Grant, PinFor};
use narval_nix::{HashPart, StorePath};
use serde::Serialize;

use super::text;
use crate::error::ServeError;
use crate::gate::Administration;

const DAY_SECONDS: u64 = 24 * 60 * 60;

/// A request with its parsed query.
#[derive(Debug)]
pub(super) enum Command {
    ListPins,
    Pin { name: String, path: HashPart, keep: Option<u32>, days: Option<u32> },
    Unpin { name: String, path: Option<StorePath> },
    Delete { path: HashPart, referrers: bool },
}

/// A pin as it is listed. Times are seconds since 1970.
#[derive(Serialize)]
struct Listed {
    name: String,
    path: String,
    created: u64,
    keep: Option<u32>,
    until: Option<u64>,
}

/// The parameters of a query. Each occurs at most once.
#[derive(Default)]
struct Query {
    path: Option<StorePath>,
    keep: Option<u32>,
    days: Option<u32>,
    referrers: bool,
}

impl Query {
    fn parse(query: Option<&str>) -> Option<Self> {
        let mut parsed = Self::default();
        for pair in query.into_iter().flat_map(|query| query.split('&')) {
            let (key, value) = pair.split_once('=')?;
            let value = percent_encoding::percent_decode_str(value).decode_utf8().ok()?;
            match key {
                "path" => parsed.path = Some(StorePath::parse(value.rsplit('/').next()?).ok()?),
                "keep" => parsed.keep = Some(value.parse().ok()?),
                "days" => parsed.days = Some(value.parse().ok()?),
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
            Administration::Pin(name) => match parsed {
                Some(Query { path: Some(path), keep, days, referrers: false }) => {
                    Ok(Self::Pin { name: name.to_owned(), path: path.hash_part(), keep, days })
                }
                _ => Err(malformed("the query of a pin is path=<store path>, and keep=<revisions> or days=<number>")),
            },
            Administration::Unpin(name) => match parsed {
                Some(Query { path, keep: None, days: None, referrers: false }) => {
                    Ok(Self::Unpin { name: name.to_owned(), path })
                }
                _ => Err(malformed("the query is path=<store path>, or nothing for all revisions of the pin")),
            },
            Administration::Delete(path) => match parsed {
                Some(Query { path: None, keep: None, days: None, referrers }) => Ok(Self::Delete { path, referrers }),
                _ => Err(malformed("the query is referrers=1, or nothing")),
            },
        }
    }

    pub(super) fn run(self, cache: &Cache, grant: &Grant) -> Result<Response, ServeError> {
        match self {
            Self::ListPins => {
                let listed = |pin: narval_keep::Pin| Listed {
                    name: pin.name,
                    path: pin.path,
                    created: pin.created,
                    keep: pin.holds.keep,
                    until: pin.holds.until,
                };
                let pins: Vec<_> = cache.pins()?.into_iter().map(listed).collect();
                let json = serde_json::to_string(&pins).map_err(|error| ServeError::Upload(error.to_string()))?;
                let json_type = HeaderValue::from_static("application/json");
                Ok(text(StatusCode::OK, json + "\n").header(header::CONTENT_TYPE, json_type))
            }
            Self::Pin { name, path, keep, days } => {
                let now = clock::now();
                let until = days.map(|days| now.saturating_add(u64::from(days) * DAY_SECONDS));
                let pin = cache.pin(&name, &path, PinFor { keep, until }, grant)?;
                Ok(text(StatusCode::CREATED, format!("{}  {}\n", pin.name, pin.path)))
            }
            Self::Unpin { name, path } => match cache.unpin(&name, path.as_ref(), grant)? {
                0 => Ok(text(StatusCode::NOT_FOUND, format!("There is no pin '{name}'.\n"))),
                removed => Ok(text(StatusCode::OK, format!("removed {removed} pins\n"))),
            },
            Self::Delete { path, referrers } => {
                let deleted = cache.delete(&path, referrers, grant)?;
                let (paths, files, bytes) = (deleted.paths.len(), deleted.files, deleted.bytes);
                Ok(text(StatusCode::OK, format!("deleted {paths} paths and {files} NARs ({bytes} bytes)\n")))
            }
        }
    }
}
