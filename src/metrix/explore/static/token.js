// The token of a service, asked for once and kept in a cookie, which images can carry, too.

import { el } from './dom.js';

export function askForToken() {
  const text = el('input', { id: 'token-text', type: 'password', autocomplete: 'off' });
  const keep = () => {
    document.cookie = `metrix_token=${encodeURIComponent(text.value)}; SameSite=Strict; path=/`;
    location.reload();
  };
  const dialog = el(
    'dialog',
    { id: 'token', onclose: keep },
    el(
      'form',
      { method: 'dialog' },
      el('p', {}, el('label', {}, 'Token of this service ', text)),
      el('button', { textContent: 'Continue' }),
    ),
  );
  document.body.append(dialog);
  dialog.showModal();
}
