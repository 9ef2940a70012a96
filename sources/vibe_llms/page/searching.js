// A box whose text is searched when the typing pauses. The address of the view holds the text.

import { go } from "./router.js";
import { html, useEffect, useRef, useSignal } from "./vendor/ui.js";

/** Milliseconds without typing after which the search begins. */
const PAUSE_MS = 200;

/**
 * @param {{ label: string, text: string, hash: string, autofocus?: boolean }} props
 *   `hash` is the address of the view without the text.
 */
export function SearchBox({ label, text, hash, autofocus = false }) {
  // What is typed is ahead of the address.
  const typed = useSignal(text);
  const timer = useRef(0);
  useEffect(() => {
    if (!timer.current) typed.value = text;
  }, [text]);
  useEffect(() => () => clearTimeout(timer.current), []);
  const type = (/** @type {any} */ event) => {
    typed.value = event.target.value;
    clearTimeout(timer.current);
    timer.current = setTimeout(() => {
      timer.current = 0;
      const query = typed.value ? `?${new URLSearchParams({ q: typed.value })}` : "";
      go(hash + query, { replace: true });
    }, PAUSE_MS);
  };
  return html`<input type="search" aria-label=${label} placeholder=${label} value=${typed.value}
    onInput=${type} autofocus=${autofocus} />`;
}
