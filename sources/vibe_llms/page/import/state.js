// An import: its progress, the preview of a dry run, and its end.

import { path, request } from "../api.js";
import { say, sayDay, saySize } from "../say.js";
import { html } from "../vendor/ui.js";
import { Problems } from "./problems.js";

/**
 * @typedef {object} Import
 * @property {string} id
 * @property {string} name
 * @property {string} created
 * @property {boolean} dry_run
 * @property {"uploading" | "waiting" | "running" | "completed" | "failed" | "cancelled"
 *   | "interrupted"} state
 * @property {number} received
 * @property {number} done
 * @property {number} total
 * @property {number} conversations
 * @property {number | null} expected
 * @property {Record<Status, number>} counts
 * @property {string[]} sources
 * @property {string | null} oldest
 * @property {string | null} newest
 * @property {boolean} ready
 * @property {string} error
 */
/** @typedef {"imported" | "extended" | "partly" | "unchanged" | "empty" | "refused"} Status */

/** @type {Status[]} */
const STATUSES = ["imported", "extended", "partly", "unchanged", "empty", "refused"];

/** Return the path of an import on the server.
 *
 * @param {Import} one
 */
export function pathOf(one) {
  return path`/api/imports/${one.id}`;
}

/** Return true if an import has not ended.
 *
 * @param {Import} one
 */
export function isActive(one) {
  return ["uploading", "waiting", "running"].includes(one.state);
}

/** Return what to say of an import that has ended.
 *
 * @param {Import} one
 */
export function titleOf({ name, state, dry_run: dry, ready }) {
  if (ready) return say("import.preview", { name });
  const discarded = dry && (state === "completed" || state === "cancelled");
  return say(discarded ? "import.discarded" : `import.${endOf(state)}`, { name });
}

/**
 * @param {{ one: Import, run: (work: () => Promise<unknown>) => void }} props
 */
export function ImportCard({ one, run }) {
  if (isActive(one)) return html`<${Running} one=${one} run=${run} />`;
  return one.ready ? html`<${Preview} one=${one} run=${run} />` : html`<${Ended} one=${one} />`;
}

/**
 * Something that goes on, with a button to cancel it.
 *
 * @param {{ text: string, done: number, total: number, label: string, cancel: () => void }} props
 */
export function Progress({ text, done, total, label, cancel }) {
  // Between two looks, the number of conversations changes often, so it is not spoken.
  return html`<section class="card" aria-label=${say("import.progress")}>
    <p>${text}</p>
    <p><progress aria-label=${text} max=${total || 1} value=${total ? done : undefined} />
      <button type="button" onClick=${cancel}>${label}</button></p>
  </section>`;
}

/**
 * @param {{ one: Import, run: (work: () => Promise<unknown>) => void }} props
 */
function Running({ one, run }) {
  const cancel = () => run(() => request("POST", `${pathOf(one)}/cancel`));
  return html`<${Progress} text=${describe(one)} done=${one.done} total=${one.total}
    label=${say("import.cancel")} cancel=${cancel} />`;
}

/** @param {Import} one */
function describe({ state, name, received, dry_run: dry, conversations, expected }) {
  if (state === "uploading") return say("import.received", { name, done: saySize(received) });
  if (state === "waiting") return say("import.waiting", { name });
  if (dry) return say("import.reading", { name, count: conversations });
  return expected === null
    ? say("import.running", { name, count: conversations })
    : say("import.runningOf", { name, count: conversations, all: expected });
}

/**
 * @param {{ one: Import, run: (work: () => Promise<unknown>) => void }} props
 */
function Preview({ one, run }) {
  const { counts } = one;
  const useful = counts.imported + counts.extended + counts.partly > 0;
  const start = () => run(() => request("POST", `${pathOf(one)}/start`));
  const discard = () => run(() => request("POST", `${pathOf(one)}/cancel`));
  const title = titleOf(one);
  return html`<section class="card" aria-label=${title}>
    <h2>${title}</h2>
    <${Summary} one=${one} />
    <p class="tools">
      ${useful
        ? html`<button type="button" class="main" onClick=${start}>${say("import.start")}</button>`
        : null}${" "}
      <button type="button" onClick=${discard}>${say("import.discard")}</button></p>
    <${Problems} key=${one.id} one=${one} />
  </section>`;
}

/**
 * @param {{ one: Import }} props
 */
function Ended({ one }) {
  const { state, dry_run: dry } = one;
  const title = titleOf(one);
  const stopped = !dry && (state === "cancelled" || state === "interrupted");
  return html`<section class="card" aria-label=${title}>
    <h2>${title}</h2>
    ${one.error ? html`<p class="problem" role="alert">${one.error}</p>` : null}
    ${dry ? null : html`<${Summary} one=${one} />`}
    ${stopped ? html`<p>${say("import.goOn")}</p>` : null}
    ${dry || !one.conversations
      ? null
      : html`<p><a class="button" href="#/">${say("import.show")}</a></p>
          <${Problems} key=${`${one.id} done`} one=${one} />`}
  </section>`;
}

/**
 * @param {Import["state"]} state
 * @returns {"completed" | "failed" | "cancelled" | "interrupted"}
 */
export function endOf(state) {
  return state === "failed" || state === "cancelled" || state === "interrupted"
    ? state
    : "completed";
}

/**
 * @param {string} first
 * @param {string} last
 */
function sayDates(first, last) {
  return say(first === last ? "import.date" : "import.dates", { first, last });
}

/** Counts, the program, and the dates of an import.
 *
 * @param {{ one: Import }} props
 */
function Summary({ one }) {
  const { conversations: count, sources, oldest, newest, dry_run: dry, counts } = one;
  if (!count) return one.state === "completed" ? html`<p>${say("import.nothing")}</p>` : null;
  const source = sources.join(", ") || say("import.unknown");
  return html`<p>${say("import.from", { count, source })}${oldest && newest
      ? html`<br />${sayDates(sayDay(oldest), sayDay(newest))}`
      : null}</p>
    <ul class="counts">
      ${STATUSES.filter((status) => counts[status]).map((status) => html`<li key=${status}>
        ${say(`import.${dry ? "would" : "did"}.${status}`, { count: counts[status] })}</li>`)}
    </ul>`;
}
