// The heading of a conversation, with its context window.

import { conversations } from "../list/conversations.js";
import { ConversationMenu } from "../list/menu.js";
import { familyOf } from "../forks/current.js";
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
  const listed = conversations.value.find((one) => one.id === identity);
  const summary = listed ?? (head ? summarize(identity, head) : undefined);
  const title = summary?.title || head?.name || say("conversation.new");
  useEffect(() => {
    document.title = `${title} – ${say("title")}`;
  }, [title]);
  return html`<header class="heading">
    <h1>${title}</h1>
    ${(familyOf(identity)?.members.length ?? 1) > 1
      ? html`<a class="icon" href=${address("forks", identity)} title=${say("list.forks")}
          aria-label=${say("list.forks")}><${Icon} name="branch" /></a>`
      : null}
    ${history ? html`<${ContextMeter} history=${history} />` : null}
    ${summary ? html`<${ConversationMenu} one=${summary} />` : null}
  </header>`;
}

/**
 * Return the summary of a conversation that the list does not show, such as a superseded one.
 *
 * @param {string} identity
 * @param {any} head
 * @returns {import("../list/conversations.js").Summary}
 */
function summarize(identity, { name, created, model, tags, forked_from, total }) {
  const member = familyOf(identity)?.byId.get(identity);
  return {
    id: identity, name, title: name || (member?.title ?? ""), created, updated: member?.updated ?? created,
    model, tags, forked_from, messages: total, problem: "",
  };
}
