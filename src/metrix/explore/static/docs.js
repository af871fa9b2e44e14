// The API, from its own OpenAPI description.

import { ask } from './api.js';
import { byId, el, fill, say } from './dom.js';

function kind(schema = {}) {
  const one = schema.anyOf
    ? schema.anyOf
        .filter((part) => part.type !== 'null')
        .map(kind)
        .join(' or ')
    : (schema.type ?? schema.$ref?.split('/').pop() ?? '');
  const bounds = [
    schema.minimum !== undefined ? `≥ ${schema.minimum}` : '',
    schema.maximum !== undefined ? `≤ ${schema.maximum}` : '',
  ];
  return [
    one === 'array' ? `several ${kind(schema.items)}` : one,
    ...bounds,
    schema.default !== undefined && schema.default !== null ? `default ${JSON.stringify(schema.default)}` : '',
  ]
    .filter(Boolean)
    .join(', ');
}

const table = (rows) =>
  el(
    'table',
    {},
    el('tbody', {}, ...rows.map((cells) => el('tr', {}, ...cells.map((text) => el('td', { textContent: text }))))),
  );

// How to ask with curl: a line for each kind of body.
function example(method, path, operation) {
  const query = path === '/search' ? (method === 'get' ? '?id=ID&k=10' : '?k=10') : '';
  const address = `'${location.origin}${path.replace('{id}', 'ID')}${query}'`;
  const verb = ['get', 'post'].includes(method) ? '' : `-X ${method.toUpperCase()} `;
  const bodies = operation.requestBody?.content;
  if (!bodies) return `curl ${method === 'post' ? '-X POST ' : verb}${address}`;
  const lines = {
    'multipart/form-data': () => `-F image=@query.jpg ${address}`,
    'application/json': ({ schema }) =>
      `-H 'Content-Type: application/json' -d '${JSON.stringify(schema.example)}' ${address}`,
  };
  return Object.entries(bodies)
    .map(([kind, body]) => `curl ${verb}${lines[kind](body)}`)
    .join('\n');
}

function describe(path, method, operation) {
  const parameters = (operation.parameters ?? []).map((one) => [
    one.name,
    one.in,
    kind(one.schema),
    one.description ?? '',
  ]);
  const bodies = Object.entries(operation.requestBody?.content ?? {}).flatMap(([type, { schema }]) =>
    Object.entries(schema.properties ?? {}).map(([name, one]) => [name, type, kind(one), one.description ?? '']),
  );
  const answers = Object.entries(operation.responses).map(([status, one]) => [status, one.description]);
  return el(
    'section',
    {},
    el('h2', { textContent: `${method.toUpperCase()} ${path}` }),
    el('p', { textContent: operation.summary ?? '' }),
    el('pre', { textContent: example(method, path, operation) }),
    parameters.length + bodies.length ? table([...parameters, ...bodies]) : null,
    el('details', {}, el('summary', { textContent: 'Answers' }), table(answers)),
  );
}

try {
  const { paths } = await (await ask('/openapi.json')).json();
  const all = Object.entries(paths).flatMap(([path, operations]) =>
    Object.entries(operations).map(([method, one]) => describe(path, method, one)),
  );
  fill(byId('operations'), ...all);
} catch (error) {
  say(error.message);
}
