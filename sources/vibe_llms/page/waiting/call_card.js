// A call of a tool to allow or to refuse, with its whole arguments.

import { ExactText, showInvisible } from "../conversation/text.js";
import { formatArguments } from "../conversation/tool_card.js";
import { say } from "../say.js";
import { html, useSignal } from "../vendor/ui.js";
import { decide } from "../waiting.js";
import { CardButton } from "./cards.js";
import { useDraft } from "./drafts.js";

/**
 * @param {{
 *   item: import("../waiting.js").WaitingItem,
 *   call: import("../waiting.js").WaitingCall,
 *   open: boolean,
 *   settled: boolean,
 * }} props
 */
export function CallCard({ item, call, open, settled }) {
  const [reason, setReason] = useDraft(item.key, "");
  const busy = useSignal(false);
  const send = async (/** @type {{ allowed: boolean, always?: boolean }} */ decision) => {
    busy.value = true;
    const given = decision.allowed ? decision : { ...decision, reason: reason.trim() };
    await decide(item, given);
    busy.value = false;
  };
  const shared = { settled, busy: busy.value };
  return html`
    <dl>
      <dt>${say("waiting.origin")}</dt>
      <dd>${showInvisible(describeOrigin(call))}</dd>
      <dt>${say("waiting.reason")}</dt>
      <dd>${showInvisible(call.reason)}</dd>
    </dl>
    <h3>${say("tool.arguments")}</h3>
    <${ExactText} text=${formatArguments(call.arguments || "{}")} />
    ${open
      ? html`<label class="because">${say("waiting.because")}
          <input type="text" value=${reason} maxlength="2000"
            onInput=${(/** @type {any} */ event) => setReason(event.target.value)} /></label>
        <p class="actions">
          <${CardButton} ...${shared} icon="check" label=${say("waiting.allow")}
            run=${() => send({ allowed: true })} />
          ${call.each_time
            ? null
            : html`<${CardButton} ...${shared} label=${say("waiting.always")}
                run=${() => send({ allowed: true, always: true })} />`}
          <${CardButton} ...${shared} icon="close" label=${say("waiting.refuse")}
            run=${() => send({ allowed: false })} />
        </p>`
      : null}`;
}

const ORIGINS = /** @type {const} */ ({
  function: "waiting.function", ensemble: "waiting.ensemble", mcp: "waiting.server",
});

/** Return in words where a tool comes from.
 *
 * @param {import("../waiting.js").WaitingCall} call
 */
function describeOrigin({ source, ensemble }) {
  return say(ORIGINS[source] ?? ORIGINS.ensemble, { name: ensemble });
}
