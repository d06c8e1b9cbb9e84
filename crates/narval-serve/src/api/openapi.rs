//! The description of the API, in the form of OpenAPI 3.1, made of its table.

use serde_json::{Map, Value, json};

use super::row::{Needs, Row};
use crate::routes::table::API_PATH;

/// A field of an object, and its type: `integer`, `[string]`, the name of an object, or one of these with `?`, which may be absent or null.
type Field = (&'static str, &'static str);

/// What is sent and answered.
const OBJECTS: &[(&str, &[Field])] = &[
    ("Server", &[("version", "string"), ("cache", "string?"), ("token", "Rights")]),
    (
        "Rights",
        &[("id", "string"), ("label", "string"), ("scopes", "string"), ("caches", "[string]"), ("expires", "integer?")],
    ),
    ("Cache", &[("name", "string"), ("settings", "Settings")]),
    (
        "Settings",
        &[
            ("storeDir", "string?"),
            ("priority", "integer?"),
            ("wantMassQuery", "boolean?"),
            ("public", "boolean?"),
            ("publicKeys", "[string]?"),
            ("trustedKeys", "[string]?"),
            ("requiredKeys", "[string]?"),
            ("strictReferences", "boolean?"),
            ("retentionDays", "integer?"),
            ("sizeMax", "integer?"),
            ("quota", "integer?"),
            ("narSizeMax", "integer?"),
            ("keepReleases", "integer?"),
            ("recompress", "boolean?"),
            ("managed", "boolean?"),
            ("deleted", "boolean?"),
        ],
    ),
    (
        "Stats",
        &[
            ("cache", "string"),
            ("paths", "integer"),
            ("unsigned", "integer?"),
            ("files", "integer"),
            ("bytes", "integer"),
            ("smallBytes", "integer"),
            ("pins", "integer"),
            ("retentionDays", "integer?"),
            ("sizeMax", "integer?"),
            ("quota", "integer?"),
            ("public", "boolean"),
        ],
    ),
    ("Path", &[("path", "string"), ("added", "integer"), ("used", "integer"), ("fileSize", "integer")]),
    ("Deleted", &[("paths", "integer"), ("files", "integer"), ("bytes", "integer")]),
    ("NewPin", &[("path", "string"), ("keep", "integer?"), ("seconds", "integer?")]),
    (
        "Pin",
        &[("name", "string"), ("path", "string"), ("created", "integer"), ("keep", "integer?"), ("until", "integer?")],
    ),
    ("Removed", &[("removed", "integer")]),
    (
        "NewRelease",
        &[
            ("version", "string?"),
            ("systems", "Object?"),
            ("notes", "Object?"),
            ("from", "ReleaseFrom?"),
            ("percent", "integer?"),
        ],
    ),
    ("ReleaseFrom", &[("name", "string"), ("which", "string")]),
    ("Release", &[("name", "string"), ("revision", "integer"), ("created", "integer"), ("version", "string?")]),
    (
        "ReleaseRow",
        &[
            ("name", "string"),
            ("revision", "integer"),
            ("system", "string"),
            ("version", "string?"),
            ("created", "integer"),
            ("promotedFrom", "string?"),
            ("percent", "integer?"),
            ("pinned", "boolean"),
            ("kept", "boolean"),
            ("outputs", "Object"),
            ("notes", "Object"),
        ],
    ),
    (
        "Machine",
        &[("name", "string"), ("seen", "integer"), ("token", "string"), ("release", "string"), ("state", "string")],
    ),
    (
        "Token",
        &[
            ("id", "string"),
            ("label", "string"),
            ("caches", "[string]"),
            ("scopes", "string"),
            ("created", "integer"),
            ("expires", "integer?"),
            ("lastUsed", "integer?"),
            ("revoked", "integer?"),
        ],
    ),
    ("NewToken", &[("label", "string"), ("caches", "[string]"), ("scopes", "string"), ("expiresIn", "integer?")]),
    (
        "CreatedToken",
        &[
            ("id", "string"),
            ("label", "string"),
            ("caches", "[string]"),
            ("scopes", "string"),
            ("created", "integer"),
            ("expires", "integer?"),
            ("token", "string?"),
        ],
    ),
    ("TokenChange", &[("caches", "[string]?"), ("scopes", "string?")]),
    (
        "AuditLine",
        &[
            ("time", "integer"),
            ("token", "string"),
            ("label", "string"),
            ("peer", "string?"),
            ("cache", "string?"),
            ("action", "string"),
            ("subject", "string"),
            ("result", "string"),
            ("detail", "string"),
        ],
    ),
    ("NewJob", &[("kind", "string"), ("options", "Object?")]),
    (
        "Job",
        &[
            ("id", "string"),
            ("cache", "string"),
            ("kind", "string"),
            ("options", "Object"),
            ("token", "string"),
            ("label", "string"),
            ("state", "string"),
            ("server", "string?"),
            ("created", "integer"),
            ("started", "integer?"),
            ("ended", "integer?"),
            ("progress", "Object"),
            ("result", "Object?"),
        ],
    ),
    ("JobPage", &[("items", "[Job]"), ("next", "string?")]),
    ("Key", &[("name", "string"), ("publicKey", "string"), ("created", "integer"), ("ends", "integer?")]),
    ("KeyPage", &[("items", "[Key]"), ("next", "string?")]),
    ("Problem", &[("type", "string"), ("title", "string"), ("status", "integer"), ("detail", "string")]),
    ("CachePage", &[("items", "[Cache]"), ("next", "string?")]),
    ("PathPage", &[("items", "[Path]"), ("next", "string?")]),
    ("PinPage", &[("items", "[Pin]"), ("next", "string?")]),
    ("ReleasePage", &[("items", "[ReleaseRow]"), ("next", "string?")]),
    ("MachinePage", &[("items", "[Machine]"), ("next", "string?")]),
    ("TokenPage", &[("items", "[Token]"), ("next", "string?")]),
    ("AuditPage", &[("items", "[AuditLine]"), ("next", "string?")]),
];

