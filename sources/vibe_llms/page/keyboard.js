// Keys that work everywhere on the page.

import { beginConversation } from "./list/sidebar.js";
import { address, go } from "./router.js";

/** The keys, with what they do, for the settings. */
export const KEYS = /** @type {const} */ ([
  ["Ctrl+Shift+O", "nav.new"],
  ["Ctrl+K", "nav.search"],
]);

/** Listen to the keys. */
export function listenToKeys() {
  addEventListener("keydown", (event) => {
    if (!(event.ctrlKey || event.metaKey) || event.altKey) return;
    if (event.key.toLowerCase() === "k" && !event.shiftKey) {
      event.preventDefault();
      go(address("search"));
    } else if (event.key.toLowerCase() === "o" && event.shiftKey) {
      event.preventDefault();
      beginConversation();
    }
  });
}
