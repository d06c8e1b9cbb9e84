//! `narval cache audit`.

use std::time::Duration;

use narval_keep::CacheName;
use serde_json::{Value, json};

use crate::args::administered::{AdminTargetArgs, number, text};
use crate::args::data::{ago, now};
use crate::ui::failure::Failure;
use crate::ui::json;
use crate::ui::output::out;
use crate::values::time::parse_time;

/// Show who did what
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  narval cache audit --since 1d
  narval cache audit --at https://cache.example.org
  narval cache audit --json | jq 'select(.action == \"delete\")'")]
pub struct AuditArgs {
    /// Whose audit log.
    #[command(flatten)]
    place: AdminTargetArgs,
    /// Only what is about this cache
    #[arg(long, value_name = "NAME")]
    cache: Option<CacheName>,
    /// Only what was done in this time, such as `7d`
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    since: Option<Duration>,
    /// Print JSON: one object per line, with the time in seconds since 1970
    #[arg(long)]
    json: bool,
}

/// Runs it.
///
/// # Errors
/// The audit log cannot be read.
pub fn audit(args: &AuditArgs) -> Result<(), Failure> {
    let since = args.since.map_or(0, |time| now().saturating_sub(time.as_secs()));
    let only = args.cache.as_ref().map(|cache| format!("&cache={cache}")).unwrap_or_default();
    let lines = args.place.open()?.each(&format!("audit?limit=1000&since={since}{only}"), |line| {
        if args.json {
            json::event("audit", line);
        } else {
            show(&line);
        }
        Ok(())
    })?;
    if args.json {
        json::summary(json!({"lines": lines}));
    }
    Ok(())
}

fn show(line: &Value) {
    let [label, token, peer, action, subject, detail] =
        ["label", "token", "peer", "action", "subject", "detail"].map(|name| text(line, name));
    let who = match (&*token, &*peer) {
        ("", "") => label,
        ("", peer) => format!("{label} ({peer})"),
        (token, "") => format!("{label} ({token})"),
        (token, peer) => format!("{label} ({token}, {peer})"),
    };
    let cache = Some(text(line, "cache")).filter(|cache| !cache.is_empty()).unwrap_or_else(|| "-".to_owned());
    let refused = if text(line, "result") == "ok" { "" } else { "refused: " };
    let when = ago(number(line, "time").unwrap_or_default());
    out!("{when}  {who}  {cache}  {action} {subject}  {refused}{detail}");
}
