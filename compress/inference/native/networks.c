/* Token ids to logits: a state of the text by one of the networks, a ReLU layer, and the classifier.

   The layers are those of models/networks/NAME/model.py. With an int8 table the state is a sum of integers, exactly
   that of the ONNX graph, and the scales of the table's columns are in the dense layer. */

#include "model_file.h"

#include <string.h>

#if defined(__GNUC__) || defined(__clang__)
#define PREFETCH(address) __builtin_prefetch(address)
#else
#define PREFETCH(address) ((void)(address))
#endif

enum { CACHE_LINE = 64, WINDOWS_AT_ONCE = 256 };

static uint32_t id_at(const compress_model *m, const int32_t *ids, size_t at) {
    return ids[at] >= 0 && (uint32_t)ids[at] < m->n.tokenizer_size ? (uint32_t)ids[at] : m->n.unknown_id;
}

static const int8_t *row_of(const compress_model *m, size_t row) {
    return VALUES(m, TABLE, int8_t) + row * m->n.table_columns * (m->n.is_int8 ? 1 : 4);
}

static void fetch(const compress_model *m, const int8_t *row) {
    const size_t bytes = m->n.table_columns * (m->n.is_int8 ? 1 : 4);
    for (size_t at = 0; at < bytes; at += CACHE_LINE) PREFETCH(row + at);
}

/* The rows of all n-grams that begin at tokens `begin` to `end`. */
static size_t ngram_rows(const compress_model *m, const int32_t *ids, size_t count, size_t begin, size_t end,
                         const int8_t **rows) {
    const numbers *n = &m->n;
    const uint32_t *remap = VALUES(m, REMAP, uint32_t);
    const size_t tokens = n->table_rows - (size_t)(n->longest - 1) * n->buckets;
    size_t found = 0;
    for (size_t t = begin; t < end; t++) {
        uint32_t hash = id_at(m, ids, t);
        fetch(m, rows[found++] = row_of(m, remap[hash]));
        for (uint32_t i = 1; i < n->longest; i++) {
            if (t + i < count) hash += n->factors[i] * id_at(m, ids, t + i);
            const size_t row = tokens + (size_t)(i - 1) * n->buckets + hash % n->buckets;
            fetch(m, rows[found++] = row_of(m, row));
        }
    }
    return found;
}

static void ngram_state(const compress_model *m, const int32_t *ids, size_t count, float *state) {
    const numbers *n = &m->n;
    const size_t step = ROWS_AT_ONCE / n->longest;
    const int8_t *rows[ROWS_AT_ONCE];
    int32_t sums[MOST_FEATURES];
    memset(n->is_int8 ? (void *)sums : (void *)state, 0, 4 * n->features);
    for (size_t begin = 0; begin < count; begin += step) {
        const size_t end = begin + step < count ? begin + step : count;
        const size_t found = ngram_rows(m, ids, count, begin, end, rows);
        if (n->is_int8)
            m->kernels->add_int8(rows, found, n->features, sums);
        else
            m->kernels->add_float((const float *const *)rows, found, n->features, state);
    }
    for (size_t c = 0; c < n->features; c++) {
        if (n->is_int8) state[c] = (float)sums[c];
        if (n->pooling == MEAN) state[c] /= (float)(count ? count : 1);
    }
}

/* The rows of tokens `begin` to `end`, with the row of zeros, the first, beyond the text. */
static void token_rows(const compress_model *m, const int32_t *ids, size_t count, ptrdiff_t begin, ptrdiff_t end,
                       const int8_t **rows) {
    for (ptrdiff_t t = begin; t < end; t++) {
        const int is_text = t >= 0 && (size_t)t < count;
        rows[t - begin] = row_of(m, is_text ? VALUES(m, REMAP, uint32_t)[id_at(m, ids, (size_t)t)] : 0);
        fetch(m, rows[t - begin]);
    }
}

/* A window of w tokens reaches from (w - 1) / 2 tokens before its own to w / 2 behind. A row of the table has what its
   token adds to the filters of every window, the narrowest first, of each from its first place to its last. */
