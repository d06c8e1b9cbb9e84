//! `narval releases`: which releases caches have.

use narval_install::releases::list;
use serde_json::{Value, json};

use crate::args::client::SourceCacheArgs;
use crate::args::data::ago;
use crate::ui::failure::Failure;
use crate::ui::json;
use crate::ui::output::out;
use crate::ui::output_args::OutputArgs;

/// List releases of caches: the newest of each name, or all of one
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  narval releases --from https://cache.example.org
  narval releases api --from https://cache.example.org

Exit code 3: no cache has a release of this name.")]
pub struct Args {
    /// Name of a release, such as `api`
    #[arg(value_name = "NAME")]
    name: Option<String>,
    #[command(flatten)]
    caches: SourceCacheArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Runs `narval releases`.
///
/// # Errors
/// If a cache cannot be asked, or none has the name.
pub fn run(args: &Args) -> Result<(), Failure> {
    args.output.start_log();
    let name =
        args.name.as_deref().map(|name| name.trim_start_matches('@').parse()).transpose().map_err(Failure::usage)?;
    let client = args.caches.client()?;
    let mut count = 0;
    for cache in args.caches.urls()? {
        list(&cache, &client, name.as_ref(), |page| {
            for mut release in page {
                count += 1;
                if args.output.json {
                    if let Some(fields) = release.as_object_mut() {
                        fields.insert("cache".to_owned(), json!(cache.to_string()));
                    }
                    json::event("release", release);
                } else {
                    show(&release);
                }
            }
        })?;
    }
    if let Some(name) = name.filter(|_| count == 0) {
        return Err(Failure::Coded(3, format!("no cache has a release @{name}; name the cache with --from")));
    }
    if args.output.json {
        json::summary(json!({"releases": count}));
    }
    Ok(())
}

/// What a server says is text: control characters are left out.
fn show(release: &Value) {
    let plain =
        |value: &Value| value.as_str().unwrap_or_default().chars().filter(|c| !c.is_control()).collect::<String>();
    let text = |key: &str| release.get(key).map(&plain).unwrap_or_default();
    let is = |key: &str| release.get(key).and_then(Value::as_bool).unwrap_or(false);
    let number = |key: &str| release.get(key).and_then(Value::as_u64).unwrap_or(0);
    let version = match text("version") {
        version if version.is_empty() => String::new(),
        version => format!("  {version}"),
    };
    let from = match text("promotedFrom") {
        from if from.is_empty() => String::new(),
        from => format!("  from {from}"),
    };
    let kept = match (is("pinned"), is("kept")) {
        (true, _) => "  pinned",
        (false, true) => "",
        (false, false) => "  not kept",
    };
    let percent = match number("percent") {
        0 => String::new(),
        percent => format!("  for {percent} %"),
    };
    let paths: Vec<String> =
        release.get("outputs").and_then(Value::as_object).into_iter().flatten().map(|(_, path)| plain(path)).collect();
    let (name, system) = (text("name"), text("system"));
    out!(
        "@{name}@{}{version}  {system}  {}  {}{from}{percent}{kept}",
        number("revision"),
        paths.join(" "),
        ago(number("created"))
    );
}
