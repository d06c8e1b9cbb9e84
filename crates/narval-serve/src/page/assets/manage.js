// What a token with more scopes than pull can do: space, pins and tokens.
async function manageView(mine, part) {
  if (session && session.signedIn) await whoIsThere();
  if (mine !== view) return;
  if (!session) return show(heading('Manage'), el('p', {}, 'This server has no tokens: it accepts no uploads.'));
  if (!session.signedIn) return signInView();
  const parts = [['space', 'Space', 'admin', spacePart], ['pins', 'Pins', 'pin', pinsPart], ['tokens', 'Tokens', 'admin', tokensPart]].filter(([, , scope]) => may(scope));
  const current = parts.find(([key]) => key === part) || parts[0];
  const body = el('div', {});
  show(heading('Manage'),
    el('div', { class: 'who' }, el('p', {}, 'Signed in with ', el('b', {}, name(session.label)), el('span', { class: 'soft' }, ', which allows ', session.scopes.length === 7 ? 'everything' : session.scopes.join(', ') || 'nothing here')),
      el('button', { type: 'button', onclick: signOut }, 'Sign out')),
    parts.length > 1 && el('nav', { 'aria-label': 'Manage', class: 'tabs' }, parts.map(([key, title]) => el('a', { href: views + 'manage/' + key, 'aria-current': current[0] === key ? 'page' : null }, title))),
    body);
  if (!current) {
    const other = may('delete') ? 'To delete a path, open it.' : may('pull') ? 'It can read this cache, but manage nothing.' : 'It can manage nothing here.';
    return body.append(el('p', {}, other));
  }
  const refresh = async () => {
    const content = await current[3](refresh);
    if (mine === view) body.replaceChildren(...content.flat(9).filter(Boolean));
  };
  await refresh();
}
// Runs a write; what is wrong is said at the place.
async function attempt(place, action) {
  place.textContent = '';
  try { await action(); } catch (error) {
    if (error.status === 401) return failed(error);
    place.textContent = error.message;
  }
}
const alarm = () => el('p', { class: 'bad', role: 'alert' });

async function spacePart(refresh) {
  const [usage, would] = await Promise.all([get(api + 'manage/usage'), get(api + 'manage/collection')]);
  const card = (title, figure, below) => el('section', { class: 'card' }, el('h2', {}, title), el('p', { class: 'figure' }, figure), el('p', { class: 'soft' }, below));
  const limit = usage.quota || usage.sizeMax;
  const wrong = alarm();
  const ages = usage.ages.map((age, at) => [at === 0 ? 'Less than a day ago' : age.days ? usage.ages[at - 1].days + ' to ' + age.days + ' days ago' : 'Over a year ago', age]);
  const most = Math.max(...usage.ages.map((age) => age.bytes)), largest = usage.names[0]?.bytes;
  const rows = (list, whole) => list.map(([title, one]) => [title, number(one.paths), bytes(one.bytes), bar(one.bytes, whole)]);
  async function run() {
    const text = number(would.total) + ' paths are hidden at once, and their NARs are deleted a day later, because clients may still ask for them.' +
      (would.files ? ' ' + number(would.files) + ' NARs without a path (' + bytes(would.bytes) + ') are deleted now.' : '');
    if (!await confirmed('Run a collection?', text, 'Run')) return;
    await attempt(wrong, async () => {
      const done = await write('POST', 'manage/collection');
      said.textContent = 'Removed ' + number(done.total) + ' paths and deleted ' + number(done.files) + ' NARs, ' + bytes(done.bytes) + '.';
      await refresh();
    });
  }
  return [
    el('div', { class: 'cards' },
      card('NARs on disk', bytes(usage.bytes), many(usage.files, 'file') + (limit ? ' of at most ' + bytes(limit) : '')),
      card('Paths', number(usage.paths), would.retentionDays ? 'kept ' + would.retentionDays + ' days after their last use' : 'kept for ever'),
      card('Logs and the like', bytes(usage.smallBytes), 'besides the NARs'),
      card('Next collection', bytes(would.totalBytes + would.bytes), many(would.total, 'path') + ', ' + many(would.files, 'NAR') + ' without one')),
    el('h2', {}, 'What a collection would remove'),
    would.total || would.files ? [
      el('p', {}, would.total ? many(would.total, 'path') + ' that nothing keeps, with NARs of ' + bytes(would.totalBytes) + '. ' : 'No path. ', would.files ? many(would.files, 'NAR') + ' without a path, ' + bytes(would.bytes) + '.' : ''),
      would.total > 0 && table('Paths that a collection would remove', ['Path', ['Last used', 's'], ['Size', 'n'], ['Why', 's']], would.paths.slice(0, 200).map((path) => [
        el('a', { href: views + 'path/' + path.hash }, name(path.name)), ago(path.used), bytes(path.size), path.forSize ? 'cache too large' : 'retention'])),
      would.total > 200 && el('p', { class: 'soft' }, 'The 200 largest of ' + number(would.total) + '.'),
      el('p', {}, el('button', { type: 'button', class: 'danger', onclick: run }, 'Run a collection'))] : el('p', { class: 'soft' }, 'Nothing: everything is pinned, or was used recently enough.'),
    wrong,
    el('h2', {}, 'By last use'), table('Size by last use', ['Last used', ['Paths', 'n'], ['Size', 'n'], ''], rows(ages, most)),
    el('h2', {}, 'By name'),
    usage.names.length ? table('Size by name', ['Name', ['Paths', 'n'], ['Size', 'n'], ''], rows(usage.names.map((one) => [el('a', { href: base + '?q=' + encodeURIComponent(one.name) }, name(one.name)), one]), largest)) : el('p', { class: 'soft' }, 'There are no paths yet.'),
    usage.otherNames > 0 && el('p', { class: 'soft' }, 'And ' + number(usage.otherNames) + ' smaller names, ' + bytes(usage.otherBytes) + '.'),
    usage.names.length > 0 && el('p', { class: 'soft' }, 'A NAR that several paths share counts for each of them here.'),
  ];
}

