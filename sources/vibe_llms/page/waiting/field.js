// One field of a form that a tool or the model has made.

import { showInvisible } from "../conversation/text.js";
import { say } from "../say.js";
import { html } from "../vendor/ui.js";

/** @typedef {import("../waiting.js").FormField} FormField */

/** Types of inputs by the format of a text. */
const TYPES = new Map([
  ["email", "email"], ["uri", "url"], ["date", "date"], ["date-time", "datetime-local"],
]);

/**
 * @param {{ field: FormField, group: string, value: any, change: (value: any) => void }} props
 *   `group` is unique on the page.
 */
export function Field({ field, group, value, change }) {
  switch (field.kind) {
    case "boolean":
      return html`<${Options} field=${field} group=${group} change=${change} chosen=${[value]}
        options=${[[true, say("waiting.yes")], [false, say("waiting.no")]]} />`;
    case "choices":
      return html`<${Options} field=${field} group=${group} change=${change} chosen=${value}
        options=${field.choices} several=${true} />`;
    case "choice":
      if (field.choices.length) {
        return html`<${Options} field=${field} group=${group} change=${change} chosen=${[value]}
          options=${field.choices} />`;
      }
      return html`<${TextField} field=${field} value=${value} change=${change} />`;
    default:
      return html`<${TextField} field=${field} value=${value} change=${change} />`;
  }
}

/**
 * @param {{ field: FormField, value: string, change: (value: any) => void }} props
 */
function TextField({ field, value, change }) {
  const { kind, required, least, most, format } = field;
  const number = kind === "number" || kind === "integer";
  return html`<label class="field"><${Caption} field=${field} />
    <input type=${number ? "number" : TYPES.get(format) ?? "text"} required=${required} value=${value}
      step=${kind === "integer" ? "1" : number ? "any" : undefined}
      min=${number ? least ?? undefined : undefined} max=${number ? most ?? undefined : undefined}
      onInput=${(/** @type {any} */ event) => change(event.target.value)} />
  </label>`;
}

/**
 * Options to choose from, one or several.
 *
 * @param {{
 *   field: FormField,
 *   group: string,
 *   options: [any, string][],
 *   chosen: any[],
 *   several?: boolean,
 *   change: (value: any) => void,
 * }} props
 */
function Options({ field, group, options, chosen, several = false, change }) {
  const pick = (/** @type {any} */ value, /** @type {boolean} */ checked) => {
    if (!several) change(value);
    else change(options.flatMap(([one]) => ((one === value ? checked : picked(one)) ? [one] : [])));
  };
  const picked = (/** @type {any} */ value) => chosen.includes(value);
  return html`<fieldset class="field"><legend><${Caption} field=${field} /></legend>
    ${options.map(([value, title]) => html`<label key=${value}>
      <input type=${several ? "checkbox" : "radio"} name=${group} checked=${picked(value)}
        required=${!several && field.required}
        onChange=${(/** @type {any} */ event) => pick(value, event.target.checked)} />
      ${showInvisible(title)}</label>`)}
  </fieldset>`;
}

/**
 * The title of a field with its description and limits, which come from the tool.
 *
 * @param {{ field: FormField }} props
 */
function Caption({ field }) {
  const { name, title, description, required } = field;
  const hints = [required ? "" : say("waiting.optional"), describeLimits(field)].filter(Boolean);
  return html`<span class="caption">${showInvisible(title || name)}
    ${hints.length ? html` <span class="hint">(${hints.join(", ")})</span>` : null}
    ${description
      ? html`<span class="hint about">${showInvisible(description)}</span>`
      : null}</span>`;
}

/** Return the limits of a field in words.
 *
 * @param {FormField} field
 */
function describeLimits({ kind, least, most }) {
  let limits = "";
  if (least !== null && most !== null) limits = say("waiting.between", { least, most });
  else if (least !== null) limits = say("waiting.least", { least });
  else if (most !== null) limits = say("waiting.most", { most });
  if (limits && kind === "text") return say("waiting.characters", { limits });
  if (limits && kind === "choices") return say("waiting.chosen", { limits });
  return limits;
}
