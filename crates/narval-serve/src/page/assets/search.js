// Packages are found while a name is typed: the document of the search takes the place of this one, but for the field.
let asked = 0, typing;
const searchField = () => document.getElementById('q');
async function search() {
  const own = ++asked, url = base + '?q=' + encodeURIComponent(searchField().value);
  const answer = await fetch(url, { headers: { Accept: 'text/html' } }).catch(() => null);
  if (!answer?.ok || own !== asked) return;
  const anew = new DOMParser().parseFromString(await answer.text(), 'text/html');
  if (own !== asked || anew.getElementById('view')) return; // not a list of packages: the session has ended
  const isHere = main.querySelector('.bar-of-filters');
  for (const part of ['.brand', '.state', 'nav', 'main', 'footer']) document.querySelector(part)?.replaceWith(anew.querySelector(part));
  searchField().form.action = base;
  if (location.search.startsWith('?q=') && isHere) history.replaceState(null, '', url); else history.pushState(null, '', url);
  document.title = anew.title;
  main = document.getElementById('main');
  view++; leave(); leave = () => {};
  enliven();
}
document.addEventListener('input', (event) => {
  if (event.target.id !== 'q') return;
  clearTimeout(typing);
  asked++;
  typing = setTimeout(() => { typing = null; search(); }, 120);
});
// Enter opens the only package that was found.
document.addEventListener('submit', (event) => {
  if (event.target !== searchField()?.form || typing) return;
  const found = [...main.querySelectorAll('.packages > li > a.name')];
  if (found.length !== 1 || main.querySelector('.older') || !location.search.startsWith('?q=')) return;
  event.preventDefault();
  location.href = found[0].href;
});
addEventListener('popstate', () => { if (!location.hash) location.reload(); });
addEventListener('keydown', (event) => {
  if (event.key !== '/' || event.ctrlKey || event.metaKey || event.altKey || !searchField() || event.target.matches('input,textarea,select')) return;
  event.preventDefault();
  searchField().focus(); searchField().select();
});
