let leave = () => {};
const askToRead = () => askToken('Sign in', 'This cache is private: sign in with a token that has the scope pull.');
function failed(error) {
  if (error.status === 401) return askToRead();
  show(heading(error.status === 404 ? 'Not found' : 'Request failed'), el('p', { role: 'alert' }, error.status === 404 ? 'This cache does not have it.' : error.message), el('p', {}, el('a', { href: base + '?q=' }, 'Search for something else')));
}
const decoded = (part) => { try { return decodeURIComponent(part); } catch { return part; } };
// Addresses of before: '#/path/…'.
function moved() {
  const [which, ...rest] = location.hash.replace(/^#\/?/, '').split('/');
  const [first = '', second] = rest;
  const to = { __proto__: null, use: '', find: '?q=' + first, now: '_narval/status', log: 'log/' + first, path: '_narval/path/' + first + (second ? '?why=' + second : '') }[which]
    ?? (['files', 'compare', 'manage'].includes(which) ? '_narval/' + [which, ...rest].join('/') : null);
  if (to != null) location.replace(base + to);
  return to != null;
}
// The document says which view it is, and whether the script fills it.
async function route() {
  const mine = ++view;
  leave(); leave = () => {};
  const which = main.dataset.view ||= document.getElementById('view')?.dataset.view || '';
  const [, first = '', ...rest] = location.pathname.slice(views.length).split('/').map(decoded);
  try {
    if (which === 'sign-in') await signInView(mine);
    else if (which === 'status') statusView(mine);
    else if (which === 'manage') await manageView(mine, first);
  } catch (error) {
    if (mine === view) failed(error);
  }
}
async function start() {
  if (location.hash.startsWith('#/') && moved()) return;
  enliven();
  const isSignIn = document.getElementById('view')?.dataset.view === 'sign-in';
  if (!document.getElementById('view') && !document.getElementById('actions')) return;
  await whoIsThere();
  enliven();
  if (isSignIn && session?.signedIn && (session.mayRead || location.pathname.startsWith(views + 'manage'))) return reload();
  await route();
}
addEventListener('hashchange', () => { if (location.hash.startsWith('#/')) moved(); });
start();
