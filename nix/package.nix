# `pkgs.callPackage ./nix/package.nix { }`; `pkgs.pkgsStatic.callPackage …` for one without shared libraries.
{
  lib,
  stdenv,
  buildPackages,
  rustPlatform,
  installShellFiles,
}:
let
  root = ./..;
  manifest = lib.importTOML ../Cargo.toml;
in
rustPlatform.buildRustPackage {
  pname = "narval";
  inherit (manifest.workspace.package) version;

  src = lib.fileset.toSource {
    inherit root;
    fileset = lib.fileset.unions [
      ../.cargo
      ../Cargo.toml
      ../Cargo.lock
      ../bench
      ../crates
      ../packaging
    ];
  };
  cargoLock.lockFile = ../Cargo.lock;
  buildType = "dist";
  cargoBuildFlags = [
    "-p"
    "narval"
    "--bin"
    "narval"
  ];
  # They need stores, daemons and sockets of their own; tools/test runs them.
  doCheck = false;

  nativeBuildInputs = [ installShellFiles ];
  # Without packages for the machine it was built on, the program could not print its own pages.
  postInstall = ''
    ln -s narval $out/bin/nix-serve
    install -Dm644 -t $out/lib/systemd/system packaging/systemd/*
    substituteInPlace $out/lib/systemd/system/*.service --replace-quiet /usr/bin/narval $out/bin/narval
  ''
  + lib.optionalString (stdenv.hostPlatform.emulatorAvailable buildPackages) ''
    narval="${stdenv.hostPlatform.emulator buildPackages} $out/bin/narval"
    $narval man pages && installManPage pages/*
    for shell in bash fish zsh; do
      $narval completions $shell > narval.$shell
    done
    installShellCompletion --cmd narval --bash narval.bash --fish narval.fish --zsh narval.zsh
  '';

  meta = {
    description = "Serves, moves and installs Nix packages; a drop-in for nix-serve";
    license = with lib.licenses; [
      mit
      asl20
    ];
    mainProgram = "narval";
    platforms = lib.platforms.linux;
  };
}
