let leave = () => {};
const askToRead = () => askToken('Sign in', 'This cache is private: sign in with a token that has the scope pull.');
// Addresses of before: '#/path/…'.
function moved() {
  const [which, ...rest] = location.hash.replace(/^#\/?/, '').split('/');
  const [first = '', second] = rest;
  const to = { __proto__: null, use: '', find: '?q=' + first, now: '_narval/status', log: 'log/' + first, path: '_narval/path/' + first + (second ? '?why=' + second : '') }[which]
    ?? (['files', 'compare', 'manage'].includes(which) ? '_narval/' + [which, ...rest].join('/') : null);
  if (to != null) location.replace(base + to);
  return to != null;
}
// The document says which view it is, if the script has something to do in it.
function route() {
  const mine = ++view, which = document.getElementById('view')?.dataset.view;
  leave(); leave = () => {};
  if (which === 'sign-in') signInView();
  else if (which === 'status') statusView(mine);
}
async function start() {
  if (location.hash.startsWith('#/') && moved()) return;
  enliven();
  const isSignIn = document.getElementById('view')?.dataset.view === 'sign-in';
  if (!document.getElementById('view') && !document.querySelector('[data-sign-out]')) return;
  await whoIsThere();
  enliven();
  if (isSignIn && session?.signedIn && (session.mayRead || location.pathname.startsWith(views + 'manage'))) return reload();
  route();
}
addEventListener('hashchange', () => { if (location.hash.startsWith('#/')) moved(); });
start();
