// The heading of a conversation, with its context window.

import { conversations } from "../list/conversations.js";
import { ConversationMenu } from "../list/menu.js";
import { Icon } from "../icons.js";
import { address } from "../router.js";
import { say } from "../say.js";
import { html, useEffect } from "../vendor/ui.js";
import { ContextMeter } from "./context.js";

/**
 * @param {{ identity: string, history: import("./history.js").ConversationHistory | null }} props
 */
export function ConversationHeader({ identity, history }) {
  const head = history?.head.value;
  // The list does not hold all conversations.
  const summary = conversations.value.find((one) => one.id === identity)
    ?? (head && { id: identity, name: head.name, title: head.name, tags: head.tags });
  const title = summary?.title || say("conversation.new");
  useEffect(() => {
    document.title = `${title} – ${say("title")}`;
  }, [title]);
  return html`<header class="heading">
    <h1>${title}</h1>
    ${head?.forked_from
      ? html`<a class="icon" href=${address("forks", identity)} title=${say("conversation.forkedFrom")}
          aria-label=${say("list.forks")}><${Icon} name="branch" /></a>`
      : null}
    ${history ? html`<${ContextMeter} history=${history} />` : null}
    ${summary ? html`<${ConversationMenu} one=${summary} />` : null}
  </header>`;
}
