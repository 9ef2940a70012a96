// The conversations that cannot be imported completely, with the reasons.

import { get, path } from "../api.js";
import { Problem, useLoaded } from "../loading.js";
import { address } from "../router.js";
import { say } from "../say.js";
import { html, useSignal } from "../vendor/ui.js";

/**
 * @typedef {object} Outcome
 * @property {string} title
 * @property {"partly" | "empty" | "refused"} status
 * @property {string} conversation
 * @property {string[]} reasons
 */

const PAGE = 100;
const STATUSES = ["partly", "empty", "refused"];

/**
 * @param {{ one: import("./state.js").Import }} props
 */
export function Problems({ one }) {
  const shown = useSignal(PAGE);
  const { value, error, load } = useLoaded(async (abort) => {
    const query = { problems: true };
    const report = await get(path`/api/imports/${one.id}/report`, query, abort);
    return /** @type {Outcome[]} */ (report.conversations).filter(({ status }) => STATUSES.includes(status));
  }, [one.id, one.state]);
  if (!value?.length) return html`<${Problem} text=${error} retry=${load} />`;
  return html`<h3>${say("import.problems")}</h3>
    <ul class="rows problems">
      ${value.slice(0, shown.value).map((found, place) => html`<li key=${place}>
        ${found.conversation && !one.dry_run
          ? html`<a href=${address("c", found.conversation)}>${name(found)}</a>`
          : html`<span class="name">${name(found)}</span>`}
        <span class="tag">${say(`import.part.${found.status}`)}</span>
        ${found.reasons.map((reason, at) => html`<p class="hint" key=${at}>${reason}</p>`)}
      </li>`)}
    </ul>
    ${value.length > shown.value
      ? html`<button type="button" class="older" onClick=${() => { shown.value += PAGE; }}>
          ${say("more")}</button>`
      : null}`;
}

/** @param {Outcome} found */
function name(found) {
  return found.title || say("import.untitled");
}
