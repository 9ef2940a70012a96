// The skills in the folders of the server, and why some are not offered.

import { get } from "../api.js";
import { ExactText } from "../conversation/text.js";
import { Icon } from "../icons.js";
import { Problem, useLoaded } from "../loading.js";
import { say } from "../say.js";
import { html } from "../vendor/ui.js";

/**
 * @typedef {object} Skill
 * @property {string} name
 * @property {string} description
 * @property {string[]} agents
 * @property {string} folder Empty for users other than `local`.
 * @property {string} problem Why it is not offered, or empty.
 * @property {string[]} remarks
 */

/**
 * @typedef {object} SkillList
 * @property {Skill[]} skills
 * @property {Record<string, string>} problems Why folders of skills cannot be used, by their paths.
 */

/** The section of the skills; nothing without skills. */
export function Skills() {
  const { value, error, load } = useLoaded(
    async (abort) => /** @type {SkillList} */ (await get("/api/skills", {}, abort)), [],
  );
  const skills = value?.skills ?? [];
  const problems = Object.entries(value?.problems ?? {});
  if (!error && !skills.length && !problems.length) return null;
  return html`<section aria-label=${say("skills.title")}>
    <h2>${say("skills.title")}</h2>
    <p class="hint">${say("skills.hint")}</p>
    <${Problem} text=${error} retry=${load} />
    ${problems.map(([folder, problem]) =>
      html`<p class="problem" key=${folder}>${say("skills.folder", { folder, problem })}</p>`)}
    ${skills.map((one, index) => html`<${SkillView} key=${one.folder || index} skill=${one} />`)}
  </section>`;
}

/**
 * @param {{ skill: Skill }} props
 */
function SkillView({ skill }) {
  const { name, description, agents, folder, problem, remarks } = skill;
  return html`<details class="folded source">
    <summary><${Icon} name="bookmark" /> <strong>${name}</strong>${" "}
      <span class=${`tag ${problem ? "failed" : "ready"}`}>
        ${say(problem ? "skills.withheld" : "skills.offered")}</span>
    </summary>
    ${problem ? html`<p class="problem">${problem}</p>` : null}
    ${description ? html`<${ExactText} text=${description} />` : null}
    ${agents.length
      ? html`<p class="hint">${say("tools.agents", { names: agents.join(", ") })}</p>`
      : null}
    ${folder ? html`<p class="hint">${folder}</p>` : null}
    ${remarks.map((text) => html`<p class="hint" key=${text}>${text}</p>`)}
  </details>`;
}
