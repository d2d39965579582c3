/* The kernels, which kernels.c compiles for several sets of instructions: KERNEL(name) is the name of a function of
   one set, and TARGET its attribute. All of it is plain C that compilers turn into vectors, but for sums and products
   of int16, for which a set may define VECTOR (of LANES int32), LOAD, STORE, SPREAD (a pair of int16 to all lanes),
   MULTIPLY_ADD, WIDEN (int8 to int16), ADD_INT16 and MAX_INT16. */

TARGET static void KERNEL(add_int8)(const int8_t *const *rows, size_t count, size_t columns, int32_t *sums) {
    for (size_t begin = 0; begin < columns; begin += 16) {
        int16_t block[16] = {0};
        for (size_t r = 0; r < count; r++)
            for (size_t c = 0; c < 16; c++) block[c] = (int16_t)(block[c] + rows[r][begin + c]);
        for (size_t c = 0; c < 16; c++) sums[begin + c] += block[c];
    }
}

TARGET static void KERNEL(add_float)(const float *const *rows, size_t count, size_t columns, float *sums) {
    for (size_t begin = 0; begin < columns; begin += 16) {
        float block[16] = {0};
        for (size_t r = 0; r < count; r++)
            for (size_t c = 0; c < 16; c++) block[c] += rows[r][begin + c];
        for (size_t c = 0; c < 16; c++) sums[begin + c] += block[c];
    }
}

#define IN int8_t
#define SUM int16_t
#define TOTAL int32_t
#define WINDOWS(name) KERNEL(name##_int8_and_totals)
#include "windows_body.h"
#define IN float
#define SUM float
#define TOTAL float
#define WINDOWS(name) KERNEL(name##_float)
#include "windows_body.h"

TARGET static void KERNEL(windows_int8)(const int8_t *const *rows, size_t windows, const size_t *places, size_t width,
                                        size_t columns, int16_t *largest, int32_t *totals) {
    size_t begin = 0;
#ifdef VECTOR
    enum { SIZE = 4 * LANES }; /* two vectors of int16 */
    while (!totals && begin < columns && columns >= SIZE) {
        VECTOR a = LOAD(largest + begin), b = LOAD(largest + begin + SIZE / 2);
        for (size_t w = 0; w < windows; w++) {
            const int8_t *row = rows[w] + places[0] + begin;
            VECTOR sum = WIDEN(row), other = WIDEN(row + SIZE / 2);
            for (size_t r = 1; r < width; r++) {
                row = rows[w + r] + places[r] + begin;
                sum = ADD_INT16(sum, WIDEN(row));
                other = ADD_INT16(other, WIDEN(row + SIZE / 2));
            }
            a = MAX_INT16(a, sum);
            b = MAX_INT16(b, other);
        }
        STORE(largest + begin, a);
        STORE(largest + begin + SIZE / 2, b);
        begin += SIZE;
        if (begin < columns && begin + SIZE > columns) begin = columns - SIZE; /* some maxima are taken again */
    }
#endif
    if (begin < columns) KERNEL(windows_int8_and_totals)(rows, windows, places, width, columns, largest, totals);
}

TARGET static void KERNEL(product_float)(const float *x, size_t count, const float *weights, size_t outputs,
                                         float *sums) {
    size_t begin = 0;
    for (; begin + 64 <= outputs; begin += 64) {
        float block[64] = {0};
        for (size_t s = 0; s < count; s++)
            for (size_t d = 0; d < 64; d++) block[d] += x[s] * weights[s * outputs + begin + d];
        for (size_t d = 0; d < 64; d++) sums[begin + d] = block[d];
    }
    for (; begin < outputs; begin += 16) {
        float block[16] = {0};
        for (size_t s = 0; s < count; s++)
            for (size_t d = 0; d < 16; d++) block[d] += x[s] * weights[s * outputs + begin + d];
        for (size_t d = 0; d < 16; d++) sums[begin + d] = block[d];
    }
}

