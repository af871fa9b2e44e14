// The map of all images: points to hover over, to click, and to draw around.

import * as api from './api.js';
import { byId, count, download, el, fill, note, picture } from './dom.js';
import createPubSub from './vendor/pub-sub-es.js';

export const COLOURS = [
  '#4477aa',
  '#ee6677',
  '#228833',
  '#ccbb44',
  '#66ccee',
  '#aa3377',
  '#ee7733',
  '#009988',
  '#cc3311',
  '#33bbee',
  '#997700',
  '#6699cc',
  '#994455',
  '#77aa55',
  '#bb88cc',
  '#888888',
];
const FEW = { class: 'class', right: 'right or wrong' };
const MANY = { right: 'right or wrong', query: 'class of the query' };
const EXPLAINED = {
  class: '',
  right: 'green: the nearest neighbour is of the class; red: of another',
  query: 'blue: the class of the query',
};
const QUICK = 20000; // images whose mistakes are found within seconds
const RIGHT_WRONG = ['#9a9a9a', '#d1495b', '#2a9d5c']; // no query, wrong, right
const QUERY = ['#b4b4b4', '#2f6db3']; // another class, that of the query
const GALLERY = 60;
const LEGEND = 40;

let loading = null;
function library() {
  globalThis.createPubSub = createPubSub;
  const script = (name) =>
    new Promise((resolve, reject) => {
      const failed = () => reject(new Error(`${name} cannot be loaded`));
      document.head.append(el('script', { src: `/static/vendor/${name}`, onload: resolve, onerror: failed }));
    });
  loading ??= script('regl.min.js').then(() => script('regl-scatterplot.min.js'));
  return loading.then(() => globalThis.createScatterplot.default);
}

export class PointMap {
  constructor(place, collection, { onQuery, onError }) {
    Object.assign(this, { place, collection, onQuery, onError });
    this.selected = [];
    this.marked = null; // the row of the query
    // More classes than colours cannot be told apart by colour.
    this.few = collection.classes.length <= COLOURS.length;
    this.colourBy = this.few ? 'class' : collection.count <= QUICK ? 'right' : 'query';
    this.build();
  }

  build() {
    this.canvas = el('canvas', {
      id: 'map',
      tabIndex: 0,
      ariaLabel: `Map of ${count(this.collection.count, 'image')}`,
    });
    this.lasso = el('button', {
      id: 'lasso',
      textContent: 'Select',
      title: 'Draw around points (s)',
      onclick: () => this.toggleLasso(),
    });
    this.lasso.setAttribute('aria-pressed', 'false');
    const reset = el('button', {
      textContent: 'Whole map',
      onclick: () => this.plot?.zoomToLocation([0, 0], this.distance, { transition: true }),
    });
    this.colouring = el(
      'select',
      { id: 'colouring', onchange: () => this.recolour().catch(this.onError) },
      ...Object.entries(this.few ? FEW : MANY).map(([value, text]) =>
        el('option', { value, textContent: `colour: ${text}` }),
      ),
    );
    this.colouring.value = this.colourBy;
    this.colouring.hidden = !this.collection.classes.length;
    this.note = el('span', { id: 'map-note', className: 'note' });
    this.selection = el('div', { id: 'selection' });
    fill(
      this.place,
      el('div', { className: 'tools' }, this.lasso, reset, this.colouring, this.note),
      el('div', { id: 'map-frame' }, this.canvas),
      this.selection,
    );
  }

