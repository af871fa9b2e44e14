// What the page asks of the server. An answer of 202 means that it is still being computed.

const wait = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

export class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

export async function ask(path, options = {}) {
  for (let pause = 200; ; pause = Math.min(2000, pause * 1.5)) {
    let answer;
    try {
      answer = await fetch(path, options);
    } catch {
      throw new Refused(0, 'The server does not answer. Is it still running?');
    }
    if (answer.status === 202) {
      await wait(pause);
      continue;
    }
    if (!answer.ok) throw new Refused(answer.status, await explain(answer));
    return answer;
  }
}

async function explain(answer) {
  try {
    const { detail } = await answer.json();
    return typeof detail === 'string' ? detail : JSON.stringify(detail);
  } catch {
    return `The server answered ${answer.status}.`;
  }
}

const json = async (path, options) => (await ask(path, options)).json();

export const collections = () => json('/explore');
export const neighbours = (version, row, k) => json(`/explore/${version}/query?row=${row}&k=${k}`);
export const failures = (version, of, start, many) =>
  json(`/explore/${version}/failures?start=${start}&count=${many}${of === null ? '' : `&of=${of}`}`);
export const confusion = (version) => json(`/explore/${version}/confusion`);
export const compare = (a, b) => json(`/explore/compare?a=${a}&b=${b}`);
export const image = (version, row, size = 160) => `/explore/${version}/image/${row}?size=${size}`;

// Columns of 32-bit floats, little-endian: x, y and the class of each point.
export async function points(version, count, kind) {
  const buffer = await (await ask(`/explore/${version}/points?map=${kind}`)).arrayBuffer();
  const column = (n) => new Float32Array(buffer, 4 * n * count, count);
  return { x: column(0), y: column(1), codes: column(2) };
}

export async function right(version) {
  return new Int8Array(await (await ask(`/explore/${version}/right`)).arrayBuffer());
}

const kept = new Map();
export function ids(version) {
  if (!kept.has(version)) kept.set(version, json(`/explore/${version}/ids`));
  return kept.get(version);
}

// Neighbours of an uploaded image, in the form that `neighbours` gives.
export async function upload(mode, version, file, k, classes) {
  const body = new FormData();
  body.append('image', file);
  if (mode === 'runs') return json(`/explore/${version}/query?k=${k}`, { method: 'POST', body });
  const found = await json(`/search?k=${k}`, { method: 'POST', body });
  const rows = new Map((await ids(version)).map((id, row) => [id, row]));
  const hits = found.neighbours.map((hit) => {
    const row = rows.get(String(hit.id));
    return {
      ...hit,
      id: String(hit.id),
      row,
      class: hit.label === undefined ? null : classes.indexOf(hit.label),
      right: null,
    };
  });
  return { query: null, neighbours: hits };
}
