// What is shown, kept in the address: every view, query and class can be linked to and gone back to.

const NUMBERS = ['first', 'second', 'row', 'of', 'k'];
const DEFAULTS = { view: 'map', first: 0, second: null, row: null, of: null, k: 12 };

export const state = { ...DEFAULTS };
const listeners = [];

function read() {
  const given = new URLSearchParams(location.hash.slice(1));
  for (const [key, value] of Object.entries(DEFAULTS)) {
    const text = given.get(key);
    const number = Number.parseInt(text, 10);
    if (text === null) state[key] = value;
    else if (text === 'none') state[key] = null;
    else if (!NUMBERS.includes(key)) state[key] = text;
    else state[key] = Number.isInteger(number) && number >= 0 ? number : value;
  }
  state.k = Math.max(1, Math.min(state.k, 200));
}

// What is shown where the address does not say it.
export function setDefaults(values) {
  Object.assign(DEFAULTS, values);
  read();
}

export function go(changes, replace = false) {
  const next = new URLSearchParams();
  for (const [key, value] of Object.entries({ ...state, ...changes })) {
    if (value !== DEFAULTS[key]) next.set(key, value ?? 'none');
  }
  const address = `#${next}`;
  if (address === location.hash || (address === '#' && !location.hash)) return;
  if (replace) history.replaceState(null, '', address);
  else history.pushState(null, '', address);
  changed();
}

function changed() {
  const before = { ...state };
  read();
  for (const listener of listeners) listener(before);
}

export function onChange(listener) {
  listeners.push(listener);
}

export function start() {
  read();
  addEventListener('popstate', changed);
  addEventListener('hashchange', changed);
}
