// The sessions of the user, which can be ended.

import { get, path, request } from "../api.js";
import { tellError } from "../announcements.js";
import { session } from "../login.js";
import { say, sayMoment } from "../say.js";
import { html, useEffect, useSignal } from "../vendor/ui.js";

export function Sessions() {
  const sessions = useSignal(/** @type {any[]} */ ([]));
  const load = async () => {
    const found = await get("/api/sessions");
    sessions.value = found.sessions;
  };
  useEffect(() => {
    if (session.value?.login) void load().catch(tellError);
  }, []);
  if (!session.value?.login) return null;
  const end = async (/** @type {string} */ id) => {
    try {
      await request("DELETE", path`/api/sessions/${id}`);
      await load();
    } catch (error) {
      tellError(error);
    }
  };
  return html`<section>
    <h2>${say("settings.sessions")}</h2>
    <ul class="rows">
      ${sessions.value.map((one) => html`<li key=${one.id}>
        ${sayMoment(one.created)} <span class="hint">${one.current ? say("settings.sessionThis") : ""}</span>
        <button type="button" onClick=${() => end(one.id)}>${say("settings.sessionEnd")}</button></li>`)}
    </ul>
  </section>`;
}
