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

function example(method, path, operation) {
  const address = `${location.origin}${path.replace('{id}', 'ID')}`;
  if (!operation.requestBody)
    return `curl ${method === 'get' ? '' : `-X ${method.toUpperCase()} `}'${address}${path === '/search' ? '?id=ID&k=10' : ''}'`;
  return `curl -F image=@query.jpg '${address}?k=10'\ncurl -H 'Content-Type: application/json' -d '{"id": "ID"}' '${address}?k=10'`;
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
