// The view of one conversation, or of a new one.

import { tellError } from "../announcements.js";
import { onChange } from "../events.js";
import { branches, loadFamily, useFamilyChanges } from "../forks/current.js";
import { lazy } from "../lazy.js";
import { conversations, markSeen } from "../list/conversations.js";
import { chosenModel, loadModels } from "../models.js";
import { address, go } from "../router.js";
import { loadRuns } from "../runs.js";
import { say } from "../say.js";
import { html, useEffect, useMemo, useSignal } from "../vendor/ui.js";
import { produceActions } from "./actions.js";
import { Composer } from "./composer.js";
import { ConversationHeader } from "./header.js";
import { ConversationHistory, isActive } from "./history.js";
import { MessageList } from "./messages.js";
import { Outbox } from "./sending.js";
import { Welcome } from "./welcome.js";

const Queued = lazy(async () => (await import("./queued.js")).Queued);

/** @param {{ identity: string, message?: string }} props An empty identity is a new conversation. */
export function ConversationPage({ identity, message = "" }) {
  const history = useMemo(() => (identity ? new ConversationHistory(identity) : null), [identity]);
  const outbox = useMemo(() => new Outbox(identity || "new"), [identity]);
  const model = useSignal("");
  const { edit } = outbox.draft.value;

  const show = (/** @type {any} */ run) => {
    void loadRuns().catch(tellError);
    if (history && run.conversation === identity) {
      // Also somebody who has read far above sees what was sent.
      history.following.value = true;
      void history.refresh().then(() => history.watch(run));
    } else {
      go(address("c", run.conversation), { replace: !identity });
    }
  };
  // Without the family, only the buttons between branches are missing.
  const loadBranches = () => {
    if (history) void loadFamily(identity, history.closing.signal).catch(() => undefined);
  };
  useFamilyChanges(loadBranches, [history]);
  useEffect(() => {
    model.value = "";
    void loadModels().catch(tellError);
    void outbox.resume().then((run) => run?.conversation && show(run));
    const leave = outbox.watch();
    if (!history) return leave;
    if (message || branches.value?.isMovingTo(identity)) history.following.value = false;
    loadBranches();
    void history.open().then(() => branches.value?.arrive(history)).then(() => reveal(history, message))
      .catch(tellError);
    const end = onChange((change) => {
      if (change.change === "run" && change.conversation === identity) void history.findRun().catch(() => undefined);
      else if (change.change === "all" || change.id === identity) void history.refresh();
    });
    return () => {
      leave();
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
    if (running && run && !edit) {
      const added = await outbox.steer(run.id);
      if (added) void history?.refreshRun();
      if (added || outbox.code !== "steering_refused") return;
      // The reply was ending, so this is the next message, unless it is sent or emptied by then.
      outbox.error.value = "";
      await history?.ended;
      if (!outbox.draft.value.text.trim()) return;
    }
    const wanted = model.value || (identity ? "" : chosenModel.value);
    const begun = await outbox.send(wanted);
    if (begun?.conversation) show(begun);
  };
  const actions = useMemo(
    () => history && produceActions(history, outbox, model, show), [history, outbox],
  );
  if (history?.gone.value) return html`<main id="main" class="view">
    <h1>${say("conversation.missing")}</h1><p class="problem">${say("conversation.gone")}</p></main>`;
  return html`<main id="main" class="conversation">
    <${ConversationHeader} identity=${identity} history=${history} />
    ${history
      ? html`<${MessageList} history=${history} actions=${actions} />`
      : html`<${Welcome} choose=${(/** @type {string} */ text) => { outbox.replace({ text }, null); void send(); }} />`}
    ${history?.error.value
      ? html`<p class="problem">${history.error.value}
          <button type="button" onClick=${() => history.refresh()}>${say("retry")}</button></p>`
      : null}
    ${history && run?.queued?.length ? html`<${Queued} history=${history} outbox=${outbox} />` : null}
    <${Composer} outbox=${outbox} running=${running} editing=${edit !== null}
      model=${model.value || history?.head.value?.model || ""}
      messages=${history?.messages.value ?? []}
      setModel=${(/** @type {string} */ chosen) => {
        model.value = chosen;
        if (!identity) chosenModel.value = chosen;
      }}
      cancelEdit=${() => outbox.giveUp()}
      send=${send} stop=${() => history?.stop().catch(tellError)} />
  </main>`;
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
