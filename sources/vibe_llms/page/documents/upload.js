// Uploading documents to a collection: chosen, or dropped on the form.

import { request } from "../api.js";
import { Icon } from "../icons.js";
import { say } from "../say.js";
import { html, useRef, useSignal } from "../vendor/ui.js";

/** @typedef {{ id: number, to: string, file: File, error: string }} Upload */

let last = 0;

/**
 * @param {{ collection: string, known?: string[], done: () => void }} props Without a collection,
 *   it is named in the form; `known` are the names of the user's own ones.
 */
export function UploadForm({ collection, known = [], done }) {
  const picker = useRef(/** @type {HTMLInputElement | null} */ (null));
  const field = useRef(/** @type {HTMLInputElement | null} */ (null));
  const uploads = useSignal(/** @type {Upload[]} */ ([]));
  const name = useSignal("");
  const problem = useSignal("");
  const over = useSignal(false);
  const busy = useRef(false);

  const change = (/** @type {number} */ id, /** @type {Partial<Upload> | null} */ changed) => {
    uploads.value = uploads.value.flatMap((one) =>
      one.id === id ? (changed ? [{ ...one, ...changed }] : []) : [one]);
  };
  const work = async () => {
    if (busy.current) return;
    busy.current = true;
    for (;;) {
      const next = uploads.value.find((one) => !one.error);
      if (!next) break;
      const { id, to, file } = next;
      try {
        const query = new URLSearchParams({ collection: to, name: file.name });
        const headers = { "Content-Type": file.type || "application/octet-stream" };
        await request("POST", `/api/documents?${query}`, { body: file, headers });
        change(id, null);
        done();
      } catch (error) {
        change(id, { error: error instanceof Error ? error.message : String(error) });
      }
    }
    busy.current = false;
  };
  const add = (/** @type {Iterable<File>} */ files) => {
    const to = collection || name.value.trim();
    problem.value = to ? "" : say("documents.nameFirst");
    if (!to) {
      field.current?.focus();
      return;
    }
    const added = [...files].map((file) => ({ id: (last += 1), to, file, error: "" }));
    uploads.value = [...uploads.value, ...added];
    void work();
  };
  const onDrop = (/** @type {DragEvent} */ event) => {
    over.value = false;
    if (!event.dataTransfer?.files.length) return;
    event.preventDefault();
    add(event.dataTransfer.files);
  };
  const onDrag = (/** @type {DragEvent} */ event) => {
    event.preventDefault();
    over.value = true;
  };
  const retry = (/** @type {number} */ id) => {
    change(id, { error: "" });
    void work();
  };
  const choose = () => {
    if (collection || name.value.trim()) picker.current?.click();
    else add([]);
  };
  return html`<form class=${over.value ? "card drop over" : "card drop"}
    aria-label=${say("documents.add")}
    onDrop=${onDrop} onDragOver=${onDrag} onDragLeave=${() => { over.value = false; }}
    onSubmit=${(/** @type {Event} */ event) => { event.preventDefault(); choose(); }}>
    ${collection
      ? null
      : html`<label>${say("documents.collection")}
          <input type="text" ref=${field} list="collections" value=${name.value} maxlength="60"
            aria-describedby="upload-problem"
            onInput=${(/** @type {any} */ event) => { name.value = event.target.value; }} /></label>
          <datalist id="collections">
            ${known.map((one) => html`<option key=${one} value=${one} />`)}</datalist>`}
    <p><button type="submit"><${Icon} name="clip" /> ${say("documents.choose")}</button>${" "}
      <span class="hint">${say("documents.drop")}</span></p>
    <p class="problem" id="upload-problem" role="alert"
      hidden=${!problem.value}>${problem.value}</p>
    <input type="file" multiple hidden ref=${picker} tabindex="-1"
      onChange=${(/** @type {any} */ event) => {
        add([...event.target.files]);
        event.target.value = "";
      }} />
    <ul class="uploads">
      ${uploads.value.map((one, place) => html`<li key=${one.id} aria-busy=${!one.error}>
        ${one.error
          ? html`<p class="problem" role="alert">
              ${say("documents.uploadFailed", { name: one.file.name, reason: one.error })}
              <button type="button" onClick=${() => retry(one.id)}>${say("retry")}</button>
              <button type="button" class="icon"
                aria-label=${say("documents.dismiss", { name: one.file.name })}
                onClick=${() => change(one.id, null)}><${Icon} name="close" /></button></p>`
          : html`${one.file.name} <span class="hint">
              ${say(place ? "documents.uploadWaits" : "documents.uploading")}</span>`}
      </li>`)}
    </ul>
  </form>`;
}
