// What a new conversation shows before the first message.

import { defaultModel } from "../models.js";
import { say } from "../say.js";
import { html } from "../vendor/ui.js";

const EXAMPLES = /** @type {const} */ (["welcome.can", "welcome.story", "welcome.markdown"]);

/**
 * @param {{ choose: (text: string) => void }} props
 */
export function Welcome({ choose }) {
  const demo = defaultModel.value === "scripted/demo";
  return html`<div class="scroll"><div class="welcome">
    <h2>${say("welcome.title")}</h2>
    ${demo
      ? html`<p class="hint">${say("welcome.demo")}</p>
          <ul class="examples">
            ${EXAMPLES.map((word) => say(word)).map((text) => html`<li key=${text}>
              <button type="button" onClick=${() => choose(text)}>${text}</button></li>`)}
          </ul>`
      : null}
  </div></div>`;
}
