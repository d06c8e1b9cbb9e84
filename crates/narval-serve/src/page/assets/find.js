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
      more.hidden = from >= found.total && !found.more;
      count.textContent = box.value.trim() ? (found.more ? 'More than ' : '') + number(found.total) + ' of ' + number(found.of) + ' paths' : number(found.of) + ' paths, the newest first';
    } catch (error) { if (own === asked) failed(error); }
  }
  const box = el('input', { type: 'search', id: 'query', value: query, autocomplete: 'off', spellcheck: 'false', maxlength: 200, oninput: () => {
    clearTimeout(timer);
    timer = setTimeout(() => { history.replaceState(null, '', '#/find/' + encodeURIComponent(box.value)); search(true); }, 120);
  } });
  show(heading('Find'), el('label', { for: 'query' }, 'Part of a name, or of a store path’s hash'), box, count, list, more);
  await search(true);
}

