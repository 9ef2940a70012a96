// The runs of the user: what runs, waits, failed, and ended, newest first.

import { tellError } from "../announcements.js";
import { get, path, request } from "../api.js";
import { showInvisible } from "../conversation/text.js";
import { onChange } from "../events.js";
import { Icon } from "../icons.js";
import { conversations } from "../list/conversations.js";
import { address } from "../router.js";
import { say, sayDay, sayMoment, sayTime } from "../say.js";
import { html, useEffect, useRef, useSignal } from "../vendor/ui.js";
import "../words/en_views.js";

/** @typedef {import("../conversation/history.js").Run} Run */

const PAGE = 50;
/** The server lists no more at once. */
const MOST = 1000;
/** Milliseconds in which several changes need one request. */
const PAUSE_MS = 200;

const STATUSES = /** @type {const} */ ([
  "queued", "running", "waiting", "failed", "cancelled", "completed",
]);
const ENDED = new Set(["failed", "cancelled", "completed"]);
const ICONS = /** @type {Record<string, import("../icons.js").IconName>} */ ({
  queued: "clock", running: "play", waiting: "question", failed: "warn", cancelled: "stop",
  completed: "check",
});

/**
 * @param {{ parts: string[] }} props The first part is the status to show; without it, all are.
 */
export function View({ parts: [chosen = ""] }) {
  const runs = useSignal(/** @type {Run[] | null} */ (null));
  const hasMore = useSignal(false);
  const error = useSignal("");
  /** Number of runs to show; and the request of the latest list. */
  const wanted = useRef(PAGE);
  const latest = useRef(new AbortController());
  const load = async () => {
    latest.current.abort();
    const { signal: abort } = (latest.current = new AbortController());
    try {
      const page = await get("/api/runs", { status: chosen, limit: wanted.current }, abort);
      runs.value = page.runs;
      hasMore.value = page.has_more && wanted.current < MOST;
      error.value = "";
    } catch (problem) {
      if (abort.aborted) return;
      error.value = problem instanceof Error ? problem.message : String(problem);
    }
  };
  useEffect(() => {
    document.title = `${say("runs.title")} – ${say("title")}`;
    runs.value = null;
    wanted.current = PAGE;
    let timer = 0;
    void load();
    const end = onChange(({ change }) => {
      if (change === "conversation" || timer) return;
      timer = setTimeout(() => {
        timer = 0;
        void load();
      }, PAUSE_MS);
    });
    return () => {
      end();
      clearTimeout(timer);
      latest.current.abort();
    };
  }, [chosen]);
  const more = () => {
    wanted.current = Math.min(wanted.current + PAGE, MOST);
    return load();
  };
  return html`<h1>${say("runs.title")}</h1>
    <nav class="filter" aria-label=${say("runs.filter")}>
      ${["", ...STATUSES].map((status) => html`<a key=${status}
        href=${status ? address("runs", status) : address("runs")}
        aria-current=${status === chosen ? "page" : undefined}>${sayStatus(status)}</a>`)}
    </nav>
    ${error.value
      ? html`<p class="problem" role="alert">${error.value}
          <button type="button" onClick=${load}>${say("retry")}</button></p>`
      : null}
    ${runs.value && !runs.value.length ? html`<p class="hint">${say("runs.none")}</p>` : null}
    <${Days} runs=${runs.value ?? []} changed=${load} />
    ${hasMore.value ? html`<button type="button" onClick=${more}>${say("more")}</button>` : null}`;
}

/**
 * The runs, with a heading for each day.
 *
 * @param {{ runs: Run[], changed: () => void }} props
 */
function Days({ runs, changed }) {
  const days = [...new Set(runs.map(({ created }) => sayDay(created)))];
  return days.map((day) => html`<section key=${day}>
    <h2>${day}</h2>
    <ul class="rows runs">
      ${runs.filter(({ created }) => sayDay(created) === day).map((run) =>
        html`<${RunRow} key=${run.id} run=${run} changed=${changed} />`)}
    </ul>
  </section>`);
}

/**
 * @param {{ run: Run, changed: () => void }} props
 */
function RunRow({ run, changed }) {
  const { id, status, conversation, title, model, created, error } = run;
  const busy = useSignal(false);
  const known = conversations.value.find((one) => one.id === conversation);
  const name = title || known?.title || say("list.untitled");
  const cancel = async (/** @type {Event} */ event) => {
    const row = /** @type {HTMLElement} */ (event.currentTarget).closest("li");
    busy.value = true;
    try {
      await request("POST", path`/api/runs/${id}/cancel`);
      // The button goes, so the focus moves to what stays.
      row?.querySelector("a")?.focus();
    } catch (problem) {
      tellError(problem);
    }
    busy.value = false;
    changed();
  };
  return html`<li class=${status}>
    <span class="status"><${Icon} name=${ICONS[status] ?? "clock"} /> ${sayStatus(status)}</span>
    <a class="name" href=${address("c", conversation)}>${showInvisible(name)}</a>
    <span class="hint">${model}</span>
    <time class="hint" datetime=${created} title=${sayMoment(created)}>${sayTime(created)}</time>
    ${status === "waiting" ? html`<a href=${address("waiting")}>${say("runs.decide")}</a>` : null}
    ${ENDED.has(status)
      ? null
      : html`<button type="button" disabled=${busy.value} onClick=${cancel}
          aria-label=${say("runs.cancelOne", { name })}>${say("runs.cancel")}</button>`}
    ${error ? html`<p class="problem">${showInvisible(error)}</p>` : null}
  </li>`;
}

/** Return a status in words; an empty one is all.
 *
 * @param {string} status
 */
function sayStatus(status) {
  if (!status) return say("runs.all");
  const known = STATUSES.find((one) => one === status);
  return known ? say(`runs.${known}`) : status;
}