  async start() {
    const { version, count: many } = this.collection;
    const [create, points] = await Promise.all([library(), api.points(version, many, 'pca')]);
    if (this.gone) return;
    const { width, height } = this.canvas.parentElement.getBoundingClientRect();
    this.distance = Math.max(1, height / width); // so that a narrow map shows all of it
    const size = many > 50000 ? 2 : many > 10000 ? 3 : many > 2000 ? 5 : 7;
    this.plot = create({
      canvas: this.canvas,
      width,
      height,
      cameraDistance: this.distance,
      pointSize: size,
      pointSizeSelected: 6,
      lassoOnLongPress: true,
      opacityBy: many > 20000 ? 'density' : null,
      opacity: 0.8,
      backgroundColor: colourOf('--paper'),
      lassoColor: colourOf('--accent'),
      pointOutlineWidth: 2,
    });
    this.plot.subscribe('pointOver', (row) => this.showTip(row));
    this.plot.subscribe('pointOut', () => {
      byId('tip').hidden = true;
    });
    this.plot.subscribe('select', ({ points: rows }) => this.take(rows));
    this.plot.subscribe('deselect', () => this.setSelection([]));
    this.observer = new ResizeObserver(([entry]) =>
      this.plot?.set({ width: entry.contentRect.width, height: entry.contentRect.height }),
    );
    this.observer.observe(this.canvas.parentElement);
    this.points = points;
    await this.draw();
    this.setSelection([]);
    document.body.dataset.map = 'pca';
    if (this.colourBy !== 'class') this.recolour().catch(this.onError);
    this.note.textContent = 'placing neighbours together …';
    api
      .points(version, many, 'tsne')
      .then((better) => this.refine(better))
      .catch(this.onError);
  }

  async refine(better) {
    if (this.gone) return;
    this.points = better;
    this.note.textContent = EXPLAINED[this.colourBy];
    await this.draw(this.collection.count <= 20000);
    document.body.dataset.map = 'tsne';
  }

  // One drawing after another: the plot loses one that begins while another moves the points.
  draw(moving = false) {
    this.drawing = (this.drawing ?? Promise.resolve()).then(() => this.drawNow(moving));
    return this.drawing;
  }

  async drawNow(moving) {
    if (!this.points || this.gone) return;
    const [colours, values] = this.colour();
    this.plot.set({ pointColor: colours, colorBy: 'valueA', backgroundColor: colourOf('--paper') });
    const options = { zDataType: 'categorical', transition: moving, transitionDuration: 800 };
    await this.plot.draw({ x: this.points.x, y: this.points.y, z: values }, options);
    if (this.selected.length) this.plot.select(this.selected, { preventEvent: true });
    else this.mark(this.marked);
    performance.mark('points drawn');
    document.body.dataset.drawn = String(this.collection.count);
  }

  // The colours of the map, and which of them each point has.
  colour() {
    const { codes } = this.points;
    if (this.colourBy === 'class') return [COLOURS, codes.map((code) => Math.max(0, code) % COLOURS.length)];
    if (this.colourBy === 'query') {
      const own = this.marked === null ? -1 : codes[this.marked];
      return [QUERY, codes.map((code) => (code >= 0 && code === own ? 1 : 0))];
    }
    return [RIGHT_WRONG, Float32Array.from(this.rightness ?? codes, this.rightness ? (value) => value + 1 : () => 0)];
  }

  async recolour() {
    this.colourBy = this.colouring.value;
    this.note.textContent = EXPLAINED[this.colourBy];
    if (this.colourBy === 'right') this.rightness ??= await api.right(this.collection.version);
    if (!this.gone) await this.draw();
  }

  toggleLasso(on = this.lasso.getAttribute('aria-pressed') !== 'true') {
    this.lasso.setAttribute('aria-pressed', String(on));
    this.plot?.set({ mouseMode: on ? 'lasso' : 'panZoom' });
  }

  take(rows) {
    if (rows.length === 1 && this.lasso.getAttribute('aria-pressed') !== 'true') {
      this.setSelection([]);
      this.onQuery(rows[0]);
      return;
    }
    this.setSelection(rows);
    this.toggleLasso(false);
  }

  select(rows) {
    this.plot?.select(rows, { preventEvent: true });
    this.setSelection(rows);
  }

  clear() {
    this.plot?.deselect({ preventEvent: true });
    this.toggleLasso(false);
    this.setSelection([]);
  }

