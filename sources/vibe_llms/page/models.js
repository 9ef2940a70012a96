// The agents and models that the user may choose.

import { get } from "./api.js";
import { storedSignal } from "./stored.js";
import { batch, computed, signal } from "./vendor/ui.js";

/**
 * @typedef {object} Abilities
 * @property {string} title
 * @property {string[]} accepts Kinds of contents besides text, and types of files.
 * @property {"native" | "contract" | "none"} tools
 * @property {boolean} reasoning
 * @property {number | null} context_tokens
 * @property {number | null} output_tokens
 * @property {string} retires
 */

/** @typedef {{ input: string, cache_read: string, output: string }} Prices
 *   In dollars per million. */

/**
 * @typedef {object} Choice
 * @property {string} id
 * @property {"agent" | "model"} kind
 * @property {string} model Address of the model that answers.
 * @property {boolean} own_key
 * @property {Abilities | null} abilities Null if the provider cannot be used now.
 * @property {Prices | null} prices
 * @property {string} [description] Of an agent, as are the following.
 * @property {string[]} [fallback]
 * @property {string[]} [ensembles]
 * @property {string[]} [optional_ensembles]
 * @property {string[]} [tools]
 * @property {string[]} [agents]
 * @property {string[]} [collections]
 */

/** @type {import("./vendor/ui.js").Signal<Choice[]>} */
export const choices = signal(/** @type {Choice[]} */ ([]));

/** The model of a new conversation that names none. */
export const defaultModel = signal("");

/** The choice for new conversations; empty is the default. */
export const chosenModel = storedSignal("model", "");

/** Why the default model is the default, if that needs an explanation. */
export const defaultNote = signal("");

/** Load the agents and models. */
export async function loadModels() {
  const [agents, models] = await Promise.all([get("/api/agents"), get("/api/models")]);
  batch(() => {
    defaultModel.value = models.default ?? "";
    defaultNote.value = models.note ?? "";
    choices.value = [
      ...agents.agents.map((/** @type {any} */ one) => ({ ...one, kind: "agent" })),
      ...models.models.map((/** @type {any} */ one) => ({ ...one, kind: "model" })),
    ];
  });
}

/** Return an agent or model by its id, or a model by its address.
 *
 * @param {string} id
 */
export function findChoice(id) {
  const known = choices.value;
  return known.find((one) => one.id === id) ?? known.find((one) => one.model === id);
}

/** The prices of each model whose prices are known, by its address. */
const prices = computed(
  () => new Map(choices.value.flatMap((one) => (one.prices ? [[one.model, one.prices]] : []))),
);

/**
 * Estimate the price of a reply in dollars; null if the prices are not known.
 *
 * @param {string} model The address of its model.
 * @param {{ uncached: number, cached: number, output: number }} tokens
 */
export function estimatePrice(model, { uncached, cached, output }) {
  const its = prices.value.get(model);
  if (!its) return null;
  const read = uncached * Number(its.input) + cached * Number(its.cache_read);
  const sum = read + output * Number(its.output);
  return sum / 1_000_000;
}
