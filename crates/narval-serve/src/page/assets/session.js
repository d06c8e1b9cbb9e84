// Signing in. The server keeps the session in a cookie that no script can read; nothing is stored here.
async function whoIsThere() {
  try { session = await get(api + 'session'); } catch { session = null; }
  document.getElementById('manage').hidden = !session;
  document.getElementById('brand').replaceChildren(el('strong', {}, cacheName()), ' ', el('span', { class: 'soft' }, location.host));
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
      await route();
      main.querySelector('h1')?.focus();
    } catch (error) { wrong.textContent = error.message; field.select(); }
  }
  show(heading(title), el('p', {}, text),
    el('form', { class: 'narrow', onsubmit: signIn }, el('label', { for: 'token' }, 'Token'), field, wrong,
      el('p', {}, el('button', { class: 'main' }, 'Sign in'))),
    el('p', { class: 'soft' }, el('code', {}, 'narval token create'), ' on the server’s machine creates tokens. You are signed out after an hour without a request.'));
  field.focus();
}
async function signOut() {
  try { await ask(api + 'session', { method: 'DELETE', headers: { 'X-Narval-CSRF': session.proof } }); } catch { /* it was over */ }
  await whoIsThere();
  await route();
  main.querySelector('h1')?.focus();
}
