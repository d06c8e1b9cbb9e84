async function nowView(mine) {
  const history = [];
  const state = el('p', { class: 'soft', role: 'status' }, 'Connecting…');
  const cards = el('div', { class: 'cards' });
  const rate = (read) => (now, before, seconds) => (read(now) - read(before)) / seconds;
  const share = (hits, misses) => hits + misses ? 100 * hits / (hits + misses) : NaN; // nothing was asked for
  const engine = (read) => (sample) => sample.engine ? read(sample.engine) : 0;
  const sent = (sample) => sample.engine ? sample.engine.sent : 0;
  // What is of the whole server is only said at the cache at '/'.
  const ofServer = (sample) => sample.engine, ofNarCache = (sample) => sample.narCache, ofUpstreams = (sample) => sample.upstreams, ofUploads = (sample) => sample.writable;
  // title, value of a sample and the one before, how it is written, what is an alarm, whether this cache has it
  const figures = [
    ['Requests per second', rate(engine((it) => it.requests)), (value) => number(Math.round(value)), undefined, ofServer],
    ['Sent per second', rate(sent), bytes, undefined, ofServer],
    ['Received per second', rate(engine((it) => it.received)), bytes, undefined, ofServer],
    ['Connections', engine((it) => it.connections), number, undefined, ofServer],
    ['Queue', engine((it) => it.queue), number, (value) => value > 0, ofServer],
    ['Workers busy', (now, before, seconds) => now.engine ? 100 * (now.engine.busy - before.engine.busy) / seconds / now.engine.workers : 0, (value) => Math.round(value) + ' %', (value) => value > 90, ofServer],
    ['Refused per second', rate((sample) => engine((it) => it.overloaded + it.refused)(sample)), (value) => value.toFixed(1), (value) => value > 0, ofServer],
    ['Narinfos per second', rate((sample) => sample.narinfos), (value) => number(Math.round(value))],
    ['Narinfos from memory', (now, before) => share(now.memoHits - before.memoHits, now.memoMisses - before.memoMisses), (value) => Math.round(value) + ' %'],
    ['NARs per second', rate((sample) => sample.nars), (value) => value.toFixed(1)],
    ['NARs being sent', (now) => now.downloading, number],
    ['NARs being compressed', (now) => now.compressing, number, undefined, ofNarCache],
    ['NAR cache hits', (now, before) => share(now.narCacheHits - before.narCacheHits, now.narCacheMisses - before.narCacheMisses), (value) => Math.round(value) + ' %', undefined, ofNarCache],
    ['From upstreams per second', rate((sample) => sample.narBytes.upstream), bytes, undefined, ofUpstreams],
    ['Upstreams that respond', (sample) => sample.upstreams ? sample.upstreams.available : 0, (value, sample) => sample.upstreams ? number(value) + ' of ' + number(sample.upstreams.all) : 'none set', (value, sample) => Boolean(sample.upstreams && value < sample.upstreams.all), ofUpstreams],
    ['NARs being received', (now) => now.uploading, number, undefined, ofUploads],
    ['Uploaded per second', rate((sample) => sample.uploadBytes), bytes, undefined, ofUploads],
    ['Server errors per second', rate((sample) => sample.failed), (value) => value.toFixed(1), (value) => value > 0],
  ].map(([title, value, text, alarm, has]) => {
    const figure = el('p', { class: 'figure' }, '–'), line = el('polyline', { points: '' });
    const card = el('section', { class: 'card' }, el('h2', {}, title), figure, el('svg', { viewBox: '0 0 120 40', preserveAspectRatio: 'none', 'aria-hidden': 'true' }, line));
    const values = [];
    return (now, before, seconds) => {
      if (has && !has(now)) { card.remove(); return; }
      if (!card.isConnected) cards.append(card);
      const current = Math.max(value(now, before, seconds), 0);
      values.push(current || 0);
      if (values.length > 120) values.shift();
      figure.textContent = Number.isNaN(current) ? '–' : text(current, now);
      card.classList.toggle('alarm', Boolean(alarm?.(current, now)));
      const top = Math.max(...values, 1e-9);
      line.setAttribute('points', values.map((one, at) => (120 - values.length + at) + ',' + (39 - 37 * one / top).toFixed(1)).join(' '));
    };
  });
  show(heading('Now'), state, cards);
  let wait = 1000;
  function connect() {
    const socket = new WebSocket(location.origin.replace(/^http/, 'ws') + api + 'now');
    leave = () => { socket.onclose = null; socket.close(); };
    socket.onmessage = (event) => {
      const now = JSON.parse(event.data), before = history.at(-1);
      wait = 1000;
      if (before && now.uptime > before.uptime) for (const figure of figures) figure(now, before, (now.uptime - before.uptime) / 1000);
      if (before && now.uptime < before.uptime) history.length = 0;
      history.push(now);
      if (history.length > 2) history.shift();
      state.textContent = many(now.uploadsStored, 'NAR') + ' taken and ' + number(now.nars) + ' sent since the server started, ' + ago((Date.now() - now.uptime) / 1000);
    };
    socket.onclose = (event) => {
      if (mine !== view) return;
      if (event.code === 1008 && event.reason.includes('ended')) return route();
      state.textContent = 'Not connected; retrying.';
      const timer = setTimeout(connect, wait);
      leave = () => clearTimeout(timer);
      wait = Math.min(wait * 2, 15000);
    };
  }
  connect();
}

