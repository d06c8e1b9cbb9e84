//! `narval cache audit`.

use std::time::Duration;

use serde_json::json;

use crate::Failure;
use crate::args::data::{DataArgs, ago, now};
use crate::ui::json;
use crate::ui::output::out;
use crate::values::time::parse_time;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  narval cache audit --since 1d
  narval cache audit --json | jq 'select(.action == \"delete\")'")]
pub(super) struct AuditArgs {
    #[command(flatten)]
    data: DataArgs,
    /// Only what was done in this time, such as `7d`
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    since: Option<Duration>,
    /// Print JSON: one object per line, with the time in seconds since 1970
    #[arg(long)]
    json: bool,
}

pub(super) fn audit(args: &AuditArgs) -> Result<(), Failure> {
    let since = args.since.map_or(0, |time| now().saturating_sub(time.as_secs()));
    let data = args.data.open()?;
    let mut lines = 0_u64;
    let read = data.read_audit(since, |line| {
        if args.json {
            lines += 1;
            // A structure of texts and numbers can always be written.
            json::event("audit", serde_json::to_value(&line).unwrap_or_default());
            return;
        }
        let who = match (line.token.as_str(), line.peer.as_deref()) {
            ("", None) => line.label.clone(),
            ("", Some(peer)) => format!("{} ({peer})", line.label),
            (token, None) => format!("{} ({token})", line.label),
            (token, Some(peer)) => format!("{} ({token}, {peer})", line.label),
        };
        let cache = line.cache.as_deref().unwrap_or("-");
        let refused = if line.result == "ok" { "" } else { "refused: " };
        let shown =
            format!("{}  {who}  {cache}  {} {}  {refused}{}", ago(line.time), line.action, line.subject, line.detail);
        // Labels and names come from clients.
        let shown: String = shown.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
        out!("{shown}");
    });
    read.map_err(Failure::runtime)?;
    if args.json {
        json::summary(json!({"lines": lines}));
    }
    Ok(())
}
