# The NixOS modules: services.narval-serve, services.narval-watch-store and programs.narval.
{
  imports = [
    ./serve.nix
    ./watch-store.nix
    ./program.nix
  ];
}
