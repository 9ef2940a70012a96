// The messages of a conversation, which follow their end while the reader is there.

import { branches } from "../forks/current.js";
import { estimatePrice } from "../models.js";
import { say, sayPrice } from "../say.js";
import { html, useEffect, useLayoutEffect, useRef } from "../vendor/ui.js";
import { waiting } from "../waiting.js";
import { lazy } from "../lazy.js";
import { isActive } from "./history.js";
import { MessageView } from "./message.js";
import { isRecalled } from "./recalled.js";

const WaitingCards = lazy(async () => (await import("../waiting/cards.js")).WaitingCards);

/** @typedef {import("./history.js").StoredMessage} StoredMessage */

/**
 * @param {{
 *   history: import("./history.js").ConversationHistory,
 *   actions: import("./message.js").MessageActions,
 * }} props
 */
export function MessageList({ history, actions }) {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const end = useRef(/** @type {HTMLElement | null} */ (null));
  const start = useRef(/** @type {HTMLElement | null} */ (null));
  const cards = useRef(false);
  const following = history.following.value;
  const messages = history.messages.value;
  const live = history.live.value;
  const run = history.run.value;

  useEffect(() => {
    const observer = new IntersectionObserver(
      (entries) => {
        for (const one of entries) {
          // Before the messages are there, everything is in view.
          if (!history.loaded.value) continue;
          if (one.target === end.current) history.following.value = one.isIntersecting;
          else if (one.isIntersecting) void history.loadOlder();
        }
      },
      { root: box.current, rootMargin: "40px" },
    );
    if (end.current) observer.observe(end.current);
    if (start.current) observer.observe(start.current);
    return () => observer.disconnect();
  }, [history, history.loaded.value, history.hasMore.value]);
  useFollowing(box, following);
  useSteadyTop(box, messages);

  const results = new Map(messages.filter((one) => one.role === "result").map((one) => [one.invocation, one]));
  const calls = new Set(messages.filter((one) => one.role === "invocation").map((one) => one.identity));
  const items = waiting.value.filter((one) => one.conversation === history.identity);
  // They stay after the last one has gone, to move the focus.
  cards.current ||= items.length > 0;
  const asked = new Set(items.map((one) => (one.call ?? one.question)?.invocation));
  const recalled = findRecalled(messages);
  const hidden = new Set(recalled.values());
  const shown = messages.filter((one) =>
    !hidden.has(one) && (one.role !== "result" || !calls.has(one.invocation ?? "")));
  const writing = new Map(live.map((one) => [one.message, one]));
  const siblings = branches.value?.drawSiblings(history);
  let model = "";
  let speaker = "";
  return html`<div class="scroll" ref=${box}>
    <div class="messages" role="log" aria-live="off" aria-label=${say("conversation.messages")}>
      <h2 class="outside">${say("conversation.messages")}</h2>
      <div ref=${start}></div>
      ${history.hasMore.value
        ? html`<button type="button" class="older" onClick=${() => history.loadOlder()}>
            ${say("conversation.older")}</button>`
        : null}
      ${[...shown, ...writing.keys()].map((message) => {
        const its = message.provenance ? `${message.provenance.row}/${message.provenance.model}` : "";
        const switched = its && model && its !== model ? its : "";
        model = its || model;
        const first = speakerOf(message.role) !== speaker;
        speaker = speakerOf(message.role);
        const call = message.role === "invocation";
        return html`<${MessageView} key=${message.identity} message=${message} live=${writing.get(message)}
          first=${first}
          last=${message === shown.at(-1) && !isActive(run)}
          result=${call ? results.get(message.identity) : undefined}
          running=${call && isActive(run)} waiting=${asked.has(message.identity)}
          progress=${call ? history.progress.value[message.identity] : undefined}
          conversation=${history.identity} recalled=${recalled.get(message)}
          model=${switched} footer=${describeUsage(message)} actions=${actions}
          siblings=${siblings?.get(recalled.get(message)?.identity ?? "")
            ?? siblings?.get(message.identity)} />`;
      })}
      ${isActive(run) && !live.length && !items.length ? html`<p class="hint writing">${say("reply.writing")}</p>` : null}
      ${history.notices.value.map((one, place) => html`<p class="notice" key=${place}>${one.text}</p>`)}
      ${run?.error ? html`<p class="problem">${run.error}</p>` : null}
      ${cards.current ? html`<${WaitingCards} items=${items} onSettled=${focusCall} />` : null}
      ${branches.value && !isActive(run)
        ? html`<${branches.value.Continuations} history=${history} />`
        : null}
      <div ref=${end} class="end"></div>
    </div>
    ${following
      ? null
      : html`<button type="button" class="below" onClick=${() => end.current?.scrollIntoView()}>
          ${say("conversation.below")}</button>`}
  </div>`;
}

