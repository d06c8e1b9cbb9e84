//! The program `narval`.

use std::process::ExitCode;

fn main() -> ExitCode {
    narval_http::give_back_large_blocks();
    narval::cli::main()
}
