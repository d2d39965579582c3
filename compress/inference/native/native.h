/* Text in, logits out: the small networks of compress with their tokenizer, in C11 without dependencies.

   A model is one container (model_file.h), in memory or mapped from a file. Nothing is global and a call allocates
   nothing, so that any number of threads may share a model. Optimised, a call takes up to 300 KiB of its thread's stack.

   SPDX-License-Identifier: Apache-2.0 */

#ifndef COMPRESS_NATIVE_H
#define COMPRESS_NATIVE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define COMPRESS_ERROR_BYTES 160
#define COMPRESS_MOST_TOKENS 1048576 /* that a container may read of a text */
#define COMPRESS_MOST_LABELS 4096

typedef struct compress_model compress_model;

/* A text in UTF-8. What is no UTF-8 is read as U+FFFD. */
typedef struct {
    const char *bytes;
    size_t size;
} compress_text;

/* Checks a container completely and returns a model that reads it, or NULL with a sentence in `error`
   (COMPRESS_ERROR_BYTES). The bytes begin at a multiple of 64 and stay as they are until compress_close. */
compress_model *compress_open(const void *bytes, size_t size, char *error);
void compress_close(compress_model *model);

/* Tokens of a text that are read, special tokens included; at most COMPRESS_MOST_TOKENS, of taggers and siamese networks
   8192, of an LSTM 2048. */
size_t compress_max_length(const compress_model *model);
size_t compress_label_count(const compress_model *model);
compress_text compress_label(const compress_model *model, size_t label);

/* A tagger answers the words of a text, which have spaces between them, and reads no pairs. */
int compress_is_tagger(const compress_model *model);
size_t compress_word_count(compress_text text);

/* Writes the token ids of a text, or of a pair where `pair` is not NULL, special tokens included, and returns how many
   there are, at most compress_max_length. `unread` says how many more the text has; all of it is looked at. */
size_t compress_ids(const compress_model *model, compress_text text, const compress_text *pair, int32_t *ids,
                    size_t *unread);

/* Writes the logits of token ids, [labels], or [count, labels] of a tagger. As many are read as a container may read of a
   text. Ids that the model does not know are read as the unknown token. */
void compress_logits(const compress_model *model, const int32_t *ids, size_t count, float *logits);

/* Both: writes the logits of a text, or of a pair, and returns how many of its tokens were not read, 0 where it was not
   cut. A tagger writes those of words, [compress_word_count, labels]: NaN for a word that was cut off or has no token,
   and infinity for what is no number. */
size_t compress_classify(const compress_model *model, compress_text text, const compress_text *pair, float *logits);

/* The instructions of its kernels: "avx512-vnni", "avx2", "neon", "wasm-simd" or "plain". */
const char *compress_instructions(const compress_model *model);

#ifdef __cplusplus
}
#endif
#endif
