/* For the library in WebAssembly, which has no C library. */
#ifndef COMPRESS_STDLIB_H
#define COMPRESS_STDLIB_H
#include <stddef.h>
void *calloc(size_t count, size_t size);
void free(void *place);
#endif
