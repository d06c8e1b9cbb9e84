//! The command line of the harness.

use std::process::ExitCode;

fn main() -> ExitCode {
    match narval_bench::command::run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("narval-bench: {failure}");
            ExitCode::FAILURE
        }
    }
}
