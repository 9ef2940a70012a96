// The upload of a file to import, which goes on while other views are shown.

import { ApiError, loggedIn, reachable, readError } from "../api.js";
import { say } from "../say.js";
import { signal } from "../vendor/ui.js";

/**
 * @typedef {object} Upload
 * @property {File} file
 * @property {number} sent Bytes that were sent.
 * @property {string} error Empty while it goes on.
 */

/** @type {import("../vendor/ui.js").Signal<Upload | null>} */
export const upload = signal(/** @type {Upload | null} */ (null));

let sending = new XMLHttpRequest();

/**
 * Upload a file for a dry run; return true if the server has it.
 *
 * @param {File} file
 */
export async function beginUpload(file) {
  upload.value = { file, sent: 0, error: "" };
  try {
    if (!(await send(file))) {
      upload.value = null;
      return false;
    }
    upload.value = null;
    return true;
  } catch (error) {
    upload.value = { file, sent: 0, error: error instanceof Error ? error.message : String(error) };
    return false;
  }
}

/** Cancel the upload, or forget that it failed. */
export function endUpload() {
  sending.abort();
  upload.value = null;
}

/**
 * Send a file; return false if this was cancelled. Only this kind of request tells its progress.
 *
 * @param {File} file
 * @returns {Promise<boolean>}
 */
function send(file) {
  const request = (sending = new XMLHttpRequest());
  const query = new URLSearchParams({ name: file.name.slice(0, 255), dry_run: "true" });
  request.open("POST", `/api/imports?${query}`);
  request.setRequestHeader("Content-Type", file.type || "application/octet-stream");
  request.upload.onprogress = ({ loaded }) => {
    if (upload.value?.file === file) upload.value = { ...upload.value, sent: loaded };
  };
  return new Promise((resolve, reject) => {
    request.onabort = () => resolve(false);
    request.onerror = () => {
      reachable.value = false;
      reject(new ApiError(say("error.unreachable"), 0));
    };
    request.onload = () => {
      reachable.value = true;
      if (request.status === 201) return resolve(true);
      if (request.status === 401) loggedIn.value = false;
      const response = new Response(request.responseText, { status: request.status });
      return void readError(response).then(reject, reject);
    };
    request.send(file);
  });
}
