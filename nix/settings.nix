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
  count = types.ints.between 1 1000000;
  size = types.either types.ints.unsigned (matching ''size such as "10G"'' "[0-9]+ *[KMGTkmgt]?([iI]?[bB])?");
  time = types.either types.ints.unsigned (matching ''time such as "90s"'' "[0-9]+ *(ms|s|m|h|d|w)?");
  publicKey = matching "public key, NAME:BASE64" "[^: \n]+:[A-Za-z0-9+/]{43}=";
  cacheUrl = matching "URL of a binary cache" "(http|https|s3|file)://.+";
  priority = types.ints.between 0 4294967295;
  # Not a path of Nix: `./cache.sec` would be copied to the store, which everybody can read.
  secret = types.pathWith {
    inStore = false;
    absolute = true;
  };
  file = types.pathWith { absolute = true; };

  upstream = {
    url = mkOption {
      type = cacheUrl;
      description = "Binary cache that is asked for paths that are not here.";
    };
    keys = key (oneOrMore publicKey) "Public keys: paths from it must be signed by one of them.";
    require-signatures = key types.bool "Whether signatures are required.";
    priority = key (types.ints.between 0 1000000) "The lowest is asked first.";
    netrc-file = key secret "netrc file with the credentials for it.";
    redirect-hosts = key (oneOrMore types.str) "Other hosts to which it may lead, such as `*.example.org`.";
    timeout = key time "Timeout for connecting, and for each wait for a narinfo.";
    stall-timeout = key time "Time after which a download that makes no progress is aborted.";
  };
