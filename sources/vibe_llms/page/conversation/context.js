// What fills the model's context window, and the cost of the next turn.

import { get, path, request } from "../api.js";
import { tell, tellError } from "../announcements.js";
import { say, sayPrice } from "../say.js";
import { html, useEffect, useSignal } from "../vendor/ui.js";

const PARTS = /** @type {const} */ ([
  "system", "tools", "digest", "documents", "memory", "results", "talk",
]);

/**
 * @param {{ history: import("./history.js").ConversationHistory }} props
 */
export function ContextMeter({ history }) {
  const use = useSignal(/** @type {any} */ (null));
  const open = useSignal(false);
  const count = history.messages.value.length;
  const running = history.run.value?.status === "running";
  const load = async () => {
    try {
      use.value = await get(path`/api/conversations/${history.identity}/context`);
    } catch {
      // Without a key of the provider, nothing is known.
      use.value = null;
    }
  };
  useEffect(() => {
    if (count && !running) void load();
  }, [history, count, running]);
  if (!use.value) return null;
  const { tokens, window, price } = use.value;
  const used = say("context.used", { used: tokens, window });
  const compact = async () => {
    try {
      await request("POST", path`/api/conversations/${history.identity}/compact`, { json: {} });
      await history.refresh();
      await load();
    } catch (error) {
      tellError(error);
    }
  };
  return html`<div class="context">
    <button type="button" class="meter" aria-expanded=${open.value} title=${used}
      aria-label=${`${say("context.label")}: ${used}`} onClick=${() => { open.value = !open.value; }}>
      <meter min="0" max=${window} value=${tokens} high=${use.value.compact_at ?? window}
        aria-hidden="true"></meter>
    </button>
    ${open.value
      ? html`<section class="panel" aria-label=${say("context.title")}>
          <h2>${say("context.title")}</h2>
          <p>${used}</p>
          <table><tbody>
            ${PARTS.map((part) => html`<tr key=${part}><th scope="row">${say(`context.part.${part}`)}</th>
              <td>${(use.value.parts[part] ?? 0).toLocaleString()}</td>
              <td><meter min="0" max=${window} value=${use.value.parts[part] ?? 0}
                aria-label=${say(`context.part.${part}`)}></meter></td></tr>`)}
            <tr><th scope="row">${say("context.free")}</th><td>${use.value.free.toLocaleString()}</td><td></td></tr>
          </tbody></table>
          ${price === null ? null : html`<p>${say("context.price", { price: sayPrice(Number(price)) })}</p>`}
          <button type="button" onClick=${() => { tell(say("loading")); void compact(); }}>
            ${say("context.compact")}</button>
        </section>`
      : null}
  </div>`;
}
