# TOML text of a Nix value: without nixpkgs' `formats.toml`, which needs a build (and Python) for what `narval config check` then reads
# in another. Nulls are left out.
{ lib }:
let
  # A JSON string is a TOML string, except that TOML also wants DEL to be escaped; JSON leaves it as it is.
  string = text: lib.replaceStrings [ "\x7f" ] [ "\\u007F" ] (builtins.toJSON text);
  key = name: if builtins.match "[A-Za-z0-9_-]+" name != null then name else string name;
  present = lib.filterAttrs (_: value: value != null);
  isTables = value: lib.isList value && value != [ ] && lib.all isTable value;
  isTable = value: lib.isAttrs value && !(lib.isDerivation value) && !(value ? __toString);

  inline =
    value:
    if lib.isList value then
      "[${lib.concatMapStringsSep ", " inline value}]"
    else if isTable value then
      "{ ${lib.concatStringsSep ", " (lib.mapAttrsToList (name: item: "${key name} = ${inline item}") (present value))} }"
    else if lib.isBool value || lib.isInt value || lib.isFloat value then
      builtins.toJSON value
    else
      string (toString value);

  # A table's own keys come before its tables: in TOML, what follows a header belongs to it.
  table =
    path: value:
    let
      items = present value;
      isNested = name: isTable items.${name} || isTables items.${name};
      names = lib.partition isNested (lib.attrNames items);
      header = name: lib.concatMapStringsSep "." key (path ++ [ name ]);
      nested =
        name:
        if isTable items.${name} then
          "\n[${header name}]\n" + table (path ++ [ name ]) items.${name}
        else
          lib.concatMapStrings (item: "\n[[${header name}]]\n" + table (path ++ [ name ]) item) items.${name};
    in
    lib.concatMapStrings (name: "${key name} = ${inline items.${name}}\n") names.wrong
    + lib.concatMapStrings nested names.right;
in
{
  # What TOML can say, for options.
  type =
    let
      value =
        lib.types.nullOr (
          lib.types.oneOf [
            lib.types.bool
            lib.types.int
            lib.types.float
            lib.types.str
            (lib.types.attrsOf value)
            (lib.types.listOf value)
          ]
        )
        // {
          description = "TOML value";
        };
    in
    lib.types.attrsOf value // { description = "TOML table"; };

  render = table [ ];
}
