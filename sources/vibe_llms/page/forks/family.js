// A family of conversations: all that were forked from one, and where they part.

import { say } from "../say.js";
import "../words/en_branches.js";

/**
 * @typedef {object} Member
 * @property {string} id
 * @property {string} name
 * @property {string} title
 * @property {string} created
 * @property {string} updated
 * @property {string} model
 * @property {number} messages
 * @property {string | null} parent The member that has the last common message, if any.
 * @property {string | null} at Id of the last common message; empty if there is none.
 * @property {number} at_index Its place in both, or -1.
 * @property {string | null} superseded_by
 */

/** The members of a family, and the ways in which they go on after the messages where they part. */
export class Family {
  /** @param {Member[]} members Oldest first. */
  constructor(members) {
    this.members = members;
    this.byId = new Map(members.map((one) => [one.id, one]));
    /** @type {Map<string, number>} Places of the messages after which members part. */
    this.places = new Map();
    /** @type {Map<string, string[]>} */
    this.ways = new Map();
    /** @type {Map<string, Set<string>>} */
    const going = new Map();
    for (const one of members) {
      if (one.at === null) continue;
      this.places.set(one.at, one.at_index);
      const ways = going.get(one.at) ?? new Set();
      going.set(one.at, ways);
      for (const id of [one.parent, one.id]) {
        // A conversation that ends there goes on in no way of its own.
        if (id !== null && (this.byId.get(id)?.messages ?? 0) > one.at_index + 1) ways.add(id);
      }
    }
    for (const [at, ways] of going) {
      this.ways.set(at, members.map((one) => one.id).filter((id) => ways.has(id)));
    }
  }

  /**
   * Return the ways after a message, each by the conversation that began it, oldest first.
   *
   * @param {string} at
   */
  waysAfter(at) {
    return this.ways.get(at) ?? [];
  }

  /**
   * Return the way in which a conversation goes on after a message; empty if it does not.
   *
   * @param {string} identity
   * @param {string} at
   */
  wayOf(identity, at) {
    const ways = this.waysAfter(at);
    const place = this.places.get(at) ?? -1;
    for (const { id, limit } of this.line(identity)) {
      if (limit <= place) return "";
      if (ways.includes(id)) return id;
    }
    return "";
  }

  /**
   * Return the newest version of a way: the conversation that superseded it further down.
   *
   * @param {string} way
   * @param {string} at
   */
  newest(way, at) {
    const seen = new Set([way]);
    let id = way;
    for (;;) {
      const next = this.byId.get(id)?.superseded_by ?? "";
      if (!next || seen.has(next) || this.wayOf(next, at) !== way) return id;
      seen.add((id = next));
    }
  }

  /** Return the conversation that lists show instead of this one.
   *
   * @param {string} identity
   */
  standIn(identity) {
    const seen = new Set([identity]);
    let id = identity;
    for (;;) {
      const next = this.byId.get(id)?.superseded_by ?? "";
      if (!this.byId.has(next) || seen.has(next)) return id;
      seen.add((id = next));
    }
  }

  /**
   * Return a conversation and its ancestors, each with the place of the last message from it.
   *
   * @param {string} identity
   */
  line(identity) {
    const found = [];
    const seen = new Set();
    let limit = Infinity;
    let one = this.byId.get(identity);
    while (one && !seen.has(one.id)) {
      seen.add(one.id);
      found.push({ id: one.id, limit });
      limit = Math.min(limit, one.at_index);
      one = one.parent === null ? undefined : this.byId.get(one.parent);
    }
    return found;
  }

  /** Return a name for a new branch of a conversation, which tells it apart in lists.
   *
   * @param {string} identity
   */
  nameBranch(identity) {
    const first = this.byId.get(this.line(identity).at(-1)?.id ?? "");
    const title = first?.name || first?.title;
    if (!title) return "";
    const names = new Set(this.members.map((one) => one.name));
    let number = 2;
    while (names.has(say("forks.name", { title, number }))) number += 1;
    return say("forks.name", { title, number });
  }

  /**
   * Return the number of messages that two conversations have in common.
   *
   * @param {string} a
   * @param {string} b
   */
  countShared(a, b) {
    const mine = this.line(a);
    const others = new Map(this.line(b).map(({ id, limit }) => [id, limit]));
    const common = mine.find(({ id }) => others.has(id));
    if (common) return Math.min(common.limit, others.get(common.id) ?? -1) + 1;
    // Both come from one that was deleted.
    const limits = [a, b].map((id) => this.byId.get(this.line(id).at(-1)?.id ?? "")?.at_index ?? -1);
    return Math.min(...limits) + 1;
  }
}
