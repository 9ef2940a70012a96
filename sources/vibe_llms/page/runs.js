// The runs of the user that have not ended.

import { get } from "./api.js";
import { onChange } from "./events.js";
import { computed, signal } from "./vendor/ui.js";

/** @typedef {import("./conversation/history.js").Run} Run */

/** @type {import("./vendor/ui.js").Signal<Run[]>} */
export const activeRuns = signal(/** @type {Run[]} */ ([]));

/** Ids of the conversations that have a run. */
export const activeConversations = computed(
  () => new Set(activeRuns.value.map((one) => one.conversation)),
);

/** Load the runs that have not ended. */
export async function loadRuns() {
  activeRuns.value = (await get("/api/runs", { status: "unfinished", limit: 500 })).runs;
}

let timer = 0;

onChange(({ change }) => {
  if (change === "conversation" || timer) return;
  timer = setTimeout(() => {
    timer = 0;
    void loadRuns().catch(() => undefined);
  }, 200);
});
