//! Caches and their settings.

use narval_keep::{Cache, CacheName, CacheSettings, Scope};
use serde_json::{Map, Value, json};

use super::{Answered, Asked, malformed, of_data};
use crate::caches::is_reserved_name;
use crate::error::ServeError;

/// The setting that a cache can be given when it is created, and never again.
const STORE_DIR: &str = "storeDir";

fn json_of(cache: &Cache) -> Value {
    json!({"name": cache.name().as_str(), "settings": cache.settings().to_value()})
}

/// `GET` of the API itself
pub(super) fn here(asked: &Asked<'_>) -> Result<Answered, ServeError> {
    let grant = asked.grant()?;
    // Whoever may nothing there does not learn whether it exists.
    let at = asked.at.filter(|name| grant.caches.matches(name));
    let at = at.map(|name| asked.data.cache(name)).transpose().map_err(of_data)?.flatten();
    Answered::ok(&json!({
        "version": env!("CARGO_PKG_VERSION"),
        "cache": at.map(|cache| cache.name().to_string()),
        "token": {"id": grant.token, "label": grant.label, "scopes": grant.scopes.to_string(), "caches": grant.caches.texts(), "expires": grant.expires},
    }))
}

/// `GET caches`
pub(super) fn list(asked: &Asked<'_>) -> Result<Answered, ServeError> {
    let (grant, limit, after) = (asked.grant()?, asked.limit()?, asked.query("after").unwrap_or_default());
    let may_see = |cache: &Cache| {
        [Scope::Pull, Scope::Push, Scope::Pin].into_iter().any(|scope| grant.allows(cache.name(), scope))
    };
    let mut caches = asked.data.caches().map_err(of_data)?;
    caches.retain(|cache| cache.name().as_str() > after && may_see(cache));
    let next = caches.get(limit.saturating_sub(1)).filter(|_| caches.len() > limit).map(|last| last.name().to_string());
    Answered::page(&caches.iter().take(limit).map(json_of).collect::<Vec<_>>(), next)
}

/// `GET caches/{cache}`
pub(super) fn show(asked: &Asked<'_>) -> Result<Answered, ServeError> {
    Answered::ok(&json_of(&asked.cache()?))
}

/// `GET caches/{cache}/stats`
pub(super) fn stats(asked: &Asked<'_>) -> Result<Answered, ServeError> {
    Answered::ok(&asked.cache()?.figures()?)
}

/// `PUT caches/{cache}`
pub(super) fn create(asked: &Asked<'_>) -> Result<Answered, ServeError> {
    let name: CacheName = asked.parsed("cache")?;
    if is_reserved_name(name.as_str()) {
        return Err(malformed(format!("no cache can be named '{name}': that is the name of a route")));
    }
    if let Some(there) = asked.data.cache(&name).map_err(of_data)? {
        return Answered::ok(&json_of(&there));
    }
    let mut changes: Map<String, Value> = asked.json()?;
    let store_dir = match changes.remove(STORE_DIR) {
        Some(Value::String(text)) => text.parse().map_err(malformed)?,
        Some(_) => return Err(malformed(format!("'{STORE_DIR}' is a text"))),
        None => CacheSettings::default().store_dir,
    };
    // Private, unless it is said: a name that is mistyped shows nothing to anybody.
    let default = CacheSettings { store_dir, public: false, managed: true, ..CacheSettings::default() };
    let settings = default.changed(&changes).map_err(malformed)?;
    let cache = asked.data.create_cache(&name, &settings).map_err(of_data)?;
    note(asked, &cache, "create cache", &changes)?;
    Answered::new(201, &json_of(&cache))
}

/// `PATCH caches/{cache}`
pub(super) fn change(asked: &Asked<'_>) -> Result<Answered, ServeError> {
    let (cache, changes) = (asked.cache()?, asked.json::<Map<String, Value>>()?);
    let settings = cache.settings().changed(&changes).map_err(malformed)?;
    cache.set_settings(&settings).map_err(of_data)?;
    note(asked, &cache, "change cache", &changes)?;
    Answered::ok(&json_of(&cache))
}

fn note(asked: &Asked<'_>, cache: &Cache, action: &str, changes: &Map<String, Value>) -> Result<(), ServeError> {
    let detail = Ok(Value::from(changes.clone()).to_string());
    asked.data.audit().note(asked.grant()?, Some(cache.name()), action, cache.name().as_str(), &detail);
    Ok(())
}
