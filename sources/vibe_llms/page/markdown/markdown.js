// Markdown text, whole or growing.

import { drawBlocks } from "./blocks.js";
import { lex } from "./lexing.js";
import { say, saySize } from "../say.js";
import { html, useMemo } from "../vendor/ui.js";

/** Longer texts are shown without formatting, which would take seconds. */
const LONGEST = 600_000;

/**
 * A whole text, or one that grows. Once it is whole, the blocks that are drawn stay.
 *
 * @param {{ text?: string, growing?: import("./growing.js").GrowingMarkdown | undefined }} props
 */
export function Markdown({ text = "", growing }) {
  const tokens = useMemo(
    () => (growing || text.length > LONGEST ? null : lex(text)), [text, growing],
  );
  if (tokens) {
    // Definitions of links at the end change the blocks before them.
    const key = Object.keys(tokens.links).length ? "links" : undefined;
    return html`<div class="markdown" key=${key}>${[drawBlocks(tokens), null]}</div>`;
  }
  if (growing) {
    const { settled, open, rest } = growing;
    const blocks = [...settled, ...open];
    return html`<div class="markdown">${[
      drawBlocks(blocks, settled.length),
      rest ? html`<span class="source">${rest}</span>` : null,
    ]}</div>`;
  }
  return html`<p class="hint">${say("text.long", { size: saySize(text.length) })}</p>
    <${PlainText} text=${text} />`;
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
