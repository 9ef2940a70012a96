// Markdown that grows: blocks that are complete are not parsed again.

import { lex } from "./lexing.js";

/** @typedef {import("./lexing.js").Token} Token */

/** A longer last block is parsed again only after it has grown by a quarter. */
const EAGER_CHARACTERS = 8_000;

/** Text that arrives in parts, as tokens. */
export class GrowingMarkdown {
  constructor() {
    this.text = "";
    /** @type {Token[]} Complete blocks. */
    this.settled = [];
    /** @type {Token[]} The blocks that may still change. */
    this.open = [];
    /** Text after `open` that is not parsed yet. */
    this.rest = "";
    this.begin = 0;
    this.parsed = 0;
  }

  /** Add text; it is parsed by `update`.
   *
   * @param {string} text
   */
  add(text) {
    this.text += text;
  }

  /** Parse the text that was added, once a frame. */
  update() {
    const grown = this.text.length - this.parsed;
    const size = this.parsed - this.begin;
    if (!grown) return;
    if (size > EAGER_CHARACTERS && grown < size / 4) {
      this.rest = this.text.slice(this.parsed);
      return;
    }
    const tokens = lex(this.text.slice(this.begin));
    // The last block may continue; spaces alone do not end it.
    let last = tokens.length - 1;
    while (last > 0 && tokens[last]?.type === "space") last -= 1;
    const complete = tokens.slice(0, Math.max(last, 0));
    this.begin += complete.reduce((sum, one) => sum + one.raw.length, 0);
    if (complete.length) this.settled = [...this.settled, ...complete];
    this.open = tokens.slice(Math.max(last, 0));
    this.parsed = this.text.length;
    this.rest = "";
  }
}
