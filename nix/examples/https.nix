# A cache for a team with HTTPS of its own, a private cache, and cache.nixos.org behind it.
{
  services.narval-serve = {
    enable = true;
    listenStreams = [ "443" ];
    openFirewall = true;
    settings = {
      data = "/var/lib/narval";
      sign-keys = "/var/keys/cache.sec";
      priority = 20;
      upstream = [ { url = "https://cache.nixos.org"; } ];
      upstream-size = "200G";
      tls.certificate = [
        {
          cert = "/var/lib/acme/cache.example.org/fullchain.pem";
          key = "/var/lib/acme/cache.example.org/key.pem";
        }
      ];
      cache = [
        {
          name = "team";
          public = false;
          sign-keys = [ "/var/keys/team.sec" ];
          retention = "180d";
          quota = "500G";
        }
      ];
      limits.connections-per-address = 256;
    };
  };
  # systemd passes the files at the start. Connections wait meanwhile.
  security.acme.certs."cache.example.org".postRun = "systemctl restart narval-serve.service";
}
