// What the user has typed and not sent, for each conversation. It is kept until the server has
// accepted it, with the key that lets the server recognize a message that is sent twice.

import { load, save } from "./stored.js";

/** @typedef {{ id: string, name: string, size: number, type: string }} Attachment */

/**
 * @typedef {object} Draft
 * @property {string} text
 * @property {Attachment[]} files
 * @property {string[]} collections Collections of documents that the model may search.
 * @property {Pending | null} pending A request that was sent and not acknowledged.
 * @property {{ at: string } | null} edit The message after which an edited one begins a branch.
 * @property {{ text: string, files: Attachment[] } | null} aside What was in the box before an
 *   earlier message was edited.
 */

/** @typedef {{ key: string, path: string, body: any }} Pending */

/** @type {Draft} */
const EMPTY = { text: "", files: [], collections: [], pending: null, edit: null, aside: null };

/** Return the draft of a conversation; `new` is the one that begins a conversation.
 *
 * @param {string} conversation
 * @returns {Draft}
 */
export function loadDraft(conversation) {
  return { ...EMPTY, ...load(`draft:${conversation}`, EMPTY) };
}

/**
 * Store a draft; an empty one is removed.
 *
 * @param {string} conversation
 * @param {Draft} draft
 */
export function saveDraft(conversation, draft) {
  const { text, files, collections, pending, edit, aside } = draft;
  const empty = !text && !files.length && !collections.length && !pending && !edit && !aside;
  save(`draft:${conversation}`, empty ? undefined : draft);
}

/** Return a new key for a request. */
export function produceKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (one) => one.toString(16).padStart(2, "0")).join("");
}
