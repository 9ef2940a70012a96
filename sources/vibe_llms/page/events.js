// The stream of changes of all the user's conversations and runs, shared by the tabs of a browser.

import { follow } from "./streams.js";

/**
 * @typedef {object} Change
 * @property {"all" | "conversation" | "run"} change
 * @property {string} [id]
 * @property {boolean} [removed]
 * @property {string} [conversation]
 * @property {string} [status]
 */

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
  const { signal } = stop;
  // The first change of a stream is that all may have changed.
  const work = () =>
    follow("/api/changes", {
      signal,
      onEvent: (change) => {
        others.postMessage(change);
        tell(change);
      },
    }).catch(() => undefined);
  // Browsers offer locks only to pages from this machine, or with TLS.
  if (navigator.locks) {
    void navigator.locks.request("vibe-llms-changes", { signal }, work).catch(() => undefined);
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
  for (const listener of listeners) listener(change);
}
