// One entry of memory: its text, where it came from, and what can be done with it.

import { path, request } from "../api.js";
import { Icon } from "../icons.js";
import { PlainText } from "../markdown/markdown.js";
import { address } from "../router.js";
import { say, sayMoment } from "../say.js";
import { deleteLater } from "../undoing.js";
import { html, useLayoutEffect, useRef, useSignal } from "../vendor/ui.js";
import { EntryForm } from "./form.js";

/**
 * @typedef {object} MemoryEntry
 * @property {string} id
 * @property {string} content
 * @property {"memory" | "user" | "assistant" | "summary"} role
 * @property {string} scope
 * @property {string} created
 * @property {number} importance
 * @property {string} category
 * @property {string[]} topics
 * @property {string} speaker
 * @property {string} conversation
 * @property {string} turn
 * @property {string} replaced_by
 * @property {string[]} merged_from
 */

/** Return the path of an entry on the server.
 *
 * @param {string} id
 */
export function pathOf(id) {
  return path`/api/memory/${id}`;
}

/**
 * @param {{
 *   entry: MemoryEntry,
 *   alone?: boolean,
 *   changed: (entry: MemoryEntry) => void,
 * }} props With `alone`, nothing leads to the entry's own page.
 */
export function EntryView({ entry, alone = false, changed }) {
  const editing = useSignal(false);
  const button = useRef(/** @type {HTMLButtonElement | null} */ (null));
  const edited = useRef(false);
  useLayoutEffect(() => {
    // The focus was in the form, which is gone.
    if (edited.current) button.current?.focus();
    edited.current = editing.value;
  }, [editing.value]);
  const change = async (/** @type {import("./form.js").Typed} */ typed) => {
    changed(await request("PATCH", pathOf(entry.id), { json: typed }));
    editing.value = false;
  };
  const remove = () =>
    deleteLater(pathOf(entry.id), say("memory.deleted", { text: shorten(entry.content) }));
  if (editing.value) {
    return html`<${EntryForm} name=${entry.id} entry=${entry} submit=${change}
      cancel=${() => { editing.value = false; }} />`;
  }
  return html`<article class="entry" aria-label=${shorten(entry.content)}>
    <${PlainText} text=${entry.content} />
    <${EntryOrigin} entry=${entry} />
    <p class="tools">
      <button type="button" ref=${button} onClick=${() => { editing.value = true; }}>
        <${Icon} name="edit" /> ${say("memory.edit")}</button>
      ${alone ? null : html`<a class="button" href=${address("memory", entry.id)}>
        <${Icon} name="clock" /> ${say("memory.history")}</a>`}
      <button type="button" onClick=${remove}>
        <${Icon} name="trash" /> ${say("memory.delete")}</button>
    </p>
  </article>`;
}

/**
 * When an entry was made, from what, and how it is sorted.
 *
 * @param {{ entry: MemoryEntry }} props
 */
export function EntryOrigin({ entry }) {
  const { role, created, speaker, category, topics, conversation, turn, importance } = entry;
  const source = turn ? address("c", conversation, turn) : address("c", conversation);
  return html`<p class="hint origin">
    <span>${say(`memory.role.${role}`)}, ${sayMoment(created)}</span>
    ${entry.scope === "global" ? html`<span>${say("memory.global")}</span>` : null}
    ${speaker ? html`<span>${say("memory.speaker", { speaker })}</span>` : null}
    <span>${say("memory.importance", { percent: Math.round(importance * 100) })}</span>
    ${[category, ...topics].filter(Boolean).map((one, place) => html`
      <span class="tag" key=${place}>${one}</span>`)}
    ${conversation ? html`<a href=${source}>${say("memory.source")}</a>` : null}
    ${entry.replaced_by
      ? html`<a href=${address("memory", entry.replaced_by)}>${say("memory.replacedBy")}</a>`
      : null}
    ${entry.merged_from.map((one) => html`<a key=${one} href=${address("memory", one)}>
      ${say("memory.mergedFrom")}</a>`)}
  </p>`;
}

/** Return the beginning of a text, for a label.
 *
 * @param {string} text
 */
function shorten(text) {
  const letters = [...text.replace(/\s+/g, " ").trim()];
  return letters.length > 60 ? `${letters.slice(0, 60).join("")}…` : letters.join("");
}
