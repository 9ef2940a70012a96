// Some of the messages of a conversation, to read and to copy.

import { get, path } from "../api.js";
import { MessageView } from "../conversation/message.js";
import { Problem } from "../loading.js";
import { address } from "../router.js";
import { say, sayMoment } from "../say.js";
import { html, useEffect, useState } from "../vendor/ui.js";

/** @typedef {import("../conversation/history.js").StoredMessage} StoredMessage */

const PAGE = 50;

/**
 * One of two branches.
 *
 * @param {{ member: import("../forks/family.js").Member, number: number, start: number }} props
 */
export function Column({ member, number, start }) {
  const called = member.name || member.title || say("list.untitled");
  const title = say("compare.branch", { number, title: called });
  return html`<section aria-label=${title}>
    <h2><a href=${address("c", member.id)}>${title}</a></h2>
    <p class="hint">${[member.model, sayMoment(member.updated)].filter(Boolean).join(" · ")}</p>
    <${Messages} conversation=${member.id} start=${start} end=${member.messages} />
  </section>`;
}

/**
 * The messages from one place to another, in pages.
 *
 * @param {{ conversation: string, start: number, end: number }} props
 */
export function Messages({ conversation, start, end }) {
  const [messages, setMessages] = useState(/** @type {StoredMessage[] | null} */ (null));
  const [error, setError] = useState("");
  const shown = messages ?? [];
  const next = start + shown.length;
  const load = async () => {
    setError("");
    try {
      const query = { start: next, limit: Math.min(PAGE, Math.max(end - next, 1)) };
      const page = await get(path`/api/conversations/${conversation}/messages`, query);
      setMessages([...shown, ...page.messages]);
    } catch (problem) {
      setError(problem instanceof Error ? problem.message : String(problem));
    }
  };
  useEffect(() => {
    if (end > start) void load();
  }, [conversation, start]);
  if (end <= start) return html`<p class="hint">${say("forks.empty")}</p>`;
  const results = new Map(shown.filter((one) => one.role === "result").map((one) => [one.invocation, one]));
  const calls = new Set(shown.map((one) => one.identity));
  let speaker = "";
  return html`
    ${shown.map((message) => {
      if (message.role === "result" && calls.has(message.invocation ?? "")) return null;
      const its = message.role === "invocation" ? "assistant" : message.role;
      const first = its !== speaker;
      speaker = its;
      return html`<${MessageView} key=${message.identity} message=${message} first=${first}
        result=${message.role === "invocation" ? results.get(message.identity) : undefined}
        conversation=${conversation} model="" footer="" actions=${null} siblings=${null} />`;
    })}
    <${Problem} text=${error} retry=${load} />
    ${messages === null && !error ? html`<p class="hint">${say("loading")}</p>` : null}
    ${messages && next < end && !error
      ? html`<button type="button" class="older" onClick=${load}>${say("more")}</button>`
      : null}`;
}
