# The keys of the configuration file of `narval serve`, typed; docs/configuration.md describes them. A key that is not here can be set
# all the same, and `narval config check` decides about it when the system is built.
{ lib, toml }:
let
  inherit (lib) mkOption types;

  # null: not in the file, so the default of the server.
  key =
    type: description:
    mkOption {
      type = types.nullOr type;
      default = null;
      inherit description;
    };
  required = type: description: mkOption { inherit type description; };
  section =
    options:
    types.submodule {
      freeformType = toml.type;
      inherit options;
    };
  table =
    description: options:
    mkOption {
      type = section options;
      default = { };
      inherit description;
    };
  tables =
    description: options:
    mkOption {
      type = types.listOf (section options);
      default = [ ];
      inherit description;
    };
  matching =
    description: pattern:
    types.strMatching pattern
    // {
      inherit description;
    };

  oneOrMore = type: types.coercedTo type lib.singleton (types.listOf type);
  size = types.either types.ints.unsigned (matching ''size such as "10G"'' "[0-9]+ *[KMGTkmgt]?([iI]?[bB])?");
  time = types.either types.ints.unsigned (matching ''time such as "90s"'' "[0-9]+ *(ms|s|m|h|d|w)?");
  publicKey = matching "public key, NAME:BASE64" "[^: \n]+:[A-Za-z0-9+/]{43}=";
  cacheUrl = matching "URL of a binary cache" "(http|https|s3|file)://.+";
  webUrl = matching "URL" "https?://.+";
  proxy = matching "IP address, network, or unix" "unix|[0-9a-fA-F:.]+(/[0-9]+)?";
  # Every user of the machine can read the file: the address must not contain a password.
  database = matching "address of a PostgreSQL database" "postgres(ql)?://.+";
  cacheName = matching "name of a cache" "[a-z0-9._-]{1,64}";
  host = matching "host name" "[A-Za-z0-9.-]{1,253}";
  retention = matching ''"never" or days such as "90d"'' "never|[1-9][0-9]* *d";
  # What the unit may write to.
  stateFolder = matching "folder in /var/lib" "/var/lib/[^/]+(/.*)?";
  dataPlace = matching "folder in /var/lib, or address of a bucket" "/var/lib/[^/]+(/.*)?|s3://.+";
  cacheFolder = matching "folder in /var/cache/narval" "/var/cache/narval(/.*)?";
  logFile = matching ''"-" or file in /var/log/narval'' "-|/var/log/narval/.+";
  # Not a path of Nix: `./cache.sec` would be copied to the store, which everybody can read.
  secret = types.pathWith {
    inStore = false;
    absolute = true;
  };
  file = types.pathWith { absolute = true; };
in
section (
  import ./keys.nix {
    inherit
      types
      key
      required
      table
      tables
      oneOrMore
      size
      time
      publicKey
      cacheUrl
      webUrl
      proxy
      database
      cacheName
      host
      retention
      stateFolder
      dataPlace
      cacheFolder
      logFile
      secret
      file
      ;
  }
)
