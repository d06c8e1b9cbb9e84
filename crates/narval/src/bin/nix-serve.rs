//! The program `nix-serve`: the drop-in for nix-serve and nix-serve-ng.

use std::process::ExitCode;

fn main() -> ExitCode {
    narval_http::give_back_large_blocks();
    narval::nix_serve::main()
}
