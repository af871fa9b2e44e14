// The views beside the map: mistakes, confusions, changes between two runs, measures and curves.

import * as api from './api.js';
import { count, el, fill, picture, svg } from './dom.js';
import { go, state } from './state.js';

const LINES = ['var(--accent)', 'var(--wrong)'];

const cards = (side, items) =>
  el('div', { className: 'grid' }, ...items.map((item) =>
    el(
      'button', { className: `card${item.row === state.row ? ' current' : ''}`, title: item.id, onclick: () => go({ row: item.row }) },
      picture(api.image(side.version, item.row), item.id), el('span', { textContent: side.classes[item.class] ?? '' }),
    )));

export async function mistakes(page, place) {
  const side = page.first;
  if (!side.classes.length) return fill(place, note('There are no classes, so nothing is right or wrong.'));
  const found = await api.failures(side.version, state.of, 0, 120);
  const of = state.of === null ? null : side.classes[state.of];
  const share = found.asked ? ` of ${found.asked.toLocaleString('en')} queries` : '';
  const title = found.total ? `${count(found.total, 'mistake')}${of === null ? share : ` on ${of}`}, worst first` : 'No mistakes';
  fill(place, 
    el('h2', { textContent: title }),
    of === null ? null : el('button', { textContent: 'All classes', onclick: () => go({ of: null }) }),
    note('Queries whose nearest neighbour is of another class: first those with the fewest right ones among ten, and the surest of these.'),
    cards(side, found.items),
  );
}

export async function confusion(page, place) {
  const side = page.first;
  const found = side.classes.length ? await api.confusion(side.version) : { total: 0, pairs: [] };
  if (!found.pairs.length) return fill(place, el('h2', { textContent: 'No confusions' }), note('No image is nearest to one of another class.'));
  const most = found.pairs[0].count;
  const row = (pair) =>
    el(
      'tr', { tabIndex: 0, onclick: () => go({ view: 'mistakes', of: pair.of }), onkeydown: (event) => { if (event.key === 'Enter') go({ view: 'mistakes', of: pair.of }); } },
      el('td', { textContent: side.classes[pair.of] }), el('td', { textContent: side.classes[pair.as] }),
      el('td', { className: 'number', textContent: pair.count.toLocaleString('en') }), el('td', { className: 'number', textContent: `${(100 * pair.share).toFixed(0)} %` }),
      el('td', { className: 'bar' }, el('i', { style: `width:${(100 * pair.count) / most}%` })),
    );
  const head = ['images of', 'nearest to', 'queries', 'of the class', ''].map((text) => el('th', { textContent: text }));
  fill(place, 
    el('h2', { textContent: 'Which classes take each other’s neighbours' }),
    note(`${count(found.total, 'pair')} of classes; a line opens the mistakes of the class.`),
    el('table', { id: 'confusion' }, el('thead', {}, el('tr', {}, ...head)), el('tbody', {}, ...found.pairs.map(row))),
  );
}

export async function changes(page, place) {
  if (!page.second) return fill(place, el('h2', { textContent: 'Nothing to compare' }), note('Choose a second run above: metrix explore RUN RUN.'));
  const found = await api.compare(page.first.version, page.second.version);
  const { codes } = await api.points(page.first.version, page.first.count, 'pca');
  const group = (title, rows) => [
    el('h3', { textContent: `${title}: ${rows.length.toLocaleString('en')}` }),
    cards(page.first, rows.slice(0, 120).map((row) => ({ row, id: `image ${row}`, class: codes[row] }))),
  ];
  fill(place, 
    el('h2', { textContent: `From ${page.first.name} to ${page.second.name}` }),
    note(`${count(found.both_right, 'query').replace('querys', 'queries')} right in both, ${found.both_wrong.toLocaleString('en')} wrong in both, by the nearest neighbour.`),
    ...group(`Only ${page.second.name} is right`, found.fixed), ...group(`Only ${page.first.name} is right`, found.broken),
  );
}

export async function measures(page, place) {
  const sides = page.second ? [page.first, page.second] : [page.first];
  const nodes = [el('h2', { textContent: 'Measures' })];
  const names = page.first.measures.map((measure) => measure.name);
  const find = (side, name) => side.measures.find((measure) => measure.name === name);
  if (names.length) {
    const head = ['', ...sides.map((side) => side.name), ...(sides.length > 1 ? ['difference'] : [])].map((text) => el('th', { textContent: text }));
    const cell = (measure) => el('td', { className: 'number', textContent: measure ? percent(measure) : '' });
    const row = (name) => {
      const values = sides.map((side) => find(side, name));
      const difference = sides.length > 1 && values[0] && values[1] ? [el('td', { className: 'number', textContent: signed(100 * (values[1].value - values[0].value)) })] : [];
      return el('tr', {}, el('td', { textContent: name }), ...values.map(cell), ...difference);
    };
    nodes.push(el('table', { id: 'measures' }, el('thead', {}, el('tr', {}, ...head)), el('tbody', {}, ...names.map(row))));
    if (sides.some((side) => side.measures.some((measure) => measure.interval))) nodes.push(note('In percent, with 95 % intervals over classes.'));
  } else nodes.push(note('An index has no measures; metrix explore RUN shows those of a run.'));
  const curves = [...new Set(sides.flatMap((side) => Object.keys(side.curves)))];
  if (curves.length && sides.length > 1) nodes.push(el('p', { className: 'note' }, ...sides.map((side, n) => el('b', { textContent: `— ${side.name}  `, style: `color:${LINES[n]}` }))));
  nodes.push(el('div', { className: 'curves' }, ...curves.map((name) => chart(name, sides))));
  const keys = [...new Set(sides.flatMap((side) => Object.keys(side.settings)))];
  nodes.push(
    el('h2', { textContent: 'Settings' }),
    el('table', {}, el('tbody', {}, ...keys.map((key) => el('tr', {}, el('td', { textContent: key }), ...sides.map((side) => el('td', { textContent: side.settings[key] ?? '' })))))),
  );
  fill(place, ...nodes);
}

function chart(name, sides) {
  const all = sides.flatMap((side) => side.curves[name] ?? []);
  const [xs, ys] = [all.map((point) => point[0]), all.map((point) => point[1])];
  const [left, right, low, high] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  const x = (value) => 44 + (250 * (value - left)) / (right - left || 1);
  const y = (value) => 130 - (115 * (value - low)) / (high - low || 1);
  const label = (text, at, to, anchor) => { const node = svg('text', { x: at, y: to, 'text-anchor': anchor }); node.textContent = text; return node; };
  const lines = sides.map((side, n) => svg('polyline', { points: (side.curves[name] ?? []).map((point) => `${x(point[0])},${y(point[1])}`).join(' '), style: `stroke:${LINES[n]}` }));
  const marks = [label(high.toPrecision(3), 40, 20, 'end'), label(low.toPrecision(3), 40, 133, 'end'), label(left, 44, 146, 'start'), label(`step ${right}`, 294, 146, 'end')];
  return el('figure', {}, svg('svg', { viewBox: '0 0 300 150', role: 'img', 'aria-label': `${name} by step` }, svg('path', { d: 'M44 12V130H294' }), ...lines, ...marks), el('figcaption', { textContent: name }));
}

const note = (text) => el('p', { className: 'note', textContent: text });
const signed = (value) => `${value >= 0 ? '+' : '−'}${Math.abs(value).toFixed(1)}`;
const percent = ({ value, interval }) => `${(100 * value).toFixed(1)}${interval ? ` (${(100 * interval[0]).toFixed(1)}–${(100 * interval[1]).toFixed(1)})` : ''}`;
