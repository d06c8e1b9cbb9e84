// Status is fetched again while somebody looks at it; what has changed takes the place of what was there.
function statusView(mine) {
  const state = document.getElementById('live');
  const again = async () => {
    if (document.hidden || mine !== view) return;
    let answer;
    try { answer = await fetch(location.href, { headers: { Accept: 'text/html' } }); } catch { state.textContent = 'Not connected; retrying.'; return; }
    const anew = new DOMParser().parseFromString(await answer.text(), 'text/html');
    if (mine !== view) return;
    if (!anew.getElementById('verdict')) return reload();
    state.textContent = '';
    for (const piece of anew.querySelectorAll('[data-live]')) {
      const old = document.getElementById(piece.id);
      if (old && !old.contains(document.activeElement) && old.innerHTML !== piece.innerHTML) old.replaceChildren(...piece.childNodes);
    }
  };
  const timer = setInterval(again, 5000);
  leave = () => clearInterval(timer);
}
