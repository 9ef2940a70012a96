// Components whose modules are loaded when they are first drawn.

import { tellError } from "./announcements.js";
import { html, useEffect, useState } from "./vendor/ui.js";

/**
 * Return a component that draws nothing until its module is loaded.
 *
 * @template Props
 * @param {() => Promise<(props: Props) => any>} load
 * @returns {(props: Props) => any}
 */
export function lazy(load) {
  /** @type {((props: Props) => any) | null} */
  let loaded = null;
  return (props) => {
    const [, setLoaded] = useState(loaded !== null);
    useEffect(() => {
      if (loaded) return;
      load().then((component) => {
        loaded = component;
        setLoaded(true);
      }, tellError);
    }, []);
    return loaded ? html`<${loaded} ...${props} />` : null;
  };
}
