# What the tests ask of the modules. NixOS itself is not here: its options are stand-ins that take anything, and its packages are the
# program of this build and as much of nixpkgs' helpers as the modules call.
{
  libPath,
  # A folder with bin/narval
  package,
  # PATH of builds
  path ? "/usr/bin:/bin",
  configuration ? { },
}:
let
  lib = import (libPath + "/lib");
  root = ../../../..;

  pkgs = {
    narval = {
      type = "derivation";
      name = "narval";
      outPath = package;
      meta.mainProgram = "narval";
    };
    writeText = builtins.toFile;
    writeShellScript = name: text: builtins.toFile name "#!/bin/sh\n${text}";
    runCommand =
      name: _: script:
      derivation {
        inherit name;
        system = builtins.currentSystem;
        builder = "/bin/sh";
        args = [
          "-euc"
          "export PATH=${path}\n${script}"
        ];
      };
  };

  any = lib.mkOption {
    type = lib.types.attrsOf lib.types.anything;
    default = { };
  };
  nixos = {
    options = {
      assertions = lib.mkOption { type = lib.types.listOf lib.types.anything; };
      environment.systemPackages = lib.mkOption { type = lib.types.listOf lib.types.anything; };
      environment.etc = any;
      networking.firewall.allowedTCPPorts = lib.mkOption {
        type = lib.types.listOf lib.types.port;
        default = [ ];
      };
      nix.settings = any;
      security.acme = any;
      services.nginx = any;
      systemd.services = any;
      systemd.sockets = any;
    };
    config._module.args = { inherit pkgs; };
  };

  inherit
    (lib.evalModules {
      modules = [
        (root + "/nix/module.nix")
        nixos
        configuration
      ];
    })
    config
    ;

  # As NixOS writes units.
  word = value: if value == true then "true" else if value == false then "false" else toString value;
  line =
    name: value:
    if lib.isList value then lib.concatMapStrings (line name) value else "${name}=${word value}\n";
  section = name: items: "[${name}]\n" + lib.concatStrings (lib.mapAttrsToList line items);
  common =
    unit:
    section "Unit" {
      Description = unit.description;
      Wants = unit.wants or [ ];
      After = unit.after or [ ];
      Requires = unit.requires or [ ];
    };
  install = unit: section "Install" { WantedBy = unit.wantedBy; };
  service =
    unit:
    common unit
    + section "Service" (
      unit.serviceConfig // { Environment = lib.mapAttrsToList (name: value: "\"${name}=${value}\"") unit.environment; }
    )
    + install unit;
  socket =
    unit: common unit + section "Socket" (unit.socketConfig // { ListenStream = unit.listenStreams; }) + install unit;

  keys =
    type:
    lib.concatLists (
      lib.mapAttrsToList (
        name: option:
        let
          nested = keys option.type;
        in
        if nested == [ ] then [ name ] else map (key: "${name}.${key}") nested
      ) (lib.filterAttrs (name: _: !lib.hasPrefix "_" name) (type.getSubOptions [ ]))
    );
  toml = import (root + "/nix/toml.nix") { inherit lib; };
in
{
  failures = map (item: item.message) (lib.filter (item: !item.assertion) config.assertions);
  units =
    lib.mapAttrs' (name: unit: lib.nameValuePair "${name}.service" (service unit)) config.systemd.services
    // lib.mapAttrs' (name: unit: lib.nameValuePair "${name}.socket" (socket unit)) config.systemd.sockets;
  ports = config.networking.firewall.allowedTCPPorts;
  nixSettings = config.nix.settings;
  inherit (config) systemd;
  configFile = config.environment.etc."narval/serve.toml".source;

  keys = keys (import (root + "/nix/settings.nix") { inherit lib toml; });
  rendered = toml.render;
  same = value: value;

  flake =
    let
      outputs = (import (root + "/flake.nix")).outputs {
        self = outputs;
        nixpkgs = {
          inherit lib;
          legacyPackages = lib.genAttrs [ "x86_64-linux" "aarch64-linux" ] (_: pkgs // builders);
        };
      };
      builders = {
        pkgsStatic = pkgs // builders;
        callPackage =
          file: _:
          import file {
            inherit lib;
            stdenv.hostPlatform = {
              emulatorAvailable = _: true;
              emulator = _: "";
            };
            buildPackages = { };
            rustPlatform.buildRustPackage = arguments: arguments;
            installShellFiles = "installShellFiles";
          };
      };
    in
    {
      outputs = lib.attrNames outputs;
      modules = lib.attrNames outputs.nixosModules;
      overlay = (outputs.overlays.default builders null).narval.pname;
      package = removeAttrs outputs.packages.x86_64-linux.default [
        "src"
        "cargoLock"
      ];
      static = outputs.packages.aarch64-linux.static.pname;
      source = "${outputs.packages.x86_64-linux.default.src}";
    };
}
