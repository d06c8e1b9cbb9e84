'use strict';
// The page of a binary cache. Everything that comes from the cache is put in as text, never as HTML.
const base = location.pathname.endsWith('/') ? location.pathname : location.pathname + '/';
const api = base + '_narval/page/';
const main = document.getElementById('main');
const said = document.getElementById('said');
let view = 0; // grows with every view, so that answers for an older one are left out
let token = sessionStorage.getItem('token') || '';

// el('a', {href: …}, child, …): an element; strings become text.
function el(name, attributes, ...children) {
  const svg = ['svg', 'g', 'rect', 'text', 'polyline', 'title'].includes(name) || attributes?.svg;
  const node = svg ? document.createElementNS('http://www.w3.org/2000/svg', name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key === 'svg') continue;
    if (key.startsWith('on')) node.addEventListener(key.slice(2), value);
    else if (value === true) node.setAttribute(key, '');
    else if (value !== false && value != null) node.setAttribute(key, value);
  }
  node.append(...children.flat(9).filter((child) => child != null && child !== false));
  return node;
}
// Names come from whoever built the package: isolated, so that no mark in them turns what follows around.
const name = (text) => el('bdi', {}, text);
const show = (...children) => main.replaceChildren(...children.flat(9).filter(Boolean));
const heading = (...text) => el('h1', { tabindex: -1 }, ...text);

function bytes(count) {
  if (count == null) return '';
  const units = ['B', 'kB', 'MB', 'GB', 'TB', 'PB'];
  let unit = 0;
  while (count >= 1000 && unit < units.length - 1) { count /= 1000; unit++; }
  return (unit === 0 || count >= 100 ? Math.round(count) : count.toPrecision(3)) + ' ' + units[unit];
}
const number = (count) => count.toLocaleString('en');
const day = (seconds) => seconds ? new Date(seconds * 1000).toISOString().slice(0, 10) : '';

class Failure extends Error {
  constructor(status, text) { super(text); this.status = status; }
}
async function get(path, as = 'json') {
  const headers = token ? { Authorization: 'Bearer ' + token } : {};
  let answer;
  try { answer = await fetch(path, { headers }); } catch { throw new Failure(0, 'The server does not respond.'); }
  if (!answer.ok) throw new Failure(answer.status, (await answer.text()).trim() || 'The server answered ' + answer.status + '.');
  return answer[as]();
}

function copyable(text, label) {
  const button = el('button', { type: 'button', 'aria-label': 'Copy: ' + label, onclick: async () => {
    try { await navigator.clipboard.writeText(text); } catch {
      // Without TLS there is no clipboard.
      const area = el('textarea', {}, text);
      document.body.append(area); area.select(); document.execCommand('copy'); area.remove(); button.focus();
    }
    button.textContent = 'Copied'; said.textContent = 'Copied';
    setTimeout(() => { button.textContent = 'Copy'; }, 1500);
  } }, 'Copy');
  return el('div', { class: 'copy' }, el('pre', { tabindex: 0, 'aria-label': label }, text), button);
}

// ---------------------------------------------------------------- use
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
      copyable('nix copy --to ' + url + ' ./result', 'command for nix copy')],
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

// ---------------------------------------------------------------- find
async function findView(mine, query) {
  const list = el('ul', { class: 'rows' });
  const count = el('p', { class: 'soft', role: 'status' });
  const more = el('button', { type: 'button', hidden: true, onclick: () => search(false) }, 'More');
  let from = 0, asked = 0, timer;
  async function search(anew) {
    const own = ++asked;
    if (anew) from = 0;
    try {
      const found = await get(api + 'paths?q=' + encodeURIComponent(box.value) + '&from=' + from);
      if (mine !== view || own !== asked) return;
      const rows = found.paths.map((path) => el('li', {}, el('a', { href: '#/path/' + path.hash }, name(path.name)),
        el('span', { class: 'side' }, [bytes(path.size), day(path.time)].filter(Boolean).join(' · '))));
      if (anew) list.replaceChildren(...rows); else list.append(...rows);
      from += found.paths.length;
      more.hidden = from >= found.total;
      count.textContent = box.value.trim() ? number(found.total) + ' of ' + number(found.of) + ' paths' : number(found.of) + ' paths, the newest first';
    } catch (error) { if (own === asked) failed(error); }
  }
  const box = el('input', { type: 'search', id: 'query', value: query, autocomplete: 'off', spellcheck: 'false', maxlength: 200, oninput: () => {
    clearTimeout(timer);
    timer = setTimeout(() => { history.replaceState(null, '', '#/find/' + encodeURIComponent(box.value)); search(true); }, 120);
  } });
  show(heading('Find'), el('label', { for: 'query' }, 'Part of a name, or of a store path’s hash'), box, count, list, more);
  await search(true);
}