async function pinsPart(refresh) {
  const { pins, total } = await get(api + 'manage/pins');
  const wrong = alarm();
  async function remove(pin) {
    if (!await confirmed('Remove this pin?', ['Without it, ', name(pin.path.slice(33)), ' and its closure are kept only as long as they are used.'], 'Remove')) return;
    await attempt(wrong, async () => { await write('DELETE', 'manage/pins/' + pin.hash + '/' + encodeURIComponent(pin.name)); said.textContent = 'Removed'; await refresh(); });
  }
  const holds = (pin) => [pin.keep && 'the newest ' + pin.keep, pin.until && (pin.until * 1000 < Date.now() ? 'ended ' : 'until ') + day(pin.until)].filter(Boolean).join(', ') || 'for ever';
  return [
    el('p', {}, 'A pin keeps a path with its closure.'),
    pins.length ? table('Pins', ['Name', 'Path', ['Since', 's'], 'Kept', ''], pins.map((pin) => [name(pin.name), el('a', { href: views + 'path/' + pin.hash }, name(pin.path.slice(33))), day(pin.created), holds(pin),
      el('button', { type: 'button', 'aria-label': 'Remove the pin ' + pin.name, onclick: () => remove(pin) }, 'Remove')])) : el('p', { class: 'soft' }, 'There are no pins yet.'),
    total > pins.length && el('p', { class: 'soft' }, number(total - pins.length) + ' more are not listed.'),
    wrong, el('h2', {}, 'Add a pin'), pinForm('', refresh),
  ];
}
function field(label, input) { return el('div', { class: 'field' }, el('label', { for: input.id }, label), input); }
function pinForm(path, done) {
  const wrong = alarm();
  const pinName = el('input', { id: 'pin-name', required: true, maxlength: 128, autocomplete: 'off' });
  const pinPath = el('input', { id: 'pin-path', required: true, value: path, autocomplete: 'off', spellcheck: 'false' });
  const keep = el('input', { id: 'pin-keep', type: 'number', min: 1, max: 1e6 });
  const days = el('input', { id: 'pin-days', type: 'number', min: 1, max: 36500 });
  return el('form', { class: 'fields', onsubmit: (event) => {
    event.preventDefault();
    attempt(wrong, async () => {
      await write('POST', 'manage/pins', { name: pinName.value, path: pinPath.value, keep: keep.value ? Number(keep.value) : null, days: days.value ? Number(days.value) : null });
      said.textContent = 'Pinned';
      await done();
    });
  } }, field('Name', pinName), !path && field('Store path', pinPath), field('Keep the newest', keep), field('For days', days), el('button', { class: 'main' }, 'Pin'), wrong);
}

