// One message of a conversation.

import { CopyButton } from "../copying.js";
import { loadTexts } from "../contents.js";
import { Icon } from "../icons.js";
import { say, sayMoment, sayTime } from "../say.js";
import { Component, html } from "../vendor/ui.js";
import { ContentsView } from "./contents_view.js";
import { Recalled } from "./recalled.js";
import { ToolCard } from "./tool_card.js";

/** @typedef {import("./history.js").StoredMessage} StoredMessage */
/** @typedef {import("./live.js").LiveMessage} LiveMessage */

/**
 * @typedef {object} MessageActions
 * @property {(message: StoredMessage) => void} edit
 * @property {(message: StoredMessage) => void} retry
 * @property {(message: StoredMessage) => void} fork
 * @property {(message: StoredMessage) => void} proceed Lets the model go on after the last message.
 */

/**
 * @typedef {object} MessageProps
 * @property {StoredMessage} message
 * @property {LiveMessage} [live] What a run has written of it until now. Once it is stored, what is
 *   drawn stays.
 * @property {StoredMessage | undefined} result The result of a call.
 * @property {string} conversation
 * @property {StoredMessage | undefined} recalled Recalled entries of memory for this message.
 * @property {boolean} last True for the last message of a conversation without a run.
 * @property {boolean} first True if another role spoke before.
 * @property {boolean} running True for a call that runs now.
 * @property {boolean} waiting True for a call that waits for a decision.
 * @property {any} progress
 * @property {string} model Model of the reply if it differs from the one before, else empty.
 * @property {string} footer
 * @property {MessageActions | null} actions Null shows the message only to read.
 * @property {unknown} siblings
 */

/** @extends {Component<MessageProps>} */
export class MessageView extends Component {
  /** @param {MessageProps} next */
  shouldComponentUpdate(next) {
    const now = /** @type {any} */ (this.props);
    return Boolean(next.live) || Object.entries(next).some(([name, value]) => now[name] !== value);
  }

  render() {
    const { message, live, first, model } = this.props;
    if (live) return this.drawLive(live);
    const label = say("message.label", {
      role: sayRole(message.role), time: sayMoment(message.created),
    });
    return html`<article class=${`message ${message.role}`} id=${`m-${message.identity}`}
      data-identity=${message.identity} aria-label=${label} tabindex="-1">
      ${model ? html`<p class="switch"><span>${say("conversation.model", { model })}</span></p>` : null}
      ${first ? html`<header><${RoleLabel} message=${message} /></header>` : null}
      ${this.drawBody()}
      ${this.drawFooter()}
    </article>`;
  }

  /** @param {LiveMessage} live */
  drawLive({ version, message: { role, name }, contents, text, reasoning, arguments: given, failed }) {
    // Each frame is a version.
    void version.value;
    const { first, message } = this.props;
    return html`<article class=${`message live ${role}`} aria-label=${sayRole(role)} aria-busy="true">
      ${/* In the places of a stored message, so that what is drawn stays. */ null}
      ${first ? html`<header><${RoleLabel} message=${message} /></header>` : null}
      ${role === "invocation"
        ? html`<${ToolCard} name=${name} text=${given} running=${false} waiting=${false} />`
        : html`<${ContentsView} contents=${contents} live=${true} />`}
      ${text.text || reasoning || role === "invocation" ? null : html`<p class="hint">${say("reply.writing")}</p>`}
      ${failed ? html`<p class="problem"><${Icon} name="warn" /> ${failed}</p>` : null}
    </article>`;
  }

