// Manage works without this: signing out, and how much is chosen.
function enlivenManage() {
  const out = document.querySelector('[data-sign-out][hidden]');
  if (out) { out.hidden = false; out.addEventListener('click', signOut); }
  const choose = document.getElementById('choose'), button = choose?.querySelector('button');
  if (!button) return;
  const count = () => {
    const chosen = [...choose.querySelectorAll('input:checked')];
    button.textContent = chosen.length ? 'Delete ' + many(chosen.length, 'path') + ', ' + bytes(chosen.reduce((sum, box) => sum + Number(box.dataset.size), 0)) + '…' : 'Delete the chosen…';
  };
  choose.addEventListener('change', count);
  count();
}
