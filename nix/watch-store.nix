# services.narval-watch-store
{
  config,
  lib,
  pkgs,
  ...
}:
let
  inherit (lib) mkOption types;
  cfg = config.services.narval-watch-store;
  secret = types.pathWith {
    inStore = false;
    absolute = true;
  };
  state = "/var/lib/narval-push";
  escape = import ./escape.nix { inherit lib; };
  repeated = option: values: lib.concatMap (value: [ option value ]) values;
  arguments =
    repeated "--to" cfg.to
    ++ repeated "--exclude" cfg.exclude
    ++ repeated "--skip-signed-by" cfg.skipSignedBy
    ++ lib.optional cfg.builtHere "--only-built"
    ++ lib.optional cfg.derivations "--derivations"
    ++ lib.optional cfg.existing "--existing"
    ++ lib.optional cfg.queueOnly "--queue-only"
    ++ cfg.extraArguments;
in
{
  options.services.narval-watch-store = {
    enable = lib.mkEnableOption "pushing new store paths to binary caches";
    package = lib.mkPackageOption pkgs "narval" { };
    to = mkOption {
      type = types.listOf (types.strMatching "(http|https|s3|file)://.+" // { description = "URL of a binary cache"; });
      default = [ ];
      example = [ "https://cache.example.org" ];
      description = "Caches to push to.";
    };
    tokenFile = mkOption {
      type = types.nullOr secret;
      default = null;
      example = "/var/keys/narval-token";
      description = "File with the token for the caches. Only root needs to be able to read it.";
    };
    builtHere = mkOption {
      type = types.bool;
      default = false;
      description = "Whether only paths that were built on this machine are pushed.";
    };
    exclude = mkOption {
      type = types.listOf types.nonEmptyStr;
      default = [ ];
      example = [ "nixos-system-*" ];
      description = "Patterns of names that are left out.";
    };
    skipSignedBy = mkOption {
      type = types.listOf types.nonEmptyStr;
      default = [ ];
      example = [ "cache.nixos.org-1" ];
      description = "Names of keys: paths that one of them has signed are left out.";
    };
    derivations = mkOption {
      type = types.bool;
      default = false;
      description = "Whether derivations are pushed, too.";
    };
    existing = mkOption {
      type = types.bool;
      default = false;
      description = "Whether each cache also gets everything that is valid already, once.";
    };
    queueOnly = mkOption {
      type = types.bool;
      default = false;
      description = "Whether only paths are pushed that `narval hook` has queued; see `hook`.";
    };
    hook = mkOption {
      type = types.bool;
      default = false;
      description = "Whether `narval hook` is the `post-build-hook` of this machine's Nix.";
    };
    extraArguments = mkOption {
      type = types.listOf types.str;
      default = [ ];
      description = "Further arguments of `narval watch-store`.";
    };
  };

  config = lib.mkIf cfg.enable {
    assertions = [
      {
        assertion = cfg.to != [ ];
        message = "services.narval-watch-store.to: give at least one cache to push to";
      }
      {
        assertion = !(cfg.queueOnly && (cfg.existing || cfg.builtHere));
        message = "services.narval-watch-store: with queueOnly, neither existing nor builtHere can be set";
      }
    ];

    systemd.services.narval-watch-store = {
      description = "Narval, which pushes new store paths to a binary cache";
      wantedBy = [ "multi-user.target" ];
      wants = [ "network-online.target" ];
      after = [
        "network-online.target"
        "nix-daemon.socket"
      ];
      environment = {
        NARVAL_STATE = state;
      }
      // lib.optionalAttrs (cfg.tokenFile != null) {
        NARVAL_TOKEN_FILE = "/run/credentials/narval-watch-store.service/token";
      };
      serviceConfig = import ./hardening.nix // {
        Type = "notify";
        ExecStart = "${lib.getExe cfg.package} watch-store ${lib.concatMapStringsSep " " escape arguments}";
        Restart = "on-failure";
        RestartSec = 10;
        LoadCredential = lib.optional (cfg.tokenFile != null) "token:${cfg.tokenFile}";
        User = "narval-push";
        StateDirectory = "narval-push";
        StateDirectoryMode = "0700";
      };
    };

    nix.settings.post-build-hook = lib.mkIf cfg.hook (
      pkgs.writeShellScript "narval-hook" ''
        exec ${lib.getExe cfg.package} hook --state ${state}
      ''
    );
  };
}
