// The box in which the user writes: draft, files, model, and the buttons to send and to stop.

import { request } from "../api.js";
import { tellError } from "../announcements.js";
import { Icon } from "../icons.js";
import { chosenModel, choices, defaultModel } from "../models.js";
import { enterSends } from "../preferences.js";
import { say } from "../say.js";
import { html, useLayoutEffect, useRef, useSignal } from "../vendor/ui.js";
import { Losses } from "./losses.js";

/** Milliseconds after the end of an input method's composition in which Enter belongs to it. */
const COMPOSITION_MS = 50;

/**
 * @param {{
 *   outbox: import("./sending.js").Outbox,
 *   running: boolean,
 *   model: string,
 *   setModel: (model: string) => void,
 *   messages: import("./history.js").StoredMessage[],
 *   editing: boolean,
 *   cancelEdit: () => void,
 *   send: () => void,
 *   stop: () => void,
 * }} props
 */
export function Composer({
  outbox, running, model, setModel, messages, editing, cancelEdit, send, stop,
}) {
  const area = useRef(/** @type {HTMLTextAreaElement | null} */ (null));
  const picker = useRef(/** @type {HTMLInputElement | null} */ (null));
  const composed = useRef(0);
  const uploading = useSignal(/** @type {string[]} */ ([]));
  const { text, files, collections } = outbox.draft.value;
  const empty = !text.trim();

  useLayoutEffect(() => {
    const box = area.current;
    if (!box) return;
    // The style sheet limits the height.
    box.style.setProperty("height", "auto");
    box.style.setProperty("height", `${box.scrollHeight + 2}px`);
  }, [text]);

  const submit = () => {
    if (!empty && !uploading.value.length && !outbox.sending.value) send();
  };
  const onKeyDown = (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Escape" && editing) cancelEdit();
    if (event.key !== "Enter" || event.shiftKey || event.altKey) return;
    // An Enter that ends a composition of an input method sends nothing. Some browsers report it
    // after the composition.
    if (event.isComposing || event.keyCode === 229 || Date.now() < composed.current) return;
    if ((event.ctrlKey || event.metaKey) === !enterSends.value || event.ctrlKey || event.metaKey) {
      event.preventDefault();
      submit();
    }
  };
  const attach = async (/** @type {Iterable<File>} */ chosen) => {
    for (const file of chosen) {
      uploading.value = [...uploading.value, file.name];
      try {
        const query = new URLSearchParams({ name: file.name || "pasted" });
        const headers = { "Content-Type": file.type || "application/octet-stream" };
        const stored = await request("POST", `/api/files?${query}`, { body: file, headers });
        const { id, name, size, mimetype: type } = stored;
        outbox.change({ files: [...outbox.draft.value.files, { id, name, size, type }] });
      } catch (error) {
        tellError(error);
      } finally {
        const place = uploading.value.indexOf(file.name);
        uploading.value = uploading.value.filter((_, one) => one !== place);
      }
    }
  };
  const onPaste = (/** @type {ClipboardEvent} */ event) => {
    const pasted = [...(event.clipboardData?.files ?? [])];
    if (!pasted.length) return;
    event.preventDefault();
    void attach(pasted);
  };
  const onDrop = (/** @type {DragEvent} */ event) => {
    if (!event.dataTransfer?.files.length) return;
    event.preventDefault();
    void attach([...event.dataTransfer.files]);
  };
  return html`<form class="composer" onDrop=${onDrop}
    onDragOver=${(/** @type {Event} */ event) => event.preventDefault()}
    onSubmit=${(/** @type {Event} */ event) => { event.preventDefault(); submit(); }}>
    ${editing ? html`<p class="hint">${say("composer.editing")}
      <button type="button" onClick=${cancelEdit}>${say("cancel")}</button></p>` : null}
    ${outbox.error.value
      ? html`<p class="problem" role="alert"><${Icon} name="warn" />
          ${say("composer.failed", { reason: outbox.error.value })}
          <button type="button" onClick=${submit}>${say("retry")}</button></p>`
      : null}
    <${Attachments} files=${files} uploading=${uploading.value}
      remove=${(/** @type {string} */ id) =>
        outbox.change({ files: files.filter((one) => one.id !== id) })} />
    <${Collections} names=${collections} remove=${(/** @type {string} */ name) =>
      outbox.change({ collections: collections.filter((one) => one !== name) })} />
    <${Losses} model=${model || chosenModel.value || defaultModel.value} messages=${messages}
      files=${files} />
    <label class="outside" for="message">${say("composer.label")}</label>
    <textarea id="message" ref=${area} rows="1" value=${text}
      placeholder=${running ? say("composer.steer") : say("composer.placeholder")}
      enterkeyhint=${enterSends.value ? "send" : "enter"}
      onInput=${(/** @type {any} */ event) => outbox.change({ text: event.target.value })}
      onKeyDown=${onKeyDown} onPaste=${onPaste}
      onCompositionEnd=${() => { composed.current = Date.now() + COMPOSITION_MS; }}></textarea>
    <div class="controls">
      <button type="button" class="icon" title=${say("composer.attach")}
        aria-label=${say("composer.attach")} onClick=${() => picker.current?.click()}>
        <${Icon} name="clip" /></button>
      <input type="file" multiple hidden ref=${picker} tabindex="-1"
        onChange=${(/** @type {any} */ event) => {
          void attach([...event.target.files]);
          event.target.value = "";
        }} />
      <${ModelChoice} model=${model} setModel=${setModel} />
      <span class="hint keys">
        ${say(enterSends.value ? "composer.enter" : "composer.controlEnter")}</span>
      ${running
        ? html`<button type="button" class="icon stop" title=${say("composer.stop")}
            aria-label=${say("composer.stop")} onClick=${stop}><${Icon} name="stop" /></button>`
        : null}
      <button type="submit" class="icon main" title=${say("composer.send")}
        aria-label=${say("composer.send")} aria-busy=${outbox.sending.value}
        disabled=${empty || uploading.value.length > 0}>
        <${Icon} name=${running ? "steer" : "send"} /></button>
    </div>
  </form>`;
}

