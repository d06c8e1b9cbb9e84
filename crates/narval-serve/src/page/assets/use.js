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
  const has = [about.live && 'this machine’s store', about.written && number(about.written.paths) + ' pushed paths (' + bytes(about.written.bytes) + ')', about.upstreams && 'paths of its upstreams'].filter(Boolean);
  show(
    heading('Use this cache'),
    el('p', {}, 'It serves packages for ', el('code', {}, about.storeDir), ': ', has.join(', '), '.'),
    !keys && el('p', { class: 'bad' }, 'This server does not sign its paths: Nix only accepts those with another trusted signature.'),
    el('h2', {}, 'With Narval'), copyable('narval use ' + url, 'command for narval use'),
    el('h2', {}, 'nix.conf'), copyable(conf, 'lines for nix.conf'),
    el('h2', {}, 'A flake'), copyable(flake, 'nixConfig of a flake'),
    el('h2', {}, 'NixOS'), copyable(nixos, 'NixOS settings'),
    about.written && [el('h2', {}, 'Push to it'), el('p', {}, 'With a token from its operator in ', el('code', {}, '~/.netrc'), ':'),
      copyable('machine ' + location.hostname + ' login narval password TOKEN', 'line for netrc'),
      copyable('nix copy --to ' + url + ' ./result', 'command for nix copy'),
      el('p', {}, 'Or in fewer round trips:'), copyable('narval push ./result --to ' + url, 'command for narval push')],
    el('h2', {}, 'Check'),
    el('p', {}, el('button', { type: 'button', onclick: () => check(result, about) }, 'Check this cache from here')), result,
    el('p', { class: 'soft' }, 'Narval ' + about.version + ', priority ' + about.priority),
  );
}
async function check(result, about) {
  result.className = ''; result.textContent = 'Checking…';
  try {
    const info = await get(base + 'nix-cache-info', 'text');
    const dir = /^StoreDir: *(.*)$/m.exec(info)?.[1];
    if (dir !== about.storeDir) throw new Failure(0, 'nix-cache-info is for ' + dir + '.');
    const found = await get(api + 'paths');
    if (!found.paths.length) { result.className = 'good'; result.textContent = 'It responds, but has no paths yet.'; return; }
    const path = await get(api + 'path/' + found.paths[0].hash);
    const ours = path.signatures.some((signature) => signature.ours);
    result.className = ours || !about.keys.length ? 'good' : 'bad';
    result.textContent = !about.keys.length ? 'It responds, but does not sign its paths.'
      : ours ? 'It works: it has ' + path.name + ', signed by this server.' : 'It has ' + path.name + ', but not signed by this server.';
  } catch (error) { result.className = 'bad'; result.textContent = error.message; }
}

