// The budgets and limits of the user, with what is left.

import { get } from "../api.js";
import { Problem, useLoaded } from "../loading.js";
import { onChange } from "../events.js";
import { say, sayMoment, sayPrice } from "../say.js";
import { html, useEffect } from "../vendor/ui.js";

/**
 * @typedef {object} Budget
 * @property {string} agent Empty if it is for all.
 * @property {string} period
 * @property {string} unit
 * @property {number} limit
 * @property {number} spent
 * @property {number} reserved
 * @property {number} left
 * @property {string | null} ends
 */

/** @type {Map<string, import("../say.js").Word>} */
const PERIODS = new Map([
  ["minute", "budget.minute"], ["hour", "budget.hour"], ["day", "budget.day"],
  ["week", "budget.week"], ["month", "budget.month"], ["total", "budget.total"],
]);

export function Budgets() {
  const { value, error, load } = useLoaded(async (abort) => {
    const { budgets } = await get("/api/budgets", {}, abort);
    return /** @type {Budget[]} */ (budgets);
  }, []);
  useEffect(() => onChange(({ change, status }) => {
    // What a run reserved and did not spend is given back at its end.
    if (change === "all" || (change === "run" && status !== "queued")) load();
  }), []);
  return html`<section aria-label=${say("budget.title")}>
    <h2>${say("budget.title")}</h2>
    <${Problem} text=${error} retry=${load} />
    ${value && !value.length ? html`<p class="hint">${say("budget.none")}</p>` : null}
    <ul class="budgets">
      ${(value ?? []).map((one, place) => html`<${BudgetView} key=${place} one=${one} />`)}
    </ul>
  </section>`;
}

/**
 * @param {{ one: Budget }} props
 */
function BudgetView({ one }) {
  const { agent, period, unit, limit, spent, reserved, left, ends } = one;
  const word = PERIODS.get(period);
  const scope = agent ? say("budget.agent", { agent }) : say("budget.all");
  const name = `${scope}, ${word ? say(word) : period}`;
  const used = [
    say("budget.left", { left: sayAmount(left, unit), limit: sayAmount(limit, unit) }),
    say("budget.spent", { spent: sayAmount(spent, unit) }),
    ...(reserved ? [say("budget.reserved", { reserved: sayAmount(reserved, unit) })] : []),
    ...(ends ? [say("budget.ends", { time: sayMoment(ends) })] : []),
  ];
  return html`<li>
    <p><strong>${name}</strong></p>
    <meter min="0" max=${limit} value=${Math.min(spent + reserved, limit)} high=${limit * 0.9}
      aria-label=${name}></meter>
    <p class="hint">${used.join(", ")}</p>
  </li>`;
}

/** @type {Map<string, import("../say.js").Word>} */
const UNITS = new Map([["tokens", "budget.tokens"], ["requests", "budget.requests"]]);

/**
 * @param {number} amount
 * @param {string} unit
 */
function sayAmount(amount, unit) {
  const word = UNITS.get(unit);
  return word ? say(word, { count: amount }) : sayPrice(amount);
}
