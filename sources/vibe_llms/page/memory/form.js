// The form for a new entry of memory, or a changed one. What is typed is kept until it is stored.

import { Problem } from "../loading.js";
import { say } from "../say.js";
import { load, save } from "../stored.js";
import { html, useLayoutEffect, useRef, useSignal } from "../vendor/ui.js";

/** @typedef {{ content: string, importance: number, topics: string[] }} Typed */

/** Importance of a new entry. */
const USUAL = 0.5;

/**
 * @param {{
 *   name: string,
 *   entry?: import("./entry.js").MemoryEntry,
 *   submit: (typed: Typed) => Promise<void>,
 *   cancel: () => void,
 * }} props `name` is the entry's id, or `new`.
 */
export function EntryForm({ name, entry, submit, cancel }) {
  const kept = `draft:memory:${name}`;
  const first = {
    content: entry?.content ?? "",
    importance: entry?.importance ?? USUAL,
    topics: entry?.topics.join(", ") ?? "",
  };
  const typed = useSignal({ ...first, ...load(kept, first) });
  const error = useSignal("");
  const busy = useSignal(false);
  const area = useRef(/** @type {HTMLTextAreaElement | null} */ (null));
  useLayoutEffect(() => area.current?.focus(), []);
  const change = (/** @type {Partial<typeof first>} */ one) => {
    typed.value = { ...typed.value, ...one };
    save(kept, typed.value);
  };
  const end = () => {
    save(kept, undefined);
    cancel();
  };
  const send = async (/** @type {Event} */ event) => {
    event.preventDefault();
    const { content, importance, topics } = typed.value;
    if (busy.value || !content.trim()) return;
    busy.value = true;
    error.value = "";
    try {
      const named = topics.split(",").map((one) => one.trim()).filter(Boolean);
      await submit({ content: content.trim(), importance, topics: named });
      save(kept, undefined);
    } catch (problem) {
      error.value = problem instanceof Error ? problem.message : String(problem);
    } finally {
      busy.value = false;
    }
  };
  const onKeyDown = (/** @type {KeyboardEvent} */ event) => {
    // What was typed is there again when the form is opened.
    if (event.key === "Escape") cancel();
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) void send(event);
  };
  return html`<form class="card fields" onSubmit=${send} onKeyDown=${onKeyDown}>
    <label>${say("memory.text")}
      <textarea rows="3" ref=${area} required value=${typed.value.content}
        onInput=${(/** @type {any} */ event) => change({ content: event.target.value })}></textarea>
    </label>
    <label>${say("memory.topics")}
      <input type="text" value=${typed.value.topics}
        onInput=${(/** @type {any} */ event) => change({ topics: event.target.value })} />
    </label>
    <label class="range">${say("memory.importanceLabel")}
      <input type="range" min="0" max="1" step="0.05" value=${typed.value.importance}
        onInput=${(/** @type {any} */ event) =>
          change({ importance: Number(event.target.value) })} />
      <output>${Math.round(typed.value.importance * 100)} %</output>
    </label>
    <${Problem} text=${error.value} />
    <p class="actions">
      <button type="button" onClick=${end}>${say("cancel")}</button>
      <button type="submit" class="main" aria-busy=${busy.value}>${say("save")}</button>
    </p>
  </form>`;
}