static void cnn_state(const compress_model *m, const int32_t *ids, size_t count, void *largest, void *totals) {
    const numbers *n = &m->n;
    const uint32_t widest = n->widths[n->width_count - 1];
    const ptrdiff_t reach = (widest - 1) / 2;
    const int8_t *rows[WINDOWS_AT_ONCE + MOST_WIDTH];
    for (size_t begin = 0; begin < count; begin += WINDOWS_AT_ONCE) {
        const size_t windows = count - begin < WINDOWS_AT_ONCE ? count - begin : WINDOWS_AT_ONCE;
        token_rows(m, ids, count, (ptrdiff_t)begin - reach, (ptrdiff_t)(begin + windows + widest) - reach - 1, rows);
        size_t column = 0;
        for (uint32_t i = 0; i < n->width_count; i++) {
            const uint32_t width = n->widths[i];
            const size_t first = (size_t)reach - (width - 1) / 2, feature = (size_t)i * n->filters;
            size_t places[MOST_WIDTH];
            for (uint32_t r = 0; r < width; r++, column += n->filters) places[r] = column;
            if (n->is_int8)
                m->kernels->windows_int8(rows + first, windows, places, width, n->filters, (int16_t *)largest + feature,
                                         totals ? (int32_t *)totals + feature : NULL);
            else
                m->kernels->windows_float((const float *const *)(rows + first), windows, places, width, n->filters,
                                          (float *)largest + feature, totals ? (float *)totals + feature : NULL);
        }
    }
}

/* Adds the dense layer to a state of floats, or of the integers that a cnn's maxima are. */
static void dense(const compress_model *m, const float *state, const int16_t *integers, float *hidden) {
    const numbers *n = &m->n;
    const float *bias = VALUES(m, DENSE_BIAS, float), *scale = VALUES(m, DENSE_SCALE, float);
    if (integers) {
        int32_t sums[MOST_DENSE];
        m->kernels->product_int16(integers, (n->features + 1) / 2, VALUES(m, DENSE_WEIGHT, int16_t), n->dense, sums);
        for (size_t d = 0; d < n->dense; d++) hidden[d] = (float)sums[d] * scale[d];
    } else {
        m->kernels->product_float(state, n->features, VALUES(m, DENSE_WEIGHT, float), n->dense, hidden);
    }
    for (size_t d = 0; d < n->dense; d++) {
        const float sum = hidden[d] + bias[d];
        hidden[d] = sum > 0 ? sum : 0;
    }
}

static void cnn_hidden(const compress_model *m, const int32_t *ids, size_t count, float *hidden) {
    const numbers *n = &m->n;
    const size_t windows = (size_t)n->width_count * n->filters;
    float state[MOST_FEATURES];
    int16_t largest[MOST_FEATURES + 1];
    union {
        int32_t integers[MOST_FEATURES];
        float floats[MOST_FEATURES];
    } totals;
    void *mean = n->pooling == MAXIMUM_AND_MEAN ? &totals : NULL;
    if (mean) memset(mean, 0, 4 * windows);
    if (n->is_int8) {
        memset(largest, 0, sizeof *largest * (n->features + 1));
        cnn_state(m, ids, count, largest, mean);
    } else {
        memset(state, 0, sizeof *state * windows);
        cnn_state(m, ids, count, state, mean);
    }
    if (m->sections[DENSE_SCALE].size) {
        dense(m, NULL, largest, hidden);
        return;
    }
    if (n->is_int8)
        for (size_t c = 0; c < windows; c++) state[c] = largest[c];
    if (mean)
        for (size_t c = 0; c < windows; c++) {
            const float total = n->is_int8 ? (float)totals.integers[c] : totals.floats[c];
            state[windows + c] = total / (float)(count ? count : 1);
        }
    dense(m, state, NULL, hidden);
}

void compress_logits(const compress_model *m, const int32_t *ids, size_t count, float *logits) {
    const float *bias = VALUES(m, CLASSIFIER_BIAS, float);
    float hidden[MOST_DENSE];
    if (count > COMPRESS_MOST_TOKENS) count = COMPRESS_MOST_TOKENS; /* more would not fit into sums of int32 */
    if (m->n.network == NGRAM) {
        float state[MOST_FEATURES];
        ngram_state(m, ids, count, state);
        dense(m, state, NULL, hidden);
    } else {
        cnn_hidden(m, ids, count, hidden);
    }
    m->kernels->dots(hidden, m->n.dense, VALUES(m, CLASSIFIER_WEIGHT, float), m->n.labels, logits);
    for (size_t c = 0; c < m->n.labels; c++) logits[c] += bias[c];
}

int compress_classify(const compress_model *m, compress_text text, const compress_text *pair, float *logits) {
    int32_t ids[COMPRESS_MOST_TOKENS];
    int truncated;
    compress_logits(m, ids, compress_ids(m, text, pair, ids, &truncated), logits);
    return truncated;
}

const char *compress_instructions(const compress_model *model) { return model->kernels->instructions; }