  drawBody() {
    const { message, result, running, waiting, progress, conversation, recalled } = this.props;
    switch (message.role) {
      case "user":
        return html`<div class="said"><${ContentsView} contents=${message.contents} plain=${true} /></div>
          ${message.steered ? html`<p class="hint">${say("message.steered")}</p>` : null}
          ${recalled ? html`<${Recalled} conversation=${conversation} document=${recalled} />` : null}`;
      case "assistant":
        return html`<${ContentsView} contents=${message.contents} />`;
      case "invocation":
        return html`<${ToolCard} name=${message.name ?? ""} text=${message.arguments ?? "{}"} result=${result}
          running=${running} waiting=${waiting} progress=${progress} />`;
      case "result":
        return html`<div class="exact"><${ContentsView} contents=${message.contents} plain=${true} /></div>`;
      case "supervisor":
      case "document":
      case "digest":
        return html`<details class="folded">
          <summary>${message.title || sayRole(message.role)}</summary>
          ${message.role === "digest" ? html`<p class="hint">${say("role.digestHint", { count: 2 })}</p>` : null}
          <${ContentsView} contents=${message.contents} plain=${message.role !== "digest"} />
        </details>`;
      default:
        return html`<p class="hint">${say("role.other")}</p>`;
    }
  }

  drawFooter() {
    const { message, last, footer, actions, siblings } = this.props;
    const { role, ending } = message;
    const spoken = role === "user" || role === "assistant";
    const problem = describeEnding(ending);
    if (!spoken && !problem && !footer && !siblings) return null;
    return html`<footer>
      ${problem ? html`<p class="problem"><${Icon} name="warn" /> ${problem}
          ${last && actions ? html`<button type="button" onClick=${() => actions.proceed(message)}>
            ${say("message.continue")}</button>` : null}
        </p>` : null}
      ${last && actions && role === "user"
        ? html`<button type="button" onClick=${() => actions.proceed(message)}>${say("message.answer")}</button>`
        : null}
      <div class="tools">
        ${siblings}
        ${spoken
          ? html`<${CopyButton} text=${() => loadTexts(message)} label=${say("message.copy")} />`
          : null}
        ${actions && role === "user" && !message.steered
          ? html`<${ActionButton} icon="edit" label=${say("message.edit")} run=${() => actions.edit(message)} />`
          : null}
        ${actions && role === "assistant"
          ? html`<${ActionButton} icon="refresh" label=${say("message.retry")} run=${() => actions.retry(message)} />`
          : null}
        ${actions && spoken
          ? html`<${ActionButton} icon="branch" label=${say("message.fork")} run=${() => actions.fork(message)} />`
          : null}
        <span class="hint">${footer}</span>
      </div>
    </footer>`;
  }
}

/**
 * @param {{ icon: import("../icons.js").IconName, label: string, run: () => void }} props
 */
export function ActionButton({ icon, label, run }) {
  return html`<button type="button" class="icon" title=${label} aria-label=${label} onClick=${run}>
    <${Icon} name=${icon} /></button>`;
}

/**
 * @param {{ message: StoredMessage }} props
 */
function RoleLabel({ message }) {
  const { provenance, role, created } = message;
  const who = provenance && role !== "digest" ? provenance.model : sayRole(role);
  return html`<span class="who">${who}</span>
    ${created ? html`<time datetime=${created} title=${sayMoment(created)}>${sayTime(created)}</time>` : null}`;
}

/** @type {Record<string, import("../say.js").Word>} */
const ROLES = {
  user: "role.user", assistant: "role.assistant", invocation: "role.assistant",
  result: "tool.result", supervisor: "role.supervisor", document: "role.document",
  digest: "role.digest",
};

/** @param {string} role */
export function sayRole(role) {
  return say(ROLES[role] ?? "role.other");
}

/**
 * Return the reason why a reply ended, if it did not end as expected.
 *
 * @param {StoredMessage["ending"]} ending
 */
function describeEnding(ending) {
  /** @type {Record<string, import("../say.js").Word>} */
  const words = {
    length: "reply.length", refused: "reply.refused", interrupted: "reply.interrupted",
    failed: "reply.failed",
  };
  const word = ending && words[ending.reason];
  if (!ending || !word) return "";
  return ending.detail ? `${say(word)} ${ending.detail}` : say(word);
}
