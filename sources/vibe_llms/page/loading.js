// Loading what a view shows, with the error in its place.

import { say } from "./say.js";
import { html, useEffect, useRef, useSignal } from "./vendor/ui.js";

/**
 * @template T
 * @typedef {object} Loaded
 * @property {T | null} value Null until it is loaded.
 * @property {string} error
 * @property {() => void} load Load it again; the value stays meanwhile.
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
  const load = () => {
    last.current.abort();
    const abort = (last.current = new AbortController());
    work(abort.signal).then(
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
    load();
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
