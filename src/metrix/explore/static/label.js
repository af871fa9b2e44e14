// Doubtful labels one after another: what is asked comes from the server, and each decision is written there at once.

import { ask } from './api.js';
import { byId, el, fill, note, picture, say } from './dom.js';
import { askForToken } from './token.js';

const AT_ONCE = 20;
// Also for the browser's console.
const page = { about: null, at: 0, known: new Map(), skipped: new Set(), history: [], of: null, busy: false };
globalThis.metrix = page;

const json = async (path, options) => (await ask(path, options)).json();
const imageOf = (id, size) => `/image/${id.split('/').map(encodeURIComponent).join('/')}?size=${size}`;
const current = () => page.known.get(page.at);

async function open() {
  say('Looking for doubtful labels …', 'fine');
  try {
    page.about = await json('/labelling');
  } catch (error) {
    if (error.status === 401) return askForToken();
    return say(error.message);
  }
  page.left = new Set(page.about.left);
  document.title = `${page.about.name} – metrix label`;
  say(page.about.writable ? '' : `Read-only: ${page.about.locked}.`);
  byId('unlock').hidden = page.about.writable || !page.about.tokens;
  byId('who').value = remembered() ?? page.about.who;
  listClasses();
  listen();
  await show(page.about.left[0] ?? page.about.total);
  document.body.dataset.ready = 'yes';
}

function listClasses() {
  fill(byId('classes'), ...page.about.classes.map((name) => el('option', { value: name })));
}

async function load(at) {
  if (at < 0 || at >= page.about.total) return;
  if (!page.known.has(at)) {
    const start = at - (at % AT_ONCE);
    const found = await json(`/labelling/questions?start=${start}&count=${AT_ONCE}`);
    found.forEach((one, n) => {
      if (!page.known.has(start + n)) page.known.set(start + n, one);
    });
  }
  return page.known.get(at);
}

// Show one question; past the last one, what is done.
async function show(at) {
  try {
    await load(at);
  } catch (error) {
    return say(error.message);
  }
  page.at = at;
  page.of = null;
  count();
  if (current()) drawQuestion(current());
  else drawEnd();
  document.body.dataset.at = at;
  load(nextOpen(at)).then(
    (one) => {
      if (one) new Image().src = imageOf(one.id, 768); // so that it is there at once
    },
    () => {},
  );
}

function count() {
  const decided = page.about.total - page.left.size;
  byId('done').max = Math.max(1, page.about.total);
  byId('done').value = decided;
  byId('count').textContent = `${decided.toLocaleString('en')} of ${page.about.total.toLocaleString('en')}`;
}

// The next question that is open and was not skipped; then those that were; then the end.
function nextOpen(from) {
  const open = [...page.left].sort((a, b) => a - b);
  const fresh = open.filter((at) => !page.skipped.has(at));
  return fresh.find((at) => at > from) ?? fresh.find((at) => at !== from) ?? page.about.total;
}

function drawQuestion(one) {
  const writable = page.about.writable;
  const action = (key, title, decision, possible = true) =>
    el(
      'button',
      { id: `do-${decision}`, disabled: !writable || !possible, onclick: () => actions[key]?.() },
      el('kbd', { textContent: key }),
      title,
    );
  const named = (title, name, kind) =>
    el('span', { className: kind }, el('small', { textContent: title }), el('b', { textContent: name ?? 'none' }));
  fill(
    byId('page'),
    el(
      'section',
      { id: 'item' },
      el('figure', {}, picture(imageOf(one.id, 768), one.id), el('figcaption', { textContent: one.id })),
      el(
        'div',
        { className: 'labels' },
        named('label', one.label, 'own'),
        one.proposed === null ? null : named('proposed', one.proposed, 'proposed'),
      ),
      note(`${one.reason}: ${one.said}`),
      one.decision ? el('p', { className: 'decided', textContent: `Decided: ${describe(one.decision)}` }) : null,
      el(
        'div',
        { className: 'actions' },
        action('k', 'Keep', 'keep', one.label !== null),
        action('a', `Accept ${one.proposed ?? ''}`, 'accept', one.proposed !== null),
        action('r', 'Relabel …', 'relabel'),
        action('n', 'New class …', 'class'),
        action('d', 'Delete', 'delete'),
        action('m', 'Duplicate', 'duplicate', one.neighbours.length > 0),
        el('button', { id: 'do-skip', onclick: skip }, el('kbd', { textContent: 's' }), 'Skip'),
        action('u', 'Undo', 'undo', one.decision !== null || page.history.length > 0),
      ),
      el('div', { id: 'named' }),
    ),
    el(
      'section',
      { id: 'beside' },
      el('h2', { textContent: 'Nearest' }),
      el('div', { className: 'grid' }, ...one.neighbours.map((near) => card(one, near))),
      note('Green: of the same label. Blue: of the proposed one. Click one to mark a duplicate of it.'),
    ),
  );
}

function card(one, near) {
  const kind =
    near.label !== null && near.label === one.label ? ' same' : near.label === one.proposed ? ' proposed' : '';
  const button = el(
    'button',
    {
      className: `card${kind}`,
      title: near.id,
      onclick: () => {
        page.of = page.of === near.id ? null : near.id;
        for (const other of document.querySelectorAll('#beside .card'))
          other.setAttribute('aria-pressed', String(other.title === page.of));
        button.blur();
      },
    },
    picture(imageOf(near.id, 160), near.id),
    el('span', { textContent: near.label ?? 'no label' }),
    el('small', { textContent: near.similarity.toFixed(3) }),
  );
  return button;
}

