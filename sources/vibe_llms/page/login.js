// Logging in with the one-time code of a link, or with the user's key.

import { ApiError, get, loggedIn, request } from "./api.js";
import { say } from "./say.js";
import { html, signal, useSignal } from "./vendor/ui.js";

/**
 * @typedef {object} Session
 * @property {string} user
 * @property {string | null} expires
 * @property {boolean} login False if the server asks for no key.
 */

/** Milliseconds after which a server that does not answer is asked again. */
const RETRY_MS = 1000;

/**
 * Null if nobody is logged in, undefined until the server has said so.
 *
 * @type {import("./vendor/ui.js").Signal<Session | null | undefined>}
 */
export const session = signal(/** @type {Session | null | undefined} */ (undefined));

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
  while (!(await loadSession())) await new Promise((end) => setTimeout(end, RETRY_MS));
}

/** Return false if the server does not answer. */
async function loadSession() {
  try {
    session.value = await get("/api/session");
    loggedIn.value = true;
    problem.value = "";
  } catch (error) {
    if (error instanceof ApiError && error.isPassing) return false;
    session.value = null;
  }
  return true;
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
