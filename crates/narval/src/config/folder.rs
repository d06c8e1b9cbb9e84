//! Keys that only work with a data folder.

use super::{ConfigError, ServeConfig};

impl ServeConfig {
    /// The errors of this file for a server without a data folder, which would ignore these keys: `public = false` would be read by
    /// everybody. `file` is its name in messages.
    pub fn needs_data(&self, file: &str) -> Vec<ConfigError> {
        let error = |line, message: String| ConfigError { file: file.to_owned(), line: Some(line), message };
        let needs = "give data = \"DIR\"";
        let caches = self.caches.iter().map(|cache| {
            error(cache.line, format!("cache: '{}' needs a data folder for its files: {needs}", cache.name))
        });
        let upstreams = self.upstreams.iter().map(|upstream| {
            error(upstream.line, format!("upstream: '{}' needs a data folder for its files: {needs}", upstream.url))
        });
        let oidc = self.oidc.iter().map(|oidc| {
            error(oidc.line, format!("oidc: '{}' needs a data folder for the tokens: {needs}", oidc.issuer))
        });
        let private = self.public.iter().filter(|public| !public.value).map(|public| {
            error(public.line, format!("public = false: needs a data folder for the tokens that readers need: {needs}"))
        });
        let database = self.database.iter().map(|database| {
            error(database.line, format!("database: needs the data folder whose index it has: {needs}"))
        });
        caches.chain(upstreams).chain(oidc).chain(private).chain(database).collect()
    }
}
