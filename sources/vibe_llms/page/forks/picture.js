// The picture of a family: lines that part, with the shown conversation marked.

import { address, go } from "../router.js";
import { html } from "../vendor/ui.js";

const MARGIN = 14;
const MOST_STEP = 24;

/**
 * The picture. The list beside it says the same, so screen readers skip it.
 *
 * @param {{
 *   family: import("./family.js").Family,
 *   layout: ReturnType<typeof import("./layout.js").layOut>,
 *   current: string,
 *   width: number,
 *   height: number,
 * }} props `height` is that of one row, in pixels.
 */
export function FamilyPicture({ family, layout, current, width, height }) {
  const { rows, columns, columnOf } = layout;
  const step = Math.min(MOST_STEP, (width - 2 * MARGIN) / Math.max(columns - 1, 1));
  const x = (/** @type {number} */ column) => MARGIN + column * step;
  const y = (/** @type {number} */ row) => (row + 0.5) * height;
  const rowOf = new Map(rows.map(({ member }, row) => [member.id, row]));
  const draw = (/** @type {number} */ row, /** @type {number} */ to) => {
    const { parent, from } = rows[row] ?? { parent: -1, from: 0 };
    const end = Math.max(to, x(from));
    if (parent < 0) return `M${x(from)} ${y(row)}H${end}`;
    const bend = Math.min(step, 12);
    return `M${x(from)} ${y(parent)}V${y(row) - bend}q0 ${bend} ${bend} ${bend}H${Math.max(end, x(from) + bend)}`;
  };
  const ends = rows.map(({ parent, from, to }) =>
    Math.max(x(to), parent < 0 ? x(to) : x(from) + Math.min(step, 12)));
  return html`<svg class="family" aria-hidden="true" width=${width} height=${rows.length * height}
    viewBox=${`0 0 ${width} ${rows.length * height}`}>
    ${rows.map(({ member, to }, row) => html`<path key=${member.id}
      class=${member.superseded_by ? "superseded" : ""} d=${draw(row, x(to))} />`)}
    ${family.line(current).map(({ id, limit }) => {
      const row = rowOf.get(id) ?? 0;
      const to = limit === Infinity ? rows[row]?.to ?? 0 : columnOf(limit + 1);
      return html`<path key=${id} class="current" d=${draw(row, x(to))} />`;
    })}
    ${rows.map(({ member }, row) => html`<circle key=${member.id} cx=${ends[row]} cy=${y(row)}
      class=${member.id === current ? "current" : ""} r=${member.id === current ? 6 : 4} />`)}
    ${rows.map(({ member }, row) => html`<rect key=${member.id} y=${row * height} width=${width}
      height=${height} onClick=${() => go(address("c", member.id))} />`)}
  </svg>`;
}
