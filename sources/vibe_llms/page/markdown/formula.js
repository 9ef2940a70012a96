// A formula, drawn by temml as MathML once that is loaded.

import { html, useEffect, useRef } from "../vendor/ui.js";

/** Longer formulas remain text: drawing one takes more than linear time. */
const LONGEST = 2_000;

/**
 * @param {{ text: string, display: boolean }} props
 */
export function Formula({ text, display }) {
  const place = useRef(/** @type {HTMLElement | null} */ (null));
  useEffect(() => {
    let current = true;
    if (text.length <= LONGEST) {
      import("../vendor/math.js").then(({ render }) => {
        if (current && place.current) draw(render, text, place.current, display);
      }, () => undefined); // Without temml, the text remains.
    }
    return () => {
      current = false;
    };
  }, [text, display]);
  // Preact must not touch what temml draws, so the element is new for each text.
  return html`<span class=${display ? "formula display" : "formula"} key=${text} ref=${place}
    >${text}</span>`;
}

/**
 * @param {typeof import("../vendor/math.js").render} render
 * @param {string} text
 * @param {HTMLElement} place
 * @param {boolean} display
 */
function draw(render, text, place, display) {
  const drawn = document.createElement("span");
  try {
    render(text, drawn, { displayMode: display, throwOnError: true, trust: false });
  } catch {
    // Not a formula: the text remains.
    return;
  }
  place.replaceChildren(drawn);
}
