/* The loops that take time, once for every set of instructions. */

#ifndef COMPRESS_KERNELS_H
#define COMPRESS_KERNELS_H

#include <stddef.h>
#include <stdint.h>

enum { ROWS_AT_ONCE = 256, /* of int8, whose sums fit into int16 */
       VECTORS_AT_ONCE = 4 };

typedef struct {
    const char *instructions;

    /* sums[c] += the sum over rows of rows[r][c], for at most ROWS_AT_ONCE rows; columns are a multiple of 16. */
    void (*add_int8)(const int8_t *const *rows, size_t count, size_t columns, int32_t *sums);
    void (*add_float)(const float *const *rows, size_t count, size_t columns, float *sums);

    /* largest[c] = max(largest[c], the sum over the rows of a window of rows[r][c]), for every window; where `totals`
       is there, sums above zero are added to it. Window w reads rows[w] to rows[w + width - 1]; what row r has for it
       begins at rows[w + r] + places[r]. */
    void (*windows_int8)(const int8_t *const *rows, size_t windows, const size_t *places, size_t width, size_t columns,
                         int16_t *largest, int32_t *totals);
    void (*windows_float)(const float *const *rows, size_t windows, const size_t *places, size_t width, size_t columns,
                          float *largest, float *totals);

    /* sums[d] = the sum over s of x[s] * weights[s][d]; outputs are a multiple of 16. */
    void (*product_float)(const float *x, size_t count, const float *weights, size_t outputs, float *sums);

    /* sums[d] = the sum over s of x[s] * weights[s / 2][d][s % 2]; x has an even number of values. Larger sums wrap. */
    void (*product_int16)(const int16_t *x, size_t pairs, const int16_t *weights, size_t outputs, int32_t *sums);

    /* The same for VECTORS_AT_ONCE vectors, `stride` numbers apart, in the time that reading the weights once takes. */
    void (*products_float)(const float *x, size_t stride, size_t count, const float *weights, size_t outputs,
                           float *sums);
    void (*products_int16)(const int16_t *x, size_t stride, size_t pairs, const int16_t *weights, size_t outputs,
                           int32_t *sums);

    /* rounded[s] = 255 * x[s] / largest, for the largest of x, which are 0 or more; returns it. */
    float (*round_int16)(const int16_t *x, size_t count, int16_t *rounded);

    /* rounded[s] = x[s] in 255 steps from the least number to the largest, or to 0; returns a step. */
    float (*round_states)(const float *x, size_t count, int16_t *rounded);

    /* gates[c] = row[c] * row_scale[c] + sums[c] * scale[c] * step. */
    void (*gates_int8)(const int16_t *row, const float *row_scale, const int32_t *sums, const float *scale, float step,
                       size_t count, float *gates);

    /* One step of `size` units of an LSTM, from the sums of their gates, which it changes: input, output, forget, cell,
       [4, size]. */
    void (*lstm)(float *gates, size_t size, float *cells, float *states);

    /* sums[d] = the sum over s of x[s] * weights[d][s], for a count that is a multiple of 16. */
    void (*dots)(const float *x, size_t count, const float *weights, size_t outputs, float *sums);
} kernels;

/* All that this processor has, the best ones first and the plain ones last; NULL behind the last. */
const kernels *kernels_at(int number);

#endif
