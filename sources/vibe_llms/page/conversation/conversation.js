// The view of one conversation, or of a new one.

import { tellError } from "../announcements.js";
import { onChange } from "../events.js";
import { conversations, markSeen } from "../list/conversations.js";
import { chosenModel, loadModels } from "../models.js";
import { address, go } from "../router.js";
import { loadRuns } from "../runs.js";
import { say } from "../say.js";
import { html, useEffect, useMemo, useSignal } from "../vendor/ui.js";
import { loadTexts } from "../contents.js";
import { path, request } from "../api.js";
import { produceKey } from "../drafts.js";
import { Composer } from "./composer.js";
import { ConversationHeader } from "./header.js";
import { ConversationHistory, isActive } from "./history.js";
import { MessageList } from "./messages.js";
import { Queued } from "./queued.js";
import { Outbox } from "./sending.js";
import { Welcome } from "./welcome.js";

/** @typedef {import("./history.js").StoredMessage} StoredMessage */

/** @param {{ identity: string, message?: string }} props An empty identity is a new conversation. */
export function ConversationPage({ identity, message = "" }) {
  const history = useMemo(() => (identity ? new ConversationHistory(identity) : null), [identity]);
  const outbox = useMemo(() => new Outbox(identity || "new"), [identity]);
  const model = useSignal("");
  /** The message before the one that is edited; null if none is. */
  const forkAt = useSignal(/** @type {string | null} */ (null));

  const show = (/** @type {any} */ run) => {
    void loadRuns().catch(tellError);
    if (history && run.conversation === identity) {
      void history.refresh().then(() => history.watch(run));
    } else {
      go(address("c", run.conversation), { replace: !identity });
    }
  };
  useEffect(() => {
    model.value = "";
    forkAt.value = null;
    void loadModels().catch(tellError);
    void outbox.resume().then((run) => run?.conversation && show(run));
    if (!history) return undefined;
    void history.open().then(() => reveal(history, message)).catch(tellError);
    const end = onChange((change) => {
      if (change.change === "run" && change.conversation === identity) void history.findRun();
      else if (change.change === "all" || change.id === identity) void history.refresh();
    });
    return () => {
      end();
      history.close();
    };
  }, [history, outbox]);
  useEffect(() => {
    if (history) void reveal(history, message);
  }, [message]);
  const updated = conversations.value.find((one) => one.id === identity)?.updated;
  useEffect(() => {
    if (identity && document.visibilityState === "visible") markSeen(identity);
  }, [identity, updated]);

  const run = history?.run.value ?? null;
  const running = isActive(run);
  const send = async () => {
    if (running && run && forkAt.value === null) {
      if (await outbox.steer(run.id)) void history?.refreshRun();
      return;
    }
    const wanted = model.value || (identity ? "" : chosenModel.value);
    const begun = await outbox.send({ model: wanted, forkAt: forkAt.value });
    if (!begun) return;
    forkAt.value = null;
    show(begun);
  };
  const actions = useMemo(() => produceActions(identity, history, outbox, forkAt, show), [history]);
  if (history?.gone.value) return html`<main id="main"><p class="problem">${say("conversation.gone")}</p></main>`;
  return html`<main id="main" class="conversation">
    <${ConversationHeader} identity=${identity} history=${history} />
    ${history
      ? html`<${MessageList} history=${history} actions=${actions} siblingsOf=${none} />`
      : html`<${Welcome} choose=${(/** @type {string} */ text) => { outbox.change({ text }); void send(); }} />`}
    ${history?.error.value
      ? html`<p class="problem">${history.error.value}
          <button type="button" onClick=${() => history.refresh()}>${say("retry")}</button></p>`
      : null}
    ${history ? html`<${Queued} history=${history} />` : null}
    <${Composer} outbox=${outbox} running=${running} editing=${forkAt.value !== null}
      model=${model.value || history?.head.value?.model || ""}
      messages=${history?.messages.value ?? []}
      setModel=${(/** @type {string} */ chosen) => {
        model.value = chosen;
        if (!identity) chosenModel.value = chosen;
      }}
      cancelEdit=${() => { forkAt.value = null; outbox.change({ text: "" }); }}
      send=${send} stop=${() => history?.stop().catch(tellError)} />
  </main>`;
}

function none() {
  return null;
}

/**
 * Scroll to a message that the address names.
 *
 * @param {ConversationHistory} history
 * @param {string} message
 */
async function reveal(history, message) {
  if (!message) return;
  await history.reveal(message);
  requestAnimationFrame(() => {
    const found = document.getElementById(`m-${message}`);
    found?.scrollIntoView({ block: "start" });
    found?.focus({ preventScroll: true });
  });
}

/**
 * @param {string} identity
 * @param {ConversationHistory | null} history
 * @param {Outbox} outbox
 * @param {import("../vendor/ui.js").Signal<string | null>} forkAt
 * @param {(run: any) => void} show
 * @returns {import("./message.js").MessageActions}
 */
function produceActions(identity, history, outbox, forkAt, show) {
  const before = (/** @type {StoredMessage} */ message) => {
    const messages = history?.messages.value ?? [];
    return messages[messages.indexOf(message) - 1]?.identity ?? "";
  };
  return {
    async edit(message) {
      try {
        await history?.reveal(message.identity);
        outbox.change({ text: await loadTexts(message) });
        forkAt.value = before(message);
        document.querySelector("textarea")?.focus();
      } catch (error) {
        tellError(error);
      }
    },
    async retry(message) {
      const messages = history?.messages.value ?? [];
      const place = messages.indexOf(message);
      const asked = messages.slice(0, place).findLast((one) => one.role === "user" && !one.steered);
      if (!asked) return;
      try {
        const { collections } = outbox.draft.value;
        const json = { conversation: identity, fork_at: asked.identity, collections };
        const headers = { "Idempotency-Key": produceKey() };
        show(await request("POST", "/api/runs", { json, headers }));
      } catch (error) {
        tellError(error);
      }
    },
    async fork(message) {
      try {
        const json = { at: message.identity };
        const made = await request("POST", path`/api/conversations/${identity}/fork`, { json });
        go(address("c", made.id));
      } catch (error) {
        tellError(error);
      }
    },
  };
}
