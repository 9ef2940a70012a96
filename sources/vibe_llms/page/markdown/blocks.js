// Markdown blocks as elements. Each is drawn again only if its source has changed.

import { drawInline } from "./inline.js";
import { CodeBlock } from "./code.js";
import { Formula } from "./formula.js";
import { say } from "../say.js";
import { Component, html } from "../vendor/ui.js";

/** @typedef {import("./lexing.js").Token} Token */
/** @typedef {import("../vendor/ui.js").ComponentChildren} Children */

/** Number of blocks drawn, which tests read. */
export const drawn = { blocks: 0 };

/**
 * Return the elements of blocks.
 *
 * @param {Token[]} tokens
 * @param {number} [complete] How many of them cannot grow; all if it is left out.
 * @returns {Children}
 */
export function drawBlocks(tokens, complete = tokens.length) {
  return tokens.map((token, place) =>
    token.type === "space" || token.type === "def"
      ? null
      : html`<${Block} key=${place} token=${token} complete=${place < complete} />`,
  );
}

/** @extends {Component<{ token: Token, complete: boolean }>} */
class Block extends Component {
  /** @param {{ token: Token, complete: boolean }} next */
  shouldComponentUpdate(next) {
    const { token, complete } = this.props;
    return token !== next.token && (token.raw !== next.token.raw || complete !== next.complete);
  }

  render() {
    drawn.blocks += 1;
    return drawBlock(/** @type {any} */ (this.props.token), this.props.complete);
  }
}

/**
 * @param {any} token
 * @param {boolean} complete
 * @returns {Children}
 */
function drawBlock(token, complete) {
  switch (token.type) {
    case "heading": {
      // The page has the first two levels.
      const Level = `h${Math.min(token.depth + 2, 6)}`;
      return html`<${Level}>${drawInline(token.tokens)}<//>`;
    }
    case "paragraph":
      return html`<p>${drawInline(token.tokens)}</p>`;
    case "text":
      return token.tokens ? drawInline(token.tokens) : token.text;
    case "code": {
      const language = (token.lang ?? "").split(/\s/, 1)[0] ?? "";
      return html`<${CodeBlock} text=${token.text} language=${language} complete=${complete} />`;
    }
    case "blockquote":
      return html`<blockquote>${drawBlocks(token.tokens, complete ? undefined : 0)}</blockquote>`;
    case "list":
      return drawList(token, complete);
    case "table":
      return drawTable(token);
    case "hr":
      return html`<hr />`;
    case "formula":
      return html`<${Formula} text=${token.text} display=${true} />`;
    default:
      // HTML, and tokens of a later lexer.
      return html`<p class="source">${token.raw}</p>`;
  }
}

/**
 * @param {any} token
 * @param {boolean} complete
 */
function drawList(token, complete) {
  const items = token.items.map((/** @type {any} */ item, /** @type {number} */ place) => {
    const box = item.task
      ? html`<input type="checkbox" disabled checked=${item.checked}
          aria-label=${say(item.checked ? "task.done" : "task.open")} />`
      : null;
    return html`<li key=${place}>${box}${drawBlocks(item.tokens, complete ? undefined : 0)}</li>`;
  });
  if (!token.ordered) return html`<ul>${items}</ul>`;
  return html`<ol start=${token.start === "" ? 1 : token.start}>${items}</ol>`;
}

/** @param {any} token */
function drawTable(token) {
  /** @param {any} cell @param {number} place */
  const align = (cell, place) => {
    const side = cell.align ?? token.align[place];
    return side ? `to-${side}` : "";
  };
  return html`<div class="table" tabindex="0" role="group" aria-label=${say("table.label")}>
    <table>
      <thead>
        <tr>
          ${token.header.map((/** @type {any} */ cell, /** @type {number} */ place) =>
            html`<th class=${align(cell, place)}>${drawInline(cell.tokens)}</th>`)}
        </tr>
      </thead>
      <tbody>
        ${token.rows.map((/** @type {any} */ row, /** @type {number} */ number) =>
          html`<tr key=${number}>
            ${row.map((/** @type {any} */ cell, /** @type {number} */ place) =>
              html`<td class=${align(cell, place)}>${drawInline(cell.tokens)}</td>`)}
          </tr>`)}
      </tbody>
    </table>
  </div>`;
}
