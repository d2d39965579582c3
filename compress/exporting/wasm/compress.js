// A text classifier in WebAssembly, for browsers and Node, without dependencies:
//
//     import { load } from "./compress.js";
//     const model = await load();
//     model.classify("a good film"); // { label, probability, logits, truncated, unreadTokens }

const NO_PAIR = -1;

async function contents(source) {
  if (source instanceof ArrayBuffer || ArrayBuffer.isView(source)) return source;
  const url = new URL(source, import.meta.url);
  if (url.protocol === "file:" && typeof process === "object") {
    const { readFile } = await import("node:fs/promises");
    return readFile(url);
  }
  const answer = await fetch(url);
  if (!answer.ok) throw new Error(`${url} cannot be read: ${answer.status} ${answer.statusText}`);
  return answer.arrayBuffer();
}

/** Loads the files beside this module, or others: a URL, or the bytes of one. */
export async function load({ wasm = "compress.wasm", container = "model.native" } = {}) {
  const [code, bytes] = await Promise.all([contents(wasm), contents(container)]);
  const { instance } = await WebAssembly.instantiate(code, {});
  return new Model(instance.exports, bytes);
}

class Model {
  #library;
  #model;
  #place = 0;
  #room = 0;
  #encoder = new TextEncoder();
  #decoder = new TextDecoder();
  #memory = new Uint8Array(0);

  constructor(library, container) {
    this.#library = library;
    const bytes = ArrayBuffer.isView(container)
      ? new Uint8Array(container.buffer, container.byteOffset, container.byteLength)
      : new Uint8Array(container);
    const place = this.#allocate(bytes.length);
    this.#bytes().set(bytes, place);
    this.#model = library.open(place, bytes.length);
    if (!this.#model) throw new Error(this.#zeroEnded(library.error_text()));
    this.labels = Array.from({ length: library.label_count(this.#model) }, (_, label) =>
      this.#text(library.label_begin(this.#model, label), library.label_size(this.#model, label)),
    );
    this.maxLength = library.max_length(this.#model);
    this.instructions = this.#zeroEnded(library.instructions(this.#model));
  }

  /** The label of a text, or of a pair of texts, with its probability. */
  classify(text, pair) {
    const logits = this.logits(text, pair);
    let best = 0;
    for (let i = 1; i < logits.length; i++) if (logits[i] > logits[best]) best = i;
    let sum = 0;
    for (const logit of logits) sum += Math.exp(logit - logits[best]);
    if (!Number.isFinite(sum)) throw new Error("the model gave logits that are not finite; its weights are damaged");
    const unreadTokens = this.#library.unread_tokens() >>> 0;
    return { label: this.labels[best], probability: 1 / sum, logits, truncated: unreadTokens > 0, unreadTokens };
  }

  /** The logits of a text, one for each label. */
  logits(text, pair) {
    const [size, pairSize] = this.#write(text, pair);
    const place = this.#library.classify(this.#model, this.#place, size, pairSize);
    return new Float32Array(this.#library.memory.buffer, place, this.labels.length).slice();
  }

  /** The token ids of a text. */
  ids(text, pair) {
    const [size, pairSize] = this.#write(text, pair);
    const count = this.#library.token_ids(this.#model, this.#place, size, pairSize);
    if (!count) throw new RangeError(`there is no memory for ${this.maxLength} tokens`);
    return new Int32Array(this.#library.memory.buffer, this.#library.ids_place(), count).slice();
  }

  /** Writes the texts as UTF-8, one behind the other; returns their sizes. */
  #write(text, pair) {
    if (typeof text !== "string" || (pair !== undefined && typeof pair !== "string"))
      throw new TypeError("a text is a string, and so is the other of a pair");
    const most = 3 * (text.length + (pair?.length ?? 0));
    if (most > this.#room) {
      const room = Math.max(2 * most, 4096);
      this.#place = this.#allocate(room); // which may throw: the old room stays as it is then
      this.#room = room;
    }
    const room = this.#bytes().subarray(this.#place, this.#place + this.#room);
    const size = this.#encoder.encodeInto(text, room).written;
    if (pair === undefined) return [size, NO_PAIR];
    return [size, this.#encoder.encodeInto(pair, room.subarray(size)).written];
  }

  #allocate(size) {
    const place = size < 2 ** 32 && this.#library.allocate(size);
    if (!place) throw new RangeError(`there is no memory for ${size} bytes`);
    return place;
  }

  /** The memory, which is another object after it has grown. */
  #bytes() {
    if (this.#memory.buffer !== this.#library.memory.buffer) this.#memory = new Uint8Array(this.#library.memory.buffer);
    return this.#memory;
  }

  #text(place, size) {
    return this.#decoder.decode(this.#bytes().subarray(place, place + size));
  }

  #zeroEnded(place) {
    return this.#text(place, this.#bytes().indexOf(0, place) - place);
  }
}
