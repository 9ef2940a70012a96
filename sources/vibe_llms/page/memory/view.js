// The user's memory: all entries, those that fit a search, or one with its history.

import { get, request } from "../api.js";
import { Problem, useLoaded, useTitle } from "../loading.js";
import { go } from "../router.js";
import { say } from "../say.js";
import { deleting } from "../undoing.js";
import { html, useRef, useSignal } from "../vendor/ui.js";
import { EntryView, pathOf } from "./entry.js";
import { EntryForm } from "./form.js";
import { EntryPage } from "./history.js";

/** @typedef {import("./entry.js").MemoryEntry} MemoryEntry */

const PAGE = 100;
/** Milliseconds without typing after which the search begins. */
const PAUSE_MS = 200;

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
  useTitle(say("memory.title"));
  const { value, error, load, set } = useLoaded(async (abort) => {
    const found = text.trim()
      ? await get("/api/memory/search", { text, limit: PAGE }, abort)
      : await get("/api/memory", { limit: PAGE, order: "newest" }, abort);
    more.value = found.has_more ?? false;
    return /** @type {MemoryEntry[]} */ (found.entries);
  }, [text]);
  const entries = (value ?? []).filter((one) => !deleting.value.has(pathOf(one.id)));

  const loadMore = async () => {
    const query = { limit: PAGE, order: "newest", after: value?.at(-1)?.id };
    const page = await get("/api/memory", query);
    more.value = page.has_more;
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
    <${SearchBox} text=${text} />
    <p><button type="button" aria-expanded=${adding.value}
      onClick=${() => { adding.value = !adding.value; }}>${say("memory.add")}</button></p>
    ${adding.value
      ? html`<${EntryForm} name="new" submit=${add} cancel=${() => { adding.value = false; }} />`
      : null}
    <${Problem} text=${error} retry=${load} />
    <p class="hint" role="status">${describeCount(value && entries.length, text)}</p>
    <ul class="entries">
      ${entries.map((one) => html`<li key=${one.id}>
        <${EntryView} entry=${one} gone=${load} changed=${(/** @type {MemoryEntry} */ changed) =>
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

/** @param {{ text: string }} props */
function SearchBox({ text }) {
  const timer = useRef(0);
  const type = (/** @type {any} */ event) => {
    const typed = event.target.value;
    clearTimeout(timer.current);
    timer.current = setTimeout(() => {
      go(typed ? `#/memory?${new URLSearchParams({ q: typed })}` : "#/memory", { replace: true });
    }, PAUSE_MS);
  };
  return html`<input type="search" aria-label=${say("memory.search")}
    placeholder=${say("memory.search")} value=${text} onInput=${type} />`;
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
