{
  description = "Serves, moves and installs Nix packages";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-unstable";

  outputs =
    { self, nixpkgs }:
    let
      systems = [
        "x86_64-linux"
        "aarch64-linux"
      ];
      forAll = make: nixpkgs.lib.genAttrs systems (system: make nixpkgs.legacyPackages.${system});
    in
    {
      packages = forAll (pkgs: rec {
        narval = pkgs.callPackage ./nix/package.nix { };
        static = pkgs.pkgsStatic.callPackage ./nix/package.nix { };
        default = narval;
      });
      overlays.default = import ./nix/overlay.nix;
      # The module with the package of this flake.
      nixosModules.default = {
        imports = [ ./nix/module.nix ];
        nixpkgs.overlays = [ self.overlays.default ];
      };
    };
}
