//! The program `nix-serve`: the drop-in for nix-serve and nix-serve-ng.

use std::process::ExitCode;

fn main() -> ExitCode {
    narval::nix_serve::main()
}
