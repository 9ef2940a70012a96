// Inline Markdown tokens as elements. HTML in the text is shown as text.

import { Formula } from "./formula.js";
import { html } from "../vendor/ui.js";

/** @typedef {import("./lexing.js").Token} Token */
/** @typedef {import("../vendor/ui.js").ComponentChildren} Children */

const SAFE = new Set(["http:", "https:", "mailto:"]);

/**
 * Return the elements of inline tokens.
 *
 * @param {Token[] | undefined} tokens
 * @returns {Children}
 */
export function drawInline(tokens) {
  return (tokens ?? []).map((token) => drawToken(/** @type {any} */ (token)));
}

/**
 * @param {any} token
 * @returns {Children}
 */
function drawToken(token) {
  switch (token.type) {
    case "text":
      return token.tokens ? drawInline(token.tokens) : unescapeText(token.text);
    case "escape":
      return token.text;
    case "strong":
      return html`<strong>${drawInline(token.tokens)}</strong>`;
    case "em":
      return html`<em>${drawInline(token.tokens)}</em>`;
    case "del":
      return html`<del>${drawInline(token.tokens)}</del>`;
    case "codespan":
      return html`<code>${token.text}</code>`;
    case "br":
      return html`<br />`;
    case "link":
      return drawLink(token.href, drawInline(token.tokens), token.raw);
    case "image":
      // A picture from elsewhere would tell its server what the model knows, so it is a link.
      return drawLink(token.href, token.text || token.href, token.raw);
    case "formula":
      return html`<${Formula} text=${token.text} display=${token.display} />`;
    default:
      return token.raw;
  }
}

/**
 * Return a link, or the source text if the address is not one that a person opens.
 *
 * @param {string} href
 * @param {Children} content
 * @param {string} raw
 */
function drawLink(href, content, raw) {
  const safe = readAddress(href);
  if (!safe) return raw;
  return html`<a href=${safe} target="_blank" rel="noopener noreferrer nofollow">${content}</a>`;
}

/**
 * Return a complete address that is safe to open, or an empty text.
 *
 * @param {string} href
 */
export function readAddress(href) {
  try {
    const url = new URL(href);
    return SAFE.has(url.protocol) ? url.href : "";
  } catch {
    return "";
  }
}

const ENTITIES = /** @type {Record<string, string>} */ ({
  amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", copy: "©", reg: "®",
  hellip: "…", mdash: "—", ndash: "–", rarr: "→", larr: "←", times: "×", deg: "°", euro: "€",
});

/**
 * Return a text with its entities as characters; unknown ones stay.
 *
 * @param {string} text
 */
function unescapeText(text) {
  return text.replace(/&(?:#(\d{1,7})|#x([\da-f]{1,6})|(\w+));/gi, (whole, digits, hex, name) => {
    if (name) return Object.hasOwn(ENTITIES, name) ? ENTITIES[name] ?? whole : whole;
    const code = digits ? Number(digits) : parseInt(hex, 16);
    return code && code <= 0x10ffff ? String.fromCodePoint(code) : "\ufffd";
  });
}
