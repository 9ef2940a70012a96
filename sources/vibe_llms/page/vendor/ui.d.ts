export { Component, Fragment, createRef, h, render } from "preact";
export type { ComponentChildren, RefObject, VNode } from "preact";
export { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
export {
  ReadonlySignal, Signal, batch, computed, effect, signal, untracked, useComputed, useSignal,
} from "@preact/signals";
import type { VNode } from "preact";
export function html(strings: TemplateStringsArray, ...values: unknown[]): VNode;
