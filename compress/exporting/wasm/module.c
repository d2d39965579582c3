/* What compress.js calls, and what the library needs of a C library. A module has one model: nothing is freed. */

#include "native.h"

#include <stdlib.h>
#include <string.h>

#define EXPORT(name) __attribute__((export_name(#name)))
#define PLAIN __attribute__((no_builtin)) /* keeps a loop from becoming a call of itself */
enum { ALIGNMENT = 64, PAGE_BYTES = 65536 };

extern unsigned char __heap_base;
static uintptr_t next;

static char error[COMPRESS_ERROR_BYTES];
static int32_t *ids; /* room for those of a text, made when they are asked for */
static float logits[COMPRESS_MOST_LABELS];
static size_t unread;

/* Returns zeroed bytes that begin at a multiple of 64, or 0. */
EXPORT(allocate) void *allocate(size_t size) {
    const uintptr_t begin = ((next ? next : (uintptr_t)&__heap_base) + ALIGNMENT - 1) & ~(uintptr_t)(ALIGNMENT - 1);
    const uintptr_t there = __builtin_wasm_memory_size(0) * (uintptr_t)PAGE_BYTES;
    if (size > UINTPTR_MAX - PAGE_BYTES - begin) return NULL;
    if (begin + size > there) {
        const uintptr_t pages = (begin + size - there + PAGE_BYTES - 1) / PAGE_BYTES;
        if (__builtin_wasm_memory_grow(0, pages) == (size_t)-1) return NULL;
    }
    next = begin + size;
    return (void *)begin;
}

EXPORT(open) compress_model *open(const void *bytes, size_t size) {
    static const char fault[] = "a tagger has logits for every word, and this module has room for one answer";
    compress_model *model = compress_open(bytes, size, error);
    if (!model || !compress_is_tagger(model)) return model;
    memcpy(error, fault, sizeof fault);
    return NULL;
}

EXPORT(error_text) const char *error_text(void) { return error; }

EXPORT(label_count) size_t label_count(const compress_model *model) { return compress_label_count(model); }

EXPORT(label_begin) const char *label_begin(const compress_model *model, size_t label) {
    return compress_label(model, label).bytes;
}

EXPORT(label_size) size_t label_size(const compress_model *model, size_t label) {
    return compress_label(model, label).size;
}

EXPORT(max_length) size_t max_length(const compress_model *model) { return compress_max_length(model); }

EXPORT(instructions) const char *instructions(const compress_model *model) { return compress_instructions(model); }

/* A text is in the first `size` bytes, and the other of a pair in the `pair_size` behind; no pair is -1. Returns how many
   ids are at `ids_place`, or 0 where there is no memory for them. */
EXPORT(token_ids) size_t token_ids(const compress_model *model, const char *bytes, size_t size, size_t pair_size) {
    const compress_text text = {bytes, size}, pair = {bytes + size, pair_size};
    if (!ids) ids = allocate(compress_max_length(model) * sizeof *ids);
    return ids ? compress_ids(model, text, pair_size == SIZE_MAX ? NULL : &pair, ids, &unread) : 0;
}

EXPORT(ids_place) const int32_t *ids_place(void) { return ids; }

/* Returns where the logits are; how many tokens were not read is in `unread_tokens`. */
EXPORT(classify) const float *classify(const compress_model *model, const char *bytes, size_t size, size_t pair_size) {
    const compress_text text = {bytes, size}, pair = {bytes + size, pair_size};
    unread = compress_classify(model, text, pair_size == SIZE_MAX ? NULL : &pair, logits);
    return logits;
}

EXPORT(unread_tokens) size_t unread_tokens(void) { return unread; }

/* What is used of the C library, where compilers make no instruction of it. */

PLAIN void *(memcpy)(void *restrict target, const void *restrict source, size_t size) {
    for (size_t i = 0; i < size; i++) ((char *)target)[i] = ((const char *)source)[i];
    return target;
}

PLAIN void *memmove(void *target, const void *source, size_t size) {
    const int is_behind = (uintptr_t)target > (uintptr_t)source;
    for (size_t i = 0; i < size; i++) {
        const size_t at = is_behind ? size - 1 - i : i;
        ((char *)target)[at] = ((const char *)source)[at];
    }
    return target;
}

PLAIN void *memset(void *target, int byte, size_t size) {
    for (size_t i = 0; i < size; i++) ((char *)target)[i] = (char)byte;
    return target;
}

PLAIN int memcmp(const void *one, const void *other, size_t size) {
    for (size_t i = 0; i < size; i++) {
        const int difference = ((const unsigned char *)one)[i] - ((const unsigned char *)other)[i];
        if (difference) return difference;
    }
    return 0;
}

PLAIN void *memchr(const void *bytes, int byte, size_t size) {
    for (size_t i = 0; i < size; i++)
        if (((const unsigned char *)bytes)[i] == (unsigned char)byte) return (char *)bytes + i;
    return NULL;
}

void *calloc(size_t count, size_t size) { return allocate(count * size); }

void free(void *place) { (void)place; }
