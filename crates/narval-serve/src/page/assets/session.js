// Signing in. The server keeps the session in a cookie that no script can read; nothing is stored here.
async function whoIsThere() {
  try { session = await get(api + 'session'); } catch { session = null; }
}
function askToken(title, text) {
  const field = el('input', { type: 'password', id: 'token', autocomplete: 'off', spellcheck: 'false', required: true });
  const wrong = el('p', { class: 'bad', role: 'alert' });
  async function signIn(event) {
    event.preventDefault();
    wrong.textContent = '';
    try {
      await ask(api + 'session', { method: 'POST', headers: { Authorization: 'Bearer ' + field.value.trim() } });
      await whoIsThere();
      if (!session?.signedIn) throw new Failure(0, 'This browser does not keep the session’s cookie.');
      await reload();
    } catch (error) { wrong.textContent = error.message; field.select(); }
  }
  show(heading(title), el('p', {}, text),
    el('form', { class: 'narrow', onsubmit: signIn }, el('label', { for: 'token' }, 'Token'), field, wrong,
      el('p', {}, el('button', { class: 'main' }, 'Sign in'))),
    el('p', { class: 'soft' }, el('code', {}, 'narval token create'), ' on the server’s machine creates tokens. You are signed out after an hour without a request.'));
  field.focus();
}
// Whoever has signed in, but not to this cache, is told what the token is for.
function signInView() {
  if (!session?.signedIn) return session?.mayRead ? askToken('Sign in', 'With a token of this cache, you can manage what it allows.') : askToRead();
  askToken('Sign in', 'You are signed in as ' + session.label + ', which is for: ' + session.caches.join(', ') + (session.scopes.length ? '; it lacks the scope pull' : '') + '. Sign in with a token that may read ' + cacheName() + '.');
  main.append(el('p', {}, el('a', { href: views + 'manage' }, 'What it allows')));
}
async function signOut() {
  if (!session) await whoIsThere();
  try { await ask(api + 'session', { method: 'DELETE', headers: { 'X-Narval-CSRF': session.proof } }); } catch { /* it was over */ }
  await whoIsThere();
  await reload();
}
// Puts the document of an address in the place of this one. A browser that came from another site has sent no cookie with the first request for it:
// requests of this document have one.
async function reload() {
  const answer = await fetch(location.href, { headers: { Accept: 'text/html' } });
  const anew = new DOMParser().parseFromString(await answer.text(), 'text/html');
  for (const part of ['header', 'main', 'footer']) document.querySelector(part).replaceChildren(...anew.querySelector(part).childNodes);
  document.title = anew.title;
  document.body.dataset.url = anew.body.dataset.url;
  enliven();
  route();
  main.querySelector('h1')?.focus();
}