// ---------------------------------------------------------------- a path
async function pathView(mine, hash, to) {
  const path = await get(api + 'path/' + hash);
  if (mine !== view) return;
  const map = el('div', { class: 'map' });
  const sum = el('p', { class: 'soft', role: 'status' }, 'Reading the closure…');
  const chain = el('div', {});
  const linked = (paths) => paths.length ? el('ul', { class: 'rows' }, paths.map((one) => el('li', {}, el('a', { href: '#/path/' + one.hash }, name(one.name))))) : el('p', { class: 'soft' }, 'None.');
  const from = { store: 'this machine’s store', cache: 'pushed to this cache', upstream: 'an upstream cache' }[path.source];
  const signed = path.signatures.map((signature) => el('div', {}, el('code', {}, signature.key), ' ',
    signature.ours === true ? el('span', { class: 'good' }, 'valid, this server’s key')
      : signature.ours === false ? el('span', { class: 'bad' }, 'NOT valid for this server’s key') : el('span', { class: 'soft' }, 'another key')));
  const facts = [
    ['Store path', el('code', {}, name(path.path))], ['From', from], ['Size', bytes(path.narSize) + ' unpacked' + (path.fileSize && path.fileSize !== path.narSize ? ', ' + bytes(path.fileSize) + ' to download' + (path.compression === 'none' ? '' : ' (' + path.compression + ')') : '')],
    ['Signatures', signed.length ? signed : el('span', { class: 'bad' }, 'none')],
    path.deriver && ['Built by', [name(path.deriver.name), ' ', el('a', { href: '#/log/' + path.deriver.hash + '-' + encodeURIComponent(path.deriver.name) }, 'build log')]],
    path.contentAddress && ['Content address', el('code', {}, path.contentAddress)],
    path.pins.length && ['Pinned as', path.pins.join(', ')],
    ['NAR hash', el('code', {}, path.narHash)],
  ].filter(Boolean);
  show(
    heading(name(path.name)),
    el('p', {}, el('a', { href: '#/files/' + hash }, 'Browse files')),
    el('dl', {}, facts.map(([term, value]) => [el('dt', {}, term), el('dd', {}, value)])),
    el('h2', {}, 'Closure'), sum, map, chain,
    el('div', { class: 'split' },
      el('section', {}, el('h2', {}, 'Refers to (' + number(path.references.length) + ')'), linked(path.references)),
      el('section', {}, el('h2', {}, 'Referred to by (' + number(path.referrers.length) + (path.moreReferrers ? '+' : '') + ')'), linked(path.referrers))),
  );
  const closure = await get(api + 'closure/' + hash);
  if (mine !== view) return;
  const total = closure.nodes.reduce((all, node) => all + node.size, 0);
  sum.textContent = number(closure.nodes.length) + ' paths, ' + bytes(total) + ' unpacked' + (closure.missing ? '; ' + number(closure.missing) + ' more are not here' : '') + '. Choose one to see why it is needed.';
  const why = (at) => { chain.replaceChildren(...whyChain(closure.nodes, at)); };
  drawMap(map, closure.nodes, total, hash);
  if (to) { const at = closure.nodes.findIndex((node) => node.hash === to); if (at > 0) why(at); }
}
// The shortest chain of references from the first node.
function whyChain(nodes, to) {
  const before = new Map([[0, -1]]), queue = [0];
  for (const at of queue) { if (at === to) break; for (const next of nodes[at].references) if (!before.has(next)) { before.set(next, at); queue.push(next); } }
  const steps = [];
  for (let at = to; at >= 0; at = before.get(at)) steps.unshift(nodes[at]);
  return [el('h2', { id: 'why', tabindex: -1 }, 'Why ', name(nodes[to].name), ' is needed'),
    el('ol', { class: 'chain' }, steps.map((node) => el('li', {}, el('a', { href: '#/path/' + node.hash }, name(node.name)), ' ', el('span', { class: 'soft' }, bytes(node.size)))))];
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
  const size = text && h > 38 ? el('text', { x: x + 5, y: y + 31 }, bytes(node.size)) : null;
  const rect = el('rect', { x, y, width: Math.max(w, 0), height: Math.max(h, 0), fill: 'hsl(' + hue + ' 45% 72%)' }, el('title', {}, label));
  if (at <= 0) return el('g', {}, rect, text, size);
  return el('a', { svg: true, href: '#/path/' + hash + '/' + node.hash, 'aria-label': label }, rect, text, size);
}

