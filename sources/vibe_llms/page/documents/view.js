// Collections of documents: their list, one of them, and the passages that fit a search.

import { get } from "../api.js";
import { Problem, useLoaded, useProgress, useTitle } from "../loading.js";
import { address } from "../router.js";
import { say } from "../say.js";
import { SearchBox } from "../searching.js";
import { deleting, useDeletions } from "../undoing.js";
import { html } from "../vendor/ui.js";
import "../words/en_views.js";
import { CollectionPage, pathOf } from "./collection.js";
import { CollectionCounts } from "./counts.js";
import { Passages } from "./passages.js";
import { UploadForm } from "./upload.js";

/** @typedef {import("./counts.js").Collection} Collection */

/**
 * @param {{ parts: string[], query: URLSearchParams }} props
 */
export function View({ parts: [name = ""], query }) {
  const text = query.get("q") ?? "";
  return name
    ? html`<${CollectionPage} key=${name} name=${name} text=${text} />`
    : html`<${CollectionList} text=${text} />`;
}

/**
 * @param {{ text: string }} props
 */
function CollectionList({ text }) {
  useTitle(say("documents.title"));
  const { value, error, load } = useLoaded(async (abort) => {
    const { collections } = await get("/api/documents", {}, abort);
    return /** @type {Collection[]} */ (collections);
  }, []);
  useDeletions(load);
  const found = (value ?? []).filter((one) => !deleting.value.has(pathOf(one.name)));
  useProgress(found.some((one) => one.indexing), load);
  return html`<h1>${say("documents.title")}</h1>
    <p class="hint">${say("documents.hint")}</p>
    <${SearchBox} label=${say("documents.search")} text=${text} hash="#/documents" />
    <${Problem} text=${error} retry=${load} />
    ${text.trim()
      ? html`<${Passages} text=${text} collection="" />`
      : html`
          <h2>${say("documents.collections")}</h2>
          ${value && !found.length ? html`<p class="hint">${say("documents.empty")}</p>` : null}
          <ul class="rows">
            ${found.map((one) => html`<li key=${one.name}>
              <a href=${address("documents", one.name)}>${one.name}</a>
              <${CollectionCounts} one=${one} /></li>`)}
          </ul>
          <h2>${say("documents.add")}</h2>
          <${UploadForm} collection=""
            known=${found.filter((one) => one.own).map((one) => one.name)}
            done=${load} />`}`;
}
