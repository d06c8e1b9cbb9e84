async function findView(mine, query) {
  const list = el('ul', { class: 'rows' });
  const count = el('p', { class: 'soft', role: 'status' });
  const more = el('button', { type: 'button', hidden: true, onclick: () => search(false) }, 'More');
  const none = el('p', { hidden: true }, 'Nothing has this in its name: check the spelling, or look at a cache that this one fetches from. Whoever may push adds it: ', el('a', { href: base }, 'how to push'), '.');
  let from = 0, asked = 0, timer, only = null;
  async function search(anew) {
    const own = ++asked;
    if (anew) from = 0;
    try {
      const found = await get(api + 'paths?q=' + encodeURIComponent(box.value) + '&from=' + from);
      if (mine !== view || own !== asked) return;
      const rows = found.paths.map((path) => el('li', {}, el('a', { href: views + 'path/' + path.hash }, name(path.name)),
        el('span', { class: 'side' }, path.unsigned && [el('span', { class: 'bad' }, 'not signed'), ' · '], path.pinned && 'pinned · ', el('code', {}, path.hash.slice(0, 8)),
          path.size ? ' · ' + bytes(path.size) : '', path.time ? [' · ', el('span', { title: day(path.time) }, ago(path.time))] : '')));
      only = found.total === 1 ? found.paths[0].hash : null;
      none.hidden = found.total > 0 || !box.value.trim();
      if (anew) list.replaceChildren(...rows); else list.append(...rows);
      from += found.paths.length;
      more.hidden = from >= found.total && !found.more;
      count.textContent = box.value.trim() ? (found.more ? 'More than ' : '') + number(found.total) + ' of ' + number(found.of) + ' paths' : number(found.of) + ' paths, the newest first';
    } catch (error) { if (own === asked) failed(error); }
  }
  const box = el('input', { type: 'search', id: 'query', value: query, autocomplete: 'off', spellcheck: 'false', maxlength: 200, onkeydown: (event) => { if (event.key === 'Enter' && only) location.href = views + 'path/' + only; }, oninput: () => {
    clearTimeout(timer);
    timer = setTimeout(() => { history.replaceState(null, '', base + '?q=' + encodeURIComponent(box.value)); search(true); }, 120);
  } });
  show(heading('Find'), el('label', { for: 'query' }, 'Part of a name, or of a store path’s hash'), box, count, none, list, more);
  box.focus();
  await search(true);
}

