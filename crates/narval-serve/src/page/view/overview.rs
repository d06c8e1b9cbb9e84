//! What the cache is, how to use it, and what is new in it.

use maud::{Markup, html};
use narval_keep::{Cache, Scope};
use narval_nix::PublicKey;

use super::packages;
use super::parts::{Way, copied, titled, ways};
use super::words::{ago, bytes, many, name, number};
use crate::error::ServeError;
use crate::page::catalog::{Groups, SearchQuery};
use crate::page::parts::Parts;
use crate::page::visit::Visit;

/// Packages that are listed.
const NEWEST_MAX: usize = 8;

/// The view of the whole cache.
pub(super) fn overview(parts: &Parts, visit: &Visit) -> Result<(String, Markup), ServeError> {
    let places = &parts.places;
    let is_empty = match (&places.store, &places.writable) {
        (None, Some(cache)) => cache.usage()?.paths == 0,
        _ => false,
    };
    // Reading the names of a million paths takes seconds; everything else is here at once.
    let groups = parts.catalog.soon(places, &SearchQuery::default())?;
    let main = html! {
        @if is_empty { h1.lead { b { (visit.cache) } " is a new binary cache for Linux packages of " code { (places.store_dir) } ": it is empty." } (description(parts)) }
        @else { (sentence(parts, visit, groups.as_ref())?) (description(parts)) }
        @if is_empty { (steps(parts, visit)?) }
        @if places.sign_keys.is_empty() { @if !is_empty { (no_key(visit)) } } @else { (use_it(parts, visit)) }
        @if !is_empty { (newest(visit, groups.as_ref())) }
        @if places.writable.is_some() { (push(parts, visit, is_empty)) }
    };
    Ok(("Overview".to_owned(), main))
}

fn sentence(parts: &Parts, visit: &Visit, groups: Option<&Groups>) -> Result<Markup, ServeError> {
    let places = &parts.places;
    let usage = places.writable.as_ref().map(Cache::usage).transpose()?;
    let newest = groups.and_then(|groups| groups.list.first()).map(|group| group.newest.time).filter(|time| *time > 0);
    let counted =
        places.writable.as_ref().and_then(|cache| cache.surveyed()).and_then(|full| Some((full.paths, full.unsigned?)));
    let keys = places.sign_keys.iter().map(PublicKey::name);
    Ok(html! {
        h1.lead {
            b { (visit.cache) } " is a binary cache for Linux packages of " code { (places.store_dir) } ": "
            @match groups {
                Some(groups) => (many(groups.of_packages as u64, "package")),
                None => { @if let Some(usage) = &usage { (many(usage.paths, "path")) } @else { "all of this machine" } }
            }
            @if let Some(usage) = usage.filter(|usage| usage.paths > 0) { ", " (bytes(usage.bytes)) " pushed" }
            @if places.store.is_some() { ", with this machine’s store" }
            @if places.has_upstreams { ", and what its upstreams have" }
            @if let Some(newest) = newest { @if usage.is_some() { "; last push " } @else { "; the newest " } (ago(newest)) }
            "."
            @match counted {
                Some((paths, lacking)) if lacking > 0 => {
                    " " span.bad { "▲ " (number(lacking)) " of " (many(paths, "path")) @if lacking == 1 { " is" } @else { " are" } " not signed: clients refuse " @if lacking == 1 { "it." } @else { "them." } }
                }
                counted => {
                    @if !places.sign_keys.is_empty() {
                        @if counted.is_some() || places.writable.is_none() { " Everything is signed by " } @else { " It signs with " }
                        @for (at, key) in keys.enumerate() { @if at > 0 { " and " } code { (key) } } "."
                    }
                }
            }
        }
    })
}

/// What the operator says about it.
fn description(parts: &Parts) -> Markup {
    html! { @if let Some(text) = &parts.places.description { p.soft { (name(text)) } } }
}

/// Nothing is offered that clients would not accept.
fn no_key(visit: &Visit) -> Markup {
    html! {
        h2 { "Use it" }
        p.warn { "▲ This server has no key, so Nix refuses what it serves, unless somebody whom it trusts has signed it. Its operator gives it one:" }
        (copied("command for a key", key_command(visit)))
        p { "and starts it with " code { "--sign-key cache.sec" } "." }
    }
}

/// The host without its port, as netrc files have it.
fn host_name(visit: &Visit) -> &str {
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    let name = visit.host.rsplit_once(':').filter(|(_, port)| is_port(port)).map_or(&*visit.host, |(name, _)| name);
    name.trim_matches(['[', ']'])
}

fn key_command(visit: &Visit) -> String {
    format!("narval key generate {}-1 --out cache.sec", host_name(visit))
}

