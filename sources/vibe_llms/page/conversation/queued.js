// Messages that were added to a run and wait for its next request, or were not sent before its end.

import { path, request } from "../api.js";
import { tellError } from "../announcements.js";
import { say } from "../say.js";
import { html } from "../vendor/ui.js";
import { isActive } from "./history.js";

/**
 * @param {{
 *   history: import("./history.js").ConversationHistory,
 *   outbox: import("./sending.js").Outbox,
 * }} props A message that is taken back goes into the box of the `outbox`.
 */
export function Queued({ history, outbox }) {
  const run = history.run.value;
  const stored = new Set(history.messages.value.map((one) => one.identity));
  const queued = (run?.queued ?? []).filter((one) => !stored.has(one.id));
  if (!run || !queued.length) return null;
  const label = isActive(run) ? "composer.queued" : "composer.unsent";
  const takeBack = async (/** @type {string} */ message) => {
    try {
      const { text } = await request("DELETE", path`/api/runs/${run.id}/steer/${message}`);
      outbox.append(text);
    } catch (error) {
      tellError(error);
    }
    await history.refreshRun();
  };
  return html`<ul class="queued">
    ${queued.map((one) => html`<li key=${one.id}>${say(label, { text: one.text })}
      <button type="button" onClick=${() => takeBack(one.id)}>${say("composer.takeBack")}</button></li>`)}
  </ul>`;
}
