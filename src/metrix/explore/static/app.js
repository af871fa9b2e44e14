// The page: which collections, which view, which query; keys, dropped and pasted images.

import * as api from './api.js';
import { byId, el, fill, say } from './dom.js';
import { PointMap } from './map.js';
import * as query from './query.js';
import { go, onChange, setDefaults, start, state } from './state.js';
import { askForToken } from './token.js';
import * as views from './views.js';

const VIEWS = [
  ['map', 'Map'],
  ['mistakes', 'Mistakes'],
  ['confusion', 'Confusion'],
  ['changes', 'Changes'],
  ['measures', 'Measures'],
];
// Also for the browser's console.
const page = { mode: 'runs', all: [], first: null, second: null, map: null };
globalThis.metrix = page;
let turn = 0;

async function open() {
  setTheme(stored('theme'));
  start();
  let found;
  try {
    found = await api.collections();
  } catch (error) {
    if (error.status === 401) return askForToken();
    return say(error.message);
  }
  page.mode = found.mode;
  page.all = found.collections;
  const comparable = page.all.length > 1 && page.all[1].key === page.all[0].key;
  setDefaults({ row: 0, second: comparable ? 1 : null });
  choose();
  build();
  onChange(update);
  showView();
  query.build(page);
  query.show(page);
  listen();
  document.body.dataset.ready = 'yes';
}

function choose() {
  page.first = page.all[state.first] ?? page.all[0];
  page.second =
    state.second !== null && page.all[state.second] && page.all[state.second] !== page.first
      ? page.all[state.second]
      : null;
  if (page.second && page.second.key !== page.first.key) {
    say(`${page.first.name} and ${page.second.name} were measured on other test images, so they cannot be compared.`);
    page.second = null;
  }
}

function build() {
  const option = (one) => el('option', { value: one.number, textContent: one.name });
  fill(byId('first'), ...page.all.map(option));
  byId('first').onchange = (event) => go({ first: Number(event.target.value), row: 0, of: null });
  fill(byId('second'), el('option', { value: '', textContent: 'none' }), ...page.all.map(option));
  byId('second').onchange = (event) => go({ second: event.target.value === '' ? null : Number(event.target.value) });
  byId('second-pick').hidden = page.all.length < 2;
  fill(
    byId('views'),
    ...VIEWS.filter(([key]) => key !== 'changes' || page.all.length > 1).map(([key, title]) =>
      el('a', {
        href: '#',
        textContent: title,
        id: `view-${key}`,
        onclick: (event) => {
          event.preventDefault();
          go({ view: key });
        },
      }),
    ),
  );
  if (page.mode === 'index') byId('views').append(el('a', { href: '/label', textContent: 'Label' }));
  byId('help-open').onclick = () => byId('help').showModal();
  byId('theme').onclick = switchTheme;
  mark();
}

function mark() {
  byId('first').value = page.first.number;
  byId('second').value = page.second ? page.second.number : '';
  for (const [key] of VIEWS) byId(`view-${key}`)?.setAttribute('aria-current', key === state.view ? 'page' : 'false');
  document.title = `${page.first.name} – metrix explorer`;
}

function update(before) {
  say('');
  const [first, second] = [page.first, page.second];
  choose();
  mark();
  if (page.first !== first) query.build(page);
  const same = page.first === first && page.second === second;
  if (!same || before.view !== state.view || before.of !== state.of) showView();
  if (!same || before.row !== state.row || before.k !== state.k) query.show(page);
  page.map?.mark(state.row);
}

async function showView() {
  const mine = ++turn;
  page.map?.stop();
  page.map = null;
  const place = byId('view');
  const shown = el('div', { className: 'view' });
  fill(place, el('p', { className: 'note', textContent: 'Loading …' }));
  try {
    if (state.view === 'map' || !(state.view in views)) {
      fill(place, shown);
      page.map = new PointMap(shown, page.first, {
        onQuery: (row) => go({ row }),
        onError: (error) => say(error.message),
      });
      await page.map.start();
      page.map?.mark(state.row);
    } else {
      await views[state.view](page, shown);
      if (mine === turn) fill(place, shown);
    }
    document.body.dataset.view = state.view;
  } catch (error) {
    if (mine !== turn) return;
    say(error.message);
    if (state.view !== 'map') fill(place, el('p', { className: 'note', textContent: 'Nothing to show.' }));
  }
}

function listen() {
  addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest('input, select, textarea, dialog'))
      return;
    const names = VIEWS.map(([key]) => key);
    const actions = {
      r: () => query.random(page),
      n: () => query.step(page, 1),
      p: () => query.step(page, -1),
      s: () => page.map?.toggleLasso(),
      t: switchTheme,
      Escape: () => page.map?.clear(),
      '?': () => byId('help').showModal(),
    };
    if (actions[event.key]) actions[event.key]();
    else if (names[Number(event.key) - 1]) go({ view: names[Number(event.key) - 1] });
    else return;
    event.preventDefault();
  });
  const image = (files) => [...(files ?? [])].find((file) => file.type.startsWith('image/')) ?? files?.[0];
  addEventListener('paste', (event) => {
    const file = image(event.clipboardData?.files);
    if (file) query.search(page, file);
  });
  addEventListener('dragover', (event) => {
    event.preventDefault();
    byId('drop').hidden = false;
  });
  addEventListener('dragleave', (event) => {
    if (!event.relatedTarget) byId('drop').hidden = true;
  });
  addEventListener('drop', (event) => {
    event.preventDefault();
    byId('drop').hidden = true;
    const file = image(event.dataTransfer?.files);
    if (file) query.search(page, file);
  });
}

const stored = (key) => {
  try {
    return localStorage.getItem(`metrix-${key}`);
  } catch {
    return null;
  }
};

function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
}

function switchTheme() {
  const dark =
    document.documentElement.dataset.theme ?? (matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light');
  const theme = dark === 'dark' ? 'light' : 'dark';
  setTheme(theme);
  try {
    localStorage.setItem('metrix-theme', theme);
  } catch {
    /* without storage it lasts until the page is left */
  }
  page.map?.draw();
}

open();
