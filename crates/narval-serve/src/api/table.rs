//! What the API answers: one row for each method of a path.

use narval_http::Method;
use narval_keep::Scope;

use super::call::{ApiAnswer, ApiCall};
use super::row::{Needs, Parameter, Row};
use super::{audit, caches, jobs, kept, openapi, releases, tokens};
use crate::error::ServeError;

const LIMIT: Parameter = ("limit", "integer", "The most entries, up to 1000. Default: 100");
const AFTER: Parameter = ("after", "string", "`next` of the page before");

const ROW: Row = Row {
    method: Method::GET,
    path: "",
    needs: Needs::Token,
    run: caches::here,
    id: "getServer",
    about: "The cache at this address, and what the token allows",
    query: &[],
    takes: None,
    gives: (200, Some("Server")),
};

/// All of them.
pub(super) const ROWS: &[Row] = &[
    ROW,
    Row {
        path: "openapi.json",
        needs: Needs::Nothing,
        run: description,
        id: "getOpenapi",
        about: "This description",
        gives: (200, Some("Object")),
        ..ROW
    },
    Row {
        path: "caches",
        run: caches::list,
        id: "listCaches",
        about: "The caches that the token is for",
        query: &[LIMIT, AFTER],
        gives: (200, Some("CachePage")),
        ..ROW
    },
    Row {
        path: "caches/{cache}",
        needs: Needs::Scope(Scope::Pull),
        run: caches::show,
        id: "getCache",
        about: "The settings of a cache",
        gives: (200, Some("Cache")),
        ..ROW
    },
    Row {
        method: Method::PUT,
        path: "caches/{cache}",
        needs: Needs::All,
        run: caches::create,
        id: "createCache",
        about: "Create a cache, which is served below `/NAME` at once. 200 if it exists: then nothing changes",
        takes: Some("Settings"),
        gives: (201, Some("Cache")),
        ..ROW
    },
    Row {
        method: Method::PATCH,
        path: "caches/{cache}",
        needs: Needs::Scope(Scope::Admin),
        run: caches::change,
        id: "changeCache",
        about: "Change settings of a cache: those that are named; `quota` and `narSizeMax` need `admin` for `*`. What the server's configuration file says of a cache comes back when that is read",
        takes: Some("Settings"),
        gives: (200, Some("Cache")),
        ..ROW
    },
    Row {
        method: Method::DELETE,
        path: "caches/{cache}",
        needs: Needs::Scope(Scope::Admin),
        run: caches::delete,
        id: "deleteCache",
        about: "Delete a cache that the API has created: no server has it from now on, and a job removes what is in it",
        gives: (200, Some("Job")),
        ..ROW
    },
    Row {
        path: "caches/{cache}/keys",
        needs: Needs::Scope(Scope::Admin),
        run: caches::keys,
        id: "listKeys",
        about: "The keys that all servers of the cache sign with, the oldest first, without those of configuration files; their public halves",
        gives: (200, Some("KeyPage")),
        ..ROW
    },
    Row {
        path: "caches/{cache}/stats",
        needs: Needs::Scope(Scope::Admin),
        run: caches::stats,
        id: "getStats",
        about: "How full a cache is",
        gives: (200, Some("Stats")),
        ..ROW
    },
    Row {
        path: "caches/{cache}/paths",
        needs: Needs::Scope(Scope::Pull),
        run: kept::paths,
        id: "listPaths",
        about: "The paths of a cache, by their hash parts",
        query: &[LIMIT, AFTER],
        gives: (200, Some("PathPage")),
        ..ROW
    },
    Row {
        method: Method::DELETE,
        path: "caches/{cache}/paths/{path}",
        needs: Needs::Scope(Scope::Delete),
        run: kept::delete,
        id: "deletePath",
        about: "Delete a path and its NAR at once, whatever pins it",
        query: &[("referrers", "boolean", "Also delete the paths that refer to it: otherwise they are a conflict")],
        gives: (200, Some("Deleted")),
        ..ROW
    },
    Row {
        path: "caches/{cache}/pins",
        needs: Needs::Scope(Scope::Pin),
        run: kept::pins,
        id: "listPins",
        about: "Pins, by name and the newest first",
        query: &[LIMIT, AFTER],
        gives: (200, Some("PinPage")),
        ..ROW
    },
    Row {
        method: Method::PUT,
        path: "caches/{cache}/pins/{name}",
        needs: Needs::Scope(Scope::Pin),
        run: kept::pin,
        id: "pin",
        about: "Keep a path with its closure. Another path under the same name is a new revision of the pin",
        takes: Some("NewPin"),
        gives: (200, Some("Pin")),
        ..ROW
    },
    Row {
        method: Method::DELETE,
        path: "caches/{cache}/pins/{name}",
        needs: Needs::Scope(Scope::Pin),
        run: kept::unpin,
        id: "unpin",
        about: "Remove all revisions of a pin",
        query: &[("path", "string", "Only the one with this path")],
        gives: (200, Some("Removed")),
        ..ROW
    },
    Row {
        path: "caches/{cache}/releases",
        needs: Needs::Scope(Scope::Pull),
        run: releases::list,
        id: "listReleases",
        about: "The newest release of each name and system, or all of a name",
        query: &[("name", "string", "Only releases of this name, the newest first"), AFTER],
        gives: (200, Some("ReleasePage")),
        ..ROW
    },
    Row {
        path: "caches/{cache}/releases/{name}/{which}",
        needs: Needs::Scope(Scope::Pull),
        run: releases::show,
        id: "getRelease",
        about: "A release as it was signed: by its revision, its version, or `latest`",
        query: &[("system", "string", "One that has paths for this system")],
        gives: (200, Some("Release")),
        ..ROW
    },
    Row {
        method: Method::POST,
        path: "caches/{cache}/releases/{name}",
        needs: Needs::Release,
        run: releases::record,
        id: "recordRelease",
        about: "Record a release of paths that the cache has, or promote another one. With an `Idempotency-Key`, once",
        takes: Some("NewRelease"),
        gives: (201, Some("Release")),
        ..ROW
    },
    Row {
        method: Method::DELETE,
        path: "caches/{cache}/releases/{name}",
        needs: Needs::Scope(Scope::Delete),
        run: releases::forget,
        id: "forgetReleases",
        about: "Forget all releases of a name: their paths are collected as any others are",
        gives: (204, None),
        ..ROW
    },
    Row {
        method: Method::DELETE,
        path: "caches/{cache}/releases/{name}/{which}",
        needs: Needs::Scope(Scope::Delete),
        run: releases::forget,
        id: "forgetRelease",
        about: "Forget a release, by its revision",
        gives: (204, None),
        ..ROW
    },
    Row {
        method: Method::PUT,
        path: "caches/{cache}/releases/{name}/{which}/pin",
        needs: Needs::Scope(Scope::Pin),
        run: releases::pin,
        id: "pinRelease",
        about: "Keep the paths of a release, however many come after it",
        gives: (200, Some("Release")),
        ..ROW
    },
    Row {
        method: Method::DELETE,
        path: "caches/{cache}/releases/{name}/{which}/pin",
        needs: Needs::Scope(Scope::Pin),
        run: releases::unpin,
        id: "unpinRelease",
        about: "Undo that",
        gives: (200, Some("Release")),
        ..ROW
    },
    Row {
        path: "caches/{cache}/machines",
        needs: Needs::Scope(Scope::Admin),
        run: releases::machines,
        id: "listMachines",
        about: "What the machines that follow releases have reported",
        query: &[AFTER],
        gives: (200, Some("MachinePage")),
        ..ROW
    },
    Row {
        method: Method::DELETE,
        path: "caches/{cache}/machines/{name}",
        needs: Needs::Scope(Scope::Admin),
        run: releases::forget_machine,
        id: "forgetMachine",
        about: "Forget a machine, until it reports again",
        gives: (204, None),
        ..ROW
    },
    Row {
        path: "caches/{cache}/jobs",
        needs: Needs::Scope(Scope::Admin),
        run: jobs::list,
        id: "listJobs",
        about: "Jobs of a cache, the newest first: those that have not ended, and those that ended within a week",
        query: &[AFTER],
        gives: (200, Some("JobPage")),
        ..ROW
    },
    Row {
        method: Method::POST,
        path: "caches/{cache}/jobs",
        needs: Needs::Scope(Scope::Admin),
        run: jobs::start,
        id: "startJob",
        about: "Start a job: `gc` (options `dryRun`, `unfinished`), `fsck` (`contents`, `repair`), `recompress`, `rotate` (`overlapSeconds`), `export` or `migrate` (`to`). \
                A cache has one of a kind at a time: the same again is the one that is there, with 200, and another one is a conflict",
        takes: Some("NewJob"),
        gives: (201, Some("Job")),
        ..ROW
    },
    Row {
        path: "caches/{cache}/jobs/{id}",
        needs: Needs::Scope(Scope::Admin),
        run: jobs::show,
        id: "getJob",
        about: "A job: how far it is, and what came of it",
        gives: (200, Some("Job")),
        ..ROW
    },
    Row {
        path: "caches/{cache}/jobs/{id}/events",
        needs: Needs::Scope(Scope::Admin),
        run: jobs::events,
        id: "watchJob",
        about: "The same as server-sent events: an event `job` whenever it has changed, until it has ended or ten minutes have passed",
        gives: (200, None),
        ..ROW
    },
    Row {
        method: Method::DELETE,
        path: "caches/{cache}/jobs/{id}",
        needs: Needs::Scope(Scope::Admin),
        run: jobs::cancel,
        id: "cancelJob",
        about: "Cancel a job. What was done by then stays so",
        gives: (200, Some("Job")),
        ..ROW
    },
    Row {
        path: "tokens",
        needs: Needs::SomeAdmin,
        run: tokens::list,
        id: "listTokens",
        about: "Tokens that are only for caches that the caller administers, the oldest first, with those that have expired or were revoked",
        query: &[LIMIT, AFTER],
        gives: (200, Some("TokenPage")),
        ..ROW
    },
    Row {
        method: Method::POST,
        path: "tokens",
        needs: Needs::SomeAdmin,
        run: tokens::create,
        id: "createToken",
        about: "Create a token for caches that the caller administers. The token is in this answer only. With an `Idempotency-Key`, once: sent again, it is \
                200, and has no token",
        takes: Some("NewToken"),
        gives: (201, Some("CreatedToken")),
        ..ROW
    },
    Row {
        method: Method::PATCH,
        path: "tokens/{id}",
        needs: Needs::SomeAdmin,
        run: tokens::change,
        id: "changeToken",
        about: "Change the caches and the scopes of a token. Its bearers need nothing new",
        takes: Some("TokenChange"),
        gives: (200, Some("Token")),
        ..ROW
    },
    Row {
        method: Method::DELETE,
        path: "tokens/{id}",
        needs: Needs::SomeAdmin,
        run: tokens::revoke,
        id: "revokeToken",
        about: "Revoke a token: every server refuses it from now on",
        gives: (200, Some("Token")),
        ..ROW
    },
    Row {
        method: Method::DELETE,
        path: "token",
        run: tokens::end,
        id: "endToken",
        about: "Revoke the token that asks",
        gives: (204, None),
        ..ROW
    },
    Row {
        path: "audit",
        needs: Needs::SomeAdmin,
        run: audit::list,
        id: "listAudit",
        about: "Who did what, oldest first, in the caches that the caller administers; and what is about no cache, for those who administer all. A page may be \
                empty and have a `next`",
        query: &[
            LIMIT,
            AFTER,
            ("since", "integer", "Only what was done since this time, in seconds since 1970"),
            ("cache", "string", "Only what is about this cache"),
        ],
        gives: (200, Some("AuditPage")),
        ..ROW
    },
];

/// `GET openapi.json`
fn description(_: &ApiCall<'_>) -> Result<ApiAnswer, ServeError> {
    ApiAnswer::ok(&openapi::describe(ROWS))
}
