// Search in all conversations, with each hit in its context.

import { get } from "../api.js";
import { address } from "../router.js";
import { say, sayMoment } from "../say.js";
import { SearchBox } from "../searching.js";
import { sayRole } from "../conversation/message.js";
import { html, useEffect, useSignal } from "../vendor/ui.js";
import "../words/en_views.js";

/**
 * @param {{ query: URLSearchParams }} props
 */
export function View({ query }) {
  const text = query.get("q") ?? "";
  const found = useSignal(/** @type {any[] | null} */ (null));
  const error = useSignal("");
  useEffect(() => {
    document.title = `${say("search.title")} – ${say("title")}`;
    if (!text.trim()) {
      found.value = null;
      return undefined;
    }
    const abort = new AbortController();
    get("/api/conversations/search", { text, limit: 50 }, abort.signal).then(
      ({ messages }) => {
        found.value = messages;
        error.value = "";
      },
      (/** @type {Error} */ problem) => {
        if (!abort.signal.aborted) error.value = problem.message;
      },
    );
    return () => abort.abort();
  }, [text]);
  return html`<h1>${say("search.title")}</h1>
    <${SearchBox} label=${say("search.label")} text=${text} hash="#/search" autofocus=${true} />
    ${error.value ? html`<p class="problem">${error.value}</p>` : null}
    <p class="hint" role="status">
      ${found.value === null ? "" : found.value.length
        ? say("search.found", { count: found.value.length })
        : say("search.none")}</p>
    <ul class="hits">
      ${(found.value ?? []).map((hit) => html`<li key=${hit.message}>
        <a href=${address("c", hit.conversation, hit.message)}>
          <strong>${hit.title || say("list.untitled")}</strong>
          <span class="hint">${sayRole(hit.role)}, ${sayMoment(hit.created)}</span>
          <span class="excerpt">${markHits(hit.excerpt)}</span>
        </a></li>`)}
    </ul>`;
}

/**
 * Return an excerpt with the words in `[` and `]` marked.
 *
 * @param {string} excerpt
 */
function markHits(excerpt) {
  return excerpt.split(/\[([^\]]*)\]/).map((part, place) => (place % 2 ? html`<mark>${part}</mark>` : part));
}
