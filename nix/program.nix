# programs.narval
{
  config,
  lib,
  pkgs,
  ...
}:
let
  inherit (lib) mkOption types;
  cfg = config.programs.narval;
in
{
  options.programs.narval = {
    enable = lib.mkEnableOption "the command `narval`";
    package = lib.mkPackageOption pkgs "narval" { };
    caches = mkOption {
      type = types.attrsOf (types.strMatching "[^: \n]+:[A-Za-z0-9+/]{43}=" // { description = "public key, NAME:BASE64"; });
      default = { };
      example = {
        "https://cache.example.org" = "cache.example.org-1:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
      };
      description = "Binary caches that Nix and Narval use on this machine, with their public keys.";
    };
  };

  config = lib.mkIf cfg.enable {
    environment.systemPackages = [ cfg.package ];
    nix.settings = lib.mkIf (cfg.caches != { }) {
      extra-substituters = lib.attrNames cfg.caches;
      extra-trusted-public-keys = lib.attrValues cfg.caches;
    };
  };
}
