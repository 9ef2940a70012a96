// The words of the page, from the table of the chosen language.

import { ENGLISH } from "./words/en.js";

/** @typedef {typeof import("./words/en_branches.js").BRANCHES} BranchWords */
/** @typedef {typeof import("./words/en_views.js").VIEWS} ViewWords */
/** @typedef {typeof import("./words/en_import.js").IMPORT} ImportWords */
/** @typedef {BranchWords & ViewWords & ImportWords} LaterWords */
/** @typedef {keyof typeof ENGLISH | keyof LaterWords} Word */

const TABLE = /** @type {typeof ENGLISH & LaterWords} */ ({ ...ENGLISH });

/** Add words that are not needed at first.
 *
 * @param {Partial<LaterWords>} words
 */
export function addWords(words) {
  Object.assign(TABLE, words);
}

/**
 * Return the words with this name; `{name}` in them is replaced by a value.
 *
 * A number in `count` chooses between two forms that are separated by `|`.
 *
 * @param {Word} name
 * @param {Record<string, string | number>} [values]
 */
export function say(name, values = {}) {
  const [one = "", many = one] = TABLE[name].split("|");
  const text = "count" in values && values["count"] !== 1 ? many : one;
  return text.replace(/{(\w+)}/g, (_, key) => {
    const value = values[key] ?? "";
    return typeof value === "number" ? value.toLocaleString(TABLE.locale) : value;
  });
}

const TIME = new Intl.DateTimeFormat(TABLE.locale, { hour: "2-digit", minute: "2-digit" });
const DAY = new Intl.DateTimeFormat(TABLE.locale, { dateStyle: "medium" });
const FULL = new Intl.DateTimeFormat(TABLE.locale, { dateStyle: "medium", timeStyle: "short" });

/** Return the time of day of an ISO time.
 *
 * @param {string} time
 */
export function sayTime(time) {
  return format(TIME, time);
}

/** Return date and time of an ISO time.
 *
 * @param {string} time
 */
export function sayMoment(time) {
  return format(FULL, time);
}

/** Return the day of an ISO time: today, yesterday, or its date.
 *
 * @param {string} time
 */
export function sayDay(time) {
  const day = new Date(time).toDateString();
  const now = new Date();
  if (day === now.toDateString()) return say("day.today");
  now.setDate(now.getDate() - 1);
  return day === now.toDateString() ? say("day.yesterday") : format(DAY, time);
}

/**
 * @param {Intl.DateTimeFormat} style
 * @param {string} time Shown as it is if it is none.
 */
function format(style, time) {
  const date = new Date(time);
  return Number.isNaN(date.valueOf()) ? time : style.format(date);
}

/** Return a number of bytes in a readable unit.
 *
 * @param {number} bytes
 */
export function saySize(bytes) {
  const units = ["byte", "kilobyte", "megabyte", "gigabyte"];
  const step = Math.min(Math.floor(Math.log10(Math.max(bytes, 1)) / 3), units.length - 1);
  const value = bytes / 1000 ** step;
  const digits = value < 10 && step ? 1 : 0;
  return new Intl.NumberFormat(TABLE.locale, {
    style: "unit", unit: units[step] ?? "byte", maximumFractionDigits: digits,
  }).format(value);
}

/** Return a price in US dollars, with as many digits as small amounts need.
 *
 * @param {number} dollars
 */
export function sayPrice(dollars) {
  return new Intl.NumberFormat(TABLE.locale, {
    style: "currency", currency: "USD", maximumSignificantDigits: dollars < 1 ? 2 : 4,
  }).format(dollars);
}
