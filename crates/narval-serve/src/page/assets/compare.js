// Two paths compared: their files, and their closures.
async function compareView(mine, one, other) {
  show(heading('Comparing…'));
  const { before, after, files, closure } = await get(api + 'compare/' + one + '/' + other);
  if (mine !== view) return;
  const grown = (count) => (count > 0 ? '+' : count < 0 ? '−' : '±') + bytes(Math.abs(count));
  const change = (from, to) => el('span', { class: to > from ? 'minus' : to < from ? 'plus' : 'soft' }, grown(to - from));
  const link = (path) => el('a', { href: views + 'path/' + path.hash }, name(path.name));
  const what = (entry) => !entry ? '' : entry.kind === 'symlink' ? ['→ ', name(entry.target)] : entry.kind === 'directory' ? 'folder' : bytes(entry.size) + (entry.kind === 'executable' ? ', executable' : '');
  const shown = files?.list.filter((file) => file.before?.kind !== 'directory' || file.after) || [];
  const sides = [['', link(before), link(after)], ['Unpacked', before.narSize, after.narSize], ['To download', before.fileSize, after.fileSize], ['Closure', before.closureSize, after.closureSize]];
  const closures = (title, list, count, size) => el('section', {}, el('h2', {}, title), el('p', { class: 'soft' }, many(count, 'path') + ', ' + bytes(size)),
    list.length > 0 && el('ul', { class: 'rows' }, list.map((path) => el('li', {}, link(path), el('span', { class: 'side' }, bytes(path.size))))));
  const marks = { added: ['plus', 'added'], removed: ['minus', 'removed'], changed: ['', 'changed'] };
  show(heading('Compared'),
    table('Sizes', ['', ['Before', 'n'], ['After', 'n'], ['Change', 'n']], [
      ['Path', link(before), link(after), ''],
      ...sides.slice(1).filter(([, from, to]) => from != null && to != null).map(([title, from, to]) => [title, bytes(from), bytes(to), change(from, to)]),
      ['Paths in it', number(before.closurePaths), number(after.closurePaths), '']]),
    el('p', {}, el('a', { href: views + 'compare/' + other + '/' + one }, 'The other way round')),
    el('h2', {}, 'Files'),
    !files ? el('p', { class: 'soft' }, 'One of them has no listing, so their files cannot be compared.') : [
      el('p', {}, number(files.added) + ' added, ' + number(files.removed) + ' removed, ' + number(files.changed) + ' changed, ' + number(files.same) + ' the same' + (files.unread ? ', and ' + number(files.unread) + ' of the same size that were not read' : '') + '.'),
      shown.length > 0 && table('Files that differ', ['File', ['Change', 's'], ['Before', 'n'], ['After', 'n']], shown.map((file) => [
        fileLink(file, file.after ? after : before), el('span', { class: marks[file.change][0] }, marks[file.change][1]), what(file.before), what(file.after)])),
      files.added + files.removed + files.changed > files.list.length && el('p', { class: 'soft' }, 'The first ' + number(files.list.length) + ' are listed.')],
    el('div', { class: 'split' },
      closures('Only in the closure before', closure.onlyBefore, closure.pathsBefore, closure.sizeBefore),
      closures('Only in the closure after', closure.onlyAfter, closure.pathsAfter, closure.sizeAfter)),
    el('p', { class: 'soft' }, (closure.both === 1 ? '1 path is' : number(closure.both) + ' paths are') + ' in both closures.'));
}
function fileLink(file, path) {
  const entry = file.after || file.before;
  if (entry.kind !== 'file' && entry.kind !== 'executable') return name(file.path || '(the path itself)');
  return el('a', { href: views + 'files/' + path.hash + '/' + file.path.split('/').map(encodeURIComponent).join('/') }, name(file.path || path.name));
}
