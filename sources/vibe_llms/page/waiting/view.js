// All that waits for the user, across conversations.

import { tellError } from "../announcements.js";
import { say } from "../say.js";
import { html, useEffect, useRef } from "../vendor/ui.js";
import { loadWaiting, waiting, waitingKnown } from "../waiting.js";
import { WaitingCards } from "./cards.js";

export function View() {
  const heading = useRef(/** @type {HTMLElement | null} */ (null));
  const items = waiting.value;
  useEffect(() => {
    document.title = `${say("waiting.title")} – ${say("title")}`;
    void loadWaiting().catch(tellError);
  }, []);
  return html`<h1 ref=${heading} tabindex="-1">${say("waiting.title")}</h1>
    ${waitingKnown.value && !items.length ? html`<p class="hint">${say("waiting.none")}</p>` : null}
    <${WaitingCards} items=${items} linked=${true} onSettled=${() => heading.current?.focus()} />`;
}