in
section {
  listen = key (oneOrMore types.str) ''
    `HOST:PORT`, `:PORT`, `[IPV6]:PORT` or paths of unix sockets, in addition to the sockets that systemd opens
    (`services.narval-serve.socketActivation`).
  '';
  trusted-proxies = key (oneOrMore (matching "IP address, network, or unix" "unix|[0-9a-fA-F:.]+(/[0-9]+)?")) ''
    Proxies that are believed who their clients are: addresses, networks such as `10.0.0.0/8`, or `unix` for all unix sockets.
  '';
  proxy-protocol = key types.bool "Whether they speak the PROXY protocol.";
  store = key types.str "Store to serve: `auto`, `daemon`, or a folder. Default: this machine's, unless `data` is set.";
  data = key (matching "folder in /var/lib, or address of a bucket" "/var/lib/[^/]+(/.*)?|s3://.+") ''
    Folder of the caches that take uploads, below `/var/lib`, or address of a bucket (`s3://…`). Without `store`, only these are served.
  '';
  cache-dir = key (matching "folder in /var/lib" "/var/lib/[^/]+(/.*)?") ''
    With `data` in a bucket: folder for the disk cache, and for the index unless `database` has it; below `/var/lib`.
  '';
  cache-size = key size "With `data` in a bucket: limit on the size of the disk cache.";
  peer-url = key (matching "address, http://HOST:PORT" "https?://.+") ''
    With `data` in a bucket and `database`: address at which other servers over the same bucket reach this one, to share disk caches.
  '';
  redirect = key (types.enum [
    "off"
    "auto"
    "on"
  ]) "With `data` in a bucket: when clients get NARs of 8 MiB and more from the object store itself.";
  share-data = key types.bool "Whether other users of the machine may read the data folder: files are then created as the umask says, and no warning says that others can read them.";
  database = key (matching "address of a PostgreSQL database" "postgres(ql)?://.+") ''
    Database with the index of the data folder, so that several servers can share the folder. Every user of the machine can read the file:
    the address must not contain a password.
  '';
  public = key types.bool "Whether caches that take uploads may be read without a token.";
  sign-keys = key (oneOrMore secret) ''
    Secret keys to sign with (`narval key generate`). Only root needs to be able to read them: systemd passes them to the service.
  '';
  priority = key priority "Clients ask the cache with the lowest number first.";
  verify-nars = key types.bool "Whether every NAR is hashed while it is sent.";
  web = key types.bool "Whether browsers get a page at `/`.";
  upstream-size = key size "Limit on the size of the paths kept from upstreams.";
  upstream = tables "Caches that the cache at `/` asks for paths that it does not have; needs `data`." upstream;

  cache = tables "Caches that take uploads; needs `data`. The cache `default` is at `/`, others are below `/NAME`." {
    name = mkOption {
      type = matching "name of a cache" "[a-z0-9._-]{1,64}";
      description = "Name of the cache.";
    };
    description = key types.str "What the page says about it, besides what it knows: plain text.";
    host = key (oneOrMore (matching "host name" "[A-Za-z0-9.-]{1,253}")) "Host names at whose `/` it is also served.";
    host-only = key types.bool "Whether it is not served below `/NAME`.";
    store-dir = key types.str "Store directory of its paths.";
    public = key types.bool "Whether it may be read without a token.";
    sign-keys = key (oneOrMore secret) "As `sign-keys`, for this cache.";
    priority = key priority "As `priority`, for this cache.";
    want-mass-query = key types.bool "`WantMassQuery` in `nix-cache-info`.";
    upstream = tables "As `upstream`, for this cache." upstream;
    upstream-size = key size "As `upstream-size`, for this cache.";
    trusted-keys = key (oneOrMore publicKey) "Paths signed by one of these are also signed with the cache's keys.";
    required-keys = key (oneOrMore publicKey) "Uploads must be signed by one of these.";
    strict-references = key types.bool "Whether uploads with references that the narinfo does not list are refused.";
    retention =
      key (matching ''"never" or days such as "90d"'' "never|[1-9][0-9]* *d")
        "How long paths that nobody requests are kept.";
    max-size = key size "The least recently used paths are removed beyond this size.";
    quota = key size "Uploads that would exceed this size are refused.";
    max-nar-size = key size "Size of the largest NAR that is accepted, uncompressed.";
    recompress = key (types.enum [
      "zstd"
      "never"
    ]) "Whether NARs in other formats are recompressed in the background.";
  };

  oidc = tables "CI platforms whose jobs get tokens." {
    issuer = mkOption {
      type = matching "URL" "https?://.+";
      description = "Address of the platform.";
    };
    audience = mkOption {
      type = types.nonEmptyStr;
      description = "Audience that the platform's tokens must have.";
    };
    name = key types.nonEmptyStr "Its name in logs.";
    token-lifetime = key time "Lifetime of the tokens of this cache.";
    require-jti = key types.bool "Whether the platform's tokens must have an id (jti), with which each is exchanged once.";
    rule = tables "The first rule that matches applies." {
      claims = key (types.attrsOf (oneOrMore types.str)) "Claims, each with patterns; all claims must match.";
      scopes = key (oneOrMore (
        types.enum [
          "pull"
          "push"
          "sign"
          "pin"
          "delete"
          "replace"
        ]
      )) "What a token may do.";
      caches = key (oneOrMore types.str) "Names or patterns of caches; default: all.";
    };
  };

  tls = table "HTTPS." {
    certificate = tables "Certificates; the first is for clients that name none of them." {
      cert = mkOption {
        type = file;
        description = "Certificate chain (PEM).";
      };
      key = mkOption {
        type = secret;
        description = "Its private key (PEM).";
      };
      ocsp = key file "OCSP response (DER) to staple.";
    };
    client-ca = key file "Certificate authorities (PEM); clients must present a certificate issued by one of them.";
    ktls = key (types.enum [
      "off"
      "auto"
      "on"
    ]) "Whether the kernel encrypts large files.";
    http2 = key types.bool "Whether HTTP/2 is offered.";
  };

  access-log = table "The access log." {
    file = key (matching ''"-" or file in /var/log/narval'' "-|/var/log/narval/.+") ''
      `-` for standard output, which the journal records, or a file in `/var/log/narval`.
    '';
    format = key (types.enum [
      "combined"
      "real-ip"
      "verbose"
      "json"
      "logfmt"
    ]) "Its format.";
    trust-request-ids = key types.bool "Whether the X-Request-Id that a client sends is used. Only behind a proxy that sets it.";
  };

  nar-cache = table "Compressed NARs of the live store." {
    enabled = key types.bool "Whether they are made and kept.";
    folder = key (matching "folder in /var/cache/narval" "/var/cache/narval(/.*)?") "Folder for them.";
    size = key size "Limit on their size.";
    level = key (types.ints.between 1 19) "zstd level.";
    deltas = key (types.enum [
      "off"
      "kept"
      "on"
    ]) "Whether clients that have another version of a path get the difference.";
  };

  limits = table "What clients may cost." {
    connections = key count "Open connections.";
    connections-per-address = key count "Open connections of one IPv4 address or IPv6 network of 64 bits; by default an eighth of all.";
    queue = key count "Requests that wait for a worker.";
    backlog = key (types.ints.between 1 65535) "Connections that wait to be accepted, for each listener.";
    head-timeout = key time "Timeout for receiving a request's head.";
    keep-alive-timeout = key time "Idle time between two requests on a connection.";
    stall-timeout = key time "Time after which a client that reads nothing is disconnected.";
    output-memory = key size "Memory for answers that clients have yet to read, and for messages of WebSockets.";
    narinfo-memory = key size "Memory for remembered narinfos, per cache.";
    decode-memory = key size "Memory for the windows of decoders of uploads, in all.";
  };
}
