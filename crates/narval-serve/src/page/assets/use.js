// Whether this browser can use the cache, and whether clients accept what it has.
function enlivenOverview() {
  const place = document.getElementById('check');
  if (place?.hidden) {
    place.hidden = false;
    place.querySelector('button').addEventListener('click', () => check(place.querySelector('[role=status]')));
  }
  // What is not complete yet is looked at again.
  if (document.querySelector('[data-refresh]')) setTimeout(refresh, 3000);
}
async function refresh() {
  if (!document.querySelector('[data-refresh]')) return;
  const answer = document.hidden ? null : await fetch(location.href, { headers: { Accept: 'text/html' } }).catch(() => null);
  if (answer?.ok) {
    const anew = new DOMParser().parseFromString(await answer.text(), 'text/html').getElementById('main');
    if (anew.textContent !== main.dataset.text && document.querySelector('[data-refresh]')) {
      main.dataset.text = anew.textContent;
      main.replaceChildren(...anew.childNodes);
      enliven();
      return;
    }
  }
  setTimeout(refresh, 3000);
}
async function check(result) {
  result.className = ''; result.textContent = 'Checking…';
  try {
    const info = await get(base + 'nix-cache-info', 'text');
    const found = await get(api + 'check');
    const dir = /^StoreDir: *(.*)$/m.exec(info)?.[1];
    if (dir !== found.storeDir) throw new Failure(0, 'nix-cache-info is for ' + dir + '.');
    const these = many(found.checked, 'path'), all = (found.checked < found.paths ? 'the newest ' : 'all ') + these;
    const lacking = found.checked - found.signed - found.byContents;
    result.className = lacking ? 'bad' : 'good';
    result.textContent = !found.paths ? '✓ It responds for ' + dir + ', and has no paths yet.'
      : lacking ? '✗ It responds for ' + dir + ', but ' + number(lacking) + ' of ' + (found.checked < found.paths ? all : these) + (lacking === 1 ? ' lacks' : ' lack') + ' a valid signature of this server: clients refuse ' + (lacking === 1 ? 'it.' : 'them.')
        : '✓ It works: it responds for ' + dir + ', and ' + (found.checked === 1 ? 'its only path has' : all + ' have') + ' a valid signature of this server' + (found.byContents ? ', but for ' + number(found.byContents) + ' whose contents prove themselves.' : '.');
  } catch (error) { result.className = 'bad'; result.textContent = '✗ ' + error.message; }
}
