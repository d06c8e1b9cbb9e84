//! The programs `narval` and `nix-serve`: one, that goes by the name it is started under.

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    narval_http::give_back_large_blocks();
    let name = std::env::args_os().next().unwrap_or_default();
    if Path::new(&name).file_name().is_some_and(|name| name == "nix-serve") {
        narval::nix_serve::main()
    } else {
        narval::cli::main()
    }
}
