// The user's memory: all entries, those that fit a search, or one with its history.

import { get, request } from "../api.js";
import { Problem, useLoaded, useTitle } from "../loading.js";
import { go } from "../router.js";
import { say } from "../say.js";
import { SearchBox } from "../searching.js";
import { deleting, useDeletions } from "../undoing.js";
import { html, useSignal } from "../vendor/ui.js";
import "../words/en_views.js";
import { EntryView, pathOf } from "./entry.js";
import { EntryForm } from "./form.js";
import { EntryPage } from "./history.js";

/** @typedef {import("./entry.js").MemoryEntry} MemoryEntry */

const PAGE = 100;
/** The server returns no more at once. */
const MOST = 1000;

/**
 * @param {{ parts: string[], query: URLSearchParams }} props
 */
export function View({ parts: [identity = ""], query }) {
  return identity
    ? html`<${EntryPage} key=${identity} identity=${identity} />`
    : html`<${MemoryPage} text=${query.get("q") ?? ""} />`;
}

/**
 * @param {{ text: string }} props The text that is searched; empty lists all entries.
 */
function MemoryPage({ text }) {
  const adding = useSignal(false);
  const more = useSignal(false);
  const count = useSignal(PAGE);
  useTitle(say("memory.title"));
  const { value, error, load, set } = useLoaded(async (abort) => {
    const found = text.trim()
      ? await get("/api/memory/search", { text, limit: PAGE }, abort)
      : await get("/api/memory", { limit: count.value, order: "newest" }, abort);
    more.value = found.has_more ?? false;
    return /** @type {MemoryEntry[]} */ (found.entries);
  }, [text]);
  useDeletions(load);
  const entries = (value ?? []).filter((one) => !deleting.value.has(pathOf(one.id)));

  const loadMore = async () => {
    const query = { limit: PAGE, order: "newest", after: value?.at(-1)?.id };
    const page = await get("/api/memory", query);
    more.value = page.has_more;
    count.value = Math.min(count.value + PAGE, MOST);
    set([...(value ?? []), ...page.entries]);
  };
  const add = async (/** @type {import("./form.js").Typed} */ typed) => {
    const made = await request("POST", "/api/memory", { json: typed });
    adding.value = false;
    if (text) go("#/memory");
    else set([made, ...(value ?? []).filter((one) => one.id !== made.id)]);
  };
  return html`<h1>${say("memory.title")}</h1>
    <p class="hint">${say("memory.hint")}</p>
    <${SearchBox} label=${say("memory.search")} text=${text} hash="#/memory" />
    <p><button type="button" aria-expanded=${adding.value}
      onClick=${() => { adding.value = !adding.value; }}>${say("memory.add")}</button></p>
    ${adding.value
      ? html`<${EntryForm} name="new" submit=${add} cancel=${() => { adding.value = false; }} />`
      : null}
    <${Problem} text=${error} retry=${load} />
    <p class="hint" role="status">${describeCount(value && entries.length, text)}</p>
    <ul class="entries">
      ${entries.map((one) => html`<li key=${one.id}>
        <${EntryView} entry=${one} changed=${(/** @type {MemoryEntry} */ changed) =>
          set((value ?? []).map((old) => (old.id === changed.id ? changed : old)))} /></li>`)}
    </ul>
    ${more.value
      ? html`<${MoreButton} load=${loadMore} />`
      : null}`;
}

/** @param {{ load: () => Promise<void> }} props */
function MoreButton({ load }) {
  const error = useSignal("");
  const run = () => load().then(
    () => { error.value = ""; },
    (/** @type {Error} */ problem) => { error.value = problem.message; },
  );
  return html`<${Problem} text=${error.value} />
    <button type="button" class="older" onClick=${run}>${say("more")}</button>`;
}

/**
 * @param {number | null} count
 * @param {string} text
 */
function describeCount(count, text) {
  if (count === null) return say("loading");
  if (!text.trim()) return count ? "" : say("memory.empty");
  return count ? say("memory.found", { count }) : say("memory.none");
}
