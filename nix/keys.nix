# The keys of the configuration file of `narval serve`, for settings.nix. Generated from the tables in crates/narval/src/config/ by
# `NARVAL_UPDATE_HELP=1 cargo test -p narval --test help`.
kinds: with kinds; {
  listen = key (oneOrMore types.str) "Address to listen on: HOST:PORT, :PORT, [IPV6]:PORT or the path of a unix socket.";
  store = key types.nonEmptyStr "Store to serve: `auto`, `daemon`, a folder that contains a store, or another Nix store URI.";
  data = key dataPlace "Data folder of a cache that accepts uploads (`nix copy --to`); created if it does not exist. Uploads need a token: create one with `narval token create`. Without a store, only this cache is served. The caches can also be in a bucket of an object store, `s3://BUCKET/PREFIX?region=…&endpoint=…`; see docs/scale-out.md.";
  cache-dir = key stateFolder "With the data in a bucket: folder on this machine for the disk cache, and for the index unless a database has it.";
  cache-size = key size "With the data in a bucket: maximum size of the disk cache; the least recently used NARs are removed first.";
  redirect = key (types.enum [ "off" "auto" "on" ]) "With the data in a bucket: when clients get NARs of 8 MiB and more from the object store itself. They are sent there by a redirect to an address that is valid for five minutes; see docs/scale-out.md#redirects.";
  peer-url = key webUrl "With the data in a bucket and a database: address at which other servers over the same bucket reach this one, to share disk caches. Each NAR is then kept by one of the servers that have such an address, and the others read it from there: `http://10.0.0.3:5000`; see docs/scale-out.md#sharing-disk-caches.";
  database = key database "PostgreSQL database with the index of the data folder: `postgres://USER@HOST/DATABASE`. Several servers can then share the folder. The password is better given by PGPASSWORD, or by the configuration file: everybody on the machine can read command lines.";
  share-data = key types.bool "Whether other users of the machine may read the data folder, such as nginx. Without it, what a server and the commands on its data create is 0700 (folders) and 0600 (files), new access logs included, and the server warns of an existing folder or file that allows more. With it, the umask decides; make what is there readable with `chmod -R go+rX`.";
  public = key types.bool "Whether caches that take uploads may be read without a token.";
  sign-keys = key (oneOrMore secret) "Secret key to sign with. Create one with `narval key generate`; or a file that names a command which has the key (docs/security.md). Signatures stored with the paths are served as well.";
  managed-sign-keys = key (oneOrMore secret) "As `sign-keys`, for caches that the API creates. They get no key of their own then, which would be in the index (docs/api.md#keys).";
  priority = key (types.ints.between 0 4294967295) "Priority; clients query the cache with the lowest number first (cache.nixos.org: 40).";
  nar-cache = table "Compressed NARs of the live store." {
    folder = key cacheFolder "Folder for compressed NARs.";
    size = key size "Maximum size of that folder; the least recently used NARs are removed first.";
    level = key (types.ints.between 1 19) "zstd compression level, 1 (fast) to 19 (small).";
    enabled = key types.bool "Whether compressed NARs are made and kept.";
    deltas = key (types.enum [ "off" "kept" "on" ]) "Whether clients that have another version of a path get the difference; made differences are kept with the compressed NARs (docs/deltas.md).";
  };
  verify-nars = key types.bool "Whether every NAR is hashed while it is sent.";
  web = key types.bool "Whether browsers get a page at `/` (docs/web.md).";
  limits = table "What clients may cost." {
    connections = key (types.ints.between 1 1000000) "Open connections; for a further one an idle connection is closed, and if there is none it gets 503. Fewer if the limit on open files requires it.";
    connections-per-address = key (types.ints.between 1 1000000) "Open connections of one client: an IPv4 address, or an IPv6 network of 64 bits; further ones get 503. Unix sockets and `trusted-proxies` have no such limit.";
    queue = key (types.ints.between 1 1000000) "Requests that wait for a worker; further ones get 503. Clients take turns. One may have no more requests there than there are free places, so alone half of them, or 16.";
    backlog = key (types.ints.between 1 65535) "Connections that wait to be accepted, for each listener.";
    head-timeout = key time "Timeout for receiving a request's head.";
    keep-alive-timeout = key time "Idle time between two requests on a connection.";
    stall-timeout = key time "Time after which a client that reads nothing is disconnected. The default is long because Nix stops reading while its disk is slow, and cannot resume a NAR sent with `Content-Encoding`.";
    shutdown-grace = key time "How long requests that are under way may take after the signal to stop; `TimeoutStopSec=` of the unit must be longer.";
    output-memory = key size "Memory for answers that clients have yet to read, and for messages of WebSockets. Beyond it, larger answers from memory are refused with 503, and the connections that hold most are closed. Files and NARs are read as their clients take them, and hardly count.";
    narinfo-memory = key size "Memory for remembered narinfos, per cache.";
    decode-memory = key size "Memory for the windows of all uploads that are being decoded; see docs/security.md#shared-resources.";
  };
  tls = table "HTTPS." {
    certificate = tables "Certificates; the first is for clients that name none of them." {
      cert = required file "Certificate chain (PEM); all TCP ports then speak HTTPS. The client's SNI chooses the certificate. Changed files are reloaded, also on SIGHUP.";
      key = required secret "Private key of the certificate (PEM).";
      ocsp = key file "OCSP response (DER) to staple to the certificate.";
    };
    client-ca = key file "Certificate authorities (PEM); clients must present a certificate of one of them.";
    ktls = key (types.enum [ "off" "auto" "on" ]) "Whether the kernel encrypts large files (kTLS).";
    http2 = key types.bool "Whether HTTP/2 is offered.";
  };
  upstream = tables "Caches that the cache at `/` asks for paths that it does not have; needs `data`." {
    url = required cacheUrl "Binary cache to query for paths that this one does not have; its files are stored. Needs a data folder. Keys, priorities and credentials per upstream can be set in a configuration file.";
    keys = key (oneOrMore publicKey) "Public key that upstreams sign with; that of cache.nixos.org is built in.";
    require-signatures = key types.bool "Whether a signature by one of the keys is required.";
    priority = key (types.ints.between 0 1000000) "An answer of the lowest is preferred, and of equal ones, the first answer is used; see docs/cache.md#several-upstreams.";
    netrc-file = key secret "netrc file with the credentials for it; it must have an entry with a password for the host (or a `default` one).";
    redirect-hosts = key (oneOrMore types.str) "Other hosts to which its redirects and the URLs in its narinfos may lead: `cdn.example.org`, `*.example.org`, either with a port (`:8443`); see docs/cache.md#upstreams.";
    skip = key (oneOrMore types.str) "As `upstream-skip`, for this upstream.";
    store-paths = key (oneOrMore types.str) "Lists of store paths that it has, one a line, such as `https://channels.nixos.org/nixos-unstable/store-paths.xz`: of upstreams with the same `priority`, it is asked for these first; see docs/cache.md#several-upstreams.";
    timeout = key time "Timeout for connecting, and for each wait for a narinfo.";
    stall-timeout = key time "Time after which a download that makes no progress is aborted, if no other upstream has the same file.";
  };
  upstream-size = key size "Maximum size of stored upstream files; the least recently used are removed first.";
  upstream-absent-after = key time "Time after which an upstream that has not answered counts as one that does not have the path, for this request alone; see docs/cache.md#several-upstreams.";
  upstream-skip = key (oneOrMore types.str) "Names of paths, without the hash part, that no upstream is asked for where the name is known: `mycorp-*`; see docs/cache.md#names-that-stay-here.";
  upstream-rate-min = key size "Lowest rate of a download, in bytes a second: below it, the rest of a NAR is fetched from another upstream; see docs/cache.md#several-upstreams.";
  upstream-when-down = key (types.enum [ "absent" "unavailable" ]) "What clients are told about a path while upstreams that may have it do not answer; see docs/cache.md#several-upstreams.";
  neighbours = key types.bool "Whether near caches on the networks of `neighbours-on` find one another, and take signed paths of upstreams from each other; see docs/near.md#neighbours.";
  neighbours-on = key (oneOrMore types.nonEmptyStr) "Network with neighbours: the address of its gateway, the name of an interface, or `any`.";
  neighbours-only-on = key (types.enum [ "any" "ac" "unmetered" "ac-unmetered" ]) "When neighbours are asked and answered.";
  neighbours-rate-max = key size "What is sent to neighbours in a second, in bytes, all together.";
  neighbours-patience = key time "How long a neighbour may take to answer, and be silent while it sends a NAR.";
  neighbours-nars-max = key (types.ints.between 1 4096) "How many NARs are sent to neighbours at the same time.";
  cache = tables "Caches that take uploads; needs `data`. The cache `default` is at `/`, even without a section; others are below `/NAME`." {
    name = required cacheName "Name of a cache that takes uploads; see docs/configuration.md#several-caches. The cache `default` is at `/`, others are below `/NAME`.";
    description = key types.nonEmptyStr "Plain text that the page shows about the cache, such as who pushes to it.";
    host = key (oneOrMore host) "Host names at whose `/` the cache is also served.";
    host-only = key types.bool "Whether the cache is not served below `/NAME`.";
    store-dir = key types.str "Store directory of its paths; for an existing cache it must not change.";
    public = key types.bool "As `public`, for this cache.";
    sign-keys = key (oneOrMore secret) "As `sign-keys`, for this cache.";
    priority = key (types.ints.between 0 4294967295) "As `priority`, for this cache.";
    want-mass-query = key types.bool "`WantMassQuery` in `nix-cache-info`, whether clients ask this cache for many paths at once.";
    upstream = tables "As `upstream`, for this cache." {
      url = required cacheUrl "Binary cache to query for paths that this one does not have; its files are stored. Needs a data folder. Keys, priorities and credentials per upstream can be set in a configuration file.";
      keys = key (oneOrMore publicKey) "Public key that upstreams sign with; that of cache.nixos.org is built in.";
      require-signatures = key types.bool "Whether a signature by one of the keys is required.";
      priority = key (types.ints.between 0 1000000) "An answer of the lowest is preferred, and of equal ones, the first answer is used; see docs/cache.md#several-upstreams.";
      netrc-file = key secret "netrc file with the credentials for it; it must have an entry with a password for the host (or a `default` one).";
      redirect-hosts = key (oneOrMore types.str) "Other hosts to which its redirects and the URLs in its narinfos may lead: `cdn.example.org`, `*.example.org`, either with a port (`:8443`); see docs/cache.md#upstreams.";
      skip = key (oneOrMore types.str) "As `upstream-skip`, for this upstream.";
      store-paths = key (oneOrMore types.str) "Lists of store paths that it has, one a line, such as `https://channels.nixos.org/nixos-unstable/store-paths.xz`: of upstreams with the same `priority`, it is asked for these first; see docs/cache.md#several-upstreams.";
      timeout = key time "Timeout for connecting, and for each wait for a narinfo.";
      stall-timeout = key time "Time after which a download that makes no progress is aborted, if no other upstream has the same file.";
    };
    upstream-size = key size "As `upstream-size`: each cache has its own budget.";
    trusted-keys = key (oneOrMore publicKey) "Public keys: paths signed by one of them are also signed with the cache's keys.";
    required-keys = key (oneOrMore publicKey) "Public keys: uploads must be signed by one of them.";
    strict-references = key types.bool "Whether uploads whose NAR contains references that the narinfo does not list are refused.";
    retention = key retention "How long paths that nobody requests are kept.";
    max-size = key size "Limit on the size of all NARs, listings, logs and other files; the least recently used are removed first.";
    quota = key size "Limit on the size of all NARs, listings, logs and other files; uploads that would exceed it are refused.";
    max-nar-size = key size "Size of the largest NAR that is accepted, uncompressed.";
    keep-releases = key (types.ints.between 1 1000) "How many releases of each name keep their paths, for each system (docs/releases.md).";
    recompress = key (types.enum [ "zstd" "never" ]) "Whether NARs in other formats are recompressed to zstd in the background (docs/cache.md#recompressing).";
  };
  destination = tables "Places that jobs may copy caches to." {
    name = required types.nonEmptyStr "Name by which `narval cache export` and `migrate` with `--at` call it; see docs/api.md#jobs.";
    url = key types.str "Address of plain binary caches, for `narval cache export`: `file:///folder` or `s3://BUCKET`. Each cache is below it, in a folder with its name.";
    data = key file "Data folder or bucket of other servers, for `narval cache migrate`.";
    database = key database "Database with its index.";
    cache-dir = key file "If `data` is a bucket: folder on this machine for uploads on their way, and for the index unless a database has it.";
  };
  oidc = tables "CI platforms whose jobs get tokens." {
    name = key types.nonEmptyStr "Its name in logs.";
    issuer = required webUrl "Address of a CI platform whose jobs get tokens (docs/pushing.md#from-ci-without-a-secret).";
    audience = key types.nonEmptyStr "Audience that the platform's tokens must have, for example the address of this server.";
    client-id = key types.nonEmptyStr "Id of a public client of the issuer, with which people sign in by `narval login` (device flow). The tokens are those of people then, and may have the scope `admin` (docs/api.md#people-who-sign-in).";
    client-scopes = key (oneOrMore types.nonEmptyStr) "Scopes of OpenID Connect that they ask the issuer for: those that bring the claims of the rules.";
    token-lifetime = key time "Lifetime of the tokens of this cache.";
    require-jti = key types.bool "Whether the platform's tokens must have an id (`jti`); `false` for a platform without it, whose tokens can be exchanged again until they expire.";
    rule = tables "The first rule that matches applies." {
      claims = key (types.attrsOf (oneOrMore types.nonEmptyStr)) "Claims, each with one or more patterns; all claims must match.";
      caches = key (oneOrMore types.nonEmptyStr) "Names or patterns of caches.";
      scopes = key (oneOrMore (types.strMatching "pull|push|sign|pin|delete|replace|admin|release:.+")) "What a token may do: `pull`, `push`, `sign`, `pin`, `delete`, `replace`, and `release:PATTERN` for releases of these names; with `client-id` also `admin`.";
    };
  };
  access-log = table "The access log." {
    file = key logFile "Access log file; `-` is standard output.";
    format = key (types.enum [ "combined" "real-ip" "verbose" "json" "logfmt" ]) "Format of the access log.";
    trust-request-ids = key types.bool "Whether the X-Request-Id that a client sends is the id of its request. Only behind a proxy that sets it.";
  };
  tracing = table "What requests take, for a collector of OpenTelemetry." {
    otlp = key webUrl "Collector that spans are sent to (OTLP over HTTP with JSON), without `/v1/traces`: `http://localhost:4318`. Spans of requests, and of what they ask of upstreams, the object store and databases; see docs/operating.md#traces.";
    share = key types.str "Share of the requests whose spans are sent, besides those that are part of a sampled trace: from 0 to 1.";
  };
  trusted-proxies = key (oneOrMore proxy) "Proxy that is believed who its clients are: an IP address, a network (10.0.0.0/8), or `unix` for all unix sockets. From it, X-Forwarded-For or Forwarded gives the client's address, for limits and logs. From others, these fields are ignored.";
  proxy-protocol = key types.bool "Whether connections of trusted proxies begin with a header of the PROXY protocol.";
}
