// Markdown text, whole or growing.

import { drawBlocks } from "./blocks.js";
import { lex } from "./lexing.js";
import { say, saySize } from "../say.js";
import { html, useMemo } from "../vendor/ui.js";

/** Longer texts are shown without formatting, which would take seconds. */
const LONGEST = 600_000;

/**
 * A whole text.
 *
 * @param {{ text: string }} props
 */
export function Markdown({ text }) {
  const tokens = useMemo(() => (text.length <= LONGEST ? lex(text) : null), [text]);
  if (tokens === null) {
    return html`<p class="hint">${say("text.long", { size: saySize(text.length) })}</p>
      <${PlainText} text=${text} />`;
  }
  return html`<div class="markdown">${drawBlocks(tokens)}</div>`;
}

/**
 * A text that grows; `version` changes with each update.
 *
 * @param {{ growing: import("./growing.js").GrowingMarkdown, version: number }} props
 */
export function GrowingText({ growing }) {
  const { settled, open, rest } = growing;
  return html`<div class="markdown">
    ${drawBlocks(settled)}
    ${drawBlocks(open, { complete: false, from: settled.length })}
    ${rest ? html`<span class="source">${rest}</span>` : null}
  </div>`;
}

const PART = 50_000;

/**
 * Text without formatting, in parts that the browser lays out only when they are seen.
 *
 * @param {{ text: string }} props
 */
export function PlainText({ text }) {
  const parts = useMemo(() => {
    const found = [];
    for (let place = 0; place < text.length; place += PART) found.push(text.slice(place, place + PART));
    return found;
  }, [text]);
  return html`<div class="plain">${parts.map((part) => html`<span>${part}</span>`)}</div>`;
}