// ---------------------------------------------------------------- inside
async function filesView(mine, hash, open) {
  const [path, listing] = await Promise.all([get(api + 'path/' + hash), get(base + hash + '.ls').catch((error) => { if (error.status === 404) return null; throw error; })]);
  if (mine !== view) return;
  if (!listing) {
    show(heading('Files of ', name(path.name)), el('p', {}, 'It has no listing: it was pushed without one, or has names that are not UTF-8.'), el('p', {}, el('a', { href: '#/path/' + hash }, 'Back to the path')));
    return;
  }
  const shown = el('section', { 'aria-live': 'polite' });
  const url = (file) => api + 'file/' + hash + '/' + file.split('/').map(encodeURIComponent).join('/');
  async function look(file, node) {
    history.replaceState(null, '', '#/files/' + hash + '/' + file.split('/').map(encodeURIComponent).join('/'));
    const title = file.split('/').pop() || path.name;
    const head = [el('h2', {}, name(title)), el('p', { class: 'soft' }, bytes(node.size), node.executable ? ', executable' : '', ' · ', el('a', { href: url(file) + '?download', download: title }, 'Download'))];
    if (/\.(png|jpe?g|gif|webp|svg|ico)$/i.test(file) && node.size < 2e7) {
      const answer = await get(url(file), 'blob');
      const reader = new FileReader();
      reader.onload = () => shown.replaceChildren(...head, el('div', { class: 'view' }, el('img', { src: reader.result, alt: title })));
      reader.readAsDataURL(answer);
      return;
    }
    if (node.size > 1e6) { shown.replaceChildren(...head, el('p', { class: 'soft' }, 'Too large to display.')); return; }
    const data = new Uint8Array(await get(url(file), 'arrayBuffer'));
    const binary = data.subarray(0, 8000).includes(0);
    shown.replaceChildren(...head, el('div', { class: 'view', tabindex: 0, role: 'region', 'aria-label': 'Contents of ' + title }, binary ? el('p', { class: 'soft' }, 'Not text.') : el('pre', {}, new TextDecoder().decode(data))));
  }
  const act = (promise) => promise.catch((error) => shown.replaceChildren(el('p', { class: 'bad', role: 'alert' }, error.message)));
  const sizes = (node) => node.type === 'directory' ? Object.values(node.entries).reduce((all, one) => all + sizes(one), 0) : node.size || 0;
  function entries(node, at) {
    return Object.entries(node.entries).map(([key, one]) => {
      const file = at ? at + '/' + key : key;
      if (one.type === 'directory') {
        const children = el('ul', { class: 'tree' });
        const details = el('details', { ontoggle: () => { if (!children.childNodes.length) children.append(...entries(one, file)); } },
          el('summary', {}, name(key + '/'), ' ', el('span', { class: 'soft' }, bytes(sizes(one)))), children);
        if ((open + '/').startsWith(file + '/')) details.open = true;
        return el('li', {}, details);
      }
      if (one.type === 'symlink') return el('li', {}, name(key), ' ', el('span', { class: 'soft' }, '→ ', name(one.target)));
      return el('li', {}, el('a', { href: '#/files/' + hash + '/' + file, onclick: (event) => { event.preventDefault(); act(look(file, one)); } }, name(key)), ' ', el('span', { class: 'soft' }, bytes(one.size)));
    });
  }
  const root = listing.root;
  show(heading('Files of ', name(path.name)), el('p', {}, el('a', { href: '#/path/' + hash }, 'Back to the path')),
    el('div', { class: 'split' }, root.type === 'directory' ? el('ul', { class: 'tree top' }, entries(root, '')) : el('p', {}, 'One file, ' + bytes(root.size) + '.'), shown));
  const node = open ? open.split('/').reduce((at, key) => at?.entries && Object.hasOwn(at.entries, key) ? at.entries[key] : null, root) : root;
  if (node?.type === 'regular') act(look(open, node));
}
async function logView(mine, derivation) {
  const text = await get(base + 'log/' + encodeURIComponent(derivation), 'text').catch((error) => { if (error.status === 404) return null; throw error; });
  if (mine !== view) return;
  show(heading('Build log'), el('p', { class: 'soft' }, name(derivation)), text == null ? el('p', {}, 'This cache has no log of this build.') : el('div', { class: 'view', tabindex: 0, role: 'region', 'aria-label': 'Build log' }, el('pre', {}, text)));
}

