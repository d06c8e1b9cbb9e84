# A public cache behind nginx, which has the certificate and port 443. Uploads are passed on while they arrive, and no NAR is written
# to nginx's disk.
{
  services.narval-serve = {
    enable = true;
    listenStreams = [ "/run/narval.sock" ];
    settings = {
      sign-keys = [ "/var/keys/cache.sec" ];
      data = "/var/lib/narval";
      store = "auto";
      # The socket is nginx's, which tells the clients' addresses.
      trusted-proxies = [ "unix" ];
      access-log.file = "-";
    };
  };

  services.nginx = {
    enable = true;
    upstreams.narval.servers."unix:/run/narval.sock" = { };
    virtualHosts."cache.example.org" = {
      enableACME = true;
      forceSSL = true;
      locations."/" = {
        proxyPass = "http://narval";
        extraConfig = ''
          proxy_http_version 1.1;
          proxy_buffering off;
          proxy_request_buffering off;
          client_max_body_size 0;
          proxy_read_timeout 1h;
          proxy_send_timeout 1h;
          proxy_set_header Host $host;
          proxy_set_header X-Forwarded-For $remote_addr;
          proxy_set_header X-Forwarded-Proto $scheme;
          proxy_set_header X-Forwarded-Host $host;
        '';
      };
    };
  };
  security.acme.acceptTerms = true;
  security.acme.defaults.email = "admin@example.org";
  networking.firewall.allowedTCPPorts = [
    80
    443
  ];
}
