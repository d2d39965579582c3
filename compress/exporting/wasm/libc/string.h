/* For the library in WebAssembly, which has no C library. */
#ifndef COMPRESS_STRING_H
#define COMPRESS_STRING_H
#include <stddef.h>
void *memcpy(void *restrict target, const void *restrict source, size_t size);
void *memmove(void *target, const void *source, size_t size);
void *memset(void *target, int byte, size_t size);
int memcmp(const void *one, const void *other, size_t size);
void *memchr(const void *bytes, int byte, size_t size);

/* Loads and stores where the size is a constant: without a C library, compilers make calls of them. */
#define memcpy(target, source, size) \
    (__builtin_constant_p(size) ? __builtin_memcpy(target, source, size) : memcpy(target, source, size))
#endif
