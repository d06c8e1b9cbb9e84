//! Starts the `narval` beside it under the name `nix-serve`: `cargo install` makes no links. Packages have a link instead.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let error = match std::env::current_exe() {
        Ok(program) => {
            let narval = program.with_file_name("narval");
            let error = Command::new(&narval).arg0("nix-serve").args(std::env::args_os().skip(1)).exec();
            format!("cannot start '{}': {error}", narval.display())
        }
        Err(error) => format!("cannot find out where this program is: {error}"),
    };
    // Nobody may read it.
    let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("nix-serve: {error}\n"));
    ExitCode::FAILURE
}
