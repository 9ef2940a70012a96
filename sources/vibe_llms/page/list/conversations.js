// The list of conversations, kept current by changes.

import { get, path, request } from "../api.js";
import { tellError } from "../announcements.js";
import { onChange } from "../events.js";
import { say } from "../say.js";
import { storedSignal } from "../stored.js";
import { deleteLater, deleting, onDeletion } from "../undoing.js";
import { batch, computed, signal } from "../vendor/ui.js";

/** @typedef {Pick<Summary, "id" | "name" | "title" | "tags">} Named */

/**
 * @typedef {object} Summary
 * @property {string} id
 * @property {string} name
 * @property {string} title
 * @property {string} created
 * @property {string} updated
 * @property {string} model
 * @property {string[]} tags
 * @property {string | null} forked_from
 * @property {number} messages
 * @property {string} problem
 */

const PAGE = 200;

/** @type {import("../vendor/ui.js").Signal<Summary[]>} */
const all = signal(/** @type {Summary[]} */ ([]));

/** True if the list has been loaded. */
export const listed = signal(false);

/** True if the server has more conversations. */
export const hasMore = signal(false);

/** Tag that the list is limited to, or an empty text. */
export const chosenTag = signal("");

/** The conversations, most recent first. */
export const conversations = computed(() =>
  all.value.filter((one) => !deleting.value.has(pathOf(one.id))),
);

/** Time at which each conversation was last seen here. */
export const seen = storedSignal("seen", /** @type {Record<string, string>} */ ({}));

/** Conversations that were there before this browser showed the list are not unread. */
const since = storedSignal("since", "");

let loading = false;

/** Load the first page of the list. */
export async function loadConversations() {
  const page = await get("/api/conversations", { limit: PAGE, tag: chosenTag.value });
  batch(() => {
    all.value = page.conversations;
    hasMore.value = page.has_more;
    listed.value = true;
    if (!since.value) since.value = new Date().toISOString();
  });
}

/** Load the next page of the list. */
export async function loadMore() {
  const last = all.value.at(-1);
  if (loading || !hasMore.value || !last) return;
  loading = true;
  try {
    const query = { limit: PAGE, tag: chosenTag.value, after: last.id };
    const page = await get("/api/conversations", query);
    const known = new Set(all.value.map((one) => one.id));
    batch(() => {
      all.value = [
        ...all.value,
        ...page.conversations.filter((/** @type {Summary} */ one) => !known.has(one.id)),
      ];
      hasMore.value = page.has_more;
    });
  } catch (error) {
    tellError(error);
  } finally {
    loading = false;
  }
}

/** Return true if a conversation has messages that were not shown here.
 *
 * @param {Summary} one
 */
export function isUnread(one) {
  return one.updated > (seen.value[one.id] ?? since.value);
}

/** Note that a conversation is shown now.
 *
 * @param {string} id
 */
export function markSeen(id) {
  const updated = all.value.find((one) => one.id === id)?.updated ?? new Date().toISOString();
  if ((seen.value[id] ?? "") < updated) seen.value = { ...seen.value, [id]: updated };
}

/**
 * Change the name or the tags of a conversation.
 *
 * @param {string} id
 * @param {{ name?: string, add_tags?: string[], remove_tags?: string[] }} change
 */
export async function changeConversation(id, change) {
  const head = await request("PATCH", path`/api/conversations/${id}`, { json: change });
  all.value = all.value.map((one) =>
    one.id === id ? { ...one, name: head.name, title: head.name || one.title, tags: head.tags } : one,
  );
}

/**
 * Delete a conversation after some seconds, in which this can be undone.
 *
 * @param {Named} one
 */
export function deleteConversation(one) {
  const label = say("list.deleted", { title: one.title || say("list.untitled") });
  deleteLater(pathOf(one.id), label);
}

onDeletion((target) => {
  all.value = all.value.filter(({ id }) => pathOf(id) !== target);
});

/** @param {string} id */
function pathOf(id) {
  return path`/api/conversations/${id}`;
}

let timer = 0;

onChange(({ change }) => {
  if (change === "run" || timer) return;
  // Several changes at once need one request.
  timer = setTimeout(() => {
    timer = 0;
    void (listed.value ? refreshHead() : loadConversations()).catch(() => undefined);
  }, 300);
});

/** Load the newest conversations again, and keep the others. */
async function refreshHead() {
  const page = await get("/api/conversations", { limit: PAGE, tag: chosenTag.value });
  /** @type {Set<string>} */
  const fresh = new Set(page.conversations.map((/** @type {Summary} */ one) => one.id));
  const oldest = page.conversations.at(-1)?.updated ?? "";
  const kept = all.value.filter((one) => !fresh.has(one.id) && one.updated <= oldest);
  batch(() => {
    all.value = page.has_more ? [...page.conversations, ...kept] : page.conversations;
    hasMore.value = page.has_more && (hasMore.value || kept.length === 0);
  });
}
