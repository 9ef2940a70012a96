// The contents of a message in order: text, reasoning, citations, and media.

import { textOf } from "../contents.js";
import { Icon } from "../icons.js";
import { readAddress } from "../markdown/inline.js";
import { say } from "../say.js";
import { html } from "../vendor/ui.js";
import { MediaView } from "./media.js";
import { TextView } from "./text.js";

/** @typedef {import("../contents.js").StoredContent} StoredContent */

/**
 * @param {{ contents?: StoredContent[] | undefined, plain?: boolean, live?: boolean }} props
 *   With `plain`, text is no Markdown. With `live`, it is being written.
 */
export function ContentsView({ contents = [], plain = false, live = false }) {
  const joined = joinTexts(contents);
  return joined.map((content, place) =>
    html`<${ContentView} key=${place} content=${content} plain=${plain}
      last=${live && place === joined.length - 1} live=${live} />`);
}

/**
 * Return contents with texts that follow one another joined, as some models send a sentence in
 * parts, each with its sources.
 *
 * @param {StoredContent[]} contents
 */
function joinTexts(contents) {
  /** @type {StoredContent[]} */
  const joined = [];
  for (const content of contents) {
    const last = joined.at(-1);
    const here = content.kind === "text" && textOf(content) !== null;
    if (here && last?.kind === "text" && textOf(last) !== null) {
      const citations = [...(last.citations ?? []), ...(content.citations ?? [])];
      joined[joined.length - 1] = { ...last, data: last.data + content.data, citations };
    } else {
      joined.push(content);
    }
  }
  return joined;
}

/**
 * @param {{ content: StoredContent, plain: boolean, live: boolean, last: boolean }} props
 *   `last` is true for what is being written now.
 */
function ContentView({ content, plain, live, last }) {
  switch (content.kind) {
    case "text":
      return html`<${TextView} content=${content} plain=${plain} />
        <${Citations} citations=${content.citations ?? []} />`;
    case "reasoning":
      return html`<${Reasoning} open=${last}><${TextView} content=${content} plain=${live} /><//>`;
    case "image":
    case "audio":
    case "video":
    case "file":
      return html`<${MediaView} content=${content} />`;
    case "native":
      return null;
    default:
      return html`<p class="hint">${say("content.unknown", { kind: content.kind })}</p>`;
  }
}

/**
 * Reasoning, folded.
 *
 * @param {{ open?: boolean, children?: unknown }} props
 */
export function Reasoning({ open = false, children }) {
  return html`<details class="reasoning" open=${open}>
    <summary><${Icon} name="thought" /> ${say("reasoning.label")}</summary>
    ${children}
  </details>`;
}

/**
 * The sources of a text, which open their places.
 *
 * @param {{ citations: import("../contents.js").Citation[] }} props
 */
function Citations({ citations }) {
  if (!citations.length) return null;
  return html`<aside class="citations" aria-label=${say("citation.label")}>
    <ol>
      ${citations.map((one, place) => {
        const address = readAddress(one.source ?? "");
        const title = one.title || one.source || one.place || String(place + 1);
        return html`<li key=${place}>
          ${address
            ? html`<a href=${address} target="_blank" rel="noopener noreferrer">${title}</a>`
            : html`<span>${title}</span>`}
          ${one.place ? html` <span class="hint">${one.place}</span>` : null}
          ${one.quote ? html`<q>${one.quote}</q>` : null}
        </li>`;
      })}
    </ol>
  </aside>`;
}
