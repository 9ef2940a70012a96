// The list of conversations by day. Only the rows near the visible ones are in the page, because
// each has the same height.

import { address, go, route } from "../router.js";
import { Icon } from "../icons.js";
import { say, sayDay } from "../say.js";
import { computed, html, useEffect, useLayoutEffect, useRef, useState } from "../vendor/ui.js";
import { activeConversations } from "../runs.js";
import { waiting } from "../waiting.js";
import { ConversationMenu } from "./menu.js";
import {
  chosenTag, conversations, hasMore, isUnread, listed, loadConversations, loadMore,
} from "./conversations.js";

/** Height of a row in rem; the style sheet has the same. */
const ROW_REM = 2.5;
const MARGIN = 10;

/** @typedef {import("./conversations.js").Summary} Summary */
/** @typedef {{ day: string } | { day?: undefined, one: Summary, place: number }} Row */

const allRows = computed(() => produceRows(conversations.value));

/** The list, with a row for each conversation and each day. */
export function ConversationList() {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const [view, setView] = useState({ top: 0, height: 800 });
  const rows = allRows.value;
  const row = ROW_REM * parseFloat(getComputedStyle(document.documentElement).fontSize);
  const first = Math.max(0, Math.floor(view.top / row) - MARGIN);
  const last = Math.min(rows.length, Math.ceil((view.top + view.height) / row) + MARGIN);

  const measure = () => {
    if (box.current) setView({ top: box.current.scrollTop, height: box.current.clientHeight });
  };
  useLayoutEffect(() => {
    measure();
    const observer = new ResizeObserver(measure);
    if (box.current) observer.observe(box.current);
    return () => observer.disconnect();
  }, []);
  useEffect(() => {
    if (hasMore.value && last >= rows.length - MARGIN) void loadMore();
  }, [last, rows.length]);

  return html`<div class="conversations" ref=${box} onScroll=${measure} onKeyDown=${move}>
    ${chosenTag.value
      ? html`<p class="chosen"><${Icon} name="tag" /> ${chosenTag.value}
          <button type="button" class="icon" aria-label=${say("list.allTags")}
            onClick=${() => { chosenTag.value = ""; void loadConversations(); }}>
            <${Icon} name="close" /></button></p>`
      : null}
    ${listed.value && !rows.length ? html`<p class="hint">${say("list.empty")}</p>` : null}
    <ul style=${{ height: `${rows.length * row}px` }}>
      ${rows.slice(first, last).map((one, place) =>
        html`<${ListRow} key=${one.day ?? one.one.id} row=${one} top=${(first + place) * row}
          count=${conversations.value.length} />`)}
    </ul>
  </div>`;
}

/**
 * @param {{ row: Row, top: number, count: number }} props
 */
function ListRow({ row, top, count }) {
  const style = { transform: `translateY(${top}px)` };
  if (row.day !== undefined) {
    return html`<li class="day" style=${style}>${row.day}</li>`;
  }
  const { one, place } = row;
  const { view, parts } = route.value;
  const current = view === "c" && parts[0] === one.id;
  const waits = waiting.value.some(({ conversation }) => conversation === one.id);
  const running = !waits && activeConversations.value.has(one.id);
  const unread = !current && isUnread(one);
  const title = one.title || say("list.untitled");
  return html`<li class=${current ? "row current" : "row"} style=${style}
    aria-setsize=${count} aria-posinset=${place + 1}>
    <a href=${address("c", one.id)} title=${title} aria-current=${current ? "page" : undefined}>
      ${waits
        ? html`<span class="waits" role="img" aria-label=${say("list.waiting")}>
            <${Icon} name="question" /></span>`
        : null}
      ${running ? html`<span class="spinner" role="img" aria-label=${say("list.running")}></span>` : null}
      ${unread ? html`<span class="dot" role="img" aria-label=${say("list.unread")}></span>` : null}
      <span class="title">${title}</span>
      ${one.tags.map((tag) => html`<span class="tag" key=${tag}>${tag}</span>`)}
      ${one.problem ? html`<${Icon} name="warn" />` : null}
    </a>
    <${ConversationMenu} one=${one} />
  </li>`;
}

/**
 * @param {Summary[]} found
 * @returns {Row[]}
 */
function produceRows(found) {
  /** @type {Row[]} */
  const rows = [];
  let day = "";
  found.forEach((one, place) => {
    const its = sayDay(one.updated);
    if (its !== day) rows.push({ day: (day = its) });
    rows.push({ one, place });
  });
  return rows;
}

/** Move the focus between rows with the arrow keys.
 *
 * @param {KeyboardEvent} event
 */
function move(event) {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  const target = /** @type {HTMLElement} */ (event.target);
  if (!step || !target.matches("a")) return;
  event.preventDefault();
  const links = [...document.querySelectorAll(".conversations .row > a")];
  const order = (/** @type {Element} */ one) =>
    Number(one.parentElement?.getAttribute("aria-posinset"));
  const wanted = order(target) + step;
  const next = links.find((one) => order(one) === wanted);
  if (next instanceof HTMLElement) {
    next.focus();
    next.scrollIntoView({ block: "nearest" });
  }
}

/** Begin a new conversation. */
export function beginConversation() {
  go("#/");
  requestAnimationFrame(() => document.querySelector("textarea")?.focus());
}
