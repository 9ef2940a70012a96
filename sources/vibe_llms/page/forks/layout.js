// The places of a family in its picture: a row for each conversation, and columns for messages.

/** @typedef {import("./family.js").Member} Member */
/** @typedef {import("./family.js").Family} Family */

/**
 * @typedef {object} Row
 * @property {Member} member
 * @property {number} number Number of the conversation by age, from 1.
 * @property {number} parent Row of the parent, or -1.
 * @property {number} from Column where it begins.
 * @property {number} to Column where it ends.
 */

/**
 * Return the rows from top to bottom, and the number of columns.
 *
 * The branch that parts last is nearest to its parent, so that no lines cross. Columns are the
 * places where something parts or ends, so that the picture of a long conversation is not wide.
 *
 * @param {Family} family
 * @returns {{ rows: Row[], columns: number, columnOf: (messages: number) => number }}
 */
export function layOut(family) {
  const marks = new Set([0]);
  for (const one of family.members) {
    marks.add(one.at_index + 1);
    marks.add(one.messages);
  }
  const ordered = [...marks].sort((a, b) => a - b);
  const columns = new Map(ordered.map((mark, place) => [mark, place]));
  const columnOf = (/** @type {number} */ messages) =>
    columns.get(messages) ?? ordered.filter((mark) => mark < messages).length;
  /** @type {Map<string | null, Member[]>} */
  const children = new Map();
  for (const one of family.members) {
    const parent = one.parent !== null && family.byId.has(one.parent) ? one.parent : null;
    children.set(parent, [...(children.get(parent) ?? []), one]);
  }
  /** @type {Row[]} */
  const rows = [];
  /** @type {{ member: Member, parent: number }[]} */
  const waiting = [...(children.get(null) ?? [])].reverse().map((member) => ({ member, parent: -1 }));
  for (let next = waiting.pop(); next; next = waiting.pop()) {
    const { member, parent } = next;
    const row = rows.push({
      member, parent,
      number: family.members.indexOf(member) + 1,
      from: columnOf(parent < 0 ? 0 : member.at_index + 1),
      to: columnOf(member.messages),
    }) - 1;
    const below = [...(children.get(member.id) ?? [])].reverse();
    below.sort((a, b) => a.at_index - b.at_index);
    waiting.push(...below.map((one) => ({ member: one, parent: row })));
  }
  return { rows, columns: ordered.length, columnOf };
}
