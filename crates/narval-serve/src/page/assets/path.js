async function pathView(mine, hash, to) {
  const path = await get(api + 'path/' + hash);
  if (mine !== view) return;
  const map = el('div', { class: 'map' });
  const sum = el('p', { class: 'soft', role: 'status' }, 'Reading the closure…');
  const verdict = el('div', { role: 'status' }), chain = el('div', {}), versions = el('section', {});
  const linked = (paths) => paths.length ? el('ul', { class: 'rows' }, paths.map((one) => el('li', {}, el('a', { href: views + 'path/' + one.hash }, name(one.name))))) : el('p', { class: 'soft' }, 'None.');
  const from = { store: 'this machine’s store', cache: 'pushed to this cache', upstream: 'an upstream cache' }[path.source];
  const signed = path.signatures.map((signature) => el('div', {}, el('code', {}, signature.key), ' ',
    signature.ours === true ? el('span', { class: 'good' }, 'valid, this server’s key')
      : signature.ours === false ? el('span', { class: 'bad' }, 'NOT valid for this server’s key') : el('span', { class: 'soft' }, 'another key')));
  const facts = [
    ['Store path', el('code', {}, name(path.path))], ['From', from], ['Size', bytes(path.narSize) + ' unpacked' + (path.fileSize && path.fileSize !== path.narSize ? ', ' + bytes(path.fileSize) + ' to download' + (path.compression === 'none' ? '' : ' (' + path.compression + ')') : '')],
    ['Signatures', signed.length ? signed : el('span', { class: 'bad' }, 'none')],
    path.deriver && ['Built by', [name(path.deriver.name), path.log && [' ', el('a', { href: base + 'log/' + path.deriver.hash + '-' + encodeURIComponent(path.deriver.name) }, 'build log')]]],
    path.contentAddress && ['Content address', el('code', {}, path.contentAddress)],
    path.pins.length && ['Pinned as', path.pins.join(', ')],
    ['NAR hash', el('code', {}, path.narHash)],
  ].filter(Boolean);
  show(
    heading(name(path.name)),
    el('p', {}, el('a', { href: views + 'files/' + hash }, 'Browse files')), pathActions(path), getIt(path),
    el('dl', {}, facts.map(([term, value]) => [el('dt', {}, term), el('dd', {}, value)])),
    el('h2', {}, 'Closure'), sum, verdict, map, chain, versions,
    el('div', { class: 'split' },
      el('section', {}, el('h2', {}, 'Refers to (' + number(path.references.length) + ')'), linked(path.references)),
      el('section', {}, el('h2', {}, 'Referred to by (' + number(path.referrers.length) + (path.moreReferrers ? '+' : '') + ')'), linked(path.referrers))),
  );
  const kind = path.name.replace(/-[^a-zA-Z].*$/s, ''); // without its version
  get(api + 'paths?package=' + encodeURIComponent(kind)).then((found) => {
    const others = found.paths.filter((one) => one.hash !== hash).slice(0, 10);
    if (others.length) versions.replaceChildren(el('h2', {}, 'Other versions of ', name(kind)), el('ul', { class: 'rows' }, others.map((one) => el('li', {},
      el('a', { href: views + 'path/' + one.hash }, name(one.name)), el('span', { class: 'side' }, [bytes(one.size), day(one.time)].filter(Boolean).join(' · '), ' · ',
        el('a', { href: views + 'compare/' + one.hash + '/' + hash, 'aria-label': 'Compare with ' + one.name + ', ' + day(one.time) }, 'compare'))))));
  }).catch(() => {}); // only an offer
  const closure = await get(api + 'closure/' + hash);
  if (mine !== view) return;
  const total = closure.nodes.reduce((all, node) => all + node.size, 0);
  sum.textContent = many(closure.nodes.length, 'path') + ', ' + bytes(total) + ' unpacked' + (closure.missing ? '; ' + number(closure.missing) + ' more are not here' : '') + '.' + (closure.nodes.length > 1 ? ' Choose one to see why it is needed.' : '');
  const lacking = closure.nodes.filter((node) => node.signed === false);
  if (lacking.length) verdict.append(el('p', { class: 'bad' }, number(lacking.length) + ' of ' + many(closure.nodes.length, 'path') + (lacking.length === 1 ? ' is' : ' are') + ' not signed by this server: clients will refuse this.'),
    el('ul', { class: 'rows' }, lacking.slice(0, 50).map((node) => el('li', {}, el('a', { href: views + 'path/' + node.hash }, name(node.name))))));
  else if (closure.nodes[0].signed && !closure.missing) verdict.append(el('p', { class: 'good' }, 'It can be installed: all of it is signed by this server.'));
  const why = (at) => { chain.replaceChildren(...whyChain(closure.nodes, at)); };
  map.hidden = closure.nodes.length < 2; // nothing to compare
  drawMap(map, closure.nodes, total, hash);
  if (to) { const at = closure.nodes.findIndex((node) => node.hash === to); if (at > 0) why(at); }
}
// How to get a path, one way at a time.
function getIt(path) {
  const url = location.origin + base.replace(/\/$/, '');
  const ways = {
    'nix copy': 'nix copy --from ' + url + ' ' + path.path,
    'nix-store': 'nix-store --option extra-substituters ' + url + ' -r ' + path.path,
    'narval install': 'narval install --from ' + url + ' ' + path.path,
    'narval run': 'narval run --from ' + url + ' ' + path.path,
  };
  const text = el('div', {}), choice = el('select', { id: 'way', onchange: () => shown() }, Object.keys(ways).map((way) => el('option', {}, way)));
  const shown = () => text.replaceChildren(copyable(ways[choice.value], 'command to get it'));
  shown();
  return el('section', {}, el('h2', {}, 'Get it'), copyable(path.path, 'store path'), el('p', {}, el('label', { for: 'way' }, 'With '), choice), text);
}
// The shortest chain of references from the first node.
function whyChain(nodes, to) {
  const before = new Map([[0, -1]]), queue = [0];
  for (const at of queue) { if (at === to) break; for (const next of nodes[at].references) if (!before.has(next)) { before.set(next, at); queue.push(next); } }
  const steps = [];
  for (let at = to; at >= 0; at = before.get(at)) steps.unshift(nodes[at]);
  return [el('h2', { id: 'why', tabindex: -1 }, 'Why ', name(nodes[to].name), ' is needed'),
    el('ol', { class: 'chain' }, steps.map((node) => el('li', {}, el('a', { href: views + 'path/' + node.hash }, name(node.name)), ' ', el('span', { class: 'soft' }, bytes(node.size)))))];
}
// A squarified treemap: rectangles as near to squares as they get.
function drawMap(box, nodes, total, hash) {
  const width = box.clientWidth || 800, height = box.clientHeight || 350;
  let order = nodes.map((node, at) => ({ node, at })).filter((one) => one.node.size > 0).sort((a, b) => b.node.size - a.node.size);
  const shown = order.slice(0, 400), rest = order.slice(400).reduce((all, one) => all + one.node.size, 0);
  if (rest) shown.push({ node: { name: number(order.length - 400) + ' smaller paths', size: rest }, at: -1 });
  const scale = width * height / Math.max(total, 1);
  const svg = el('svg', { viewBox: '0 0 ' + width + ' ' + height, role: 'group', 'aria-label': 'Paths of the closure by size' });
  let x = 0, y = 0, w = width, h = height, from = 0;
  while (from < shown.length) {
    const side = Math.max(Math.min(w, h), 1e-6);
    let row = [], area = 0, worst = Infinity;
    for (let at = from; at < shown.length; at++) {
      const next = area + shown[at].node.size * scale, largest = shown[from].node.size * scale, smallest = shown[at].node.size * scale;
      const ratio = Math.max(side * side * largest / (next * next), next * next / (side * side * smallest));
      if (ratio > worst) break;
      row.push(shown[at]); area = next; worst = ratio;
    }
    const depth = area / side, along = w >= h;
    let offset = 0;
    for (const one of row) {
      const length = one.node.size * scale / depth;
      svg.append(tile(one, along ? [x, y + offset, depth, length] : [x + offset, y, length, depth], hash));
      offset += length;
    }
    if (along) { x += depth; w -= depth; } else { y += depth; h -= depth; }
    from += row.length;
  }
  box.replaceChildren(svg);
}
function tile({ node, at }, [x, y, w, h], hash) {
  let hue = 7;
  for (const letter of node.name.replace(/-[0-9].*/, '')) hue = (hue * 31 + letter.codePointAt(0)) % 100003;
  hue = hue * 137 % 360;
  const label = node.name + ', ' + bytes(node.size);
  const room = Math.floor((w - 10) / 6.6);
  const text = w > 44 && h > 20 ? el('text', { x: x + 5, y: y + 15 }, node.name.length > room ? node.name.slice(0, Math.max(room - 1, 1)) + '…' : node.name) : null;
  const size = text && h > 38 && bytes(node.size).length <= room ? el('text', { x: x + 5, y: y + 31 }, bytes(node.size)) : null;
  const rect = el('rect', { x, y, width: Math.max(w, 0), height: Math.max(h, 0), fill: 'hsl(' + hue + ' 45% 72%)' }, el('title', {}, label));
  if (at <= 0) return el('g', {}, rect, text, size);
  return el('a', { svg: true, href: '?why=' + node.hash, 'aria-label': label }, rect, text, size);
}

