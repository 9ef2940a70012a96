// Markdown in tokens: marked's lexer, with formulas.

import { Lexer, getDefaults } from "../vendor/md.js";

/** @typedef {import("../vendor/md.js").Token} Token */

/** A formula; `display` is true if it has lines of its own.
 *
 * @typedef {{ type: "formula", raw: string, text: string, display: boolean }} Formula
 */

/** Number of calls and characters of `lex`, which tests read. */
export const lexed = { calls: 0, characters: 0 };

const BLOCK = /^ {0,3}(?:\$\$([\s\S]+?)\$\$|\\\[([\s\S]+?)\\\])[ \t]*(?:\n|$)/;
// `$…$` is a formula only if it cannot be two prices: no space within the dollar signs, and no
// digit after the second one.
const INLINE = /^(?:\$\$([^$\n]+?)\$\$|\\\((.+?)\\\)|\\\[(.+?)\\\]|\$(?![\s$\d])((?:\\.|[^$\\\n])*?[^\s$\\])\$(?![\d\w]))/;

/** @param {string} text */
function startBlock(text) {
  const found = /(?:^|\n) {0,3}(?:\$\$|\\\[)/.exec(text);
  return found ? found.index : undefined;
}

/** @param {string} text */
function startInline(text) {
  const place = text.search(/\$|\\[([]/);
  return place < 0 ? undefined : place;
}

/**
 * @param {RegExp} pattern
 * @param {boolean} block
 * @returns {(text: string) => Formula | undefined}
 */
function tokenizer(pattern, block) {
  return (text) => {
    const found = pattern.exec(text);
    if (!found) return undefined;
    const formula = found.slice(1).find((one) => one !== undefined) ?? "";
    const display = block || found[0].startsWith("$$") || found[0].startsWith("\\[");
    return { type: "formula", raw: found[0], text: formula.trim(), display };
  };
}

const OPTIONS = {
  ...getDefaults(),
  gfm: true,
  extensions: {
    renderers: {},
    childTokens: {},
    block: [tokenizer(BLOCK, true)],
    inline: [tokenizer(INLINE, false)],
    startBlock: [startBlock],
    startInline: [startInline],
  },
};

/**
 * Return the tokens of a text.
 *
 * @param {string} text
 * @returns {import("../vendor/md.js").TokensList}
 */
export function lex(text) {
  lexed.calls += 1;
  lexed.characters += text.length;
  return new Lexer(/** @type {any} */ (OPTIONS)).lex(text);
}
