//! `narval cache create` and `settings`.

use narval_http::Method;
use narval_keep::CacheName;
use serde_json::{Map, Value, json};

use crate::args::administered::{AdminTargetArgs, text};
use crate::ui::failure::Failure;
use crate::ui::json;
use crate::ui::output::{note, out};

#[derive(Debug, clap::Args)]
pub(super) struct NamedArgs {
    #[command(flatten)]
    place: AdminTargetArgs,
    /// Name of the cache
    #[arg(value_name = "NAME")]
    name: CacheName,
    /// Setting, such as `public=true`, `retentionDays=30` or `quota=null`: a name of docs/api.md, and a value in JSON or a text. Repeatable
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_setting)]
    set: Vec<(String, Value)>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct DestroyArgs {
    #[command(flatten)]
    place: AdminTargetArgs,
    /// Name of the cache
    #[arg(value_name = "NAME")]
    name: CacheName,
}

pub(super) fn destroy(args: &DestroyArgs) -> Result<(), Failure> {
    let job = args.place.open()?.ask(&Method::DELETE, &format!("caches/{}", args.name), None)?;
    note!("deleted '{}'; the job {} removes what is in it", args.name, text(&job, "id"));
    Ok(())
}

fn parse_setting(text: &str) -> Result<(String, Value), String> {
    let (name, value) = text.split_once('=').ok_or("a setting is NAME=VALUE")?;
    Ok((name.to_owned(), serde_json::from_str(value).unwrap_or_else(|_| value.into())))
}

pub(super) fn create(args: &NamedArgs) -> Result<(), Failure> {
    ask(args, &Method::PUT)
}

pub(super) fn settings(args: &NamedArgs) -> Result<(), Failure> {
    ask(args, if args.set.is_empty() { &Method::GET } else { &Method::PATCH })
}

fn ask(args: &NamedArgs, method: &Method) -> Result<(), Failure> {
    let place = if *method == Method::PUT { args.place.create()? } else { args.place.open()? };
    let changes: Map<String, Value> = args.set.iter().cloned().collect();
    let body = (*method != Method::GET).then(|| changes.into());
    let cache = place.ask(method, &format!("caches/{}", args.name), body.as_ref())?;
    let settings = cache.get("settings").cloned().unwrap_or_default();
    if args.json {
        json::summary(json!({"name": text(&cache, "name"), "settings": settings}));
        return Ok(());
    }
    out!("{}", text(&cache, "name"));
    for (name, value) in settings.as_object().into_iter().flatten() {
        out!("  {name} = {value}");
    }
    Ok(())
}
