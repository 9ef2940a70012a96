// The family of a conversation: a picture, and a list of its branches beside it.

import { get, path } from "../api.js";
import { textOf } from "../contents.js";
import { sayRole } from "../conversation/message.js";
import { Icon } from "../icons.js";
import { Problem, useLoaded, useTitle } from "../loading.js";
import { address } from "../router.js";
import { say, sayMoment } from "../say.js";
import { html, useEffect, useRef, useState } from "../vendor/ui.js";
import "../words/en_branches.js";
import { familyOf, loadFamily, useFamilyChanges } from "./current.js";
import { layOut } from "./layout.js";
import { FamilyPicture } from "./picture.js";

/** @typedef {import("./layout.js").Row} Row */

/** Height of a row in rem; the style sheet has the same. */
const ROW_REM = 4.75;
const STYLE = new URL("../style/forks.css", import.meta.url).href;
const NARROW = "(max-width: 48rem)";
const MOST_LETTERS = 200;

/**
 * @param {{ parts: string[] }} props
 */
export function View({ parts: [identity = ""] }) {
  const loaded = useLoaded((abort) => loadFamily(identity, abort), [identity]);
  const [focused, setFocused] = useState(identity);
  useTitle(say("forks.title"));
  useFamilyChanges(loaded.load, [identity]);
  const family = familyOf(identity) ?? loaded.value;
  const heading = html`<h1>${say("forks.title")}</h1><${Problem} text=${loaded.error} retry=${loaded.load} />`;
  if (!family) return html`${heading}${loaded.error ? null : html`<p class="hint">${say("loading")}</p>`}`;
  const layout = layOut(family);
  const rem = parseFloat(getComputedStyle(document.documentElement).fontSize);
  const most = matchMedia(NARROW).matches ? 80 : 260;
  const width = Math.min(most, 28 + 24 * layout.columns);
  const active = family.byId.has(focused) ? focused : identity;
  return html`${heading}
    <p class="hint">${say("forks.count", { count: family.members.length })} ${say("forks.keys")}</p>
    <link rel="stylesheet" href=${STYLE} />
    <div class="forks">
      <${FamilyPicture} family=${family} layout=${layout} current=${identity} width=${width}
        height=${ROW_REM * rem} />
      <ul aria-label=${say("list.forks")} onKeyDown=${move}>
        ${layout.rows.map((row) => html`<${BranchRow} key=${row.member.id} row=${row}
          current=${identity} active=${active === row.member.id}
          parent=${layout.rows[row.parent]?.number ?? 0}
          onFocus=${() => setFocused(row.member.id)} />`)}
      </ul>
    </div>`;
}

/**
 * @param {{ row: Row, current: string, active: boolean, parent: number, onFocus: () => void }} props
 */
function BranchRow({ row: { member, number }, current, active, parent, onFocus }) {
  const place = useRef(/** @type {HTMLElement | null} */ (null));
  const excerpt = useExcerpt(place, member);
  const is = member.id === current;
  const title = member.name || member.title || say("list.untitled");
  const facts = [
    parent
      ? say(member.at ? "forks.from" : "forks.fromStart", { message: member.at_index + 1, branch: parent })
      : member.at === null ? "" : say("forks.fromDeleted"),
    say("forks.messages", { count: member.messages }),
    sayMoment(member.updated),
    member.superseded_by ? say("forks.superseded") : "",
  ].filter(Boolean).join(" · ");
  return html`<li ref=${place} class=${is ? "current" : ""} onFocusIn=${onFocus}>
    <a href=${address("c", member.id)} title=${title} tabindex=${active ? 0 : -1}
      aria-current=${is ? "true" : undefined}>
      <span class="title"><span class="number">${number}</span> ${title}
        ${is ? html` <span class="tag">${say("forks.current")}</span>` : null}</span>
      <span class="excerpt">${excerpt}</span>
      <span class="hint">${facts}</span>
    </a>
    ${is ? null : html`<a class="icon" href=${address("compare", current, member.id)}
      tabindex=${active ? 0 : -1} title=${say("forks.compare")}
      aria-label=${say("forks.compareWith", { number })}><${Icon} name="columns" /></a>`}
  </li>`;
}

/**
 * Return the beginning of the first message that a branch has of its own, once its row is seen.
 *
 * @param {import("../vendor/ui.js").RefObject<HTMLElement | null>} place
 * @param {import("./family.js").Member} member
 */
function useExcerpt(place, { id, at_index: last, messages }) {
  const [excerpt, setExcerpt] = useState("");
  const empty = messages <= last + 1;
  useEffect(() => {
    if (!place.current || empty) return undefined;
    const abort = new AbortController();
    const observer = new IntersectionObserver(([entry]) => {
      if (!entry?.isIntersecting) return;
      observer.disconnect();
      const query = { start: last + 1, limit: 2 };
      // The row stays without an excerpt if it cannot be loaded; its title and place are there.
      get(path`/api/conversations/${id}/messages`, query, abort.signal).then(
        ({ messages: found }) => setExcerpt(describe(found)), () => undefined,
      );
    });
    observer.observe(place.current);
    return () => {
      abort.abort();
      observer.disconnect();
    };
  }, [id, last, empty]);
  return empty ? say("forks.empty") : excerpt;
}

/** @param {import("../conversation/history.js").StoredMessage[]} messages */
function describe(messages) {
  const spoken = messages.find(({ role }) => role === "user" || role === "assistant") ?? messages[0];
  if (!spoken) return "";
  const text = (spoken.contents ?? []).map((one) => (one.kind === "text" ? textOf(one) ?? "" : "")).join(" ");
  const words = spoken.name ? say("tool.call", { name: spoken.name }) : text.slice(0, MOST_LETTERS);
  return say("forks.excerpt", { role: sayRole(spoken.role), text: words });
}

/** Move the focus: up and down between branches, and sideways to their comparison.
 *
 * @param {KeyboardEvent} event
 */
function move(event) {
  const target = /** @type {HTMLElement} */ (event.target);
  const list = /** @type {HTMLElement} */ (event.currentTarget);
  const rows = [...list.children];
  const row = rows.findIndex((one) => one.contains(target));
  /** @type {Record<string, Element | null | undefined>} */
  const places = {
    ArrowDown: rows[row + 1]?.firstElementChild,
    ArrowUp: rows[row - 1]?.firstElementChild,
    Home: rows[0]?.firstElementChild,
    End: rows.at(-1)?.firstElementChild,
    ArrowRight: rows[row]?.lastElementChild,
    ArrowLeft: rows[row]?.firstElementChild,
  };
  if (!Object.hasOwn(places, event.key)) return;
  event.preventDefault();
  const next = places[event.key];
  if (next instanceof HTMLElement) next.focus();
}
