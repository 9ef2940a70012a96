// A question to the user: a form, an address to open, or a request to agree.

import { ExactText, showInvisible } from "../conversation/text.js";
import { Icon } from "../icons.js";
import { readAddress } from "../markdown/inline.js";
import { say } from "../say.js";
import { html, useRef, useSignal } from "../vendor/ui.js";
import { answer } from "../waiting.js";
import { CardButton } from "./cards.js";
import { useDraft } from "./drafts.js";
import { Field } from "./field.js";
import { readDefault, readValues } from "./values.js";

/**
 * @param {{
 *   item: import("../waiting.js").WaitingItem,
 *   question: import("../waiting.js").WaitingQuestion,
 *   open: boolean,
 *   settled: boolean,
 * }} props
 */
export function QuestionCard({ item, question, open, settled }) {
  const { fields, message, url } = question;
  const form = useRef(/** @type {HTMLFormElement | null} */ (null));
  const [typed, setTyped] = useDraft(
    item.key, Object.fromEntries(fields.map((one) => [one.name, readDefault(one)])),
  );
  const busy = useSignal(false);
  const send = async (/** @type {Parameters<typeof answer>[1]} */ given) => {
    busy.value = true;
    await answer(item, given);
    busy.value = false;
  };
  const accept = () => {
    if (form.current?.reportValidity()) {
      void send({ action: "accept", values: readValues(fields, typed) });
    }
  };
  const change = (/** @type {string} */ name) => (/** @type {any} */ value) =>
    setTyped({ ...typed, [name]: value });
  const shared = { settled, busy: busy.value };
  const decline = html`<${CardButton} ...${shared} icon="close" label=${say("waiting.decline")}
    run=${() => send({ action: "decline" })} />`;
  return html`
    <p class="asked">${showInvisible(message)}</p>
    ${url ? html`<${AddressToOpen} url=${url} />` : null}
    ${!open ? null : url
      ? html`<p class="actions">
          <${OpenButton} ...${shared} url=${url} run=${() => send({ action: "accept" })} />
          ${decline}</p>`
      : html`<form ref=${form} onKeyDown=${keepEnter}
          onSubmit=${(/** @type {Event} */ event) => event.preventDefault()}>
          ${fields.map((field) => html`<${Field} key=${field.name} field=${field}
            group=${`${item.key}/${field.name}`} value=${typed[field.name]}
            change=${change(field.name)} />`)}
          <p class="actions">
            <${CardButton} ...${shared} icon="check" run=${accept}
              label=${say(fields.length ? "waiting.answer" : "waiting.agree")} />
            ${decline}</p>
        </form>`}`;
}

/**
 * The whole address, as the browser will open it, with its host by itself.
 *
 * @param {{ url: string }} props
 */
function AddressToOpen({ url }) {
  const opened = readAddress(url);
  return html`<p class="hint">
      ${opened
        ? say("waiting.opens", { host: new URL(opened).host })
        : say("waiting.cannotOpen")}</p>
    <${ExactText} text=${opened || url} />`;
}

/**
 * @param {{ url: string, settled: boolean, busy: boolean, run: () => void }} props
 */
function OpenButton({ url, settled, busy, run }) {
  const opened = readAddress(url);
  if (!opened) return null;
  const ready = settled && !busy;
  const click = (/** @type {Event} */ event) => {
    if (ready) run();
    else event.preventDefault();
  };
  return html`<a href=${opened} target="_blank" rel="noopener noreferrer" aria-disabled=${!ready}
    onClick=${click}><${Icon} name="export" /> ${say("waiting.open")}</a>`;
}

/** Keep Enter in a field from sending the form.
 *
 * @param {KeyboardEvent} event
 */
function keepEnter(event) {
  if (event.key === "Enter" && /** @type {Element} */ (event.target).matches("input")) {
    event.preventDefault();
  }
}
