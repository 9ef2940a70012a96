// The entries of memory that the model was given with a message.

import { get, path } from "../api.js";
import { Icon } from "../icons.js";
import { Problem, useLoaded } from "../loading.js";
import { address } from "../router.js";
import { say } from "../say.js";
import { html, useState } from "../vendor/ui.js";
import { ContentsView } from "./contents_view.js";

/** @typedef {import("./history.js").StoredMessage} StoredMessage */

/** Source of the documents with what was recalled. */
const SOURCE = "memory";

/** Return true if a message is a document with recalled entries.
 *
 * @param {StoredMessage} message
 */
export function isRecalled({ role, source }) {
  return role === "document" && source === SOURCE;
}

/**
 * The recalled entries, folded; they are loaded when they are shown.
 *
 * @param {{ conversation: string, document: StoredMessage }} props
 */
export function Recalled({ conversation, document }) {
  const [open, setOpen] = useState(false);
  return html`<details class="folded recalled"
    onToggle=${(/** @type {any} */ event) => setOpen(event.currentTarget.open)}>
    <summary><${Icon} name="memory" /> ${say("memory.recalled")}</summary>
    ${open ? html`<${RecalledEntries} conversation=${conversation} document=${document} />` : null}
  </details>`;
}

/**
 * @param {{ conversation: string, document: StoredMessage }} props
 */
function RecalledEntries({ conversation, document }) {
  const { value, error, load } = useLoaded(async (abort) => {
    const found = await get(path`/api/conversations/${conversation}/recalled`, {}, abort);
    const its = found.recalled.find((/** @type {any} */ one) => one.message === document.identity);
    return its ?? { entries: [], gone: 0 };
  }, [document.identity]);
  if (error) return html`<${Problem} text=${error} retry=${load} />`;
  if (!value) return html`<p class="hint">${say("loading")}</p>`;
  return html`<ul>
      ${value.entries.map((/** @type {any} */ one) => html`<li key=${one.id}>
        <a href=${address("memory", one.id)}>${one.content}</a></li>`)}
    </ul>
    ${value.gone
      ? html`<p class="hint">${say("memory.recalledGone", { count: value.gone })}</p>`
      : null}
    <details>
      <summary>${say("memory.recalledText")}</summary>
      <${ContentsView} contents=${document.contents} plain=${true} />
    </details>`;
}
