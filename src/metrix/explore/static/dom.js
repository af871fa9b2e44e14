// Small help with elements. Text only ever becomes text, never markup.

export const byId = (id) => document.getElementById(id);

export function el(name, properties = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key.startsWith('on')) node.addEventListener(key.slice(2), value);
    else if (key in node && key !== 'list') node[key] = value;
    else node.setAttribute(key, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

// What a place shows now; null is nothing.
export function fill(place, ...nodes) {
  place.replaceChildren(...nodes.filter((node) => node !== null && node !== undefined));
}

// An image, or its name if there is none to show.
export function picture(source, name) {
  const image = el('img', { src: source, loading: 'lazy', alt: name });
  image.addEventListener('error', () =>
    image.replaceWith(el('div', { className: 'no-image', textContent: name || 'no image' })),
  );
  return image;
}

export function svg(name, attributes = {}, ...children) {
  const node = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

export function say(text, kind = 'error') {
  const place = byId('message');
  place.hidden = !text;
  place.textContent = text ?? '';
  place.className = kind;
}

// A number with its noun: `count(2, 'class', 'classes')`.
export const count = (number, one, several = `${one}s`) =>
  `${number.toLocaleString('en')} ${number === 1 ? one : several}`;

export const note = (text) => el('p', { className: 'note', textContent: text });

export function download(name, text) {
  const link = el('a', { href: URL.createObjectURL(new Blob([text], { type: 'text/csv' })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
