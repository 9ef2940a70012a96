// Two branches side by side, from where they part.

import { Column, Messages } from "./column.js";
import { loadFamily } from "../forks/current.js";
import { Problem, useLoaded, useTitle } from "../loading.js";
import { address } from "../router.js";
import { say } from "../say.js";
import { html, useState } from "../vendor/ui.js";
import "../words/en_branches.js";

const STYLE = new URL("../style/forks.css", import.meta.url).href;

/**
 * @param {{ parts: string[] }} props
 */
export function View({ parts: [a = "", b = ""] }) {
  useTitle(say("compare.title"));
  const family = useLoaded((abort) => loadFamily(a, abort), [a, b]);
  const heading = html`<h1>${say("compare.title")}</h1><${Problem} text=${family.error} retry=${family.load} />`;
  if (!family.value) return html`${heading}${family.error ? null : html`<p class="hint">${say("loading")}</p>`}`;
  if (!family.value.byId.has(b)) return html`${heading}<p class="problem">${say("compare.strangers")}</p>`;
  const shared = family.value.countShared(a, b);
  const { members } = family.value;
  return html`${heading}
    <link rel="stylesheet" href=${STYLE} />
    <p class="hint"><a href=${address("forks", a)}>${say("list.forks")}</a></p>
    <${Shared} key=${`${a} ${b}`} conversation=${a} count=${shared} />
    <div class="compare">
      ${[a, b].map((id) => {
        const place = members.findIndex((one) => one.id === id);
        return html`<${Column} key=${id} member=${members[place]} number=${place + 1} start=${shared} />`;
      })}
    </div>`;
}

/**
 * The messages that both have, folded.
 *
 * @param {{ conversation: string, count: number }} props
 */
function Shared({ conversation, count }) {
  const [open, setOpen] = useState(false);
  if (!count) return html`<p class="hint">${say("compare.nothing")}</p>`;
  const toggle = (/** @type {any} */ event) => setOpen(event.target.open);
  return html`<details class="folded shared" onToggle=${toggle}>
    <summary>${say("compare.shared", { count })}</summary>
    ${open ? html`<${Messages} conversation=${conversation} start=${0} end=${count} />` : null}
  </details>`;
}
