// The view that the address names: `#/c/CONVERSATION`, `#/memory`, and so on.

import { signal } from "./vendor/ui.js";

/**
 * @typedef {object} Route
 * @property {string} view The first part of the path; empty for a new conversation.
 * @property {string[]} parts The parts that follow.
 * @property {URLSearchParams} query
 */

/** The current route. */
export const route = signal(readRoute());

addEventListener("hashchange", () => {
  route.value = readRoute();
});

/**
 * Return the address of a view.
 *
 * @param {...string} parts
 */
export function address(...parts) {
  return `#/${parts.map(encodeURIComponent).join("/")}`;
}

/**
 * Show a view.
 *
 * @param {string} hash
 * @param {{ replace?: boolean }} [options] With `replace`, Back skips the present view.
 */
export function go(hash, { replace = false } = {}) {
  if (replace) {
    history.replaceState(null, "", hash);
    route.value = readRoute();
  } else {
    location.hash = hash;
  }
}

/** @returns {Route} */
function readRoute() {
  const [text = "", query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [view = "", ...parts] = text.split("/").map(decode);
  return { view, parts, query: new URLSearchParams(query) };
}

/** @param {string} part */
function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
