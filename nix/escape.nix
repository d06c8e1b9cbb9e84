# A word of ExecStart=, in which systemd replaces % and $, and knows escapes such as \n (systemd.service(5)).
{ lib }:
text:
let
  escaped = lib.replaceStrings [ "%" "$" ] [ "%%" "$$" ] text;
in
if builtins.match "[[:alnum:],._+:@%/=-]+" escaped != null then escaped else builtins.toJSON escaped
