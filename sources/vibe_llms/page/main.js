// The page: login, the side, and the view that the address names.

import { dismiss, messages, spoken, tellError } from "./announcements.js";
import { loggedIn, reachable } from "./api.js";
import { ConversationPage } from "./conversation/conversation.js";
import { DialogHost } from "./dialogs.js";
import { endChanges, watchChanges } from "./events.js";
import { Icon } from "./icons.js";
import { listenToKeys } from "./keyboard.js";
import { loadConversations } from "./list/conversations.js";
import { LoginForm, beginSession, session } from "./login.js";
import { Navigation, NavigationButton } from "./navigation.js";
import "./preferences.js";
import { route } from "./router.js";
import { loadRuns } from "./runs.js";
import { say } from "./say.js";
import { storageFails } from "./stored.js";
import { html, render, useEffect } from "./vendor/ui.js";
import { OtherView } from "./views.js";
import { loadWaiting } from "./waiting.js";

function Page() {
  const entered = loggedIn.value && session.value;
  const asked = session.value === undefined;
  return html`
    <a class="skip" href="#main" onClick=${skip}>${say("skip")}</a>
    ${reachable.value ? null : html`<p class="banner" role="status">${say("status.offline")}</p>`}
    ${storageFails.value ? html`<p class="banner" role="status">${say("status.storage")}</p>` : null}
    ${asked ? html`<${Frame} />` : entered ? html`<${Inside} />` : html`<${LoginForm} />`}
    <${DialogHost} />
    <${Messages} />
    <p class="outside" role="status" aria-live="polite">${spoken.value}</p>`;
}

/** What index.html shows too, until the server has said who is logged in. */
function Frame() {
  return html`<div class="page" aria-busy="true">
    <div class="side"></div>
    <div><header class="heading"><h1>${say("title")}</h1></header></div>
  </div>`;
}

function Inside() {
  useEffect(() => {
    watchChanges();
    void load();
    return endChanges;
  }, []);
  const { view, parts, query } = route.value;
  const [identity = "", message = ""] = parts;
  return html`<div class="page">
    <${NavigationButton} />
    <${Navigation} />
    ${view === "" || view === "c"
      ? html`<${ConversationPage} key=${identity} identity=${identity} message=${message} />`
      : html`<${OtherView} key=${view} view=${view} parts=${parts} query=${query} />`}
  </div>`;
}

async function load() {
  await Promise.all([loadConversations(), loadRuns(), loadWaiting()]).catch(tellError);
}

/** Messages that pass, and errors. */
function Messages() {
  return html`<div class="told" role="status">
    ${messages.value.map((one) => html`<p key=${one.id} class=${one.kind}>
      ${one.text}
      ${one.action ? html`<button type="button" onClick=${one.action.run}>${one.action.label}</button>` : null}
      <button type="button" class="icon" aria-label=${say("close")} onClick=${() => dismiss(one.id)}>
        <${Icon} name="close" /></button>
    </p>`)}
  </div>`;
}

/** @param {Event} event */
function skip(event) {
  // The address names the view, so the browser must not follow the link.
  event.preventDefault();
  document.querySelector("textarea")?.focus();
}

listenToKeys();
const root = document.getElementById("root");
if (root) {
  root.replaceChildren();
  render(html`<${Page} />`, root);
}
await beginSession();
