async function useView(mine) {
  const about = await get(api + 'about');
  if (mine !== view) return;
  const url = location.origin + base.replace(/\/$/, '');
  const keys = about.keys.join(' ');
  const conf = 'extra-substituters = ' + url + '\n' + (keys ? 'extra-trusted-public-keys = ' + keys + '\n' : '');
  const list = about.keys.map((key) => '"' + key + '"').join(' ');
  const flake = '{\n  nixConfig = {\n    extra-substituters = [ "' + url + '" ];\n' + (keys ? '    extra-trusted-public-keys = [ ' + list + ' ];\n' : '') + '  };\n}';
  const nixos = '{\n  nix.settings.substituters = [ "' + url + '" ];\n' + (keys ? '  nix.settings.trusted-public-keys = [ ' + list + ' ];\n' : '') + '}';
  const result = el('p', { role: 'status' });
  const hidden = about.written && !about.written.public;
  const withToken = 'narval use ' + url + ' --token-file token';
  // Nix does not read ~/.netrc.
  const netrc = [copyable('netrc-file = /etc/nix/netrc', 'line for nix.conf with the netrc file'),
    el('p', {}, 'and in that file, which only its owner may read:'),
    copyable('machine ' + location.hostname + ' login narval password TOKEN', 'line for netrc')];
  const has = [about.live && 'this machine’s store', about.written && number(about.written.paths) + ' pushed paths (' + bytes(about.written.bytes) + ')', about.upstreams && 'paths of its upstreams'].filter(Boolean);
  show(
    heading('Use this cache'),
    el('p', {}, 'It serves packages for ', el('code', {}, about.storeDir), ': ', has.join(', '), '.'),
    !keys && el('p', { class: 'bad' }, 'This server does not sign its paths: Nix only accepts those with another trusted signature.'),
    about.written?.counted?.[1] > 0 && el('p', { class: 'bad' }, unsigned(about) + '.'),
    hidden && el('p', {}, 'You need a token from its operator. With ', el('code', {}, 'narval use'), ', it is in a file; Nix reads it from a netrc file. It does not belong into a flake or a NixOS configuration: these are copied to the store, which everybody on the machine can read.'),
    el('h2', {}, 'With Narval'), copyable(hidden ? withToken : 'narval use ' + url, 'command for narval use'),
    el('h2', {}, 'nix.conf'), copyable(conf, 'lines for nix.conf'), hidden && netrc,
    el('h2', {}, 'A flake'), copyable(flake, 'nixConfig of a flake'),
    el('h2', {}, 'NixOS'), copyable(nixos, 'NixOS settings'),
    about.written && [el('h2', {}, 'Push to it'), el('p', {}, 'With a token from its operator in the file ', el('code', {}, 'token'), ':'),
      copyable(withToken, 'command for narval use with a token'),
      !hidden && [el('p', {}, 'Or for Nix alone, in nix.conf:'), netrc],
      el('p', {}, 'Then:'), copyable('nix copy --to ' + url + ' ./result', 'command for nix copy'),
      el('p', {}, 'Or in fewer round trips:'), copyable('narval push ./result --to ' + url, 'command for narval push')],
    el('h2', {}, 'Check'),
    el('p', {}, el('button', { type: 'button', onclick: () => check(result) }, 'Check this cache from here')), result,
    el('p', { class: 'soft' }, 'Narval ' + about.version + ', priority ' + about.priority),
  );
}
// Clients refuse what is not signed, whatever else works.
const unsigned = ({ written: { counted: [paths, lacking] } }) => number(lacking) + ' of ' + many(paths, 'path') + (lacking === 1 ? ' is' : ' are') + ' not signed by this server: clients that trust only its key refuse ' + (lacking === 1 ? 'it' : 'them');
async function check(result) {
  result.className = ''; result.textContent = 'Checking…';
  try {
    const about = await get(api + 'about'), counted = about.written?.counted;
    const info = await get(base + 'nix-cache-info', 'text');
    const dir = /^StoreDir: *(.*)$/m.exec(info)?.[1];
    if (dir !== about.storeDir) throw new Failure(0, 'nix-cache-info is for ' + dir + '.');
    const found = await get(api + 'paths');
    if (!found.paths.length) { result.className = 'good'; result.textContent = 'It responds, but has no paths yet.'; return; }
    const path = await get(api + 'path/' + found.paths[0].hash);
    const ours = path.signatures.some((signature) => signature.ours);
    if (counted?.[1]) { result.className = 'bad'; result.textContent = 'It responds, but ' + unsigned(about) + '.'; return; }
    result.className = ours || !about.keys.length ? 'good' : 'bad';
    result.textContent = !about.keys.length ? 'It responds, but does not sign its paths.'
      : ours ? 'It works: it has ' + path.name + ', signed by this server' + (counted ? ', as are all ' + many(counted[0], 'path') : '') + '.' : 'It has ' + path.name + ', but not signed by this server.';
  } catch (error) { result.className = 'bad'; result.textContent = error.message; }
}

