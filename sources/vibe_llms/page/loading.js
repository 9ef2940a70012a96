// Loading what a view shows, with the error in its place.

import { say } from "./say.js";
import { html, useEffect, useRef, useSignal } from "./vendor/ui.js";

/** Milliseconds between two looks at the progress. */
const LOOK_MS = 1000;

/**
 * @template T
 * @typedef {object} Loaded
 * @property {T | null} value Null until it is loaded.
 * @property {string} error
 * @property {() => Promise<void>} load Load it again; the value stays meanwhile.
 * @property {(value: T) => void} set
 */

/**
 * Load a value, and again when the dependencies change.
 *
 * @template T
 * @param {(abort: AbortSignal) => Promise<T>} work
 * @param {unknown[]} dependencies
 * @returns {Loaded<T>}
 */
export function useLoaded(work, dependencies) {
  const value = useSignal(/** @type {T | null} */ (null));
  const error = useSignal("");
  const last = useRef(new AbortController());
  const latest = useRef(work);
  latest.current = work;
  const load = () => {
    last.current.abort();
    const abort = (last.current = new AbortController());
    return latest.current(abort.signal).then(
      (loaded) => {
        if (abort.signal.aborted) return;
        value.value = loaded;
        error.value = "";
      },
      (/** @type {Error} */ problem) => {
        if (!abort.signal.aborted) error.value = problem.message;
      },
    );
  };
  useEffect(() => {
    void load();
    return () => last.current.abort();
  }, dependencies);
  return {
    value: value.value,
    error: error.value,
    load,
    set: (changed) => {
      value.value = changed;
    },
  };
}

/** Load again from time to time while something is in progress.
 *
 * @param {boolean} busy
 * @param {() => void} load
 */
export function useProgress(busy, load) {
  useEffect(() => {
    if (!busy) return undefined;
    const timer = setInterval(() => {
      if (document.visibilityState === "visible") load();
    }, LOOK_MS);
    return () => clearInterval(timer);
  }, [busy]);
}

/**
 * An error, with a button to try again.
 *
 * @param {{ text: string, retry?: () => void }} props
 */
export function Problem({ text, retry }) {
  if (!text) return null;
  return html`<p class="problem" role="alert">${text}
    ${retry ? html` <button type="button" onClick=${retry}>${say("retry")}</button>` : null}</p>`;
}

/** Name the window after a view.
 *
 * @param {string} title
 */
export function useTitle(title) {
  useEffect(() => {
    document.title = `${title} – ${say("title")}`;
  }, [title]);
}
