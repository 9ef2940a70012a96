// The import of conversations of other programs: choose or drop a file, look at it, import it.

import { get, request } from "../api.js";
import { speak, tellError } from "../announcements.js";
import { importChanges } from "../events.js";
import { Icon } from "../icons.js";
import { Problem, useLoaded, useProgress, useTitle } from "../loading.js";
import { say, sayMoment, saySize } from "../say.js";
import { html, useEffect, useRef, useSignal } from "../vendor/ui.js";
import "../words/en_import.js";
import { ImportCard, Progress, endOf, isActive, pathOf, titleOf } from "./state.js";
import { beginUpload, endUpload, upload } from "./uploads.js";

/** @typedef {import("./state.js").Import} Import */

export function View() {
  useTitle(say("import.title"));
  const problem = useSignal("");
  const { value, error, load } = useLoaded(async (abort) => {
    const { imports, most_bytes: most } = await get("/api/imports", {}, abort);
    return { imports: /** @type {Import[]} */ (imports), most: Number(most) };
  }, []);
  const imports = value?.imports ?? [];
  const [latest, ...earlier] = imports;
  const sending = upload.value;
  const free = !(sending && !sending.error) && !imports.some(isActive);
  useProgress(imports.some(isActive) || Boolean(error), load);
  useEffect(() => {
    if (importChanges.value) void load();
  }, [importChanges.value]);

  const run = (/** @type {() => Promise<unknown>} */ work) => void work().catch(tellError).then(load);
  const begin = async (/** @type {File | string} */ file) => {
    if (!free) return;
    problem.value = typeof file === "string" ? file : refuse(file, value?.most);
    if (problem.value || typeof file === "string") return;
    await beginUpload(file);
    await load();
  };
  const over = useDrop(begin);
  const active = latest ? isActive(latest) : false;
  const wasActive = useRef(active);
  useEffect(() => {
    if (wasActive.current && latest && !active) speak(titleOf(latest));
    wasActive.current = active;
  }, [active]);
  return html`<h1>${say("import.title")}</h1>
    <p class="hint">${say("import.hint")} ${say("import.again")}</p>
    ${free ? html`<${FileForm} begin=${begin} problem=${problem.value} over=${over} />` : null}
    <${Problem} text=${error} retry=${load} />
    ${sending ? html`<${Sending} sending=${sending} retry=${() => begin(sending.file)} />` : null}
    ${latest && !(sending && !sending.error)
      ? html`<${ImportCard} one=${latest} run=${run} />`
      : null}
    ${earlier.length
      ? html`<h2>${say("import.earlier")}</h2>
          <ul class="rows">${earlier.map((one) => html`<li key=${one.id}>
            <span class="name">${one.name}</span>
            <span class="hint">${sayMoment(one.created)},${" "}
              ${say("import.count", { count: one.conversations })}</span>
            <span class="tag">${say(`import.state.${endOf(one.state)}`)}</span>
            <button type="button" class="icon"
              aria-label=${say("import.remove", { name: one.name })}
              onClick=${() => run(() => request("DELETE", pathOf(one)))}>
              <${Icon} name="close" /></button></li>`)}</ul>`
      : null}`;
}

/** Return why a file cannot be uploaded, or an empty text.
 *
 * @param {File} file
 * @param {number | undefined} most
 */
function refuse({ name, size }, most) {
  if (!size) return say("import.empty", { name });
  if (most === undefined || size <= most) return "";
  return say("import.large", { name, size: saySize(size), most: saySize(most) });
}

/**
 * @param {{ sending: import("./uploads.js").Upload, retry: () => void }} props
 */
function Sending({ sending: { file, sent, error }, retry }) {
  const { name, size } = file;
  if (error) {
    return html`<p class="problem" role="alert">
      ${say("import.uploadFailed", { name, reason: error })}${" "}
      <button type="button" onClick=${retry}>${say("retry")}</button>
      <button type="button" onClick=${endUpload}>${say("close")}</button></p>`;
  }
  const values = { name, done: saySize(sent), all: saySize(size) };
  return html`<${Progress} text=${say("import.uploading", values)} done=${sent} total=${size}
    label=${say("cancel")} cancel=${endUpload} />`;
}

/**
 * @param {{ begin: (file: File) => void, problem: string, over: boolean }} props
 */
function FileForm({ begin, problem, over }) {
  const picker = useRef(/** @type {HTMLInputElement | null} */ (null));
  return html`<form class=${over ? "card drop over" : "card drop"}
    aria-label=${say("import.form")}
    onSubmit=${(/** @type {Event} */ event) => { event.preventDefault(); picker.current?.click(); }}>
    <p><button type="submit"><${Icon} name="clip" /> ${say("import.choose")}</button>${" "}
      <span class="hint">${say("import.drop")}</span></p>
    <p class="problem" role="alert" hidden=${!problem}>${problem}</p>
    <input type="file" hidden ref=${picker} tabindex="-1"
      onChange=${(/** @type {any} */ event) => {
        const [file] = event.target.files;
        event.target.value = "";
        if (file) begin(file);
      }} />
  </form>`;
}

/**
 * Let a file be dropped anywhere; return true while one is above the page.
 *
 * @param {(file: File | string) => void} take Called with a file, or with why there is none.
 */
function useDrop(take) {
  const over = useSignal(false);
  const latest = useRef(take);
  latest.current = take;
  useEffect(() => {
    const stop = new AbortController();
    const { signal } = stop;
    // The browser would show the file in place of the page.
    addEventListener("dragover", (event) => {
      event.preventDefault();
      over.value = true;
    }, { signal });
    addEventListener("dragleave", (event) => {
      if (!event.relatedTarget) over.value = false;
    }, { signal });
    addEventListener("drop", (event) => {
      event.preventDefault();
      over.value = false;
      const [item, ...others] = event.dataTransfer?.items ?? [];
      const file = item?.getAsFile();
      if (others.length) latest.current(say("import.one"));
      else if (item?.webkitGetAsEntry?.()?.isDirectory) latest.current(say("import.folder"));
      else if (file) latest.current(file);
    }, { signal });
    return () => stop.abort();
  }, []);
  return over.value;
}
