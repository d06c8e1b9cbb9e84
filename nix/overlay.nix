final: _: {
  narval = final.callPackage ./package.nix { };
}
