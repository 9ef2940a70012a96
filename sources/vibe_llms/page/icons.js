// The icons: lines in a square of 24, drawn in the color of the text.

import { html } from "./vendor/ui.js";

const PATHS = {
  add: "M12 5v14M5 12h14",
  back: "M15 5l-7 7 7 7",
  bookmark: "M7 4h10v16l-5-4-5 4z",
  bot: "M6 9h12v10H6zM12 5v4M9 13v2M15 13v2",
  branch: "M7 4v16M7 15c0-5 10-3 10-9M17 6a1.5 1.5 0 100-3 1.5 1.5 0 000 3z",
  check: "M5 13l4 4L19 7",
  chevron: "M9 6l6 6-6 6",
  clip: "M8 12l6-6a3 3 0 014 4l-8 8a5 5 0 01-7-7l8-8",
  clock: "M12 7v5l3 3M12 3a9 9 0 100 18 9 9 0 000-18z",
  close: "M6 6l12 12M18 6L6 18",
  columns: "M4 5h7v14H4zM13 5h7v14h-7z",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  down: "M12 5v14M6 13l6 6 6-6",
  edit: "M4 20h4L19 9l-4-4L4 16zM13 7l4 4",
  export: "M12 4v11M7 9l5-5 5 5M5 20h14",
  file: "M6 3h8l4 4v14H6zM14 3v4h4",
  folder: "M3 6h6l2 2h10v11H3z",
  gear: "M12 8a4 4 0 100 8 4 4 0 000-8zM12 2v3M12 19v3M4.9 4.9l2.2 2.2M16.9 16.9l2.2 2.2M2 12h3M19 12h3M4.9 19.1l2.2-2.2M16.9 7.1l2.2-2.2",
  memory: "M12 4a4 4 0 00-6 4 4 4 0 00-1 7 4 4 0 007 4 4 4 0 007-4 4 4 0 00-1-7 4 4 0 00-6-4zM12 4v16",
  menu: "M4 7h16M4 12h16M4 17h16",
  more: "M5 12h.01M12 12h.01M19 12h.01",
  play: "M7 5l12 7-12 7z",
  question: "M8 9a4 4 0 118 0c0 3-4 3-4 6M12 19h.01",
  refresh: "M4 12a8 8 0 0114-5l2 2M20 4v5h-5M20 12a8 8 0 01-14 5l-2-2M4 20v-5h5",
  search: "M11 4a7 7 0 100 14 7 7 0 000-14zM16 16l5 5",
  send: "M12 19V5M6 11l6-6 6 6",
  steer: "M5 19v-6a4 4 0 014-4h10M15 5l4 4-4 4",
  stop: "M7 7h10v10H7z",
  tag: "M4 4h8l8 8-8 8-8-8zM8 8h.01",
  thought: "M8 18a6 6 0 118-10 5 5 0 11-1 10zM6 21h.01",
  tool: "M14 6a4 4 0 015 5l-9 9-4-4 9-9zM15 3a5 5 0 016 6",
  trash: "M5 7h14M9 7V4h6v3M7 7l1 13h8l1-13",
  undo: "M9 5L4 10l5 5M4 10h10a5 5 0 010 10h-3",
  warn: "M12 4l9 16H3zM12 10v4M12 17h.01",
};

/** @typedef {keyof typeof PATHS} IconName */

/**
 * @param {{ name: IconName }} props
 */
export function Icon({ name }) {
  return html`<svg class="symbol" viewBox="0 0 24 24" aria-hidden="true"><path d=${PATHS[name]} /></svg>`;
}
