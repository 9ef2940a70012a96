// Buttons that copy text.

import { speak, tellError } from "./announcements.js";
import { Icon } from "./icons.js";
import { say } from "./say.js";
import { html, useState } from "./vendor/ui.js";

/**
 * @param {{ text: () => string | Promise<string>, label: string }} props
 */
export function CopyButton({ text, label }) {
  const [copied, setCopied] = useState(false);
  const copy = async () => {
    try {
      await write(await text());
    } catch (error) {
      tellError(error);
      return;
    }
    setCopied(true);
    speak(say("copy.done"));
    setTimeout(() => setCopied(false), 1500);
  };
  return html`<button type="button" class="icon" title=${label} aria-label=${label} onClick=${copy}>
    <${Icon} name=${copied ? "check" : "copy"} />
  </button>`;
}

/**
 * @param {string} text
 */
async function write(text) {
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(text);
    return;
  }
  // Without TLS, browsers offer no clipboard to a page from another machine.
  const area = document.createElement("textarea");
  area.value = text;
  area.className = "outside";
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  if (!done) throw new Error(say("copy.refused"));
}
