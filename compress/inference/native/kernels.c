/* The kernels for every set of instructions that the compiler knows, and the choice of this processor. */

#include "kernels.h"

#include <string.h>

#define JOINED(name, set) name##_##set
#define NAMED(name, set) JOINED(name, set)
#if defined(__GNUC__) || defined(__clang__)
#define ALWAYS_INLINE __attribute__((always_inline))
#else
#define ALWAYS_INLINE
#endif

/* Two int16 that lie beside each other, as one int32. */
static inline int32_t pair_at(const int16_t *values) {
    int32_t pair;
    memcpy(&pair, values, sizeof pair);
    return pair;
}

#if (defined(__x86_64__) || defined(_M_X64)) && (defined(__GNUC__) || defined(__clang__))
#include <cpuid.h>
#include <immintrin.h>

/* Which sets the processor has and the system saves. By CPUID, as __builtin_cpu_supports finds none where zig links. */
static void find_x86(int *avx2, int *avx512) {
    unsigned a, b, c, d, saved, high;
    *avx2 = *avx512 = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c >> 27 & 1)) return; /* OSXSAVE */
    const int has_fma = c >> 12 & 1;
    __asm__ volatile("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
    (void)high;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return;
    *avx2 = has_fma && (b >> 5 & 1) && (saved & 6) == 6;
    *avx512 = *avx2 && (b >> 16 & b >> 30 & b >> 31 & c >> 11 & 1) && (saved & 0xE6) == 0xE6; /* F, BW, VL, VNNI */
}

#define KERNEL(name) NAMED(name, avx512)
#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni,fma")))
#define INSTRUCTIONS "avx512-vnni"
#define VECTOR __m512i
#define LANES 16
#define ZERO _mm512_setzero_si512()
#define LOAD(place) _mm512_loadu_si512(place)
#define STORE(place, value) _mm512_storeu_si512(place, value)
#define SPREAD(pair) _mm512_set1_epi32(pair_at(pair))
#define MULTIPLY_ADD(sums, pair, weights) _mm512_dpwssd_epi32(sums, pair, weights)
#define WIDEN(place) _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)(const void *)(place)))
#define ADD_INT16 _mm512_add_epi16
#define MAX_INT16 _mm512_max_epi16
#include "kernels_body.h"
#include "kernels_undefined.h"

#define KERNEL(name) NAMED(name, avx2)
#define TARGET __attribute__((target("avx2,fma")))
#define INSTRUCTIONS "avx2"
#define VECTOR __m256i
#define LANES 8
#define ZERO _mm256_setzero_si256()
#define LOAD(place) _mm256_loadu_si256((const __m256i *)(const void *)(place))
#define STORE(place, value) _mm256_storeu_si256((__m256i *)(void *)(place), value)
#define SPREAD(pair) _mm256_set1_epi32(pair_at(pair))
#define MULTIPLY_ADD(sums, pair, weights) _mm256_add_epi32(sums, _mm256_madd_epi16(pair, weights))
#define WIDEN(place) _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)(place)))
#define ADD_INT16 _mm256_add_epi16
#define MAX_INT16 _mm256_max_epi16
#include "kernels_body.h"
#include "kernels_undefined.h"
#define HAS_X86 1
#endif

#if defined(__ARM_NEON) && defined(__aarch64__)
#include <arm_neon.h>
static inline int32x4_t multiply_add(int32x4_t sums, int32x4_t pair, int32x4_t weights) {
    const int16x8_t x = vreinterpretq_s16_s32(pair), w = vreinterpretq_s16_s32(weights);
    const int32x4_t low = vmull_s16(vget_low_s16(x), vget_low_s16(w)), high = vmull_high_s16(x, w);
    return vaddq_s32(sums, vpaddq_s32(low, high));
}
#define KERNEL(name) NAMED(name, neon)
#define TARGET
#define INSTRUCTIONS "neon"
#define VECTOR int32x4_t
#define LANES 4
#define ZERO vdupq_n_s32(0)
#define LOAD(place) vld1q_s32((const int32_t *)(const void *)(place))
#define STORE(place, value) vst1q_s32((int32_t *)(void *)(place), value)
#define SPREAD(pair) vdupq_n_s32(pair_at(pair))
#define MULTIPLY_ADD multiply_add
#define WIDEN(place) vreinterpretq_s32_s16(vmovl_s8(vld1_s8(place)))
#define ADD_INT16(a, b) vreinterpretq_s32_s16(vaddq_s16(vreinterpretq_s16_s32(a), vreinterpretq_s16_s32(b)))
#define MAX_INT16(a, b) vreinterpretq_s32_s16(vmaxq_s16(vreinterpretq_s16_s32(a), vreinterpretq_s16_s32(b)))
#include "kernels_body.h"
#include "kernels_undefined.h"
#elif defined(__wasm_simd128__)
#include <wasm_simd128.h>
#define KERNEL(name) NAMED(name, wasm)
#define TARGET
#define INSTRUCTIONS "wasm-simd"
#define VECTOR v128_t
#define LANES 4
#define ZERO wasm_i32x4_splat(0)
#define LOAD(place) wasm_v128_load(place)
#define STORE(place, value) wasm_v128_store(place, value)
#define SPREAD(pair) wasm_i32x4_splat(pair_at(pair))
#define MULTIPLY_ADD(sums, pair, weights) wasm_i32x4_add(sums, wasm_i32x4_dot_i16x8(pair, weights))
#define WIDEN wasm_i16x8_load8x8
#define ADD_INT16 wasm_i16x8_add
#define MAX_INT16 wasm_i16x8_max
#include "kernels_body.h"
#include "kernels_undefined.h"
#endif

#define KERNEL(name) NAMED(name, plain)
#define TARGET
#define INSTRUCTIONS "plain"
#include "kernels_body.h"

const kernels *kernels_at(int number) {
    const kernels *found[4] = {0};
    int count = 0;
#if defined(HAS_X86)
    int avx2, avx512;
    find_x86(&avx2, &avx512);
    if (avx512) found[count++] = &set_avx512;
    if (avx2) found[count++] = &set_avx2;
#elif defined(__ARM_NEON) && defined(__aarch64__)
    found[count++] = &set_neon;
#elif defined(__wasm_simd128__)
    found[count++] = &set_wasm;
#endif
    found[count++] = &set_plain;
    return number >= 0 && number < count ? found[number] : NULL;
}
