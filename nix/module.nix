# The NixOS modules: services.narval-serve, services.narval-watch-store, services.narval-follow and programs.narval.
{
  imports = [
    ./serve.nix
    ./watch-store.nix
    ./follow.nix
    ./program.nix
  ];
}
