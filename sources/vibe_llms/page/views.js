// The views beside conversations, each loaded when it is first shown.

import { say } from "./say.js";
import { html, useEffect, useState } from "./vendor/ui.js";

/** @type {Record<string, () => Promise<{ View: (props: { parts: string[], query: URLSearchParams }) => any }>>} */
const VIEWS = {
  compare: () => import("./compare/view.js"),
  documents: () => import("./documents/view.js"),
  forks: () => import("./forks/view.js"),
  import: () => import("./import/view.js"),
  memory: () => import("./memory/view.js"),
  models: () => import("./models/view.js"),
  runs: () => import("./runs/view.js"),
  search: () => import("./search/view.js"),
  settings: () => import("./settings/view.js"),
  waiting: () => import("./waiting/view.js"),
};

/**
 * @param {import("./router.js").Route} route
 */
export function OtherView({ view, parts, query }) {
  const [loaded, setLoaded] = useState(/** @type {{ view: string, View: any } | null} */ (null));
  const [error, setError] = useState("");
  useEffect(() => {
    const load = Object.hasOwn(VIEWS, view) ? VIEWS[view] : undefined;
    if (!load) {
      setError(say("view.missing"));
      return;
    }
    setError("");
    load().then(({ View }) => setLoaded({ view, View }), (reason) => setError(String(reason)));
  }, [view]);
  if (error) {
    return html`<main id="main" class="view">
      <h1>${say("view.title")}</h1><p class="problem">${error}</p></main>`;
  }
  if (loaded?.view !== view) return html`<main id="main" class="view"></main>`;
  return html`<main id="main" class="view"><${loaded.View} parts=${parts} query=${query} /></main>`;
}
