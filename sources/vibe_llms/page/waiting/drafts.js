// What is typed into a card, kept in this browser until the matter is settled.

import { load, save } from "../stored.js";
import { useState } from "../vendor/ui.js";

/**
 * Return what was typed into a card, and a function that changes it.
 *
 * @template T
 * @param {string} key
 * @param {T} otherwise
 * @returns {[T, (value: T) => void]}
 */
export function useDraft(key, otherwise) {
  const [typed, setTyped] = useState(() => load(nameOf(key), otherwise));
  return [typed, (value) => {
    save(nameOf(key), value);
    setTyped(value);
  }];
}

/** Forget what was typed into a card.
 *
 * @param {string} key
 */
export function forgetDraft(key) {
  save(nameOf(key), undefined);
}

/** @param {string} key */
function nameOf(key) {
  return `answer:${key}`;
}