/// The description of the API that has these rows.
pub(super) fn describe(rows: &[Row]) -> Value {
    let mut paths = Map::new();
    for row in rows {
        let path = paths
            .entry(format!("/{API_PATH}{}{}", if row.path.is_empty() { "" } else { "/" }, row.path))
            .or_insert_with(|| json!({}));
        if let Some(methods) = path.as_object_mut() {
            methods.insert(row.method.as_str().to_ascii_lowercase(), operation(row));
        }
    }
    let mut schemas: Map<String, Value> =
        OBJECTS.iter().map(|(name, fields)| ((*name).to_owned(), object(fields))).collect();
    schemas.insert("Object".to_owned(), json!({"type": "object", "additionalProperties": true}));
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Narval", "version": env!("CARGO_PKG_VERSION"),
            "summary": "Administration of binary caches",
            "description": "Times are in seconds since 1970, sizes in bytes. Lists come in pages: `next` of a page is `after` of the next one.",
            "license": {"name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0"},
        },
        "servers": [{"url": "https://cache.example.org", "description": "The address of any cache of the server"}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": schemas,
        },
    })
}

/// Who may, in words.
fn rights(needs: Needs) -> String {
    match needs {
        Needs::Nothing => "everybody".to_owned(),
        Needs::Token => "any valid token".to_owned(),
        Needs::Scope(scope) => format!("`{}` for the cache", scope.name()),
        Needs::All => "`admin` for `*`".to_owned(),
        Needs::Release => "`release:PATTERN` for the cache, with a pattern that the name matches".to_owned(),
        Needs::SomeAdmin => "`admin` for a cache".to_owned(),
    }
}

fn operation(row: &Row) -> Value {
    let names = row.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let in_path = names.map(|name| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}}));
    let in_query = row.query.iter().map(|(name, kind, about)| {
        json!({"name": name, "in": "query", "required": false, "description": about, "schema": {"type": kind}})
    });
    let mut parameters: Vec<Value> = in_path.chain(in_query).collect();
    if row.method.as_str() == "POST" {
        let about =
            "1 to 64 letters, digits and `-`: the same when the request is sent again, which does nothing more then";
        parameters.push(json!({"name": "Idempotency-Key", "in": "header", "required": false, "description": about, "schema": {"type": "string"}}));
    }
    let content =
        |name: &str| json!({"application/json": {"schema": {"$ref": format!("#/components/schemas/{name}")}}});
    let (status, gives) = row.gives;
    let mut answers = Map::new();
    let mut good = |status: u16, about: &str| {
        let mut answer = json!({"description": about});
        if let (Some(name), Some(fields)) = (gives, answer.as_object_mut()) {
            fields.insert("content".to_owned(), content(name));
        }
        answers.insert(status.to_string(), answer);
    };
    good(status, "Done");
    if status == 201 {
        good(200, "It was done before");
    }
    answers.insert(
        "default".to_owned(),
        json!({"description": "Not done, and why", "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}}),
    );
    let mut operation = json!({
        "operationId": row.id, "summary": row.about, "tags": [tag(row)], "x-rights": rights(row.needs),
        "parameters": parameters, "responses": answers,
    });
    if let Some(fields) = operation.as_object_mut() {
        if let Some(takes) = row.takes {
            fields.insert("requestBody".to_owned(), json!({"required": true, "content": content(takes)}));
        }
        if row.needs == Needs::Nothing {
            fields.insert("security".to_owned(), json!([]));
        }
    }
    operation
}

/// What generated clients group it by: the last part of its path that is no name, and has one.
fn tag(row: &Row) -> &'static str {
    let tags = ["jobs", "pins", "paths", "releases", "machines", "tokens", "audit"];
    tags.into_iter()
        .find(|tag| row.path.split('/').any(|part| part == *tag))
        .unwrap_or(if row.path.starts_with("caches") { "caches" } else { "server" })
}

fn object(fields: &[Field]) -> Value {
    let properties: Map<String, Value> = fields.iter().map(|(name, kind)| ((*name).to_owned(), schema(kind))).collect();
    let required: Vec<&str> = fields.iter().filter(|(_, kind)| !kind.ends_with('?')).map(|(name, _)| *name).collect();
    json!({"type": "object", "properties": properties, "required": required})
}

fn schema(kind: &str) -> Value {
    if let Some(kind) = kind.strip_suffix('?') {
        let mut one = schema(kind);
        // Of these, absent is as good as null.
        if let Some(of) = one.get_mut("type") {
            *of = json!([of.clone(), "null"]);
            return one;
        }
        return json!({"oneOf": [one, {"type": "null"}]});
    }
    match kind.strip_prefix('[').and_then(|kind| kind.strip_suffix(']')) {
        Some(items) => json!({"type": "array", "items": schema(items)}),
        None if ["string", "integer", "boolean"].contains(&kind) => json!({"type": kind}),
        None => json!({"$ref": format!("#/components/schemas/{kind}")}),
    }
}
