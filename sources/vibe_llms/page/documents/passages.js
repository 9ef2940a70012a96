// Passages of documents that fit a search, with their places.

import { get } from "../api.js";
import { Problem, useLoaded, useProgress } from "../loading.js";
import { PlainText } from "../markdown/markdown.js";
import { address } from "../router.js";
import { say } from "../say.js";
import { html } from "../vendor/ui.js";

const MOST = 20;

/**
 * @typedef {object} Passage
 * @property {string} collection
 * @property {string} document
 * @property {string} name
 * @property {string} place
 * @property {string} text
 */

/**
 * @param {{ text: string, collection: string }} props Without a collection, all are searched.
 */
export function Passages({ text, collection }) {
  const { value, error, load } = useLoaded(
    (abort) => get("/api/documents/search", { text, collection, limit: MOST }, abort),
    [text, collection],
  );
  useProgress(value?.waiting > 0, load);
  /** @type {Passage[]} */
  const passages = value?.passages ?? [];
  return html`<${Problem} text=${error} retry=${load} />
    <p class="hint" role="status">
      ${value === null ? (error ? "" : say("loading")) : passages.length
        ? say("documents.found", { count: passages.length })
        : say("documents.none")}
      ${value?.waiting ? ` ${say("documents.notRead", { count: value.waiting })}` : ""}</p>
    <ol class="passages">
      ${passages.map((one, place) => html`<li key=${place}>
        <p><strong>${one.name}</strong>
          ${one.place ? html` <span class="hint">${one.place}</span>` : null}
          ${collection
            ? null
            : html` <a href=${address("documents", one.collection)}>${one.collection}</a>`}</p>
        <blockquote><${PlainText} text=${one.text} /></blockquote>
      </li>`)}
    </ol>`;
}
