// The runs of the user that have not ended.

import { get } from "./api.js";
import { onChange } from "./events.js";
import { computed, signal } from "./vendor/ui.js";

/** @typedef {import("./conversation/history.js").Run} Run */

const STATUSES = ["running", "waiting", "queued"];

/** @type {import("./vendor/ui.js").Signal<Run[]>} */
export const activeRuns = signal(/** @type {Run[]} */ ([]));

/** Ids of the conversations that have a run. */
export const activeConversations = computed(
  () => new Set(activeRuns.value.map((one) => one.conversation)),
);

/** Load the runs that have not ended. */
export async function loadRuns() {
  const pages = await Promise.all(
    STATUSES.map((status) => get("/api/runs", { status, limit: 200 })),
  );
  activeRuns.value = pages.flatMap((page) => page.runs);
}

let timer = 0;

onChange(({ change }) => {
  if (change === "conversation" || timer) return;
  timer = setTimeout(() => {
    timer = 0;
    void loadRuns().catch(() => undefined);
  }, 200);
});
