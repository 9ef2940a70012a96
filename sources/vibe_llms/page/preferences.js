// The user's preferences for this browser, applied to the page.

import { effect } from "./vendor/ui.js";
import { storedSignal } from "./stored.js";

/** `system`, `light` or `dark`. */
export const theme = storedSignal("theme", "system");

/** Size of the text in percent. */
export const textSize = storedSignal("text-size", 100);

/** True if Enter sends a message; else Ctrl-Enter or Command-Enter does. */
export const enterSends = storedSignal("enter-sends", true);

effect(() => {
  document.documentElement.dataset["theme"] = theme.value;
});

effect(() => {
  document.documentElement.style.setProperty("font-size", `${textSize.value}%`);
});
