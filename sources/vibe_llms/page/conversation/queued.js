// Messages that were added to a run and wait for its next request.

import { path, request } from "../api.js";
import { tellError } from "../announcements.js";
import { say } from "../say.js";
import { html } from "../vendor/ui.js";

/**
 * @param {{ history: import("./history.js").ConversationHistory }} props
 */
export function Queued({ history }) {
  const run = history.run.value;
  const queued = run?.queued ?? [];
  if (!run || !queued.length) return null;
  const takeBack = async (/** @type {string} */ message) => {
    try {
      await request("DELETE", path`/api/runs/${run.id}/steer/${message}`);
    } catch (error) {
      tellError(error);
    }
    await history.refreshRun();
  };
  return html`<ul class="queued">
    ${queued.map((one) => html`<li key=${one.id}>${say("composer.queued", { text: one.text })}
      <button type="button" onClick=${() => takeBack(one.id)}>${say("composer.takeBack")}</button></li>`)}
  </ul>`;
}
