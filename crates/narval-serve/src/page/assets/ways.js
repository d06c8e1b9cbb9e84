// What the server has rendered: it is complete without this. Buttons to copy, and the address as this browser knows it.
function enliven() {
  const url = location.origin + base.replace(/\/$/, ''), told = document.body.dataset.url;
  // Behind a proxy, the server may not know what it is called.
  if (told && told !== url) {
    const texts = document.createTreeWalker(main, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) if (texts.currentNode.data.includes(told)) texts.currentNode.data = texts.currentNode.data.replaceAll(told, url);
    document.body.dataset.url = url;
  }
  for (const button of document.querySelectorAll('button.copier[hidden]')) {
    const ways = button.closest('.ways');
    const text = () => ways ? [...ways.querySelectorAll('.panes > div')].find((pane) => pane.checkVisibility())?.querySelector('pre') : button.previousElementSibling;
    button.hidden = false;
    button.addEventListener('click', () => copy(button, text()?.textContent));
    if (ways) {
      const show = () => { button.hidden = !text(); };
      ways.addEventListener('change', show);
      show();
    }
  }
  enlivenMap();
  enlivenOverview();
  enlivenManage();
}
async function copy(button, text) {
  if (text == null) return;
  try { await navigator.clipboard.writeText(text); } catch {
    // Without TLS there is no clipboard.
    const area = el('textarea', {}, text);
    document.body.append(area); area.select(); document.execCommand('copy'); area.remove(); button.focus();
  }
  button.textContent = 'Copied'; said.textContent = 'Copied';
  setTimeout(() => { button.textContent = 'Copy'; }, 1500);
}