// ---------------------------------------------------------------- now
function nowView(mine) {
  const history = [];
  const state = el('p', { class: 'soft', role: 'status' }, 'Connecting…');
  const cards = el('div', { class: 'cards' });
  const rate = (read) => (now, before, seconds) => (read(now) - read(before)) / seconds;
  const part = (hits, all) => all > 0 ? Math.round(100 * hits / all) + ' %' : '–';
  const engine = (read) => (sample) => sample.engine ? read(sample.engine) : 0;
  const sent = (sample) => sample.engine ? sample.engine.sent : 0;
  // title, value of a sample and the one before, how it is written, what is an alarm
  const figures = [
    ['Requests per second', rate(engine((it) => it.requests)), (value) => number(Math.round(value))],
    ['Sent per second', rate(sent), bytes],
    ['Received per second', rate(engine((it) => it.received)), bytes],
    ['Connections', engine((it) => it.connections), number],
    ['Queue', engine((it) => it.queue), number, (value) => value > 0],
    ['Workers busy', (now, before, seconds) => now.engine ? 100 * (now.engine.busy - before.engine.busy) / seconds / now.engine.workers : 0, (value) => Math.round(value) + ' %', (value) => value > 90],
    ['Refused per second', rate((sample) => engine((it) => it.overloaded + it.refused)(sample)), (value) => value.toFixed(1), (value) => value > 0],
    ['Narinfos per second', rate((sample) => sample.narinfos), (value) => number(Math.round(value))],
    ['Answered from memory', (now, before) => { const hits = now.memoHits - before.memoHits; const all = hits + now.memoMisses - before.memoMisses; return all ? 100 * hits / all : 100; }, (value) => Math.round(value) + ' %'],
    ['NARs per second', rate((sample) => sample.nars), (value) => value.toFixed(1)],
    ['From upstreams per second', rate((sample) => sample.narBytes.upstream), bytes],
    ['Uploaded per second', rate((sample) => sample.uploadBytes), bytes],
    ['Server errors per second', rate((sample) => sample.failed), (value) => value.toFixed(1), (value) => value > 0],
  ].map(([title, value, text, alarm]) => {
    const figure = el('p', { class: 'figure' }, '–'), line = el('polyline', { points: '' });
    const card = el('section', { class: 'card' }, el('h2', {}, title), figure, el('svg', { viewBox: '0 0 120 40', preserveAspectRatio: 'none', 'aria-hidden': 'true' }, line));
    cards.append(card);
    const values = [];
    return (now, before, seconds) => {
      const current = Math.max(value(now, before, seconds), 0);
      values.push(current);
      if (values.length > 120) values.shift();
      figure.textContent = text(current);
      card.classList.toggle('alarm', Boolean(alarm?.(current)));
      const top = Math.max(...values, 1e-9);
      line.setAttribute('points', values.map((one, at) => (120 - values.length + at) + ',' + (39 - 37 * one / top).toFixed(1)).join(' '));
    };
  });
  show(heading('Now'), state, cards);
  let wait = 1000;
  function connect() {
    const socket = new WebSocket(location.origin.replace(/^http/, 'ws') + api + 'now');
    leave = () => { socket.onclose = null; socket.close(); };
    socket.onmessage = (event) => {
      const now = JSON.parse(event.data), before = history.at(-1);
      wait = 1000;
      if (before && now.uptime > before.uptime) for (const figure of figures) figure(now, before, (now.uptime - before.uptime) / 1000);
      if (before && now.uptime < before.uptime) history.length = 0;
      history.push(now);
      if (history.length > 2) history.shift();
      state.textContent = number(now.uploadsStored) + ' NARs taken and ' + number(now.nars) + ' sent since the server started, ' + Math.round(now.uptime / 60000) + ' minutes ago';
    };
    socket.onclose = () => {
      if (mine !== view) return;
      state.textContent = 'Not connected; retrying.';
      const timer = setTimeout(connect, wait);
      leave = () => clearTimeout(timer);
      wait = Math.min(wait * 2, 15000);
    };
  }
  connect();
}