/**
 * Keep the end visible while `following`, also when the last message grows.
 *
 * @param {import("../vendor/ui.js").RefObject<HTMLElement | null>} box
 * @param {boolean} following
 */
function useFollowing(box, following) {
  useLayoutEffect(() => {
    const place = box.current;
    if (!place || !following) return undefined;
    const toEnd = () => {
      place.scrollTop = place.scrollHeight;
    };
    toEnd();
    const observer = new ResizeObserver(toEnd);
    if (place.firstElementChild) observer.observe(place.firstElementChild);
    return () => observer.disconnect();
  }, [following]);
}

/**
 * Keep what is read in its place when messages are added above.
 *
 * Browsers do this themselves, except at the very top.
 *
 * @param {import("../vendor/ui.js").RefObject<HTMLElement | null>} box
 * @param {StoredMessage[]} messages
 */
function useSteadyTop(box, messages) {
  const before = useRef({ first: "", height: 0 });
  const first = messages[0]?.identity ?? "";
  useLayoutEffect(() => {
    const place = box.current;
    if (!place) return;
    const { first: earlier, height } = before.current;
    if (earlier && earlier !== first && place.scrollTop === 0) {
      place.scrollTop = place.scrollHeight - height;
    }
    before.current = { first, height: place.scrollHeight };
  });
}

/** Move the focus from a card that goes to the call that it was about.
 *
 * @param {import("../waiting.js").WaitingItem} item
 */
function focusCall({ call, question }) {
  const message = document.getElementById(`m-${(call ?? question)?.invocation}`);
  message?.focus({ preventScroll: true });
}

/** Return the document with the recalled entries of memory for each message that it was made for.
 *
 * @param {StoredMessage[]} messages
 * @returns {Map<StoredMessage, StoredMessage>}
 */
function findRecalled(messages) {
  const found = new Map();
  messages.forEach((one, place) => {
    const next = messages[place + 1];
    if (isRecalled(one) && next?.role === "user") found.set(next, one);
  });
  return found;
}

/** Return who speaks in a role: calls belong to the model.
 *
 * @param {string} role
 */
function speakerOf(role) {
  return role === "invocation" || role === "result" ? "assistant" : role;
}

/** Return the tokens of a reply in words, and their estimated price.
 *
 * @param {StoredMessage} message
 */
function describeUsage({ ending, provenance }) {
  const usage = ending?.usage;
  if (!usage) return "";
  const cached = usage["cache_read_tokens"] ?? 0;
  const uncached = (usage["uncached_input_tokens"] ?? 0) + (usage["cache_write_tokens"] ?? 0);
  const input = uncached + cached;
  const output = (usage["output_tokens"] ?? 0) + (usage["reasoning_tokens"] ?? 0);
  if (!input && !output) return "";
  const parts = [say("message.tokens", { input, output })];
  if (cached) parts.push(say("message.cached", { count: cached }));
  const model = provenance ? `${provenance.row}/${provenance.model}` : "";
  const price = estimatePrice(model, { uncached, cached, output });
  if (price !== null) parts.push(say("message.price", { price: sayPrice(price) }));
  return parts.join(", ");
}
