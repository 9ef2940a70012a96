// MCP servers and other sources of tools, with their state and their tools.

import { get } from "../api.js";
import { ExactText } from "../conversation/text.js";
import { Icon } from "../icons.js";
import { Problem, useLoaded } from "../loading.js";
import { say } from "../say.js";
import { html, useRef, useSignal } from "../vendor/ui.js";

/**
 * @typedef {object} Tool
 * @property {string} name
 * @property {string} description
 * @property {any} arguments_schema
 * @property {string} approval
 * @property {string} blocked Why it does not run, or empty.
 * @property {boolean} outside
 * @property {boolean} sends
 */

/**
 * @typedef {object} Source
 * @property {string} name
 * @property {string[]} agents
 * @property {"ready" | "unopened" | "failed"} state
 * @property {string} problem
 * @property {boolean} outside
 * @property {Record<string, string>} details
 * @property {Tool[]} tools
 */

export function Tools() {
  const check = useRef(false);
  const checking = useSignal(false);
  const { value, error, load } = useLoaded(async (abort) => {
    try {
      const found = await get("/api/tools", { check: check.current || undefined }, abort);
      return /** @type {Source[]} */ (found.sources);
    } finally {
      if (!abort.aborted) checking.value = false;
    }
  }, []);
  const start = () => {
    checking.value = true;
    check.current = true;
    load();
  };
  const unopened = (value ?? []).some((one) => one.state !== "ready");
  return html`<section aria-label=${say("tools.title")}>
    <h2>${say("tools.title")}</h2>
    <p class="hint">${say("tools.hint")}</p>
    <${Problem} text=${error} retry=${load} />
    ${value && !value.length ? html`<p class="hint">${say("tools.none")}</p>` : null}
    ${(value ?? []).map((one) => html`<${SourceView} key=${one.name} source=${one} />`)}
    ${unopened
      ? html`<p><button type="button" onClick=${start} disabled=${checking.value}>
          <${Icon} name="refresh" />${" "}
          ${say(checking.value ? "tools.checking" : "tools.check")}</button></p>`
      : null}
  </section>`;
}

/**
 * @param {{ source: Source }} props
 */
function SourceView({ source }) {
  const { name, agents, state, problem, outside, details, tools } = source;
  const facts = [
    ...(outside ? [say("tools.server")] : []),
    ...(agents.length ? [say("tools.agents", { names: agents.join(", ") })] : []),
    ...Object.entries(details).map(([key, text]) => `${key}: ${text}`),
  ];
  return html`<details class="folded source">
    <summary><${Icon} name="tool" /> <strong>${name}</strong>${" "}
      <span class=${`tag ${state}`}>${say(`tools.state.${state}`)}</span>${" "}
      ${tools.length
        ? html`<span class="hint">${say("tools.count", { count: tools.length })}</span>`
        : null}
    </summary>
    ${problem ? html`<p class="problem">${problem}</p>` : null}
    ${facts.map((text) => html`<p class="hint" key=${text}>${text}</p>`)}
    <ul class="entries">
      ${tools.map((one) => html`<li key=${one.name}><${ToolView} tool=${one} /></li>`)}
    </ul>
  </details>`;
}

/** @type {Map<string, import("../say.js").Word>} */
const APPROVALS = new Map([
  ["always", "tools.approval.always"], ["allow", "tools.approval.allow"],
  ["ask", "tools.approval.ask"], ["deny", "tools.approval.deny"],
]);

/**
 * @param {{ tool: Tool }} props
 */
function ToolView({ tool }) {
  const { name, description, approval, blocked, outside, sends } = tool;
  const rule = APPROVALS.get(approval);
  return html`<p><strong>${name}</strong>${" "}
      <span class="tag">${rule ? say(rule) : approval}</span>
      ${outside ? html` <span class="tag">${say("tools.outside")}</span>` : null}
      ${sends ? html` <span class="tag">${say("tools.sends")}</span>` : null}</p>
    ${blocked ? html`<p class="problem">${blocked}</p>` : null}
    ${description ? html`<${ExactText} text=${description} />` : null}
    <details>
      <summary>${say("tools.schema")}</summary>
      <${ExactText} text=${JSON.stringify(tool.arguments_schema, null, 2)} />
    </details>`;
}
