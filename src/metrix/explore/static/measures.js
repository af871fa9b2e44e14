// The measures of one run or two, by metric and K, with training curves and settings.

import { el, fill, note, svg } from './dom.js';
import { describeGallery } from './query.js';

const LINES = ['var(--accent)', 'var(--wrong)'];

export async function measures(page, place) {
  const sides = page.second ? [page.first, page.second] : [page.first];
  const nodes = [el('h2', { textContent: 'Measures' })];
  if (page.first.measures.length) {
    nodes.push(tabulateByK(sides), tabulateOthers(sides), note(`In percent. ${describeGallery(page.first)}.`));
    const over = page.first.intervals_over;
    if (over) nodes.push(note(`In brackets: 95 % intervals over ${over}.`));
    if (page.first.caution) nodes.push(note(page.first.caution));
  } else nodes.push(note('An index has no measures; metrix explore RUN shows those of a run.'));
  const curves = [...new Set(sides.flatMap((side) => Object.keys(side.curves)))];
  if (curves.length && sides.length > 1)
    nodes.push(
      el(
        'p',
        { className: 'note' },
        ...sides.map((side, n) => el('b', { textContent: `— ${side.name}  `, style: `color:${LINES[n]}` })),
      ),
    );
  nodes.push(el('div', { className: 'curves' }, ...curves.map((name) => chart(name, sides))));
  const keys = [...new Set(sides.flatMap((side) => Object.keys(side.settings)))];
  nodes.push(
    el('h2', { textContent: 'Settings' }),
    table(
      'settings',
      [],
      keys.map((key) => [key, ...sides.map((side) => side.settings[key] ?? '')]),
    ),
  );
  fill(place, ...nodes);
}

// A line for each metric (of each run), a column for each K.
function tabulateByK(sides) {
  const atK = sides[0].measures.filter((measure) => measure.k !== null);
  const ks = [...new Set(atK.map((measure) => measure.k))];
  const rows = [];
  for (const metric of new Set(atK.map((measure) => measure.metric))) {
    const found = sides.map((side) => ks.map((k) => find(side, metric, k)));
    const shown = found.map((values, n) => values.map((value) => (repeats(value, sides[n]) ? undefined : value)));
    shown.forEach((values, n) => {
      rows.push([n ? '' : metric, ...(sides.length > 1 ? [sides[n].name] : []), ...values.map(percent)]);
    });
    if (sides.length > 1) rows.push(['', 'difference', ...shown[0].map((value, n) => difference(value, shown[1][n]))]);
  }
  return table('measures', ['', ...(sides.length > 1 ? ['run'] : []), ...ks.map((k) => `K = ${k}`)], rows);
}

// Metrics without a K: a line for each, a column for each run.
function tabulateOthers(sides) {
  const names = sides[0].measures.filter((measure) => measure.k === null).map((measure) => measure.metric);
  const rows = names.map((metric) => {
    const values = sides.map((side) => find(side, metric, null));
    return [metric, ...values.map(percent), ...(sides.length > 1 ? [difference(...values)] : [])];
  });
  const head = sides.length > 1 ? ['', ...sides.map((side) => side.name), 'difference'] : [];
  return table('other-measures', head, rows);
}

const find = (side, metric, k) => side.measures.find((measure) => measure.metric === metric && measure.k === k);

// At K = 1 most metrics are the same number, which is said once.
const repeats = (measure, side) =>
  measure?.k === 1 && measure.metric !== 'Recall@K' && measure.value === find(side, 'Recall@K', 1)?.value;

const table = (id, head, rows) =>
  el(
    'table',
    { id },
    head.length ? el('thead', {}, el('tr', {}, ...head.map((text) => el('th', { textContent: text })))) : null,
    el('tbody', {}, ...rows.map((cells) => el('tr', {}, ...cells.map((content) => el('td', {}, content))))),
  );

// A value in percent, its interval on a line of its own.
const percent = (measure) => {
  if (!measure) return '';
  const [low, high] = (measure.interval ?? []).map((bound) => (100 * bound).toFixed(1));
  const interval = measure.interval ? el('small', { textContent: `(${low}–${high})` }) : null;
  return el('span', {}, (100 * measure.value).toFixed(1), interval);
};

const difference = (one, other) => (one && other ? signed(100 * (other.value - one.value)) : '');
const signed = (value) => `${value >= 0 ? '+' : '−'}${Math.abs(value).toFixed(1)}`;

function chart(name, sides) {
  const all = sides.flatMap((side) => side.curves[name] ?? []);
  const [xs, ys] = [all.map((point) => point[0]), all.map((point) => point[1])];
  const [left, right, low, high] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  const x = (value) => 44 + (250 * (value - left)) / (right - left || 1);
  const y = (value) => 130 - (115 * (value - low)) / (high - low || 1);
  const label = (text, at, to, anchor) => {
    const node = svg('text', { x: at, y: to, 'text-anchor': anchor });
    node.textContent = text;
    return node;
  };
  const lines = sides.map((side, n) =>
    svg('polyline', {
      points: (side.curves[name] ?? []).map((point) => `${x(point[0])},${y(point[1])}`).join(' '),
      style: `stroke:${LINES[n]}`,
    }),
  );
  const marks = [
    label(high.toPrecision(3), 40, 20, 'end'),
    label(low.toPrecision(3), 40, 133, 'end'),
    label(left, 44, 146, 'start'),
    label(`step ${right}`, 294, 146, 'end'),
  ];
  return el(
    'figure',
    {},
    svg(
      'svg',
      { viewBox: '0 0 300 150', role: 'img', 'aria-label': `${name} by step` },
      svg('path', { d: 'M44 12V130H294' }),
      ...lines,
      ...marks,
    ),
    el('figcaption', { textContent: name }),
  );
}
