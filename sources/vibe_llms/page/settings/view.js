// The user's preferences, and the sessions that are logged in.

import { KEYS } from "../keyboard.js";
import { enterSends, textSize, theme } from "../preferences.js";
import { address } from "../router.js";
import { say } from "../say.js";
import { html, useEffect } from "../vendor/ui.js";
import "../words/en_views.js";
import { Sessions } from "./sessions.js";

const THEMES = /** @type {const} */ (["system", "light", "dark"]);

export function View() {
  useEffect(() => {
    document.title = `${say("settings.title")} – ${say("title")}`;
  }, []);
  return html`<h1>${say("settings.title")}</h1>
    <form class="settings" onSubmit=${(/** @type {Event} */ event) => event.preventDefault()}>
      <fieldset>
        <legend>${say("settings.theme")}</legend>
        ${THEMES.map((one) => html`<label key=${one}>
          <input type="radio" name="theme" checked=${theme.value === one}
            onChange=${() => { theme.value = one; }} /> ${say(`settings.theme.${one}`)}</label>`)}
      </fieldset>
      <label>${say("settings.size")}
        <input type="range" min="80" max="160" step="10" value=${textSize.value}
          onInput=${(/** @type {any} */ event) => { textSize.value = Number(event.target.value); }} />
        <output>${textSize.value} %</output>
      </label>
      <label>
        <input type="checkbox" checked=${enterSends.value}
          onChange=${(/** @type {any} */ event) => { enterSends.value = event.target.checked; }} />
        ${say("settings.enter")}
      </label>
      <p class="hint">${say("settings.enterHint")}</p>
    </form>
    <h2>${say("settings.keys")}</h2>
    <ul class="rows">
      ${KEYS.map(([keys, word]) => html`<li key=${keys}><kbd>${keys}</kbd> ${say(word)}</li>`)}
    </ul>
    <h2>${say("settings.import")}</h2>
    <p><a class="button" href=${address("import")}>${say("nav.import")}</a></p>
    <${Sessions} />`;
}