/**
 * @param {{
 *   files: import("../drafts.js").Attachment[],
 *   uploading: string[],
 *   remove: (id: string) => void,
 * }} props
 */
function Attachments({ files, uploading, remove }) {
  if (!files.length && !uploading.length) return null;
  return html`<ul class="attachments">
    ${files.map((one) => html`<li key=${one.id}><${Icon} name="file" /> ${one.name}
      <button type="button" class="icon" aria-label=${say("composer.remove", { name: one.name })}
        onClick=${() => remove(one.id)}><${Icon} name="close" /></button></li>`)}
    ${uploading.map((name) => html`<li key=${name} aria-busy="true">
      ${say("composer.uploading", { name })}</li>`)}
  </ul>`;
}

/**
 * @param {{ names: string[], remove: (name: string) => void }} props
 */
function Collections({ names, remove }) {
  if (!names.length) return null;
  return html`<ul class="attachments">
    ${names.map((name) => html`<li key=${name}><${Icon} name="folder" />
      ${say("documents.asked", { name })}
      <button type="button" class="icon" aria-label=${say("documents.forget", { name })}
        onClick=${() => remove(name)}><${Icon} name="close" /></button></li>`)}
  </ul>`;
}

/**
 * @param {{ model: string, setModel: (model: string) => void }} props
 */
function ModelChoice({ model, setModel }) {
  const known = choices.value;
  const preset = chosenModel.value || defaultModel.value;
  const missing = model && !known.some((one) => one.id === model);
  return html`<select class="model" aria-label=${say("composer.model")} value=${model}
    onChange=${(/** @type {any} */ event) => setModel(event.target.value)}>
    ${model ? null : html`<option value="">${preset && say("composer.default", { model: preset })}</option>`}
    ${missing ? html`<option value=${model}>${model}</option>` : null}
    ${known.map((one) => html`<option key=${one.id} value=${one.id}>${one.id}</option>`)}
  </select>`;
}