// ---------------------------------------------------------------- which view
let leave = () => {};
function failed(error) {
  if (error.status === 401) return askToken(error);
  show(heading(error.status === 404 ? 'Not found' : 'Request failed'), el('p', { role: 'alert' }, error.status === 404 ? 'This cache does not have it.' : error.message), el('p', {}, el('a', { href: '#/find' }, 'Search for something else')));
}
function askToken(error) {
  const field = el('input', { type: 'password', id: 'token', autocomplete: 'off' });
  show(heading('This cache is private'), el('p', { class: token ? 'bad' : '', role: 'alert' }, token ? error.message : 'Enter a token with the scope pull. It stays in this tab.'),
    el('form', { onsubmit: (event) => { event.preventDefault(); token = field.value.trim(); sessionStorage.setItem('token', token); route(); } },
      el('label', { for: 'token' }, 'Token'), field, el('p', {}, el('button', {}, 'Go on'))));
  field.focus();
}
async function route() {
  const mine = ++view;
  leave(); leave = () => {};
  const parts = location.hash.replace(/^#\/?/, '').split('/').map((part) => { try { return decodeURIComponent(part); } catch { return part; } });
  const [which, first = '', ...rest] = parts;
  const current = { path: 'find', files: 'find', log: 'find', '': 'use' }[which] ?? which;
  for (const link of document.querySelectorAll('nav a')) {
    if (link.hash === '#/' + current) link.setAttribute('aria-current', 'page'); else link.removeAttribute('aria-current');
  }
  document.title = { use: 'Use this cache', find: 'Find', now: 'Now' }[current] + ' · ' + location.host;
  try {
    if (which === 'find') await findView(mine, first);
    else if (which === 'path') await pathView(mine, first, rest[0]);
    else if (which === 'files') await filesView(mine, first, rest.join('/'));
    else if (which === 'log') await logView(mine, first);
    else if (which === 'now') nowView(mine);
    else await useView(mine);
  } catch (error) {
    if (mine === view) failed(error);
  }
}
let last = null;
addEventListener('hashchange', async () => {
  const asked = location.hash;
  if (asked === last) return;
  last = asked;
  await route();
  // A keyboard or a screen reader goes on where the new view begins.
  (document.getElementById('why') || main.querySelector('h1'))?.focus();
});
route();
