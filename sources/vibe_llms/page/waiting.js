// What waits for the user in all conversations: calls to decide, and questions to answer.

import { speak } from "./announcements.js";
import { get, path, request } from "./api.js";
import { onChange } from "./events.js";
import { say } from "./say.js";
import { computed, signal } from "./vendor/ui.js";
import { forgetDraft } from "./waiting/drafts.js";

/**
 * @typedef {object} FormField
 * @property {string} name
 * @property {"text" | "number" | "integer" | "boolean" | "choice" | "choices"} kind
 * @property {string} title
 * @property {string} description
 * @property {boolean} required
 * @property {any} default
 * @property {[string, string][]} choices Values and their titles.
 * @property {number | null} least
 * @property {number | null} most
 * @property {string} format
 */

/**
 * @typedef {object} WaitingCall
 * @property {string} invocation
 * @property {string} name
 * @property {string} arguments
 * @property {string} reason
 * @property {"function" | "ensemble" | "mcp"} source
 * @property {string} ensemble The MCP server, or other group of tools.
 * @property {boolean} each_time True if the tool cannot be allowed always.
 */

/**
 * @typedef {object} WaitingQuestion
 * @property {string} id
 * @property {string} invocation
 * @property {string} name
 * @property {string} sender The MCP server, or “the model”.
 * @property {string} message
 * @property {FormField[]} fields
 * @property {string} url
 */

/**
 * @typedef {object} WaitingItem
 * @property {string} key
 * @property {string} run
 * @property {string} conversation
 * @property {string} title Title of the conversation.
 * @property {string} since
 * @property {WaitingCall} [call]
 * @property {WaitingQuestion} [question]
 */

/** The sender of the questions that the model asks by itself. */
const MODEL = "the model";

/** @type {import("./vendor/ui.js").Signal<WaitingItem[]>} */
const open = signal(/** @type {WaitingItem[]} */ ([]));

/**
 * Items whose decision the server refused, with its reason, until the user closes them.
 *
 * @type {import("./vendor/ui.js").Signal<Map<string, { item: WaitingItem, reason: string }>>}
 */
export const refusals = signal(new Map());

/** All that waits, and what the server has just refused. */
export const waiting = computed(() => {
  const known = new Set(open.value.map(({ key }) => key));
  const closed = [...refusals.value.values()].filter(({ item }) => !known.has(item.key));
  return [...closed.map(({ item }) => item), ...open.value];
});

/** Number of calls and questions that wait. */
export const waitingCount = computed(() => open.value.length);

/** True if the list has been loaded. */
export const waitingKnown = signal(false);

/** Return true if an item still waits.
 *
 * @param {WaitingItem} item
 */
export function isOpen(item) {
  return open.value.some(({ key }) => key === item.key);
}

/** Number of the last request for the list, and of the one whose list is shown. */
let asked = 0;
let shown = 0;

/** Load all that waits. */
export async function loadWaiting() {
  const number = (asked += 1);
  const items = readItems(await get("/api/waiting"));
  // A list that is late is older than the one that is shown.
  if (number < shown) return;
  shown = number;
  const earlier = new Set(open.value.map(({ key }) => key));
  setOpen(items);
  waitingKnown.value = true;
  const added = items.find((one) => !earlier.has(one.key));
  if (added) speak(describeItem(added));
}

/**
 * Allow or refuse a call.
 *
 * @param {WaitingItem} item
 * @param {{ allowed: boolean, always?: boolean, reason?: string }} decision
 */
export function decide(item, { allowed, always = false, reason = "" }) {
  const json = { invocation: item.call?.invocation, allowed, reason, always };
  return send(item, path`/api/runs/${item.run}/decide`, json);
}

/**
 * Answer or decline a question.
 *
 * @param {WaitingItem} item
 * @param {{ action: "accept" | "decline", values?: Record<string, unknown> }} answer
 */
export function answer(item, { action, values = {} }) {
  const json = { question: item.question?.id, action, values };
  return send(item, path`/api/runs/${item.run}/answer`, json);
}

/** Remove an item that the server has refused.
 *
 * @param {WaitingItem} item
 */
export function dismissRefusal(item) {
  refusals.value = new Map([...refusals.value].filter(([key]) => key !== item.key));
}

/** Return the sentence that announces an item.
 *
 * @param {WaitingItem} item
 */
export function describeItem({ call, question }) {
  if (call) return say("waiting.call", { name: call.name });
  if (question?.sender === MODEL) return say("waiting.model");
  return say("waiting.question", { sender: question?.sender ?? "" });
}

/**
 * @param {WaitingItem} item
 * @param {string} place
 * @param {unknown} json
 */
async function send(item, place, json) {
  dismissRefusal(item);
  try {
    await request("POST", place, { json });
    setOpen(open.value.filter(({ key }) => key !== item.key));
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error);
    refusals.value = new Map([...refusals.value, [item.key, { item, reason }]]);
  } finally {
    void loadWaiting().catch(() => undefined);
  }
}

/**
 * Show items, and forget what was typed for those that do not wait any more.
 *
 * @param {WaitingItem[]} items
 */
function setOpen(items) {
  const kept = new Set(items.map(({ key }) => key));
  for (const { key } of open.value) if (!kept.has(key)) forgetDraft(key);
  open.value = items;
}

/**
 * Return calls and questions as items, those of the oldest message first.
 *
 * @param {{ calls: any[], questions: any[] }} found
 * @returns {WaitingItem[]}
 */
function readItems({ calls, questions }) {
  const items = [
    ...calls.map((call) => readItem(call, call.invocation, { call })),
    ...questions.map((question) => readItem(question, question.id, { question })),
  ];
  return items.sort((one, other) => one.since.localeCompare(other.since));
}

/**
 * @param {any} found
 * @param {string} id
 * @param {{ call?: WaitingCall, question?: WaitingQuestion }} about
 * @returns {WaitingItem}
 */
function readItem({ run, conversation, title, since }, id, about) {
  return { key: `${run}/${id}`, run, conversation, title, since, ...about };
}

let timer = 0;

onChange(({ change }) => {
  if (change === "conversation" || timer) return;
  timer = setTimeout(() => {
    timer = 0;
    void loadWaiting().catch(() => undefined);
  }, 100);
});
