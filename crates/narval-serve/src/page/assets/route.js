let leave = () => {};
const askToRead = () => askToken('This cache is private', 'Sign in with a token that has the scope pull.');
function failed(error) {
  if (error.status === 401) return askToRead();
  show(heading(error.status === 404 ? 'Not found' : 'Request failed'), el('p', { role: 'alert' }, error.status === 404 ? 'This cache does not have it.' : error.message), el('p', {}, el('a', { href: '#/find' }, 'Search for something else')));
}
async function route() {
  const mine = ++view;
  leave(); leave = () => {};
  const parts = location.hash.replace(/^#\/?/, '').split('/').map((part) => { try { return decodeURIComponent(part); } catch { return part; } });
  const [which, first = '', ...rest] = parts;
  const current = { path: 'find', files: 'find', log: 'find', compare: 'find', '': 'use' }[which] ?? which;
  for (const link of document.querySelectorAll('nav a')) {
    if (link.hash === '#/' + current) link.setAttribute('aria-current', 'page'); else link.removeAttribute('aria-current');
  }
  document.title = { use: 'Use this cache', find: 'Find', now: 'Now', manage: 'Manage' }[current] + ' · ' + cacheName() + ' · ' + location.host;
  // Nothing is asked for that would be refused. Another window may have signed in meanwhile.
  if (session && !session.mayRead && mine > 1) await whoIsThere();
  if (mine !== view) return;
  if (session && !session.mayRead && which !== 'manage') {
    if (!session.signedIn) return askToRead();
    askToken('This cache is private', 'You are signed in as ' + session.label + ', which is for: ' + session.caches.join(', ') + (session.scopes.length ? '; it lacks the scope pull' : '') + '. Sign in with a token that may read ' + cacheName() + '.');
    return void main.append(el('p', {}, el('a', { href: '#/manage' }, 'What it allows')));
  }
  try {
    if (which === 'find') await findView(mine, first);
    else if (which === 'path') await pathView(mine, first, rest[0]);
    else if (which === 'files') await filesView(mine, first, rest.join('/'));
    else if (which === 'log') await logView(mine, first);
    else if (which === 'compare') await compareView(mine, first, rest[0]);
    else if (which === 'now') await nowView(mine);
    else if (which === 'manage') await manageView(mine, first);
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
whoIsThere().then(route);
