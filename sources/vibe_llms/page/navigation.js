// The side of the page: new conversation, views, and the list of conversations.

import { endSession, session } from "./login.js";
import { tellError } from "./announcements.js";
import { Icon } from "./icons.js";
import { ConversationList, beginConversation } from "./list/sidebar.js";
import { address, route } from "./router.js";
import { say } from "./say.js";
import { html, signal, useEffect } from "./vendor/ui.js";
import { waitingCount } from "./waiting.js";

/** True while the side is shown on a narrow window. */
const open = signal(false);

/** @type {{ view: string, icon: import("./icons.js").IconName, label: import("./say.js").Word }[]} */
const LINKS = [
  { view: "search", icon: "search", label: "nav.search" },
  { view: "waiting", icon: "question", label: "nav.waiting" },
  { view: "runs", icon: "play", label: "nav.runs" },
  { view: "memory", icon: "memory", label: "nav.memory" },
  { view: "documents", icon: "folder", label: "nav.documents" },
  { view: "import", icon: "down", label: "nav.import" },
  { view: "models", icon: "bot", label: "nav.models" },
  { view: "settings", icon: "gear", label: "nav.settings" },
];

/** The button that shows the side on a narrow window. */
export function NavigationButton() {
  const count = waitingCount.value;
  const closed = count ? say("nav.openWaiting", { count }) : say("nav.open");
  return html`<button type="button" class="icon toggle" aria-expanded=${open.value}
    aria-label=${open.value ? say("nav.close") : closed}
    onClick=${() => { open.value = !open.value; }}><${Icon} name="menu" />
    ${count ? html`<span class="count">${count}</span>` : null}</button>`;
}

export function Navigation() {
  const { view } = route.value;
  useEffect(() => {
    open.value = false;
  }, [route.value]);
  const logout = () => endSession().catch(tellError);
  return html`<nav class=${open.value ? "side open" : "side"} aria-label=${say("nav.label")}
    onKeyDown=${(/** @type {KeyboardEvent} */ event) => { if (event.key === "Escape") open.value = false; }}>
    <button type="button" class="main new" onClick=${beginConversation}>
      <${Icon} name="add" /> ${say("nav.new")}</button>
    <ul class="links">
      ${LINKS.map((one) => html`<li key=${one.view}>
        <a href=${address(one.view)} aria-current=${view === one.view ? "page" : undefined}>
          <${Icon} name=${one.icon} /> ${say(one.label)}
          ${one.view === "waiting" && waitingCount.value
            ? html`<span class="count" aria-label=${say("nav.waitingCount", { count: waitingCount.value })}>
                ${waitingCount.value}</span>`
            : null}
        </a></li>`)}
    </ul>
    <h2 class="outside">${say("list.label")}</h2>
    <${ConversationList} />
    ${session.value?.login
      ? html`<p class="account"><span>${session.value.user}</span>
          <button type="button" onClick=${logout}>${say("nav.logout")}</button></p>`
      : null}
  </nav>`;
}
