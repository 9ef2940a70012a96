// The cards of what waits: each shows the whole matter, and has no default button.

import { showInvisible } from "../conversation/text.js";
import { Icon } from "../icons.js";
import { address } from "../router.js";
import { say } from "../say.js";
import { html, useEffect, useRef, useState } from "../vendor/ui.js";
import { describeItem, dismissRefusal, isOpen, refusals } from "../waiting.js";
import { CallCard } from "./call_card.js";
import { QuestionCard } from "./question_card.js";

/** @typedef {import("../waiting.js").WaitingItem} WaitingItem */

/** Milliseconds in which the buttons of a card that has just come or moved do nothing. */
const SETTLE_MS = 500;

/**
 * @param {{
 *   items: WaitingItem[],
 *   linked?: boolean,
 *   onSettled: (item: WaitingItem) => void,
 * }} props `linked` shows the conversation; `onSettled` is called when a card with the focus goes.
 */
export function WaitingCards({ items, linked = false, onSettled }) {
  const settled = useSettled(items.map(({ key }) => key).join(" "));
  return items.map((item) => html`<${WaitingCard} key=${item.key} item=${item} linked=${linked}
    settled=${settled} onSettled=${onSettled} />`);
}

/**
 * @param {{
 *   item: WaitingItem,
 *   linked: boolean,
 *   settled: boolean,
 *   onSettled: (item: WaitingItem) => void,
 * }} props
 */
function WaitingCard({ item, linked, settled, onSettled }) {
  const focused = useRef(false);
  const refusal = refusals.value.get(item.key);
  const shared = { item, settled, open: isOpen(item) };
  useEffect(() => () => {
    if (focused.current && document.activeElement === document.body) onSettled(item);
  }, []);
  const label = `waiting-${item.key}`;
  const leave = (/** @type {FocusEvent} */ event) => {
    // Without another element that gets the focus, its element was removed.
    if (event.relatedTarget) focused.current = false;
  };
  return html`<div class="card waiting" role="group" aria-labelledby=${label}
    onFocusIn=${() => { focused.current = true; }} onFocusOut=${leave}>
    <h2 id=${label}><${Icon} name=${item.call ? "tool" : "question"} />
      <span>${showInvisible(describeItem(item))}</span></h2>
    ${linked
      ? html`<p class="hint"><a href=${address("c", item.conversation)}>
          ${showInvisible(item.title || say("waiting.conversation"))}</a></p>`
      : null}
    ${item.call ? html`<${CallCard} call=${item.call} ...${shared} />` : null}
    ${item.question ? html`<${QuestionCard} question=${item.question} ...${shared} />` : null}
    ${refusal
      ? html`<p class="problem" role="alert"><${Icon} name="warn" /> ${refusal.reason}
          <button type="button" onClick=${() => dismissRefusal(item)}>${say("close")}</button></p>`
      : null}
  </div>`;
}

/**
 * A button of a card. It does nothing for a moment after cards have come, gone, or moved, so that
 * a click or a key that was meant for something else decides nothing.
 *
 * @param {{
 *   label: string,
 *   icon?: import("../icons.js").IconName,
 *   settled: boolean,
 *   busy: boolean,
 *   run: () => void,
 * }} props
 */
export function CardButton({ label, icon, settled, busy, run }) {
  const ready = settled && !busy;
  return html`<button type="button" aria-disabled=${!ready} aria-busy=${busy}
    onClick=${() => { if (ready) run(); }}>
    ${icon ? html`<${Icon} name=${icon} />` : null} ${label}</button>`;
}

/**
 * Return true once the cards have stayed the same for a moment.
 *
 * @param {string} keys
 */
function useSettled(keys) {
  const [known, setKnown] = useState("");
  useEffect(() => {
    const timer = setTimeout(() => setKnown(keys), SETTLE_MS);
    return () => clearTimeout(timer);
  }, [keys]);
  return known === keys;
}
