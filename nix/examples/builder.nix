# A build machine that pushes what it builds, and installs from the same cache.
{
  services.narval-watch-store = {
    enable = true;
    to = [ "https://cache.example.org" ];
    tokenFile = "/var/keys/narval-token";
    builtHere = true;
    skipSignedBy = [ "cache.nixos.org-1" ];
    exclude = [ "nixos-system-*" ];
  };
  programs.narval = {
    enable = true;
    caches."https://cache.example.org" = "cache.example.org-1:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
  };
}