  setSelection(rows) {
    this.selected = Array.from(rows);
    const { version, classes } = this.collection;
    const nodes = [];
    if (this.selected.length) {
      const save = el('button', {
        id: 'csv',
        textContent: 'Save as CSV',
        onclick: () => this.save().catch(this.onError),
      });
      const clear = el('button', { textContent: 'Clear', onclick: () => this.clear() });
      nodes.push(
        el('h2', { textContent: `Selection: ${count(this.selected.length, 'image')}` }),
        el('div', { className: 'tools' }, save, clear),
      );
    }
    if (classes.length && this.points) nodes.push(this.legend());
    if (this.selected.length) {
      nodes.push(
        el(
          'div',
          { id: 'selected', className: 'grid' },
          ...this.selected.slice(0, GALLERY).map((row) => this.thumbnail(version, row)),
        ),
      );
      if (this.selected.length > GALLERY)
        nodes.push(
          el('p', { className: 'note', textContent: `and ${count(this.selected.length - GALLERY, 'more image')}` }),
        );
    } else {
      nodes.push(
        el('p', {
          className: 'note',
          textContent:
            'Click a point to search with it. Hold Shift, or press Select, and draw around points to select them.',
        }),
      );
    }
    fill(this.selection, ...nodes);
  }

  thumbnail(version, row) {
    const code = this.points.codes[row];
    const name = this.collection.classes[code] ?? '';
    return el(
      'button',
      { className: 'card', onclick: () => this.onQuery(row), title: name },
      picture(api.image(version, row, 96), name),
      el('span', { textContent: name }),
    );
  }

  // Classes with how many of the selection, or of all images, they have; a click selects the class.
  legend() {
    const { classes, sizes } = this.collection;
    const counts = this.selected.length ? new Array(classes.length).fill(0) : sizes;
    for (const row of this.selected) counts[this.points.codes[row]] += 1;
    const shown = counts
      .map((many, code) => [many, code])
      .filter(([many]) => many)
      .sort((a, b) => b[0] - a[0] || a[1] - b[1]);
    const entry = ([many, code]) =>
      el(
        'button',
        { className: 'entry', title: `Select ${classes[code]}`, onclick: () => this.selectClass(code) },
        this.few ? el('i', { style: `background:${COLOURS[code % COLOURS.length]}` }) : null,
        el('span', { textContent: classes[code] }),
        el('b', { textContent: many.toLocaleString('en') }),
      );
    const rest = shown.length - LEGEND;
    const more = rest > 0 ? [note(`and ${count(rest, 'more class', 'more classes')}`)] : [];
    return el('div', { id: 'legend' }, ...shown.slice(0, LEGEND).map(entry), ...more);
  }

  selectClass(code) {
    const rows = [];
    this.points.codes.forEach((value, row) => {
      if (value === code) rows.push(row);
    });
    this.select(rows);
  }

  async save() {
    const { version, name, classes } = this.collection;
    const [names, rightness] = await Promise.all([api.ids(version), api.right(version)]);
    const quote = (text) => `"${String(text).replaceAll('"', '""')}"`;
    const words = { '-1': '', 0: 'no', 1: 'yes' };
    const line = (row) =>
      [
        row,
        quote(names[row]),
        quote(classes[this.points.codes[row]] ?? ''),
        this.points.x[row],
        this.points.y[row],
        words[rightness[row]],
      ].join(',');
    download(`${name}-selection.csv`, ['row,id,class,x,y,right', ...this.selected.map(line), ''].join('\n'));
  }

  showTip(row) {
    const tip = byId('tip');
    const name = this.collection.classes[this.points.codes[row]] ?? '';
    fill(
      tip,
      picture(api.image(this.collection.version, row), ''),
      el('span', { textContent: name || `image ${row}` }),
    );
    const [x, y] = this.plot.getScreenPosition(row) ?? [0, 0];
    const frame = this.canvas.getBoundingClientRect();
    tip.hidden = false;
    tip.style.left = `${Math.min(frame.left + x + 14, innerWidth - 150)}px`;
    tip.style.top = `${Math.min(frame.top + y + 14, innerHeight - 170)}px`;
  }

  mark(row) {
    const changed = row !== this.marked;
    this.marked = row;
    if (changed && this.colourBy === 'query') this.draw().catch(this.onError);
    if (!this.plot || !this.points || this.selected.length) return;
    if (row !== null && row < this.collection.count) this.plot.select([row], { preventEvent: true });
    else this.plot.deselect({ preventEvent: true });
  }

  stop() {
    this.gone = true;
    byId('tip').hidden = true;
    this.observer?.disconnect();
    this.plot?.destroy();
  }
}

const colourOf = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
