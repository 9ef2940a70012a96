// A button that opens a menu, for keyboard, mouse, and screen reader.

import { Icon } from "./icons.js";
import { html, useLayoutEffect, useRef, useState } from "./vendor/ui.js";

/**
 * @typedef {object} MenuItem
 * @property {import("./icons.js").IconName} icon
 * @property {string} label
 * @property {() => void} [run]
 * @property {string} [href]
 * @property {boolean} [download]
 */

/**
 * @param {{ label: string, items: MenuItem[], children?: unknown }} props
 */
export function Menu({ label, items, children }) {
  const [open, setOpen] = useState(false);
  const place = useRef(/** @type {HTMLElement | null} */ (null));
  const button = useRef(/** @type {HTMLButtonElement | null} */ (null));
  // At once: keys that are pressed now are for the menu.
  useLayoutEffect(() => {
    if (!open) return undefined;
    choices(place.current)[0]?.focus();
    const leave = (/** @type {Event} */ event) => {
      if (!place.current?.contains(/** @type {Node} */ (event.target))) setOpen(false);
    };
    addEventListener("pointerdown", leave);
    return () => removeEventListener("pointerdown", leave);
  }, [open]);

  const close = () => {
    setOpen(false);
    button.current?.focus();
  };
  const move = (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Escape") {
      event.stopPropagation();
      close();
    }
    if (event.key === "Tab") setOpen(false);
    const found = choices(place.current);
    const current = found.indexOf(/** @type {HTMLElement} */ (document.activeElement));
    const steps = /** @type {Record<string, number>} */ ({
      ArrowDown: current + 1, ArrowUp: current - 1, Home: 0, End: -1,
    });
    const next = steps[event.key];
    if (next === undefined || !found.length) return;
    event.preventDefault();
    found.at(next % found.length)?.focus();
  };
  return html`<div class="menu" ref=${place}>
    <button type="button" class="icon" ref=${button} aria-label=${label} title=${label}
      aria-haspopup="menu" aria-expanded=${open} onClick=${() => setOpen(!open)}>${children}</button>
    ${open
      ? html`<ul role="menu" aria-label=${label} onKeyDown=${move}>
          ${items.map((item) => html`<${Choice} key=${item.label} item=${item} close=${close} />`)}
        </ul>`
      : null}
  </div>`;
}

/**
 * @param {{ item: MenuItem, close: () => void }} props
 */
function Choice({ item, close }) {
  const inner = html`<${Icon} name=${item.icon} /> ${item.label}`;
  const run = () => {
    close();
    item.run?.();
  };
  return html`<li role="none">
    ${item.href
      ? html`<a role="menuitem" tabindex="-1" href=${item.href} download=${item.download}
          onClick=${close}>${inner}</a>`
      : html`<button type="button" role="menuitem" tabindex="-1" onClick=${run}>${inner}</button>`}
  </li>`;
}

/**
 * @param {HTMLElement | null} place
 * @returns {HTMLElement[]}
 */
function choices(place) {
  return [...(place?.querySelectorAll("[role=menuitem]") ?? [])].map(
    (one) => /** @type {HTMLElement} */ (one),
  );
}
