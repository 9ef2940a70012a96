// A tool call with its arguments, progress, and result.

import { Icon } from "../icons.js";
import { say } from "../say.js";
import { html } from "../vendor/ui.js";
import { ContentsView } from "./contents_view.js";
import { ExactText } from "./text.js";

/** @typedef {import("./history.js").StoredMessage} StoredMessage */

/**
 * @param {{
 *   name: string,
 *   text: string,
 *   result: StoredMessage | undefined,
 *   running: boolean,
 *   waiting: boolean,
 *   progress: { text?: string, done?: number, total?: number } | undefined,
 * }} props
 */
export function ToolCard({ name, text, result, running, waiting, progress }) {
  const state = result
    ? say(result.failed ? "tool.failed" : "tool.done")
    : waiting ? say("tool.waiting") : running ? say("tool.running") : "";
  return html`<details class=${result?.failed ? "tool failed" : "tool"}>
    <summary><${Icon} name="tool" /> <code>${name}</code> <span class="hint">${state}</span>
      ${progress && !result ? html`<${Progress} progress=${progress} />` : null}
    </summary>
    <h3>${say("tool.arguments")}</h3>
    <${ExactText} text=${formatArguments(text)} />
    ${result ? html`<h3>${say("tool.result")}</h3><${Result} result=${result} />` : null}
  </details>`;
}

/**
 * @param {{ progress: { text?: string, done?: number, total?: number } }} props
 */
function Progress({ progress: { text = "", done, total } }) {
  return html`<span class="hint">${text}</span>
    ${done === undefined ? null : html`<progress value=${done} max=${total} aria-label=${text} />`}`;
}

/**
 * @param {{ result: StoredMessage }} props
 */
function Result({ result }) {
  if (result.display) return html`<${ExactText} text=${result.display} />`;
  if (!result.contents?.length) return html`<p class="hint">${say("tool.empty")}</p>`;
  return html`<div class="exact"><${ContentsView} contents=${result.contents} plain=${true} /></div>`;
}

/**
 * Return arguments with an indented line for each member, or as they are if they are no JSON.
 *
 * Numbers and repeated members must appear as the tool gets them, so JSON is only indented if
 * that changes nothing.
 *
 * @param {string} text
 */
export function formatArguments(text) {
  try {
    const value = JSON.parse(text);
    const compact = text.replace(/("(?:\\.|[^"\\])*")|\s+/g, "$1");
    return JSON.stringify(value) === compact ? JSON.stringify(value, null, 2) : text;
  } catch {
    return text;
  }
}
