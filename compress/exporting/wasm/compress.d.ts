/** A URL, relative to compress.js, or the bytes themselves. */
export type Source = string | URL | ArrayBuffer | ArrayBufferView;

export interface Classified {
  label: string;
  /** Of the label: a softmax over the logits. */
  probability: number;
  logits: Float32Array;
  /** Whether the text has more tokens than the model reads. */
  truncated: boolean;
  /** How many more these are; 0 where the text was not cut. */
  unreadTokens: number;
}

export interface Model {
  readonly labels: string[];
  /** Tokens of a text that are read, special tokens included. */
  readonly maxLength: number;
  /** "wasm-simd" */
  readonly instructions: string;
  classify(text: string, pair?: string): Classified;
  /** One for each label. */
  logits(text: string, pair?: string): Float32Array;
  ids(text: string, pair?: string): Int32Array;
}

/** Loads compress.wasm and model.native, which lie beside compress.js, or others. Throws where one cannot be read. */
export function load(sources?: { wasm?: Source; container?: Source }): Promise<Model>;
