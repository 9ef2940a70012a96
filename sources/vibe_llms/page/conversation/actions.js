// What the user can do with a message: edit it, answer it again, and branch after it.

import { path, request } from "../api.js";
import { tellError } from "../announcements.js";
import { listFiles, loadTexts } from "../contents.js";
import { produceKey } from "../drafts.js";
import { familyOf } from "../forks/current.js";
import { address, go } from "../router.js";
import { say } from "../say.js";

/** @typedef {import("./history.js").StoredMessage} StoredMessage */

/**
 * Return the actions on the messages of a conversation.
 *
 * @param {import("./history.js").ConversationHistory} history
 * @param {import("./sending.js").Outbox} outbox
 * @param {import("../vendor/ui.js").Signal<string>} model The model that was chosen at the box.
 * @param {(run: any) => void} show Shows a run that has begun.
 * @returns {import("./message.js").MessageActions}
 */
export function produceActions(history, outbox, model, show) {
  const begin = async (/** @type {any} */ order) => {
    const json = { conversation: history.identity, ...order };
    if (model.value) json.model = model.value;
    try {
      const headers = { "Idempotency-Key": produceKey() };
      show(await request("POST", "/api/runs", { json, headers }));
    } catch (error) {
      tellError(error);
    }
  };
  return {
    async edit(message) {
      try {
        const text = await loadTexts(message);
        const at = await findBefore(history, message);
        outbox.replace({ text, files: listFiles(message.contents) }, { at });
        document.querySelector("textarea")?.focus();
      } catch (error) {
        tellError(error);
      }
    },
    async retry(message) {
      const messages = history.messages.value;
      const before = messages.slice(0, messages.indexOf(message));
      const asked = before.findLast((one) => one.role === "user" && !one.steered);
      if (!asked) return;
      const { collections } = outbox.draft.value;
      await begin({ fork_at: asked.identity, supersede: true, collections });
    },
    async proceed(message) {
      // A message of the user is answered; after a reply, the model has to be asked to go on.
      await begin(message.role === "user" ? {} : { prompt: say("message.continuePrompt") });
    },
    async fork(message) {
      try {
        const json = { at: message.identity, name: familyOf(history.identity)?.nameBranch(history.identity) };
        const made = await request("POST", path`/api/conversations/${history.identity}/fork`, { json });
        go(address("c", made.id));
      } catch (error) {
        tellError(error);
      }
    },
  };
}

/**
 * Return the id of the message before a prompt; empty if that is the first one.
 *
 * The documents that were attached to the prompt are before it, and belong to it.
 *
 * @param {import("./history.js").ConversationHistory} history
 * @param {StoredMessage} message
 */
async function findBefore(history, message) {
  if (history.messages.value[0] === message) await history.loadOlder();
  const messages = history.messages.value;
  const before = messages.slice(0, messages.indexOf(message));
  return before.findLast((one) => one.role !== "document")?.identity ?? "";
}
