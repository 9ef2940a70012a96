// The branches of a conversation at the message where they part, and the way to each.

import { familyOf } from "../forks/current.js";
import { Icon } from "../icons.js";
import { address, go } from "../router.js";
import { say } from "../say.js";
import { html, signal } from "../vendor/ui.js";
import "../words/en_branches.js";

/** @typedef {import("./history.js").ConversationHistory} ConversationHistory */

/**
 * The place of the reader while the page goes to another branch.
 *
 * @type {import("../vendor/ui.js").Signal<{
 *   conversation: string, at: string, top: number, step: number,
 * } | null>}
 */
const moving = signal(/** @type {any} */ (null));

/** @type {Map<string, string>} The conversation that was shown last in each way. */
const visited = new Map();

/** Return true if the page goes to this conversation at the place of the reader.
 *
 * @param {string} identity
 */
export function isMovingTo(identity) {
  return moving.value?.conversation === identity;
}

/**
 * Return the buttons for the messages before which branches part, by the ids of the messages.
 *
 * @param {ConversationHistory} history
 * @returns {Map<string, unknown>}
 */
export function drawSiblings(history) {
  const found = new Map();
  const family = familyOf(history.identity);
  if (!family) return found;
  let at = history.hasMore.value ? null : "";
  for (const { identity } of history.messages.value) {
    if (at !== null && family.waysAfter(at).length > 1 && family.wayOf(history.identity, at)) {
      found.set(identity, html`<${Siblings} conversation=${history.identity} at=${at} />`);
    }
    at = identity;
  }
  return found;
}

/**
 * `2/3` with buttons to the other branches.
 *
 * @param {{ conversation: string, at: string }} props
 */
function Siblings({ conversation, at }) {
  const family = familyOf(conversation);
  const ways = family?.waysAfter(at) ?? [];
  const own = family?.wayOf(conversation, at) ?? "";
  const place = ways.indexOf(own);
  if (!family || place < 0) return null;
  const branch = (/** @type {string} */ way) => {
    const last = visited.get(`${at} ${way}`) ?? "";
    return family.wayOf(last, at) === way ? last : family.newest(way, at);
  };
  const step = (/** @type {Event} */ event, /** @type {number} */ by) => {
    const button = /** @type {HTMLElement} */ (event.currentTarget);
    const top = button.closest("article")?.getBoundingClientRect().top ?? 0;
    const target = branch(ways[place + by] ?? own);
    visited.set(`${at} ${own}`, conversation);
    moving.value = { conversation: target, at, top, step: by };
    go(address("c", target), { replace: true });
  };
  const other = branch(ways[place ? place - 1 : 1] ?? own);
  return html`<span class="siblings" role="group" data-at=${at}
    aria-label=${say("message.siblings", { number: place + 1, count: ways.length })}>
    <button type="button" class="icon" data-step="-1" disabled=${place === 0}
      title=${say("message.previous")} aria-label=${say("message.previous")}
      onClick=${(/** @type {Event} */ event) => step(event, -1)}><${Icon} name="back" /></button>
    <span aria-hidden="true">${place + 1}/${ways.length}</span>
    <button type="button" class="icon" data-step="1" disabled=${place === ways.length - 1}
      title=${say("message.next")} aria-label=${say("message.next")}
      onClick=${(/** @type {Event} */ event) => step(event, 1)}><${Icon} name="chevron" /></button>
    <a class="icon" href=${address("compare", conversation, other)} title=${say("message.branches")}
      aria-label=${say("message.branches")}><${Icon} name="columns" /></a>
  </span>`;
}

/**
 * A note at the end of a conversation that other branches continue.
 *
 * @param {{ history: ConversationHistory }} props
 */
export function Continuations({ history }) {
  const last = history.messages.value.at(-1)?.identity ?? "";
  const ways = history.loaded.value ? familyOf(history.identity)?.waysAfter(last) ?? [] : [];
  if (!ways.length) return null;
  const only = ways.length === 1 ? familyOf(history.identity)?.newest(ways[0] ?? "", last) : "";
  return html`<p class="hint writing">${say("forks.ends", { count: ways.length })}${" "}
    <a href=${only ? address("c", only) : address("forks", history.identity)}>
      ${say(only ? "forks.openOther" : "list.forks")}</a></p>`;
}

/**
 * Show the message at which the reader changed the branch in the same place of the window.
 *
 * @param {ConversationHistory} history
 */
export async function arrive(history) {
  const place = moving.value;
  if (place?.conversation !== history.identity) return;
  await history.reveal(place.at);
  requestAnimationFrame(() => {
    moving.value = null;
    const group = document.querySelector(`.siblings[data-at="${CSS.escape(place.at)}"]`);
    const article = group?.closest("article");
    const box = article?.closest(".scroll");
    if (!group || !article || !box) return;
    box.scrollTop += article.getBoundingClientRect().top - place.top;
    const buttons = [...group.querySelectorAll("button:enabled")];
    const wanted = buttons.find((one) => one.getAttribute("data-step") === String(place.step));
    const button = wanted ?? buttons[0];
    if (button instanceof HTMLElement) button.focus({ preventScroll: true });
  });
}
