// One entry of memory with all its changes; also one that was deleted.

import { ApiError, get } from "../api.js";
import { Problem, useLoaded, useTitle } from "../loading.js";
import { PlainText } from "../markdown/markdown.js";
import { go } from "../router.js";
import { say, sayMoment } from "../say.js";
import { deleting } from "../undoing.js";
import { html, useEffect } from "../vendor/ui.js";
import { EntryOrigin, EntryView, pathOf } from "./entry.js";

/** @typedef {import("./entry.js").MemoryEntry} MemoryEntry */
/** @typedef {{ time: string, change: string, commit: string, entry: MemoryEntry }} Change */

/** @type {Map<string, import("../say.js").Word>} */
const KINDS = new Map([
  ["added", "memory.change.added"],
  ["changed", "memory.change.changed"],
  ["deleted", "memory.change.deleted"],
  ["brought back", "memory.change.back"],
  ["removed", "memory.change.removed"],
]);

/**
 * @param {{ identity: string }} props
 */
export function EntryPage({ identity }) {
  useTitle(say("memory.entry"));
  const { value, error, load } = useLoaded(async (abort) => {
    const [entry, history] = await Promise.all([
      get(pathOf(identity), {}, abort).catch(refuseOthers),
      get(`${pathOf(identity)}/history`, {}, abort),
    ]);
    return {
      entry: /** @type {MemoryEntry | null} */ (entry),
      changes: /** @type {Change[]} */ (history.changes),
      note: /** @type {string} */ (history.note),
    };
  }, [identity]);
  const hidden = deleting.value.has(pathOf(identity));
  useEffect(() => {
    if (hidden) go("#/memory");
  }, [hidden]);
  const changes = value?.changes ?? [];
  const last = changes.at(-1)?.entry;
  return html`<p class="back"><a href="#/memory">${say("memory.back")}</a></p>
    <h1>${say("memory.entry")}</h1>
    <${Problem} text=${error} retry=${load} />
    ${value?.entry
      ? html`<${EntryView} entry=${value.entry} alone=${true} changed=${load} />`
      : last
        ? html`<p class="problem">${say("memory.gone")}</p><${EntryOrigin} entry=${last} />`
        : null}
    ${changes.length ? html`<h2>${say("memory.history")}</h2>` : null}
    ${value?.note ? html`<p class="notice">${value.note}</p>` : null}
    <ol class="changes">
      ${changes.toReversed().map((one, place) => html`<li key=${place}>
        <p class="hint">${say(KINDS.get(one.change) ?? "memory.change.changed")},${" "}
          <time datetime=${one.time}>${sayMoment(one.time)}</time></p>
        <${PlainText} text=${one.entry.content} />
      </li>`)}
    </ol>`;
}

/** @param {unknown} error */
function refuseOthers(error) {
  if (error instanceof ApiError && error.status === 404) return null;
  throw error;
}