#ifdef VECTOR
TARGET static void KERNEL(product_int16)(const int16_t *x, size_t pairs, const int16_t *weights, size_t outputs,
                                         int32_t *sums) {
    size_t begin = 0;
    for (; begin + 4 * LANES <= outputs; begin += 4 * LANES) {
        VECTOR a = ZERO, b = ZERO, c = ZERO, d = ZERO;
        const int16_t *row = weights + 2 * begin;
        for (size_t p = 0; p < pairs; p++, row += 2 * outputs) {
            const VECTOR pair = SPREAD(x + 2 * p);
            a = MULTIPLY_ADD(a, pair, LOAD(row));
            b = MULTIPLY_ADD(b, pair, LOAD(row + 2 * LANES));
            c = MULTIPLY_ADD(c, pair, LOAD(row + 4 * LANES));
            d = MULTIPLY_ADD(d, pair, LOAD(row + 6 * LANES));
        }
        STORE(sums + begin, a);
        STORE(sums + begin + LANES, b);
        STORE(sums + begin + 2 * LANES, c);
        STORE(sums + begin + 3 * LANES, d);
    }
    for (; begin < outputs; begin += LANES) {
        VECTOR a = ZERO;
        for (size_t p = 0; p < pairs; p++)
            a = MULTIPLY_ADD(a, SPREAD(x + 2 * p), LOAD(weights + 2 * (p * outputs + begin)));
        STORE(sums + begin, a);
    }
}
#else
TARGET static void KERNEL(product_int16)(const int16_t *x, size_t pairs, const int16_t *weights, size_t outputs,
                                         int32_t *sums) {
    for (size_t d = 0; d < outputs; d++) sums[d] = 0;
    for (size_t p = 0; p < pairs; p++, weights += 2 * outputs)
        for (size_t d = 0; d < outputs; d++)
            sums[d] = (int32_t)((uint32_t)sums[d] + (uint32_t)(x[2 * p] * weights[2 * d]) +
                                (uint32_t)(x[2 * p + 1] * weights[2 * d + 1]));
}
#endif

TARGET static void KERNEL(products_float)(const float *x, size_t stride, size_t count, const float *weights,
                                          size_t outputs, float *sums) {
    for (size_t begin = 0; begin < outputs; begin += 16) {
        float a[16] = {0}, b[16] = {0}, c[16] = {0}, d[16] = {0};
        for (size_t s = 0; s < count; s++)
            for (size_t i = 0; i < 16; i++) {
                const float weight = weights[s * outputs + begin + i];
                a[i] += x[s] * weight;
                b[i] += x[stride + s] * weight;
                c[i] += x[2 * stride + s] * weight;
                d[i] += x[3 * stride + s] * weight;
            }
        for (size_t i = 0; i < 16; i++) {
            sums[begin + i] = a[i];
            sums[outputs + begin + i] = b[i];
            sums[2 * outputs + begin + i] = c[i];
            sums[3 * outputs + begin + i] = d[i];
        }
    }
}

TARGET static void KERNEL(products_int16)(const int16_t *x, size_t stride, size_t pairs, const int16_t *weights,
                                          size_t outputs, int32_t *sums) {
#ifdef VECTOR
    for (size_t begin = 0; begin < outputs; begin += LANES) {
        VECTOR a = ZERO, b = ZERO, c = ZERO, d = ZERO;
        for (size_t p = 0; p < pairs; p++) {
            const VECTOR row = LOAD(weights + 2 * (p * outputs + begin));
            const int16_t *pair = x + 2 * p;
            a = MULTIPLY_ADD(a, SPREAD(pair), row);
            b = MULTIPLY_ADD(b, SPREAD(pair + stride), row);
            c = MULTIPLY_ADD(c, SPREAD(pair + 2 * stride), row);
            d = MULTIPLY_ADD(d, SPREAD(pair + 3 * stride), row);
        }
        STORE(sums + begin, a);
        STORE(sums + outputs + begin, b);
        STORE(sums + 2 * outputs + begin, c);
        STORE(sums + 3 * outputs + begin, d);
    }
#else
    for (size_t v = 0; v < VECTORS_AT_ONCE; v++)
        KERNEL(product_int16)(x + v * stride, pairs, weights, outputs, sums + v * outputs);
#endif
}

/* In the order of the graph: x times the reciprocal of the largest, divided by the step, to the nearest even number. */
TARGET static float KERNEL(round_int16)(const int16_t *x, size_t count, int16_t *rounded) {
    const float magic = 12582912, step = 1.0f / 255; /* 1.5 * 2^23: sums with it are whole */
    int16_t largest = 0;
    for (size_t s = 0; s < count; s++) largest = x[s] > largest ? x[s] : largest;
    const float factor = largest ? 1.0f / (float)largest : 0;
    for (size_t s = 0; s < count; s++)
        rounded[s] = (int16_t)((float)x[s] * factor / step + magic - magic);
    return largest;
}

