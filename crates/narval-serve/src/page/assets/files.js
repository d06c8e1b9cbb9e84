async function filesView(mine, hash, open) {
  const [path, listing] = await Promise.all([get(api + 'path/' + hash), get(base + hash + '.ls').catch((error) => { if (error.status === 404) return null; throw error; })]);
  if (mine !== view) return;
  if (!listing) {
    show(heading('Files of ', name(path.name)), el('p', {}, 'It has no listing: it was pushed without one, or has names that are not UTF-8.'), el('p', {}, el('a', { href: views + 'path/' + hash }, 'Back to the path')));
    return;
  }
  const shown = el('section', { 'aria-live': 'polite' });
  const url = (file) => api + 'file/' + hash + '/' + file.split('/').map(encodeURIComponent).join('/');
  async function look(file, node) {
    history.replaceState(null, '', views + 'files/' + hash + '/' + file.split('/').map(encodeURIComponent).join('/'));
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
  const tar = (file) => api + 'tar/' + hash + '/' + file.split('/').map(encodeURIComponent).join('/');
  const act = (promise) => promise.catch((error) => shown.replaceChildren(el('p', { class: 'bad', role: 'alert' }, error.message)));
  const sizes = (node) => node.type === 'directory' ? Object.values(node.entries).reduce((all, one) => all + sizes(one), 0) : node.size || 0;
  function entries(node, at) {
    return Object.entries(node.entries).map(([key, one]) => {
      const file = at ? at + '/' + key : key;
      if (one.type === 'directory') {
        const children = el('ul', { class: 'tree' });
        const details = el('details', { ontoggle: () => { if (!children.childNodes.length) children.append(el('li', { class: 'tar' }, el('a', { href: tar(file), download: key + '.tar' }, 'Download ', name(key), ' as tar')), ...entries(one, file)); } },
          el('summary', {}, name(key + '/'), ' ', el('span', { class: 'soft' }, bytes(sizes(one)))), children);
        if ((open + '/').startsWith(file + '/')) details.open = true;
        return el('li', {}, details);
      }
      if (one.type === 'symlink') return el('li', {}, name(key), ' ', el('span', { class: 'soft' }, '→ ', name(one.target)));
      return el('li', {}, el('a', { href: views + 'files/' + hash + '/' + file, onclick: (event) => { event.preventDefault(); act(look(file, one)); } }, name(key)), ' ', el('span', { class: 'soft' }, bytes(one.size)));
    });
  }
  const root = listing.root;
  show(heading('Files of ', name(path.name)), el('p', { class: 'links' }, el('a', { href: views + 'path/' + hash }, 'Back to the path'), el('a', { href: tar(''), download: path.name + '.tar' }, 'Download as tar')),
    el('div', { class: 'split' }, root.type === 'directory' ? el('ul', { class: 'tree top' }, entries(root, '')) : el('p', {}, 'One file, ' + bytes(root.size) + '.'), shown));
  const node = open ? open.split('/').reduce((at, key) => at?.entries && Object.hasOwn(at.entries, key) ? at.entries[key] : null, root) : root;
  if (node?.type === 'regular') act(look(open, node));
}
async function logView(mine, derivation) {
  const text = await get(base + 'log/' + encodeURIComponent(derivation), 'text').catch((error) => { if (error.status === 404) return null; throw error; });
  if (mine !== view) return;
  show(heading('Build log'), el('p', { class: 'soft' }, name(derivation)), text == null ? el('p', {}, 'This cache has no log of this build.') : el('div', { class: 'view', tabindex: 0, role: 'region', 'aria-label': 'Build log' }, el('pre', {}, text)));
}