fn use_it(parts: &Parts, visit: &Visit) -> Markup {
    let (url, keys) = (&visit.url, &parts.places.sign_keys);
    let joined = keys.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    let quoted = keys.iter().map(|key| format!("\"{key}\"")).collect::<Vec<_>>().join(" ");
    let token = if visit.is_public { "" } else { " --token-file token" };
    let netrc = if visit.is_public { "" } else { "netrc-file = /etc/nix/netrc\n" };
    let all = [
        Way::text("Narval", "command for narval use", &format!("narval use {url}{token}\n")),
        Way::text(
            "nix.conf",
            "lines for nix.conf",
            &format!("extra-substituters = {url}\nextra-trusted-public-keys = {joined}\n{netrc}"),
        ),
        Way::text(
            "Flake",
            "nixConfig of a flake",
            &format!(
                "nixConfig = {{\n  extra-substituters = [ \"{url}\" ];\n  extra-trusted-public-keys = [ {quoted} ];\n}};\n"
            ),
        ),
        Way::text(
            "NixOS",
            "NixOS settings",
            &format!(
                "nix.settings = {{\n  substituters = [ \"{url}\" ];\n  trusted-public-keys = [ {quoted} ];\n}};\n"
            ),
        ),
        Way::text(
            "CI",
            "lines for a CI job",
            &format!(
                "export NIX_CONFIG=\"extra-substituters = {url}\nextra-trusted-public-keys = {joined}{}\"\n",
                if visit.is_public { "" } else { "\nnetrc-file = $HOME/netrc" }
            ),
        ),
    ];
    html! {
        h2 #use { "Use it" }
        @if !visit.is_public {
            p {
                b { "You need a token" } " from its operator. " code { "narval use" } " takes it from the file " code { "token" } "; Nix reads it from a netrc file, as the password for "
                code { (host_name(visit)) } ". It does not belong into a flake or a NixOS configuration: these are copied to the store, which everybody on the machine can read."
            }
        }
        (ways("use", "Ways to use it", &all))
        div.rows-of-copies {
            (titled("URL", url))
            @for key in keys { (titled("Public key", key)) }
        }
        p #check hidden { button type="button" { "Does it work from here?" } " " span role="status" {} }
    }
}

fn newest(visit: &Visit, groups: Option<&Groups>) -> Markup {
    html! {
        h2 { "Newest packages" }
        @match groups {
            None => p.soft data-refresh { "The names of all paths are being read." },
            Some(groups) => {
                ul.packages { @for group in groups.list.iter().take(NEWEST_MAX) { li { (packages::row(visit, group)) } } }
                p { a href=(visit.link("?q=")) { "All " (number(groups.of_packages as u64)) " →" } }
            }
        }
    }
}

fn push(parts: &Parts, visit: &Visit, is_open: bool) -> Markup {
    let (url, host) = (&visit.url, host_name(visit));
    let has_key = !parts.places.sign_keys.is_empty();
    html! {
        details.push open[is_open] {
            summary { h2 { "Push to it" } }
            p #push { "With a token from its operator in the file " code { "token" } @if has_key { ", which allows to push and to sign" } ":" }
            (copied("command for narval use with a token", format!("narval use {url} --token-file token")))
            (copied("command for narval push", format!("narval push ./result --to {url}")))
            p { "Or with Nix alone. In nix.conf, the file that it reads tokens from (it does not read " code { "~/.netrc" } "):" }
            (copied("line for nix.conf with the netrc file", "netrc-file = /etc/nix/netrc"))
            p { "In that file, which only its owner may read:" }
            (copied("line for netrc", format!("machine {host} login narval password TOKEN")))
            p { "Then:" }
            (copied("command for nix copy", format!("nix copy --to {url} ./result")))
        }
    }
}

/// What is left to do for a new cache. The script looks again while it is shown.
fn steps(parts: &Parts, visit: &Visit) -> Result<Markup, ServeError> {
    let places = &parts.places;
    let has_key = !places.sign_keys.is_empty();
    let tokens = places.data.as_ref().map(|data| data.tokens().list()).transpose().map_err(|error| {
        tracing::error!("{error}");
        ServeError::Busy
    })?;
    let is_for_pushes = |token: &narval_keep::TokenInfo| {
        let caches = narval_keep::CachePatterns::new(&token.caches);
        token.revoked.is_none()
            && token.scopes.has(Scope::Push)
            && caches.is_ok_and(|caches| caches.matches(&visit.cache))
    };
    let has_token = tokens.unwrap_or_default().iter().any(is_for_pushes);
    let of_cache = if visit.cache == narval_keep::CacheName::default() {
        String::new()
    } else {
        format!(" --cache {}", visit.cache)
    };
    let step = |is_done: bool, title: Markup, commands: Markup| {
        html! {
            li class=(if is_done { "done" } else { "todo" }) {
                p { span class=(if is_done { "good" } else { "soft" }) { (if is_done { "✓" } else { "○" }) } " " (title) }
                @if !is_done { (commands) }
            }
        }
    };
    Ok(html! {
        h2 { "What is left to do" }
        ol.steps data-refresh {
            (step(true, html! { "The server runs." }, html! {}))
            (step(
                has_key,
                html! { @if has_key { "It has a key." } @else { "Give it a key: clients refuse what has no signature. On its machine, and then start it with " code { "--sign-key cache.sec" } ":" } },
                copied("command for a key", key_command(visit)),
            ))
            (step(
                has_token,
                html! { @if has_token { "There is a token to push with." } @else { "Create a token to push with. On its machine, with its data folder for DIR:" } },
                copied("command for a token", format!("narval token create --data DIR --push --pull --sign{of_cache} --out token ci")),
            ))
            (step(
                false,
                html! { "Push something. With that token, from any machine:" },
                copied("command for the first push", format!("narval push ./result --to {} --token-file token", visit.url)),
            ))
        }
    })
}
