//! The options for output, and the log of a command that people run.

use tracing_subscriber::Layer;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use super::log::filter;
use super::timeline::Timeline;

/// The amount and format of output.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct OutputArgs {
    /// Print only errors
    #[arg(long, short, conflicts_with = "json", help_heading = "Output")]
    pub quiet: bool,
    /// Print JSON
    #[arg(long, help_heading = "Output")]
    pub json: bool,
}

impl OutputArgs {
    /// Starts the log of an interactive command: warnings, without times. `NARVAL_LOG` shows more.
    pub fn start_log(self) {
        self.start_log_with(None);
    }

    /// The same, with a timeline.
    pub(crate) fn start_log_with(self, timeline: Option<&Timeline>) {
        let usual = if self.quiet { LevelFilter::ERROR } else { LevelFilter::WARN };
        let ansi = std::io::IsTerminal::is_terminal(&std::io::stderr());
        let layer = tracing_subscriber::fmt::layer().with_target(false).without_time();
        // A log line that cannot be written cannot be reported: by default, tracing tries that on standard error, and
        // panics.
        let layer = layer.log_internal_errors(false).with_ansi(ansi).with_writer(std::io::stderr);
        // The first log of a process is used.
        let layer = layer.with_filter(filter(usual));
        let _ = tracing_subscriber::registry().with(layer).with(timeline.map(Timeline::layer)).try_init();
    }
}
