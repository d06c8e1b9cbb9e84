// The map of a closure: a treemap of what its table says.
function enlivenMap() {
  const map = document.getElementById('map'), choice = document.getElementById('as-map');
  if (!map || !choice?.hidden) return;
  choice.hidden = false;
  choice.parentElement.addEventListener('change', () => redraw());
}
function redraw() {
  const map = document.getElementById('map');
  if (map?.checkVisibility()) drawMap(map);
}
addEventListener('resize', redraw);
// A squarified treemap: rectangles as near to squares as they get.
function drawMap(box) {
  const width = box.clientWidth || 800, height = box.clientHeight || 350;
  const shown = [...document.querySelectorAll('table.closure tbody tr')].map((row) => ({
    name: row.cells[0].textContent, size: Number(row.dataset.size), link: row.cells[3].querySelector('a')?.href,
    depth: Math.min(row.dataset.depth, 5), chosen: 'chosen' in row.dataset }));
  const total = shown.reduce((all, one) => all + one.size, 0);
  const scale = width * height / Math.max(total, 1);
  const svg = el('svg', { viewBox: '0 0 ' + width + ' ' + height, role: 'group', 'aria-label': 'Paths of the closure by size' });
  let x = 0, y = 0, w = width, h = height, from = 0;
  while (from < shown.length) {
    const side = Math.max(Math.min(w, h), 1e-6);
    let row = [], area = 0, worst = Infinity;
    for (let at = from; at < shown.length; at++) {
      const next = area + shown[at].size * scale, largest = shown[from].size * scale, smallest = shown[at].size * scale;
      const ratio = Math.max(side * side * largest / (next * next), next * next / (side * side * smallest));
      if (ratio > worst) break;
      row.push(shown[at]); area = next; worst = ratio;
    }
    const depth = area / side, along = w >= h;
    let offset = 0;
    for (const one of row) {
      const length = one.size * scale / depth;
      svg.append(tile(one, along ? [x, y + offset, depth, length] : [x + offset, y, length, depth]));
      offset += length;
    }
    if (along) { x += depth; w -= depth; } else { y += depth; h -= depth; }
    from += row.length;
  }
  box.replaceChildren(svg);
}
// One hue: the farther from the path itself, the lighter; what is on the chosen chain is accentuated.
function tile({ name, size, link, depth, chosen }, [x, y, w, h]) {
  const label = name + ', ' + bytes(size);
  const room = Math.floor((w - 10) / 6.6);
  const text = w > 44 && h > 20 ? el('text', { x: x + 5, y: y + 15 }, name.length > room ? name.slice(0, Math.max(room - 1, 1)) + '…' : name) : null;
  const below = text && h > 38 && bytes(size).length <= room ? el('text', { x: x + 5, y: y + 31 }, bytes(size)) : null;
  const rect = el('rect', { x, y, width: Math.max(w, 0), height: Math.max(h, 0), class: chosen ? 'chosen' : 'd' + depth }, el('title', {}, label));
  if (!link) return el('g', {}, rect, text, below);
  return el('a', { svg: true, href: link, 'aria-label': label }, rect, text, below);
}
