# services.narval-serve
{
  config,
  lib,
  pkgs,
  ...
}:
let
  inherit (lib) mkOption types;
  cfg = config.services.narval-serve;
  toml = import ./toml.nix { inherit lib; };
  settings = cfg.settings;
  unit = "narval-serve.service";

  # Files that only root can read are passed by systemd. Their names there begin with a hash of the path: two keys may have one name.
  credential = path: "${builtins.substring 0 8 (builtins.hashString "sha256" path)}-${baseNameOf path}";
  passed = path: if path == null then null else "/run/credentials/${unit}/${credential (toString path)}";
  withUpstreams =
    table: table // { upstream = map (upstream: upstream // { netrc-file = passed upstream.netrc-file; }) table.upstream; };
  all = paths: if paths == null then [ ] else paths;
  passedAll = paths: if paths == null then null else map passed paths;
  withKeys = table: table // { sign-keys = passedAll table.sign-keys; };
  file = withKeys (withUpstreams settings) // {
    managed-sign-keys = passedAll settings.managed-sign-keys;
    cache = map (cache: withKeys (withUpstreams cache)) settings.cache;
    tls = settings.tls // {
      client-ca = passed settings.tls.client-ca;
      certificate = map (
        pair:
        pair
        // {
          cert = passed pair.cert;
          key = passed pair.key;
          ocsp = passed pair.ocsp;
        }
      ) settings.tls.certificate;
    };
  };
  ofCache = table: all table.sign-keys ++ map (upstream: upstream.netrc-file) table.upstream;
  # A path that is interpolated would be copied to the store.
  secrets = lib.unique (
    map toString (lib.filter (path: path != null) (
      ofCache settings
      ++ all settings.managed-sign-keys
      ++ lib.concatMap ofCache settings.cache
      ++ [ settings.tls.client-ca ]
      ++ lib.concatMap (pair: [
        pair.cert
        pair.key
        pair.ocsp
      ]) settings.tls.certificate
    ))
  );

  # Tables without a key are left out.
  prune = lib.filterAttrs (_: value: value != [ ] && !(lib.isAttrs value && lib.all (item: item == null || item == [ ]) (lib.attrValues value)));
  unchecked = pkgs.writeText "narval.toml" (toml.render (prune file));
  configFile =
    if cfg.checkConfig then
      pkgs.runCommand "narval.toml" { } ''
        ${lib.getExe cfg.package} config check --no-files ${unchecked}
        cp ${unchecked} $out
      ''
    else
      unchecked;

  # The TCP port of a place to listen on; null: a unix socket.
  port =
    place:
    let
      digits = builtins.match "(.*:)?([0-9]+)" place;
    in
    if lib.hasInfix "/" place || digits == null then null else lib.toInt (lib.last digits);
  listen = if settings.listen == null then [ ] else settings.listen;
  places = if cfg.socketActivation then cfg.listenStreams ++ listen else if listen == [ ] then [ ":5000" ] else listen;
  ports = lib.filter (number: number != null) (map port places);
  isPrivileged = number: number < 1024;
  # Sockets that systemd opens need no privileges of the server.
  needsBind = lib.any (number: number != null && isPrivileged number) (map port (if cfg.socketActivation then listen else places));
in
{
  options.services.narval-serve = {
    enable = lib.mkEnableOption "Narval, a binary cache for Nix";
    package = lib.mkPackageOption pkgs "narval" { };
    settings = mkOption {
      type = import ./settings.nix { inherit lib toml; };
      default = { };
      description = "The configuration file of `narval serve`; see docs/configuration.md.";
      example = lib.literalExpression ''
        {
          sign-keys = [ "/var/keys/cache.sec" ];
          data = "/var/lib/narval";
        }
      '';
    };
    checkConfig = mkOption {
      type = types.bool;
      default = true;
      description = "Whether `narval config check` reads the configuration file when the system is built.";
    };
    socketActivation = mkOption {
      type = types.bool;
      default = true;
      description = ''
        Whether systemd opens the sockets: while the server restarts, connections wait, and ports below 1024 need no privileges.
      '';
    };
    listenStreams = mkOption {
      type = types.listOf types.nonEmptyStr;
      default = [ "5000" ];
      example = [
        "443"
        "/run/narval.sock"
      ];
      description = "The sockets that systemd opens: ports, `ADDRESS:PORT`, or paths of unix sockets. See systemd.socket(5).";
    };
    openFirewall = mkOption {
      type = types.bool;
      default = false;
      description = "Whether the firewall lets clients reach all TCP ports of the server.";
    };
    environment = mkOption {
      type = types.attrsOf types.str;
      default = { };
      example = {
        NARVAL_LOG = "debug";
      };
      description = "Environment variables of the server.";
    };
  };

  config = lib.mkIf cfg.enable {
    assertions = [
      {
        assertion = settings.data != null || (settings.cache == [ ] && settings.upstream == [ ]);
        message = "services.narval-serve.settings: 'cache' and 'upstream' need a folder: data = \"/var/lib/narval\"";
      }
      {
        assertion = !cfg.socketActivation || cfg.listenStreams != [ ];
        message = "services.narval-serve.listenStreams: give at least one socket, or set socketActivation = false";
      }
    ];

    systemd.sockets.narval-serve = lib.mkIf cfg.socketActivation {
      description = "Sockets of Narval, a binary cache for Nix";
      wantedBy = [ "sockets.target" ];
      inherit (cfg) listenStreams;
      socketConfig = {
        Backlog = 4096;
        NoDelay = true;
      };
    };

    systemd.services.narval-serve = {
      description = "Narval, a binary cache for Nix";
      wantedBy = [ "multi-user.target" ];
      wants = [ "network-online.target" ];
      after = [
        "network-online.target"
        "nix-daemon.socket"
      ]
      ++ lib.optional cfg.socketActivation "narval-serve.socket";
      requires = lib.optional cfg.socketActivation "narval-serve.socket";
      environment = cfg.environment;
      # A new configuration is read by a reload. These need more.
      reloadTriggers = [ configFile ];
      restartTriggers = [
        (builtins.toJSON {
          inherit (settings)
            listen
            data
            database
            cache-dir
            cache-size
            limits
            trusted-proxies
            proxy-protocol
            ;
          tls = settings.tls.certificate != [ ];
          log = settings.access-log.file != null;
          ids = settings.access-log.trust-request-ids;
        })
      ];
      serviceConfig = import ./hardening.nix // {
        Type = "notify-reload";
        ExecStart = "${lib.getExe cfg.package} serve --config /etc/narval/serve.toml";
        Restart = "on-failure";
        TimeoutStopSec = 90;
        LoadCredential = map (path: "${credential path}:${path}") secrets;
        User = "narval";
        StateDirectory = map (lib.removePrefix "/var/lib/") (
          lib.filter (folder: folder != null && lib.hasPrefix "/var/lib/" folder) [
            settings.data
            settings.cache-dir
          ]
        );
        StateDirectoryMode = "0700";
        CacheDirectory = "narval";
        CacheDirectoryMode = "0700";
        LogsDirectory = "narval";
        LimitNOFILE = 65536;
      }
      // lib.optionalAttrs needsBind {
        AmbientCapabilities = [ "CAP_NET_BIND_SERVICE" ];
        CapabilityBoundingSet = [ "CAP_NET_BIND_SERVICE" ];
        # In a user namespace of its own the capability would not count.
        PrivateUsers = false;
      };
    };

    environment.etc."narval/serve.toml".source = configFile;
    networking.firewall.allowedTCPPorts = lib.mkIf cfg.openFirewall ports;
    environment.systemPackages = [ cfg.package ];
  };
}
