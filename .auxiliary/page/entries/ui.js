import { h } from "preact";
import htm from "htm";

export { Component, Fragment, createRef, h, render } from "preact";
export { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
export { batch, computed, effect, signal, untracked, useComputed, useSignal } from "@preact/signals";
export const html = htm.bind(h);
