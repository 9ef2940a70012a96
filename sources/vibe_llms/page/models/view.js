// Agents and models with what they can do, the budgets, the sources of tools, and the skills.

import { Problem, useLoaded, useTitle } from "../loading.js";
import {
  chosenModel, choices, defaultModel, defaultNote, findChoice, loadModels,
} from "../models.js";
import { say } from "../say.js";
import { html, useSignal } from "../vendor/ui.js";
import "../words/en_views.js";
import { Budgets } from "./budgets.js";
import { ChoiceView } from "./choice.js";
import { Skills } from "./skills.js";
import { Tools } from "./tools.js";

/** From this number on, there is a box to filter the models. */
const MANY = 6;

/** @typedef {import("../models.js").Choice} Choice */

export function View() {
  useTitle(say("models.title"));
  const { error, load } = useLoaded(loadModels, []);
  const filter = useSignal("");
  const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
  const fits = (/** @type {Choice} */ one) => {
    const text = `${one.id} ${one.model} ${one.abilities?.title ?? ""} ${one.description ?? ""}`;
    return words.every((word) => text.toLowerCase().includes(word));
  };
  const agents = choices.value.filter((one) => one.kind === "agent" && fits(one));
  const models = choices.value.filter((one) => one.kind === "model" && fits(one));
  return html`<h1>${say("models.title")}</h1>
    <p class="hint">${say("models.hint")}</p>
    <${Problem} text=${error} retry=${load} />
    ${choices.value.length > MANY
      ? html`<input type="search" aria-label=${say("models.filter")}
          placeholder=${say("models.filter")} value=${filter.value}
          onInput=${(/** @type {any} */ event) => { filter.value = event.target.value; }} />`
      : null}
    <form onSubmit=${(/** @type {Event} */ event) => event.preventDefault()}>
      <${Preset} />
      <${ChoiceList} title=${say("models.agents")} found=${agents} />
      <${ChoiceList} title=${say("models.models")} found=${models} />
    </form>
    ${words.length && !agents.length && !models.length
      ? html`<p class="hint" role="status">${say("models.none")}</p>`
      : null}
    <${Budgets} />
    <${Tools} />
    <${Skills} />`;
}

/** The choice of the default, and of a model that is not offered any more. */
function Preset() {
  const chosen = chosenModel.value;
  const missing = choices.value.length > 0 && chosen !== "" && !findChoice(chosen);
  return html`<ul class="choices">
      <li><label><input type="radio" name="model" checked=${chosen === ""}
        onChange=${() => { chosenModel.value = ""; }} />
        <span><strong>${say("composer.default", { model: defaultModel.value })}</strong>
          ${defaultNote.value ? html`<span class="hint">${defaultNote.value}</span>` : null}</span>
      </label></li>
    </ul>
    ${missing ? html`<p class="problem">${say("models.missing", { model: chosen })}</p>` : null}`;
}

/**
 * @param {{ title: string, found: Choice[] }} props
 */
function ChoiceList({ title, found }) {
  if (!found.length) return null;
  return html`<h2>${title}</h2>
    <ul class="choices">
      ${found.map((one) => html`<${ChoiceView} key=${one.id} one=${one} />`)}
    </ul>`;
}
