// An agent or model with its abilities, limits, and prices, which can be chosen.

import { chosenModel, defaultModel } from "../models.js";
import { say, sayPrice } from "../say.js";
import { html } from "../vendor/ui.js";

/** @type {Map<string, import("../say.js").Word>} */
const KINDS = new Map([
  ["image", "models.sees"], ["audio", "models.hears"], ["video", "models.watches"],
]);

/**
 * @param {{ one: import("../models.js").Choice }} props
 */
export function ChoiceView({ one }) {
  const { id, model, abilities, description } = one;
  const usual = id === defaultModel.value;
  return html`<li>
    <label><input type="radio" name="model" checked=${chosenModel.value === id}
      onChange=${() => { chosenModel.value = id; }} />
      <span>
        <strong>${id}</strong>
        ${usual ? html`<span class="tag">${say("models.default")}</span>` : null}
        ${abilities?.title ? html`<span class="hint">${abilities.title}</span>` : null}
        ${description ? html`<span class="about">${description}</span>` : null}
      </span>
    </label>
    <div class="facts">
      ${model !== id ? html`<p class="hint">${say("models.by", { model })}</p>` : null}
      ${abilities
        ? html`<${Abilities} abilities=${abilities} />`
        : html`<p class="hint">${say("models.unusable")}</p>`}
      <${Prices} prices=${one.prices} />
      ${one.own_key ? html`<p class="hint">${say("models.ownKey")}</p>` : null}
      <${Parts} one=${one} />
    </div>
  </li>`;
}

/**
 * @param {{ abilities: import("../models.js").Abilities }} props
 */
function Abilities({ abilities }) {
  const { accepts, tools, reasoning, context_tokens: window, output_tokens: output } = abilities;
  const kinds = accepts.flatMap((kind) => KINDS.get(kind) ?? []);
  const files = accepts.filter((kind) => kind.includes("/") && !KINDS.has(kind.split("/")[0] ?? ""));
  const can = [
    ...kinds.map((word) => say(word)),
    ...(accepts.includes("file") ? [say("models.anyFile")] : []),
    ...(files.length ? [say("models.files", { types: files.join(", ") })] : []),
    ...(tools === "none" ? [] : [say(tools === "native" ? "models.tools" : "models.toolsByText")]),
    ...(reasoning ? [say("models.reasons")] : []),
  ];
  const limits = [
    ...(window ? [say("models.window", { count: window })] : []),
    ...(output ? [say("models.output", { count: output })] : []),
  ];
  return html`<p class="abilities">
      ${can.map((text) => html`<span class="tag" key=${text}>${text}</span>`)}
      ${can.length ? null : html`<span class="hint">${say("models.textOnly")}</span>`}
    </p>
    ${limits.length ? html`<p class="hint">${limits.join(", ")}</p>` : null}
    ${abilities.retires
      ? html`<p class="notice">${say("models.retires", { date: abilities.retires })}</p>`
      : null}`;
}

/**
 * @param {{ prices: import("../models.js").Prices | null }} props
 */
function Prices({ prices }) {
  if (!prices) return null;
  const { input, cache_read: cached, output } = prices;
  return html`<p class="hint">${say("models.prices", {
    input: sayPrice(Number(input)), cached: sayPrice(Number(cached)),
    output: sayPrice(Number(output)),
  })}</p>`;
}

/**
 * What an agent is made of.
 *
 * @param {{ one: import("../models.js").Choice }} props
 */
function Parts({ one }) {
  const parts = /** @type {const} */ ([
    ["models.fallback", one.fallback],
    ["models.ensembles", [...(one.ensembles ?? []), ...(one.optional_ensembles ?? [])]],
    ["models.singleTools", one.tools],
    ["models.asks", one.agents],
    ["models.collections", one.collections],
  ]);
  return parts.map(([word, names]) =>
    names?.length
      ? html`<p class="hint" key=${word}>${say(word, { names: names.join(", ") })}</p>`
      : null);
}
