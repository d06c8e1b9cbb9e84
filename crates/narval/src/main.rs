//! The program `narval`.

use std::process::ExitCode;

fn main() -> ExitCode {
    narval::cli::main()
}
