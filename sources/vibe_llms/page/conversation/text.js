// Text contents: in the message, or loaded from the store.

import { loadText, textOf } from "../contents.js";
import { Markdown, PlainText } from "../markdown/markdown.js";
import { say, saySize } from "../say.js";
import { html, useEffect, useState } from "../vendor/ui.js";

/** Longer texts are loaded only on demand. */
const EAGER_BYTES = 1_000_000;

/**
 * A text as Markdown, or as it is with `plain`.
 *
 * @param {{ content: import("../contents.js").StoredContent, plain?: boolean }} props
 */
export function TextView({ content, plain = false }) {
  const { growing } = content;
  const size = content.data?.size ?? 0;
  const [loaded, setLoaded] = useState(/** @type {string | null} */ (null));
  const [asked, setAsked] = useState(false);
  const [error, setError] = useState("");
  const text = textOf(content) ?? loaded;
  const wanted = !growing && text === null && !error && (asked || size <= EAGER_BYTES);
  useEffect(() => {
    if (wanted) loadText(content).then(setLoaded, (/** @type {Error} */ one) => setError(one.message));
  }, [wanted]);
  if (growing) return html`<${Markdown} growing=${growing} />`;
  if (text !== null) {
    return plain ? html`<${PlainText} text=${text} />` : html`<${Markdown} text=${text} />`;
  }
  if (wanted) return html`<p class="hint">${say("loading")}</p>`;
  const again = () => {
    setError("");
    setAsked(true);
  };
  return html`<p class="hint">${error}
    <button type="button" onClick=${again}>
      ${error ? say("retry") : say("content.load", { size: saySize(size) })}
    </button></p>`;
}

/**
 * Text of a result or of arguments: whole, with invisible characters made visible.
 *
 * @param {{ text: string }} props
 */
export function ExactText({ text }) {
  return html`<pre class="exact" tabindex="0">${showInvisible(text)}</pre>`;
}

// Characters that look like nothing or change the order of others: controls other than tab and
// line feed, soft hyphen, zero-width and bidirectional marks, variation selectors, and tags.
const INVISIBLE =
  /[\0-\x08\x0b-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb]|[\u{1bca0}-\u{1bca3}\u{1d173}-\u{1d17a}\u{e0000}-\u{e0fff}]/gu;

/**
 * Return a text with each invisible character as a mark with its code.
 *
 * @param {string} text
 * @returns {import("../vendor/ui.js").ComponentChildren}
 */
export function showInvisible(text) {
  const parts = [];
  let place = 0;
  for (const found of text.matchAll(INVISIBLE)) {
    const code = found[0].codePointAt(0) ?? 0;
    parts.push(
      text.slice(place, found.index),
      html`<mark>U+${code.toString(16).toUpperCase().padStart(4, "0")}</mark>`,
    );
    place = found.index + found[0].length;
  }
  parts.push(text.slice(place));
  return parts;
}