const describe = (made) => {
  const what = { keep: 'kept', delete: 'deleted', duplicate: `duplicate of ${made.of}` };
  return `${what[made.decision] ?? made.new}${made.who ? `, by ${made.who}` : ''}, ${made.when}`;
};

function drawEnd() {
  const skipped = page.left.size;
  fill(
    byId('page'),
    el(
      'section',
      { id: 'item' },
      el('h2', { id: 'end', textContent: page.about.total ? 'That was the last one' : 'No label looks doubtful' }),
      note(`Decisions are in ${page.about.file}. They change nothing until the index takes them over:`),
      el('pre', { textContent: `metrix index -o ${page.about.name} --relabel ${page.about.file}` }),
      el(
        'div',
        { className: 'actions' },
        skipped
          ? el('button', { id: 'again', textContent: `Ask the ${skipped} skipped again`, onclick: askAgain })
          : null,
        page.history.length ? el('button', { onclick: undo }, el('kbd', { textContent: 'u' }), 'Undo') : null,
      ),
    ),
  );
}

function askAgain() {
  page.skipped.clear();
  show(nextOpen(-1));
}

function skip() {
  if (!current()) return;
  page.skipped.add(page.at);
  show(nextOpen(page.at));
}

async function send(at, one, body) {
  const made = await json('/labelling/decisions', {
    method: 'POST',
    headers: { 'Content-Type': 'application/json' },
    body: JSON.stringify({ id: one.id, who: byId('who').value.trim(), ...body }),
  });
  one.decision = made.made.decision === 'undo' ? null : made.made;
  if (one.decision) page.left.delete(at);
  else page.left.add(at);
  return made;
}

async function decide(body) {
  const [at, one] = [page.at, current()];
  if (!one || page.busy || !page.about.writable) return;
  page.busy = true;
  try {
    const { made, before } = await send(at, one, body);
    page.history.push(at);
    page.skipped.delete(at);
    if (made.new !== null && !page.about.classes.includes(made.new)) {
      page.about.classes.push(made.new);
      listClasses();
    }
    say(before ? `It was decided before (${describe(before)}); now yours counts.` : '', 'fine');
    await show(nextOpen(at));
  } catch (error) {
    say(error.message);
  } finally {
    page.busy = false;
  }
}

// Take back the decision on what is shown; else the last one that was made here.
async function undo() {
  if (page.busy || !page.about.writable) return;
  const at = current()?.decision ? page.at : page.history.at(-1);
  if (at === undefined) return;
  page.busy = true;
  try {
    await send(at, await load(at), { decision: 'undo' });
    page.history = page.history.filter((other) => other !== at);
    say('');
    await show(at);
  } catch (error) {
    say(error.message);
  } finally {
    page.busy = false;
  }
}

// A field for a class, with those that there are; or for a new one.
function name(fresh) {
  const one = current();
  if (!one || !page.about.writable) return;
  const field = el('input', {
    id: 'name',
    maxLength: 200,
    autocomplete: 'off',
    placeholder: fresh ? 'Name of a new class' : 'Class',
    'aria-label': fresh ? 'Name of a new class' : 'Class',
  });
  if (!fresh) field.setAttribute('list', 'classes');
  const give = (event) => {
    event.preventDefault();
    const typed = field.value.trim();
    const there = page.about.classes.includes(typed);
    if (!typed) return;
    if (fresh && there) return say(`There is a class ${typed} already; press r to choose it.`);
    const begin = page.about.classes.filter((one) => one.toLowerCase().startsWith(typed.toLowerCase()));
    if (!fresh && !there && begin.length !== 1)
      return say(
        begin.length
          ? `${begin.length} classes begin with ${typed}; type more, or choose one from the list.`
          : `There is no class ${typed}; press n for a new one.`,
      );
    const label = fresh || there ? typed : begin[0];
    decide({ decision: fresh ? 'class' : 'relabel', label });
  };
  fill(
    byId('named'),
    el('form', { id: 'naming', onsubmit: give }, field, el('button', { textContent: fresh ? 'Create' : 'Relabel' })),
  );
  field.addEventListener('keydown', (event) => {
    if (event.key !== 'Escape') return;
    fill(byId('named'));
    event.stopPropagation();
  });
  field.focus();
}

const actions = {
  k: () => current()?.label !== null && decide({ decision: 'keep' }),
  a: () => current()?.proposed && decide({ decision: 'accept', label: current().proposed }),
  r: () => name(false),
  n: () => name(true),
  d: () => decide({ decision: 'delete' }),
  m: () => current()?.neighbours.length && decide({ decision: 'duplicate', of: page.of ?? current().neighbours[0].id }),
  s: skip,
  u: undo,
  ArrowLeft: () => page.at > 0 && show(page.at - 1),
  ArrowRight: () => page.at < page.about.total && show(page.at + 1),
  '?': () => byId('help').showModal(),
};

function listen() {
  addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
    if (event.target.closest('input, select, textarea, dialog')) return;
    if (!Object.hasOwn(actions, event.key)) return;
    event.preventDefault();
    actions[event.key]();
  });
  byId('help-open').onclick = () => byId('help').showModal();
  byId('unlock').onclick = askForToken;
  byId('who').onkeydown = (event) => {
    if (event.key === 'Enter') byId('who').blur();
  };
  byId('who').onchange = () => {
    try {
      localStorage.setItem('metrix-who', byId('who').value.trim());
    } catch {
      /* without storage it lasts until the page is left */
    }
  };
}

function remembered() {
  try {
    return localStorage.getItem('metrix-who');
  } catch {
    return null;
  }
}

open();
