/* For the library in WebAssembly, which has no C library. */
#ifndef COMPRESS_MATH_H
#define COMPRESS_MATH_H
#define NAN __builtin_nanf("")
#define INFINITY __builtin_inff()
#define isfinite(value) __builtin_isfinite(value)
#endif
