// The agents and models that the user may choose.

import { get } from "./api.js";
import { storedSignal } from "./stored.js";
import { signal } from "./vendor/ui.js";

/**
 * @typedef {object} Choice
 * @property {string} id
 * @property {"agent" | "model"} kind
 * @property {any} about
 */

/** @type {import("./vendor/ui.js").Signal<Choice[]>} */
export const choices = signal(/** @type {Choice[]} */ ([]));

/** The model of a new conversation that names none. */
export const defaultModel = signal("");

/** The choice for new conversations; empty is the default. */
export const chosenModel = storedSignal("model", "");

/** Load the agents and models. */
export async function loadModels() {
  const [agents, models] = await Promise.all([get("/api/agents"), get("/api/models")]);
  defaultModel.value = models.default ?? "";
  choices.value = [
    ...agents.agents.map((/** @type {any} */ one) => ({ id: one.name ?? one.agent, kind: "agent", about: one })),
    ...models.models.map((/** @type {any} */ one) => ({ id: one.model, kind: "model", about: one })),
  ];
}
