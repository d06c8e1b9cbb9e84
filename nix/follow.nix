# services.narval-follow
{
  config,
  lib,
  pkgs,
  ...
}:
let
  inherit (lib) mkOption types;
  cfg = config.services.narval-follow;
  escape = import ./escape.nix { inherit lib; };
  repeated = option: values: lib.concatMap (value: [ option value ]) values;
  arguments = [
    cfg.release
    "--profile"
    cfg.profile
    "--switch"
    cfg.switch
    "--every"
    cfg.every
    "--jitter"
    cfg.jitter
  ]
  ++ lib.optionals (cfg.check != null) [
    "--check"
    cfg.check
  ]
  ++ lib.optionals (cfg.reportTokenFile != null) [
    "--report"
    "--token-file"
    cfg.reportTokenFile
  ]
  ++ repeated "--from" cfg.from
  ++ repeated "--on" cfg.on
  ++ cfg.extraArguments;
in
{
  options.services.narval-follow = {
    enable = lib.mkEnableOption "following a release: this machine switches to each new revision, and back if that fails";
    package = lib.mkPackageOption pkgs "narval" { };
    release = mkOption {
      type = types.strMatching "@[A-Za-z0-9][A-Za-z0-9._+-]*" // {
        description = "name of a release, with @";
      };
      example = "@web";
      description = "The release.";
    };
    from = mkOption {
      type = types.listOf (types.strMatching "(http|https)://.+" // { description = "URL of a binary cache"; });
      default = [ ];
      example = [ "https://cache.example.org" ];
      description = "Caches that have the release; those of `nix.settings.substituters` if there are none here.";
    };
    profile = mkOption {
      type = types.strMatching "/.+" // { description = "absolute path"; };
      default = "/nix/var/nix/profiles/system";
      description = "The profile whose generations are the revisions.";
    };
    switch = mkOption {
      type = types.nonEmptyStr;
      default = "bin/switch-to-configuration switch";
      description = "Command that switches to a path, run in it.";
    };
    check = mkOption {
      type = types.nullOr types.nonEmptyStr;
      default = null;
      example = "curl -sf localhost/health";
      description = "Command that succeeds when the machine works.";
    };
    every = mkOption {
      type = types.nonEmptyStr;
      default = "5m";
      description = "Time between two looks at the release.";
    };
    jitter = mkOption {
      type = types.nonEmptyStr;
      default = "1m";
      description = "A random time up to this is added to each of them.";
    };
    on = mkOption {
      type = types.listOf types.nonEmptyStr;
      default = [ ];
      example = [ "Mon-Fri 02:00-05:00" ];
      description = "Days and times of UTC at which the machine may switch; always if there are none here.";
    };
    reportTokenFile = mkOption {
      type = types.nullOr (types.strMatching "/.+" // { description = "absolute path"; });
      default = null;
      example = "/run/secrets/narval-report";
      description = "File with a token that may `report`: the machine says to the cache what it runs. It reports nothing if there is none.";
    };
    path = mkOption {
      type = types.listOf types.anything;
      default = [ ];
      example = lib.literalExpression "[ pkgs.curl ]";
      description = "Packages for the commands.";
    };
    extraArguments = mkOption {
      type = types.listOf types.str;
      default = [ ];
      description = "Further arguments of `narval follow`.";
    };
  };

  config = lib.mkIf cfg.enable {
    systemd.services.narval-follow = {
      description = "Narval, which follows a release of a binary cache";
      wantedBy = [ "multi-user.target" ];
      wants = [ "network-online.target" ];
      after = [
        "network-online.target"
        "nix-daemon.socket"
      ];
      environment = { };
      inherit (cfg) path;
      # It is what runs the switch that would restart it.
      restartIfChanged = false;
      serviceConfig = {
        Type = "notify";
        ExecStart = "${lib.getExe cfg.package} follow ${lib.concatMapStringsSep " " escape arguments}";
        Restart = "on-failure";
        RestartSec = 10;
        KillMode = "mixed";
        TimeoutStopSec = 1800;
      };
    };
  };
}
