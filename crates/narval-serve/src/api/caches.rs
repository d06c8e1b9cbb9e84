//! Caches and their settings.

use narval_keep::{Cache, CacheKey, CacheName, CacheSettings, JobKind, Rejection, RejectionKind, Scope};
use serde_json::{Map, Value, json};

use super::call::{ApiAnswer, ApiCall, malformed, of_data, require_all};
use crate::error::ServeError;
use crate::routes::cache_names::is_reserved_name;

/// The setting that a cache can be given when it is created, and never again.
const STORE_DIR: &str = "storeDir";
/// The settings that limit who administers a cache.
const LIMITS: [&str; 2] = ["quota", "narSizeMax"];
/// The most caches: a server holds the state of each of them.
const CACHES_MAX: usize = 10_000;

fn json_of(cache: &Cache) -> Value {
    json!({"name": cache.name().as_str(), "settings": cache.settings().to_value()})
}

/// `GET` of the API itself
pub(super) fn here(call: &ApiCall<'_>) -> Result<ApiAnswer, ServeError> {
    let grant = call.grant()?;
    // Whoever may nothing there does not learn whether it exists.
    let at = call.at.filter(|name| grant.caches.matches(name));
    let at = at.map(|name| call.data.cache(name)).transpose().map_err(of_data)?.flatten();
    ApiAnswer::ok(&json!({
        "version": env!("CARGO_PKG_VERSION"),
        "cache": at.map(|cache| cache.name().to_string()),
        "token": {"id": grant.token, "label": grant.label, "scopes": grant.scopes.to_string(), "caches": grant.caches.texts(), "expires": grant.expires},
    }))
}

/// `GET caches`
pub(super) fn list(call: &ApiCall<'_>) -> Result<ApiAnswer, ServeError> {
    let (grant, limit, after) = (call.grant()?, call.limit()?, call.query("after").unwrap_or_default());
    let may_see = |cache: &Cache| {
        [Scope::Pull, Scope::Push, Scope::Pin].into_iter().any(|scope| grant.allows(cache.name(), scope))
    };
    let mut caches = call.data.caches().map_err(of_data)?;
    caches.retain(|cache| cache.name().as_str() > after && may_see(cache) && !cache.settings().deleted);
    let next = caches.get(limit.saturating_sub(1)).filter(|_| caches.len() > limit).map(|last| last.name().to_string());
    ApiAnswer::page(&caches.iter().take(limit).map(json_of).collect::<Vec<_>>(), next)
}

/// `GET caches/{cache}`
pub(super) fn show(call: &ApiCall<'_>) -> Result<ApiAnswer, ServeError> {
    ApiAnswer::ok(&json_of(&call.cache()?))
}

/// `GET caches/{cache}/stats`
pub(super) fn stats(call: &ApiCall<'_>) -> Result<ApiAnswer, ServeError> {
    ApiAnswer::ok(&call.cache()?.stats()?)
}

/// `PUT caches/{cache}`
pub(super) fn create(call: &ApiCall<'_>) -> Result<ApiAnswer, ServeError> {
    let name: CacheName = call.parsed("cache")?;
    if is_reserved_name(name.as_str()) {
        return Err(malformed(format!("no cache can be named '{name}': that is the name of a route")));
    }
    let there = call.data.cache(&name).map_err(of_data)?;
    if let Some(there) = there.as_ref().filter(|cache| !cache.settings().deleted) {
        return ApiAnswer::ok(&json_of(there));
    }
    if let Some(deleted) = &there
        && deleted.jobs(None)?.0.iter().any(|job| job.kind == JobKind::Delete && job.ended.is_none())
    {
        let message = format!("the cache '{name}' was deleted, and its contents are being removed: wait for that job");
        return Err(Rejection::conflict(message).into());
    }
    let mut changes: Map<String, Value> = call.json()?;
    let store_dir = match changes.remove(STORE_DIR) {
        Some(Value::String(text)) => text.parse().map_err(malformed)?,
        Some(_) => return Err(malformed(format!("'{STORE_DIR}' is a text"))),
        None => CacheSettings::default().store_dir,
    };
    // Private, unless it is said: a name that is mistyped shows nothing to anybody.
    let default = CacheSettings { store_dir, public: false, managed: true, ..CacheSettings::default() };
    let settings = default.changed(&changes).map_err(malformed)?;
    let cache = match there {
        Some(deleted) => {
            // Its paths had this one.
            let settings = CacheSettings { store_dir: deleted.settings().store_dir.clone(), ..settings };
            deleted.set_settings(&settings).map_err(of_data)?;
            deleted
        }
        None if call.data.caches().map_err(of_data)?.len() >= CACHES_MAX => {
            let message = format!("there are {CACHES_MAX} caches, which is the limit: delete one first");
            return Err(Rejection::new(RejectionKind::NoSpace, message).into());
        }
        None => call.data.create_cache(&name, &settings).map_err(of_data)?,
    };
    if call.data.makes_keys() {
        cache.rotate_key(0, call.grant()?)?;
    }
    note(call, &cache, "create cache", &changes)?;
    ApiAnswer::new(201, &json_of(&cache))
}

/// `PATCH caches/{cache}`
pub(super) fn change(call: &ApiCall<'_>) -> Result<ApiAnswer, ServeError> {
    let (cache, changes) = (call.cache()?, call.json::<Map<String, Value>>()?);
    if let Some(limit) = LIMITS.into_iter().find(|limit| changes.contains_key(*limit)) {
        require_all(call.grant()?, &format!("change '{limit}'"))?;
    }
    let settings = cache.settings().changed(&changes).map_err(malformed)?;
    cache.set_settings(&settings).map_err(of_data)?;
    note(call, &cache, "change cache", &changes)?;
    ApiAnswer::ok(&json_of(&cache))
}

/// `DELETE caches/{cache}`
pub(super) fn delete(call: &ApiCall<'_>) -> Result<ApiAnswer, ServeError> {
    let (cache, grant) = (call.cache()?, call.grant()?);
    let before = cache.settings();
    if !before.managed {
        let message = format!(
            "the cache '{}' is in the configuration file of a server, or was: remove it there first",
            cache.name()
        );
        return Err(Rejection::conflict(message).into());
    }
    // From now on no server has it. What is on its way finds no room.
    let settings = CacheSettings {
        deleted: true,
        managed: false,
        public: false,
        retention_days: Some(1),
        size_max: None,
        quota: Some(0),
        ..CacheSettings::clone(&before)
    };
    cache.set_settings(&settings).map_err(of_data)?;
    note(call, &cache, "delete cache", &Map::new())?;
    let (job, _) = cache.start_job(JobKind::Delete, &json!({}), None, grant)?;
    ApiAnswer::ok(&job)
}

/// `GET caches/{cache}/keys`
pub(super) fn keys(call: &ApiCall<'_>) -> Result<ApiAnswer, ServeError> {
    let keys = call.cache()?.keys()?;
    ApiAnswer::page(&keys.iter().map(CacheKey::to_value).collect::<Vec<_>>(), None::<String>)
}

fn note(call: &ApiCall<'_>, cache: &Cache, action: &str, changes: &Map<String, Value>) -> Result<(), ServeError> {
    let detail = Ok(Value::from(changes.clone()).to_string());
    call.data.audit().note(call.grant()?, Some(cache.name()), action, cache.name().as_str(), &detail);
    Ok(())
}