async function tokensPart(refresh) {
  const { tokens, total } = await get(api + 'manage/tokens');
  const wrong = alarm(), made = el('div', {});
  const now = Date.now() / 1000;
  const isOver = (token) => token.revoked || (token.expires && token.expires <= now);
  async function revoke(token) {
    if (!await confirmed('Revoke this token?', [token.isOwn ? 'It is the one you have signed in with. ' : '', 'Who uses ', name(token.label), ' is refused at once, for good.'], 'Revoke')) return;
    await attempt(wrong, async () => { await write('DELETE', 'manage/tokens/' + token.id); said.textContent = 'Revoked'; await refresh(); });
  }
  const scopes = [['pull', 'read this cache if it is private'], ['push', 'upload'], ['sign', 'have uploads signed'], ['pin', 'add and remove pins'], ['delete', 'delete paths'], ['replace', 'replace paths'], ['admin', 'all of these, and tokens']];
  const label = el('input', { id: 'token-label', required: true, maxlength: 128, autocomplete: 'off' });
  const caches = el('input', { id: 'token-caches', required: true, value: session.cache, autocomplete: 'off', spellcheck: 'false' });
  const days = el('input', { id: 'token-days', type: 'number', min: 1, max: 36500, placeholder: 'no limit' });
  const boxes = scopes.map(([scope, text]) => [scope, el('input', { type: 'checkbox', id: 'scope-' + scope }), text]);
  const form = el('form', { onsubmit: (event) => {
    event.preventDefault();
    attempt(wrongNew, async () => {
      const created = await write('POST', 'manage/tokens', { label: label.value, scopes: boxes.filter(([, box]) => box.checked).map(([scope]) => scope), caches: caches.value.trim().split(/[ ,]+/), days: days.value ? Number(days.value) : null });
      await refresh();
      const place = document.getElementById('made');
      place.replaceChildren(el('h2', { tabindex: -1 }, 'The new token'), el('p', {}, 'Copy it now: it is not stored, and cannot be shown again.'), copyable(created.token, 'the new token'));
      place.firstChild.focus();
    });
  } });
  const wrongNew = alarm();
  form.append(el('div', { class: 'fields' }, field('Label', label), field('Caches', caches), field('Days', days)),
    el('fieldset', {}, el('legend', {}, 'It allows to'), boxes.map(([scope, box, text]) => el('label', { class: 'check', for: box.id }, box, el('b', {}, scope), ' ', text))),
    el('p', {}, el('button', { class: 'main' }, 'Create')), wrongNew);
  made.id = 'made';
  return [
    made,
    tokens.length ? table('Tokens', ['Label', 'Allows', ['Caches', 'w'], ['Last used', 'w'], ['State', 's'], ''], tokens.map((token) => [
      [name(token.label), token.isOwn && el('span', { class: 'soft' }, ' (this session’s)'), el('div', { class: 'soft mono' }, token.id)], token.scopes.replaceAll(',', ', '), token.caches.join(', '), token.lastUsed ? ago(token.lastUsed) : 'never',
      token.revoked ? 'revoked' : token.expires ? (token.expires <= now ? 'expired' : 'until ' + day(token.expires)) : 'valid',
      isOver(token) ? '' : el('button', { type: 'button', 'aria-label': 'Revoke ' + token.label, onclick: () => revoke(token) }, 'Revoke')])) : el('p', { class: 'soft' }, 'There are no tokens.'),
    total > tokens.length && el('p', { class: 'soft' }, number(total - tokens.length) + ' older ones are not listed.'),
    wrong, el('h2', {}, 'Create a token'), form,
  ];
}

// On the page of a path.
function pathActions(path) {
  const wrong = alarm(), form = el('div', {});
  if (path.source !== 'cache' || !(may('pin') || may('delete'))) return null;
  async function remove() {
    const box = el('input', { type: 'checkbox', id: 'with-referrers' });
    const extra = path.referrers.length ? el('label', { class: 'check', for: 'with-referrers' }, box, 'Also delete what refers to it') : null;
    if (!await confirmed('Delete this path?', [name(path.name), ' and its NAR are deleted at once, whatever pins it. Nobody can get it from here then.'], 'Delete', extra)) return;
    await attempt(wrong, async () => {
      const removed = await write('DELETE', 'manage/paths/' + path.hash + (box.checked ? '?referrers=1' : ''));
      said.textContent = 'Deleted ' + many(removed.paths, 'path') + ', ' + bytes(removed.bytes) + '.';
      show(heading('Deleted'), el('p', {}, many(removed.paths, 'path') + ' and ' + many(removed.files, 'NAR') + ' were deleted, ' + bytes(removed.bytes) + '.'), el('p', {}, el('a', { href: base + '?q=' }, 'Find')));
      main.querySelector('h1').focus();
    });
  }
  return [el('p', { class: 'actions' },
    may('pin') && el('button', { type: 'button', onclick: () => { form.replaceChildren(el('h2', {}, 'Pin this path'), pinForm(path.path, reload)); form.querySelector('input').focus(); } }, 'Pin'),
    may('delete') && el('button', { type: 'button', class: 'danger', onclick: remove }, 'Delete')), wrong, form];
}
