export class Token {
  type: string;
  content: string | Token | Array<string | Token>;
  alias?: string | string[];
}
export const languages: Record<string, object | undefined>;
export function tokenize(text: string, grammar: object): Array<string | Token>;