/* As the graph's DynamicQuantizeLSTM does, whose zero is a whole step. */
TARGET static float KERNEL(round_states)(const float *x, size_t count, int16_t *rounded) {
    const float magic = 12582912;
    float least = 0, most = 0;
    for (size_t s = 0; s < count; s++) {
        least = x[s] < least ? x[s] : least;
        most = x[s] > most ? x[s] : most;
    }
    const float step = most - least > 1e-30f ? (most - least) / 255 : 1;
    const float zero = -least / step + magic - magic;
    for (size_t s = 0; s < count; s++) {
        float value = x[s] / step + magic - magic;
        value = value > -zero ? value : -zero;
        rounded[s] = (int16_t)(value < 255 - zero ? value : 255 - zero);
    }
    return step;
}

TARGET static void KERNEL(gates_int8)(const int16_t *row, const float *row_scale, const int32_t *sums,
                                      const float *scale, float step, size_t count, float *gates) {
    for (size_t c = 0; c < count; c++)
        gates[c] = (float)row[c] * row_scale[c] + (float)sums[c] * (scale[c] * step);
}

/* A quotient of polynomials, within 4e-7 up to 8, where it is 1. */
TARGET static inline ALWAYS_INLINE float KERNEL(tanh)(float x) {
    const float z = x * x;
    const float above = (((1.5319617574505173e-8f * z + 2.195653723902069e-5f) * z + 3.575289389118552e-3f) * z +
                         0.1344759166240692f) * z + 1;
    const float below = (((8.55813482303347e-7f * z + 3.417370899114758e-4f) * z + 2.617843635380268e-2f) * z +
                         0.46780920028686523f) * z + 1;
    return x * above / below;
}

/* What is no number becomes 8. In a loop of its own, which compilers make vectors of. */
TARGET static inline ALWAYS_INLINE void KERNEL(limit)(const float *x, size_t count, float factor, float *limited) {
    for (size_t i = 0; i < count; i++) {
        const float value = factor * x[i] < 8 ? factor * x[i] : 8;
        limited[i] = value > -8 ? value : -8;
    }
}

TARGET static void KERNEL(lstm)(float *gates, size_t size, float *cells, float *states) {
    const float *in = gates, *out = gates + size, *kept = gates + 2 * size, *added = gates + 3 * size;
    KERNEL(limit)(gates, 3 * size, 0.5f, gates); /* the sigmoid of x is (1 + tanh(x / 2)) / 2 */
    KERNEL(limit)(added, size, 1, gates + 3 * size);
    for (size_t u = 0; u < size; u++)
        cells[u] = 0.5f * ((1 + KERNEL(tanh)(kept[u])) * cells[u] + (1 + KERNEL(tanh)(in[u])) * KERNEL(tanh)(added[u]));
    KERNEL(limit)(cells, size, 1, states);
    for (size_t u = 0; u < size; u++) states[u] = 0.5f * (1 + KERNEL(tanh)(out[u])) * KERNEL(tanh)(states[u]);
}

TARGET static void KERNEL(dots)(const float *x, size_t count, const float *weights, size_t outputs, float *sums) {
    for (size_t d = 0; d < outputs; d++) {
        float lanes[16] = {0};
        for (size_t s = 0; s < count; s += 16)
            for (size_t i = 0; i < 16; i++) lanes[i] += x[s + i] * weights[d * count + s + i];
        for (size_t half = 8; half; half /= 2)
            for (size_t i = 0; i < half; i++) lanes[i] += lanes[i + half];
        sums[d] = lanes[0];
    }
}

static const kernels KERNEL(set) = {
    INSTRUCTIONS,           KERNEL(add_int8),      KERNEL(add_float),     KERNEL(windows_int8),
    KERNEL(windows_float), KERNEL(product_float), KERNEL(product_int16), KERNEL(products_float),
    KERNEL(products_int16), KERNEL(round_int16),   KERNEL(round_states),  KERNEL(gates_int8),
    KERNEL(lstm),           KERNEL(dots),
};
