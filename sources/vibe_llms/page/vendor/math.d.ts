export function render(
  formula: string, element: HTMLElement, options?: { displayMode?: boolean; throwOnError?: boolean; trust?: boolean },
): void;
