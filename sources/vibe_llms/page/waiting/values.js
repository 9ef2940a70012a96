// The values of a form: from what the user typed to what the server gets.

/** @typedef {import("../waiting.js").FormField} FormField */

/**
 * Return what a field shows before the user changes it.
 *
 * @param {FormField} field
 * @returns {any} A list for `choices`, true, false, or null for `boolean`, else a text.
 */
export function readDefault({ kind, format, default: preset }) {
  if (kind === "choices") return Array.isArray(preset) ? preset : [];
  if (kind === "boolean") return typeof preset === "boolean" ? preset : null;
  if (preset === null || preset === undefined) return "";
  return format === "date-time" ? readMoment(String(preset)) : String(preset);
}

/**
 * Return the values to send; fields that are left empty are left out.
 *
 * @param {FormField[]} fields
 * @param {Record<string, any>} typed What the fields show, by name.
 */
export function readValues(fields, typed) {
  /** @type {Record<string, unknown>} */
  const values = {};
  for (const field of fields) {
    const value = readValue(field, typed[field.name]);
    if (value !== undefined) values[field.name] = value;
  }
  return values;
}

/**
 * @param {FormField} field
 * @param {any} typed
 * @returns {unknown}
 */
function readValue(field, typed) {
  switch (field.kind) {
    case "boolean":
      return typed ?? undefined;
    case "choices":
      return typed.length || field.required || field.default ? typed : undefined;
    case "number":
    case "integer":
      return typed.trim() ? Number(typed) : undefined;
    default:
      if (!typed) return undefined;
      return field.format === "date-time" ? new Date(typed).toISOString() : typed;
  }
}

/**
 * Return a moment as a field for date and time shows it, in the time of this device.
 *
 * @param {string} text
 */
function readMoment(text) {
  const time = new Date(text);
  if (Number.isNaN(time.getTime())) return "";
  const shifted = new Date(time.getTime() - time.getTimezoneOffset() * 60_000);
  return shifted.toISOString().slice(0, 16);
}
