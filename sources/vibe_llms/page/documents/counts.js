// How many documents of a collection are read, wait, or have failed.

import { say } from "../say.js";
import { html } from "../vendor/ui.js";

/**
 * @typedef {object} Collection
 * @property {string} name
 * @property {boolean} own True if the user may change it.
 * @property {number} documents
 * @property {number} indexed
 * @property {number} waiting
 * @property {number} failed
 * @property {boolean} indexing
 */

/**
 * @param {{ one: Collection }} props
 */
export function CollectionCounts({ one }) {
  const { documents, indexed, waiting, failed, indexing, own, name } = one;
  const reading = say("documents.reading", { done: indexed + failed, all: documents });
  const counts = [
    say("documents.count", { count: documents }),
    ...(waiting ? [say("documents.waiting", { count: waiting })] : []),
    ...(failed ? [say("documents.failed", { count: failed })] : []),
    ...(own ? [] : [say("documents.foreign")]),
  ];
  return html`<span class="hint">${counts.join(", ")}</span>
    ${indexing
      ? html`<progress max=${documents} value=${indexed + failed}
          aria-label=${`${name}: ${reading}`} title=${reading}></progress>`
      : null}`;
}
