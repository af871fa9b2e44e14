// The query and its neighbours, for one collection or two side by side.

import * as api from './api.js';
import { byId, count, el, fill, note, picture, say } from './dom.js';
import { go, state } from './state.js';

let shown = 0; // grows with every query, so that a late answer does not replace a newer one
let failing = { rows: [], at: -1, key: '' };

// What is searched, which every figure depends on: how many images, of how many classes.
export function describeGallery(side) {
  const { items, classes } = side.gallery;
  const of = classes ? ` of ${count(classes, 'class', 'classes')}` : '';
  const sample = side.settings.shown < side.settings.items ? `, a sample of ${count(side.settings.items, 'item')}` : '';
  return `Measured in a gallery of ${count(items, 'image')}${of}${sample}`;
}

export function build(page) {
  const classes = page.first.classes;
  const pick = el(
    'select',
    {
      id: 'class',
      title: 'A random query of a class',
      onchange: () => {
        if (pick.value) randomOf(page, Number(pick.value));
        pick.value = '';
      },
    },
    el('option', { value: '', textContent: 'of class …' }),
    ...classes.map((name, code) => el('option', { value: code, textContent: name })),
  );
  pick.hidden = !classes.length;
  const file = el('input', {
    type: 'file',
    accept: 'image/*',
    id: 'file',
    hidden: true,
    onchange: () => {
      if (file.files[0]) search(page, file.files[0]);
      file.value = '';
    },
  });
  const open = el('button', {
    id: 'upload',
    textContent: 'Image …',
    title: 'Search with a file; or drop or paste one',
    onclick: () => file.click(),
  });
  open.hidden = !page.first.uploads;
  fill(
    byId('query'),
    el(
      'div',
      { className: 'tools' },
      el('button', { id: 'random', textContent: 'Random', title: 'A random query (r)', onclick: () => random(page) }),
      pick,
      el('button', {
        id: 'worst',
        textContent: 'Next mistake',
        title: 'Worst first (n)',
        hidden: !classes.length,
        onclick: () => step(page, 1),
      }),
      open,
      file,
    ),
    el('div', { id: 'answer' }, note('Loading …')),
  );
}

export const random = (page) => go({ row: Math.floor(Math.random() * (page.first.queries || page.first.count)) });

async function randomOf(page, code) {
  const { codes } = await api.points(page.first.version, page.first.count, 'pca');
  const rows = [];
  codes.forEach((value, row) => {
    if (value === code && row < (page.first.queries || page.first.count)) rows.push(row);
  });
  if (rows.length) go({ row: rows[Math.floor(Math.random() * rows.length)] });
}

// The next query whose nearest neighbour is of another class, worst first.
export async function step(page, by) {
  try {
    const key = `${page.first.version}/${state.of}`;
    if (failing.key !== key) {
      const found = await api.failures(page.first.version, state.of, 0, 1000);
      failing = { rows: found.items.map((item) => item.row), at: -1, key };
    }
    if (!failing.rows.length) {
      say('No mistakes: every query finds its class first.', 'fine');
      return;
    }
    const here = failing.rows.indexOf(state.row);
    failing.at = ((here >= 0 ? here : failing.at) + by + failing.rows.length) % failing.rows.length;
    go({ row: failing.rows[failing.at] });
  } catch (error) {
    say(error.message);
  }
}

// Show the neighbours of the row in the address.
export async function show(page) {
  const turn = ++shown;
  const { row, k } = state;
  if (row === null) {
    fill(
      byId('answer'),
      note('Pick a query: at random, by class, a mistake, a point of the map, or an image of your own.'),
    );
    return;
  }
  if (row >= page.first.count) {
    say(`There is no image ${row}; the last one is ${page.first.count - 1}.`);
    return;
  }
  const sides = page.second ? [page.first, page.second] : [page.first];
  try {
    const found = await Promise.all(sides.map((side) => api.neighbours(side.version, row, k)));
    if (turn !== shown) return;
    say('');
    draw(page, picture(api.image(page.first.version, row, 320), 'query'), found[0].query, sides, found, turn);
  } catch (error) {
    if (turn === shown) say(error.message);
  }
}

export async function search(page, file) {
  const turn = ++shown;
  const sides = page.second && page.mode === 'runs' ? [page.first, page.second] : [page.first];
  fill(byId('answer'), el('p', { className: 'note', textContent: 'Searching …' }));
  try {
    const found = await Promise.all(
      sides.map((side) => api.upload(page.mode, side.version, file, state.k, side.classes)),
    );
    if (turn !== shown) return;
    say('');
    go({ row: null }, true);
    draw(
      page,
      el('img', { src: URL.createObjectURL(file), alt: 'your image' }),
      { id: file.name || 'your image', class: null },
      sides,
      found,
      turn,
    );
  } catch (error) {
    if (turn !== shown) return;
    fill(byId('answer'), el('p', { className: 'note', textContent: 'Nothing found.' }));
    say(error.message);
  }
}

function draw(page, asked, item, sides, found, turn) {
  const name = page.first.classes[item.class] ?? '';
  const others = sides.length > 1 ? found.map((answer) => new Set(answer.neighbours.map((hit) => hit.id))) : [];
  const columns = sides.map((side, n) => {
    const hits = found[n].neighbours;
    const known = hits.filter((hit) => hit.right !== null);
    const title = known.length
      ? `${side.name}: ${known.filter((hit) => hit.right).length} of ${known.length} right`
      : `${side.name}: ${count(hits.length, 'neighbour')}`;
    const cards = hits.map((hit) => card(side, hit, others.length > 0 && !others[1 - n].has(hit.id)));
    return el(
      'section',
      { className: 'side' },
      el('h3', { textContent: title }),
      el('div', { className: 'grid neighbours' }, ...cards),
    );
  });
  fill(
    byId('answer'),
    el(
      'figure',
      { id: 'asked' },
      asked,
      el('figcaption', {}, el('b', { textContent: name || 'query' }), el('span', { textContent: item.id })),
    ),
    el('div', { className: sides.length > 1 ? 'sides two' : 'sides' }, ...columns),
    sides.length > 1 ? note('A dot marks neighbours that the other run does not find.') : null,
    page.first.classes.length ? note(`${describeGallery(page.first)}.`) : null,
  );
  if (innerWidth <= 800 && turn > 1) byId('query').scrollIntoView({ behavior: 'smooth' });
}

function card(side, hit, fresh) {
  const name = hit.class === null ? '' : (side.classes[hit.class] ?? '');
  const verdict = hit.right === null ? '' : hit.right ? ' right' : ' wrong';
  const source =
    hit.row === undefined
      ? `/image/${hit.id.split('/').map(encodeURIComponent).join('/')}?size=160`
      : api.image(side.version, hit.row);
  const mark = hit.right === null ? '' : hit.right ? '✓ ' : '✗ ';
  return el(
    'button',
    {
      className: `card${verdict}${fresh ? ' fresh' : ''}`,
      title: `${hit.id}${name ? `\n${name}` : ''}`,
      onclick: () => {
        if (hit.row !== undefined) go({ row: hit.row });
      },
    },
    picture(source, hit.id),
    el('span', { textContent: name }),
    el('small', { textContent: `${mark}${hit.similarity.toFixed(3)}` }),
  );
}
