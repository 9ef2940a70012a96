// Values kept in this browser. Storage that is full or forbidden is reported once, in `problem`.

import { signal } from "./vendor/ui.js";

/** True if the browser refuses to store values. */
export const storageFails = signal(false);

/**
 * Return a stored value, or `otherwise`.
 *
 * @template T
 * @param {string} name
 * @param {T} otherwise
 * @returns {T}
 */
export function load(name, otherwise) {
  try {
    const text = localStorage.getItem(`vibe-llms:${name}`);
    return text === null ? otherwise : JSON.parse(text);
  } catch {
    return otherwise;
  }
}

/**
 * Store a value; `undefined` removes it.
 *
 * @param {string} name
 * @param {unknown} value
 */
export function save(name, value) {
  try {
    if (value === undefined) localStorage.removeItem(`vibe-llms:${name}`);
    else localStorage.setItem(`vibe-llms:${name}`, JSON.stringify(value));
    storageFails.value = false;
  } catch {
    storageFails.value = true;
  }
}

/**
 * Return a signal whose value is stored, also when it changes in another tab.
 *
 * @template T
 * @param {string} name
 * @param {T} otherwise
 * @returns {import("./vendor/ui.js").Signal<T>}
 */
export function storedSignal(name, otherwise) {
  const kept = signal(load(name, otherwise));
  let first = true;
  kept.subscribe((value) => {
    if (!first) save(name, value);
    first = false;
  });
  addEventListener("storage", ({ key }) => {
    if (key === `vibe-llms:${name}`) kept.value = load(name, otherwise);
  });
  return kept;
}
