// Logging in with the one-time code of a link, or with the user's key.

import { get, loggedIn, request } from "./api.js";
import { say } from "./say.js";
import { html, signal, useSignal } from "./vendor/ui.js";

/**
 * @typedef {object} Session
 * @property {string} user
 * @property {string | null} expires
 * @property {boolean} login False if the server asks for no key.
 */

/** @type {import("./vendor/ui.js").Signal<Session | null>} */
export const session = signal(/** @type {Session | null} */ (null));

/** The reason why the link did not work, or an empty text. */
const problem = signal("");

/** Log in with the code in the address, if there is one, and remove it; load the session. */
export async function beginSession() {
  const code = /^#code=([\w-]+)$/.exec(location.hash)?.[1];
  if (code) {
    // The code must not remain in the history of the browser.
    history.replaceState(null, "", "#/");
    dispatchEvent(new HashChangeEvent("hashchange"));
    try {
      await request("POST", "/api/login", { json: { code } });
    } catch {
      problem.value = say("login.used");
    }
  }
  try {
    session.value = await get("/api/session");
    loggedIn.value = true;
    problem.value = "";
  } catch {
    session.value = null;
  }
}

/** End the session. */
export async function endSession() {
  await request("POST", "/api/logout", { json: {} });
  session.value = null;
  loggedIn.value = false;
}

/** The form that takes the user's key. */
export function LoginForm() {
  const key = useSignal("");
  const error = useSignal("");
  const submit = async (/** @type {Event} */ event) => {
    event.preventDefault();
    try {
      await request("POST", "/api/login", { json: { key: key.value.trim() } });
      key.value = "";
      await beginSession();
    } catch (failure) {
      error.value = failure instanceof Error ? failure.message : String(failure);
    }
  };
  return html`<main id="main" class="login">
    <h1>${say("login.title")}</h1>
    ${problem.value ? html`<p class="problem">${problem.value}</p>` : null}
    ${session.value ? html`<p class="problem">${say("login.ended")}</p>` : null}
    <form onSubmit=${submit}>
      <label>${say("login.key")}
        <input type="password" autocomplete="current-password" required value=${key.value}
          onInput=${(/** @type {any} */ event) => { key.value = event.target.value; }} />
      </label>
      <p class="hint">${say("login.hint")}</p>
      ${error.value ? html`<p class="problem" role="alert">${error.value}</p>` : null}
      <button type="submit" class="main">${say("login.submit")}</button>
    </form>
  </main>`;
}
