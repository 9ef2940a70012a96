// Dialogs that ask for a text or a confirmation.

import { say } from "./say.js";
import { html, signal, useLayoutEffect, useRef, useState } from "./vendor/ui.js";

/**
 * @typedef {object} Question
 * @property {string} label
 * @property {string | null} text Null asks only for a confirmation.
 * @property {boolean} long
 * @property {(answer: string | null) => void} answer
 */

/** @type {import("./vendor/ui.js").Signal<Question | null>} */
const asked = signal(/** @type {Question | null} */ (null));

/**
 * Ask for a text; return null if the user cancels.
 *
 * @param {string} label
 * @param {string} text The text to begin with.
 * @param {{ long?: boolean }} [options] With `long`, the text may have lines.
 * @returns {Promise<string | null>}
 */
export function askText(label, text = "", { long = false } = {}) {
  return new Promise((answer) => {
    asked.value = { label, text, long, answer };
  });
}

/**
 * Ask for a confirmation.
 *
 * @param {string} label
 * @returns {Promise<boolean>}
 */
export async function confirm(label) {
  const answer = await new Promise((resolve) => {
    asked.value = { label, text: null, long: false, answer: resolve };
  });
  return answer !== null;
}

/** The dialog, if there is a question. */
export function DialogHost() {
  const question = asked.value;
  return question ? html`<${Dialog} key=${question.label} question=${question} />` : null;
}

/**
 * @param {{ question: Question }} props
 */
function Dialog({ question }) {
  const place = useRef(/** @type {HTMLDialogElement | null} */ (null));
  const [text, setText] = useState(question.text ?? "");
  // At once: keys that are pressed now are for the dialog.
  useLayoutEffect(() => {
    place.current?.showModal();
    place.current?.querySelector("input")?.select();
  }, []);
  const end = (/** @type {string | null} */ answer) => {
    asked.value = null;
    question.answer(answer);
  };
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    end(text);
  };
  const input = (/** @type {any} */ event) => setText(event.target.value);
  return html`<dialog ref=${place} aria-label=${question.label}
    onCancel=${() => end(null)}>
    <form onSubmit=${submit}>
      <label>${question.label}
        ${question.text === null ? null : question.long
          ? html`<textarea rows="8" value=${text} onInput=${input}></textarea>`
          : html`<input type="text" value=${text} onInput=${input} maxlength="1000" />`}
      </label>
      <p class="actions">
        <button type="button" onClick=${() => end(null)}>${say("cancel")}</button>
        <button type="submit" class="main">${say("ok")}</button>
      </p>
    </form>
  </dialog>`;
}
