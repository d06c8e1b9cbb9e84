'use strict';
// The page of a binary cache. Everything that comes from the cache is put in as text, never as HTML.
// The cache's root, its views and what they ask for, wherever a proxy has put them.
const base = location.pathname.replace(/\/?(_narval\/.*)?$/, '/');
const views = base + '_narval/', api = views + 'page/';
let main = document.getElementById('main');
const said = document.getElementById('said');
let view = 0; // grows with every view, so that answers for an older one are left out
let session = null; // whether this browser may read, who has signed in, and what they may do; null: this server has no tokens, or it is not known yet

// el('a', {href: …}, child, …): an element; strings become text.
function el(name, attributes, ...children) {
  const svg = ['svg', 'g', 'rect', 'text', 'polyline', 'title'].includes(name) || attributes?.svg;
  const node = svg ? document.createElementNS('http://www.w3.org/2000/svg', name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key === 'svg') continue;
    if (key.startsWith('on')) node.addEventListener(key.slice(2), value);
    else if (value === true) node.setAttribute(key, '');
    else if (value !== false && value != null) node.setAttribute(key, value);
  }
  node.append(...children.flat(9).filter((child) => child != null && child !== false));
  return node;
}
const show = (...children) => main.replaceChildren(...children.flat(9).filter(Boolean));
const heading = (...text) => el('h1', { tabindex: -1 }, ...text);

function bytes(count) {
  if (count == null) return '';
  const units = ['B', 'kB', 'MB', 'GB', 'TB', 'PB'];
  let unit = 0;
  while (count >= 1000 && unit < units.length - 1) { count /= 1000; unit++; }
  return (unit === 0 || count >= 100 ? Math.round(count) : count.toPrecision(3)) + ' ' + units[unit];
}
const number = (count) => count.toLocaleString('en');
const many = (count, one) => number(count) + ' ' + one + (count === 1 ? '' : 's');

class Failure extends Error {
  constructor(status, text) { super(text); this.status = status; }
}
async function ask(path, options) {
  let answer;
  try { answer = await fetch(path, { ...options, headers: { 'X-Narval-Page': '1', ...options?.headers } }); } catch { throw new Failure(0, 'The server does not respond.'); }
  if (!answer.ok) throw new Failure(answer.status, (await answer.text()).trim() || 'The server answered ' + answer.status + '.');
  return answer;
}
const get = async (path, as = 'json') => (await ask(path))[as]();
// A server of a store alone has no names.
const cacheName = () => session?.cache || 'store';
