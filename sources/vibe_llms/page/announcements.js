// What the page tells: a hidden status line for screen readers, and messages that pass.

import { signal } from "./vendor/ui.js";

/**
 * @typedef {object} Message
 * @property {number} id
 * @property {string} text
 * @property {"note" | "error"} kind
 * @property {{ label: string, run: () => void }} [action]
 */

/** Text of the hidden status line, which a screen reader speaks when it changes. */
export const spoken = signal("");

/** @type {import("./vendor/ui.js").Signal<Message[]>} */
export const messages = signal(/** @type {Message[]} */ ([]));

const SECONDS = 6;
let last = 0;

/**
 * Show a message for some seconds; return a function that removes it.
 *
 * @param {string} text
 * @param {{ kind?: "note" | "error", action?: Message["action"], seconds?: number }} [options]
 * @returns {() => void}
 */
export function tell(text, { kind = "note", action, seconds = SECONDS } = {}) {
  const id = (last += 1);
  messages.value = [...messages.value, action ? { id, text, kind, action } : { id, text, kind }];
  const remove = () => {
    messages.value = messages.value.filter((one) => one.id !== id);
  };
  if (kind !== "error") setTimeout(remove, seconds * 1000);
  return remove;
}

/**
 * Show an error until it is closed.
 *
 * @param {unknown} error
 */
export function tellError(error) {
  tell(error instanceof Error ? error.message : String(error), { kind: "error" });
}

/** Let screen readers speak a text.
 *
 * @param {string} text
 */
export function speak(text) {
  spoken.value = text;
}

/** Remove a message.
 *
 * @param {number} id
 */
export function dismiss(id) {
  messages.value = messages.value.filter((one) => one.id !== id);
}
