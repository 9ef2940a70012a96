// The stream of changes of all the user's conversations and runs, shared by the tabs of a browser.

import { follow } from "./streams.js";
import { signal } from "./vendor/ui.js";

/**
 * @typedef {object} Change
 * @property {"all" | "conversation" | "run" | "import"} change
 * @property {string} [id]
 * @property {boolean} [removed]
 * @property {string} [conversation]
 * @property {string} [status]
 */

/** Number of changes of imports, which only their view needs. */
export const importChanges = signal(0);

/** @type {Set<(change: Change) => void>} */
const listeners = new Set();
const others = new BroadcastChannel("vibe-llms-changes");
let stop = new AbortController();

others.onmessage = ({ data }) => tell(data);

/**
 * Call a function with each change; return a function that ends this.
 *
 * @param {(change: Change) => void} listener
 */
export function onChange(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** Follow the changes, in one tab for all. */
export function watchChanges() {
  stop.abort();
  stop = new AbortController();
  const abort = stop.signal;
  // The first change of a stream is that all may have changed.
  const work = () =>
    follow("/api/changes", {
      signal: abort,
      onEvent: (change) => {
        others.postMessage(change);
        tell(change);
      },
    }).catch(() => undefined);
  // Browsers offer locks only to pages from this machine, or with TLS.
  if (navigator.locks) {
    void navigator.locks.request("vibe-llms-changes", { signal: abort }, work).catch(() => undefined);
  } else {
    void work();
  }
}

/** End to follow the changes. */
export function endChanges() {
  stop.abort();
}

/** @param {Change} change */
function tell(change) {
  if (change.change === "import") importChanges.value += 1;
  else for (const listener of listeners) listener(change);
}
