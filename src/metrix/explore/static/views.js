// The views beside the map: mistakes, confusions, changes between two runs, measures and curves.

import * as api from './api.js';
import { count, el, fill, note, picture } from './dom.js';
import { describeGallery } from './query.js';
import { go, state } from './state.js';

export { measures } from './measures.js';

const cards = (side, items) =>
  el(
    'div',
    { className: 'grid' },
    ...items.map((item) =>
      el(
        'button',
        {
          className: `card${item.row === state.row ? ' current' : ''}`,
          title: item.id,
          onclick: () => go({ row: item.row }),
        },
        picture(api.image(side.version, item.row), item.id),
        el('span', { textContent: side.classes[item.class] ?? '' }),
      ),
    ),
  );

export async function mistakes(page, place) {
  const side = page.first;
  if (!side.classes.length) return fill(place, note('There are no classes, so nothing is right or wrong.'));
  const found = await api.failures(side.version, state.of, 0, 120);
  const of = state.of === null ? null : side.classes[state.of];
  const share = found.asked ? ` of ${count(found.asked, 'query', 'queries')}` : '';
  const title = found.total
    ? `${count(found.total, 'mistake')}${of === null ? share : ` on ${of}`}, worst first`
    : 'No mistakes';
  fill(
    place,
    el('h2', { textContent: title }),
    of === null ? null : el('button', { textContent: 'All classes', onclick: () => go({ of: null }) }),
    note(`${describeGallery(side)}.`),
    note(
      'A mistake is a query whose nearest neighbour is of another class; first those with the fewest right among ten.',
    ),
    cards(side, found.items),
  );
}

export async function confusion(page, place) {
  const side = page.first;
  const found = side.classes.length ? await api.confusion(side.version) : { total: 0, pairs: [] };
  if (!found.pairs.length)
    return fill(
      place,
      el('h2', { textContent: 'No confusions' }),
      note('No image is nearest to one of another class.'),
    );
  const most = found.pairs[0].count;
  const row = (pair) =>
    el(
      'tr',
      {
        tabIndex: 0,
        onclick: () => go({ view: 'mistakes', of: pair.of }),
        onkeydown: (event) => {
          if (event.key === 'Enter') go({ view: 'mistakes', of: pair.of });
        },
      },
      el('td', { textContent: side.classes[pair.of] }),
      el('td', { textContent: side.classes[pair.as] }),
      el('td', { className: 'number', textContent: pair.count.toLocaleString('en') }),
      el('td', { className: 'number', textContent: `${(100 * pair.share).toFixed(0)} %` }),
      el('td', { className: 'bar' }, el('i', { style: `width:${(100 * pair.count) / most}%` })),
    );
  const head = ['images of', 'nearest to', 'queries', 'of the class', ''].map((text) =>
    el('th', { textContent: text }),
  );
  fill(
    place,
    el('h2', { textContent: 'Which classes take each other’s neighbours' }),
    note(`${describeGallery(side)}; ${count(found.total, 'pair')} of classes. A line opens the mistakes of the class.`),
    el('table', { id: 'confusion' }, el('thead', {}, el('tr', {}, ...head)), el('tbody', {}, ...found.pairs.map(row))),
  );
}

export async function changes(page, place) {
  if (!page.second)
    return fill(
      place,
      el('h2', { textContent: 'Nothing to compare' }),
      note('Choose a second run above: metrix explore RUN RUN.'),
    );
  const found = await api.compare(page.first.version, page.second.version);
  const { codes } = await api.points(page.first.version, page.first.count, 'pca');
  const group = (title, rows) => [
    el('h3', { textContent: `${title}: ${rows.length.toLocaleString('en')}` }),
    cards(
      page.first,
      rows.slice(0, 120).map((row) => ({ row, id: `image ${row}`, class: codes[row] })),
    ),
  ];
  fill(
    place,
    el('h2', { textContent: `From ${page.first.name} to ${page.second.name}` }),
    note(
      `${count(found.both_right, 'query', 'queries')} right in both, ${found.both_wrong.toLocaleString('en')} wrong in both, by the nearest neighbour. ${describeGallery(page.first)}.`,
    ),
    ...group(`Only ${page.second.name} is right`, found.fixed),
    ...group(`Only ${page.first.name} is right`, found.broken),
  );
}
