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
// Names come from whoever built the package: isolated, so that no mark in them turns what follows around.
// Control characters, and marks that turn the text around even so, are shown as such.
const plain = (text) => text.replace(/[\u0000-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, '\ufffd');
const name = (text) => el('bdi', {}, plain(text));
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
const day = (seconds) => seconds ? new Date(seconds * 1000).toISOString().slice(0, 10) : '';

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
// A write: the server wants the session's proof with it.
async function write(method, path, body) {
  const headers = { 'X-Narval-CSRF': session?.proof || '', ...(body && { 'Content-Type': 'application/json' }) };
  return (await ask(api + path, { method, headers, body: body && JSON.stringify(body) })).json();
}
// A server of a store alone has no names.
const cacheName = () => session?.cache || 'store';
const may = (scope) => Boolean(session?.scopes.includes(scope));

function copyable(text, label) {
  const button = el('button', { type: 'button', 'aria-label': 'Copy: ' + label, onclick: () => copy(button, text) }, 'Copy');
  return el('div', { class: 'copy' }, el('pre', { tabindex: 0, 'aria-label': label }, text), button);
}

// A table: head is a list of titles, [title, 'n'] for numbers; each row is a list of cells.
function table(label, head, rows) {
  const kind = (at) => Array.isArray(head[at]) ? head[at][1] : '';
  return el('div', { class: 'scroll' }, el('table', { 'aria-label': label },
    el('thead', {}, el('tr', {}, head.map((title, at) => el('th', { scope: 'col', class: kind(at) }, [title].flat()[0])))),
    el('tbody', {}, rows.map((row) => el('tr', {}, row.map((cell, at) => el('td', { class: kind(at) }, cell)))))));
}
// A bar as long as a part of the whole. Its number is beside it.
function bar(part, whole) {
  return el('svg', { class: 'bar', viewBox: '0 0 100 8', preserveAspectRatio: 'none', 'aria-hidden': 'true' },
    el('rect', { x: 0, y: 0, width: whole > 0 ? Math.max(100 * part / whole, part > 0 ? 0.7 : 0) : 0, height: 8 }));
}
function ago(seconds) {
  const age = Date.now() / 1000 - seconds;
  for (const [length, unit] of [[86400, 'day'], [3600, 'hour'], [60, 'minute']]) {
    const count = Math.floor(age / length);
    if (count >= 1) return count + ' ' + unit + (count === 1 ? '' : 's') + ' ago';
  }
  return 'just now';
}
// Asks before something is done. Escape and Cancel do nothing.
function confirmed(title, text, action, extra) {
  return new Promise((resolve) => {
    const dialog = el('dialog', { 'aria-labelledby': 'question' }, el('h2', { id: 'question' }, title), el('p', {}, text), extra,
      el('p', { class: 'actions' },
        el('button', { type: 'button', onclick: () => dialog.close('') }, 'Cancel'),
        el('button', { type: 'button', class: 'danger', onclick: () => dialog.close('yes') }, action)));
    const before = document.activeElement;
    dialog.addEventListener('close', () => { resolve(dialog.returnValue === 'yes'); dialog.remove(); before?.focus(); });
    document.body.append(dialog);
    dialog.showModal();
  });
}
