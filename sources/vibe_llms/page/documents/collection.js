// One collection: its documents and their state, uploads, and a search in it.

import { ApiError, get, path, request } from "../api.js";
import { tellError } from "../announcements.js";
import { ActionButton } from "../conversation/message.js";
import { loadDraft, saveDraft } from "../drafts.js";
import { Icon } from "../icons.js";
import { beginConversation } from "../list/sidebar.js";
import { Problem, useLoaded, useProgress, useTitle } from "../loading.js";
import { address, go } from "../router.js";
import { say, sayMoment, saySize } from "../say.js";
import { SearchBox } from "../searching.js";
import { deleteLater, deleting, useDeletions } from "../undoing.js";
import { html, useEffect, useSignal } from "../vendor/ui.js";
import { CollectionCounts } from "./counts.js";
import { Passages } from "./passages.js";
import { UploadForm } from "./upload.js";

/**
 * @typedef {object} Document
 * @property {string} id
 * @property {string} name
 * @property {number} size
 * @property {string} mimetype
 * @property {string} created
 * @property {"waiting" | "indexed" | "failed"} state
 * @property {string} problem
 */

const PAGE = 200;

/** Return the path of a collection on the server.
 *
 * @param {string} name
 */
export function pathOf(name) {
  return path`/api/documents/${name}`;
}

/**
 * @param {{ name: string, text: string }} props
 */
export function CollectionPage({ name, text }) {
  useTitle(name);
  const shown = useSignal(PAGE);
  const { value, error, load } = useLoaded(
    (abort) => loadDocuments(name, shown.value, abort).catch(refuseOthers),
    [name, shown.value],
  );
  useDeletions(load);
  const collection = value?.collection;
  const documents = (value?.documents ?? []).filter(
    (one) => !deleting.value.has(pathOfDocument(name, one)));
  const own = collection?.own ?? true;
  const hidden = deleting.value.has(pathOf(name));
  useProgress(collection?.indexing ?? false, load);
  useEffect(() => {
    if (hidden) go("#/documents");
  }, [hidden]);
  const again = () => request("POST", `${pathOf(name)}/index`).then(load, tellError);
  return html`<p class="back"><a href="#/documents">${say("documents.back")}</a></p>
    <h1>${name}</h1>
    ${collection
      ? html`<p><${CollectionCounts} one=${collection} /></p>
          <p><button type="button" onClick=${() => ask(name)}>
            <${Icon} name="thought" /> ${say("documents.ask")}</button></p>`
      : null}
    <${SearchBox} label=${say("documents.searchOne", { name })} text=${text}
      hash=${address("documents", name)} />
    <${Problem} text=${error} retry=${load} />
    ${text.trim() ? html`<${Passages} text=${text} collection=${name} />` : html`
      ${collection && !documents.length
        ? html`<p class="hint">${say("documents.nothing")}</p>`
        : null}
      <ul class="rows documents">
        ${documents.map((one) => html`<li key=${one.id}>
          <${DocumentView} collection=${name} own=${own} one=${one} /></li>`)}
      </ul>
      ${value?.hasMore
        ? html`<button type="button" class="older" onClick=${() => { shown.value += PAGE; }}>
            ${say("more")}</button>`
        : null}
      ${own ? html`<${UploadForm} collection=${name} done=${load} />` : null}
      ${collection && own
        ? html`<p class="tools">
            ${collection.failed
              ? html`<button type="button" onClick=${again}><${Icon} name="refresh" />${" "}
                  ${say("documents.again")}</button>`
              : null}
            <button type="button" onClick=${() =>
              deleteLater(pathOf(name), say("documents.deleted", { name }))}>
              <${Icon} name="trash" /> ${say("documents.deleteAll")}</button>
          </p>`
        : null}`}`;
}

/**
 * Load a collection and its first documents.
 *
 * @param {string} name
 * @param {number} count
 * @param {AbortSignal} abort
 */
async function loadDocuments(name, count, abort) {
  /** @type {Document[]} */
  const documents = [];
  for (;;) {
    const page = await get(pathOf(name), { limit: PAGE, after: documents.at(-1)?.id }, abort);
    documents.push(...page.documents);
    if (page.has_more && documents.length < count) continue;
    /** @type {import("./counts.js").Collection} */
    const collection = page.collection;
    return { collection, documents, hasMore: Boolean(page.has_more) };
  }
}

/**
 * @param {{ collection: string, own: boolean, one: Document }} props
 */
function DocumentView({ collection, own, one }) {
  const { name, size, created, state, problem } = one;
  const remove = () =>
    deleteLater(pathOfDocument(collection, one), say("documents.deleted", { name }));
  return html`<span class="name"><${Icon} name="file" /> ${name}</span>
    <span class="hint">${saySize(size)}${created ? `, ${sayMoment(created)}` : ""}</span>
    <span class=${`tag ${state}`}>${say(`documents.state.${state}`)}</span>
    ${own
      ? html`<${ActionButton} icon="trash" label=${say("documents.delete", { name })}
          run=${remove} />`
      : null}
    ${problem ? html`<p class="problem">${problem}</p>` : null}`;
}

/** Begin a conversation whose model may search a collection.
 *
 * @param {string} name
 */
function ask(name) {
  const draft = loadDraft("new");
  saveDraft("new", { ...draft, collections: [...new Set([...draft.collections, name])] });
  beginConversation();
}

/**
 * @param {string} collection
 * @param {Document} one
 */
function pathOfDocument(collection, { id }) {
  return path`/api/documents/${collection}/${id}`;
}

/** A collection is there with its first document.
 *
 * @param {unknown} error
 */
function refuseOthers(error) {
  if (error instanceof ApiError && error.status === 404) return null;
  throw error;
}
