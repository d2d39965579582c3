/* Token ids to logits: a state of the text by one of the networks, a ReLU layer, and the classifier.

   The layers are those of models/networks/NAME/model.py. With an int8 table the state is a sum of integers, exactly
   that of the ONNX graph, and the scales of the table's columns are in the dense layer. */

#include "model_file.h"

#include <math.h>
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
    memset(n->is_int8 ? (void *)sums : (void *)state, 0, 4 * n->table_columns);
    for (size_t begin = 0; begin < count; begin += step) {
        const size_t end = begin + step < count ? begin + step : count;
        const size_t found = ngram_rows(m, ids, count, begin, end, rows);
        if (n->is_int8)
            m->kernels->add_int8(rows, found, n->table_columns, sums);
        else
            m->kernels->add_float((const float *const *)rows, found, n->table_columns, state);
    }
    for (size_t c = 0; c < n->table_columns; c++) {
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

/* The largest sums, or 0, of the windows of tokens `begin` to `end`, and the totals of what is above 0. A window of w
   tokens reaches from (w - 1) / 2 tokens before its own to w / 2 behind. A row of the table has what its token adds to
   the filters of every window, the narrowest first, of each from its first place to its last. */
static void first_layer(const compress_model *m, const int32_t *ids, size_t count, size_t begin, size_t end,
                        void *largest, void *totals) {
    const numbers *n = &m->n;
    const uint32_t widest = n->widths[n->width_count - 1];
    const ptrdiff_t reach = (widest - 1) / 2;
    const int8_t *rows[WINDOWS_AT_ONCE + MOST_WIDTH];
    for (; begin < end; begin += WINDOWS_AT_ONCE) {
        const size_t windows = end - begin < WINDOWS_AT_ONCE ? end - begin : WINDOWS_AT_ONCE;
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

/* The same of a second layer, whose windows are of places of the first one. In int8 a window is rounded to 255 steps
   of its own largest number, as in the graph (quantization/quantizers/onnx_dynamic.py). */
static void second_layer(const compress_model *m, const int32_t *ids, size_t count, size_t begin, size_t end,
                         float *largest, float *totals) {
    const numbers *n = &m->n;
    const size_t columns = (size_t)n->width_count * n->filters, size = n->second_width * columns;
    const size_t number = n->is_int8 ? sizeof(int16_t) : sizeof(float), last = (size - columns) * number;
    const ptrdiff_t before = (n->second_width - 1) / 2, behind = n->second_width / 2;
    const float *bias = VALUES(m, SECOND_BIAS, float), *scale = VALUES(m, SECOND_SCALE, float);
    union {
        char bytes[4 * MOST_FEATURES];
        float floats[MOST_FEATURES];
        int16_t integers[MOST_FEATURES];
    } window;
    memset(window.bytes, 0, size * number);
    for (ptrdiff_t place = (ptrdiff_t)begin - before; place < (ptrdiff_t)end + behind; place++) {
        memmove(window.bytes, window.bytes + columns * number, last);
        memset(window.bytes + last, 0, columns * number);
        if (place >= 0 && place < (ptrdiff_t)count)
            first_layer(m, ids, count, (size_t)place, (size_t)place + 1, window.bytes + last, NULL);
        if (place < (ptrdiff_t)begin + behind) continue;
        float sums[MOST_DENSE];
        if (n->is_int8) {
            int16_t rounded[MOST_FEATURES + 1];
            int32_t integers[MOST_DENSE];
            const float range = m->kernels->round_int16(window.integers, size, rounded);
            rounded[size] = 0;
            m->kernels->product_int16(rounded, (size + 1) / 2, VALUES(m, SECOND_WEIGHT, int16_t), n->second_filters,
                                      integers);
            for (size_t c = 0; c < n->second_filters; c++) sums[c] = (float)integers[c] * scale[c] * range;
        } else {
            m->kernels->product_float(window.floats, size, VALUES(m, SECOND_WEIGHT, float), n->second_filters, sums);
        }
        for (size_t c = 0; c < n->second_filters; c++) {
            const float sum = sums[c] + bias[c];
            largest[c] = sum > largest[c] ? sum : largest[c];
            if (totals) totals[c] += sum > 0 ? sum : 0;
        }
    }
}

/* The state of tokens `begin` to `end` of a text; where the dense layer reads integers, in `largest`. */
static void cnn_state(const compress_model *m, const int32_t *ids, size_t count, size_t begin, size_t end, float *state,
                      int16_t *largest) {
    const numbers *n = &m->n;
    const size_t windows = n->second_filters ? n->second_filters : (size_t)n->width_count * n->filters;
    const int is_int8 = n->is_int8 && !n->second_filters;
    float *mean = n->pooling == MAXIMUM_AND_MEAN ? state + windows : NULL; /* of int32 first, if that is what is added */
    if (mean) memset(mean, 0, 4 * windows);
    if (is_int8)
        memset(largest, 0, sizeof *largest * (windows + 1));
    else
        memset(state, 0, sizeof *state * windows);
    if (n->second_filters)
        second_layer(m, ids, count, begin, end, state, mean);
    else
        first_layer(m, ids, count, begin, end, is_int8 ? (void *)largest : state, mean);
    if (m->sections[DENSE_SCALE].size) return;
    if (is_int8)
        for (size_t c = 0; c < windows; c++) state[c] = largest[c];
    for (size_t c = 0; mean && c < windows; c++) {
        int32_t total;
        memcpy(&total, mean + c, sizeof total);
        mean[c] = (is_int8 ? (float)total : mean[c]) / (float)(count ? count : 1);
    }
}

/* Adds the dense layer to a state of floats, or of the integers that a cnn's maxima are. */
static void dense(const compress_model *m, const float *state, const int16_t *integers, float *hidden) {
    const numbers *n = &m->n;
    const float *bias = VALUES(m, DENSE_BIAS, float), *scale = VALUES(m, DENSE_SCALE, float);
    if (m->sections[DENSE_SCALE].size) {
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

/* The states of both texts of a pair, without special tokens, their product, and their distance. */
static void pair_state(const compress_model *m, const int32_t *ids, size_t count, float *state, int16_t *largest) {
    const numbers *n = &m->n;
    const size_t size = n->features / 4;
    size_t end = 0;
    while (end < count && (uint32_t)ids[end] != n->separator) end++;
    const size_t begins[] = {n->around[0], end + n->around[1]};
    const size_t ends[] = {end, count > n->around[2] ? count - n->around[2] : 0};
    for (int text = 0; text < 2; text++) {
        const size_t tokens = ends[text] > begins[text] ? ends[text] - begins[text] : 0;
        const int32_t *first = tokens ? ids + begins[text] : ids;
        if (n->network == NGRAM)
            ngram_state(m, first, tokens, state + text * size);
        else
            cnn_state(m, first, tokens, 0, tokens, state + text * size, largest);
    }
    for (size_t c = 0; c < size; c++) {
        const float one = state[c], other = state[size + c];
        state[2 * size + c] = one * other;
        state[3 * size + c] = one > other ? one - other : other - one;
    }
}

/* The logits of tokens `begin` to `end`, of all but for a tagger. */
static void logits_of(const compress_model *m, const int32_t *ids, size_t count, size_t begin, size_t end,
                      float *logits) {
    const float *bias = VALUES(m, CLASSIFIER_BIAS, float);
    float state[MOST_FEATURES], hidden[MOST_DENSE];
    int16_t largest[MOST_FEATURES + 1];
    if (m->n.is_siamese)
        pair_state(m, ids, count, state, largest);
    else if (m->n.network == NGRAM)
        ngram_state(m, ids, count, state);
    else
        cnn_state(m, ids, count, begin, end, state, largest);
    dense(m, state, largest, hidden);
    m->kernels->dots(hidden, m->n.dense, VALUES(m, CLASSIFIER_WEIGHT, float), m->n.labels, logits);
    for (size_t c = 0; c < m->n.labels; c++) logits[c] += bias[c];
}

void compress_logits(const compress_model *m, const int32_t *ids, size_t count, float *logits) {
    if (count > COMPRESS_MOST_TOKENS) count = COMPRESS_MOST_TOKENS; /* more would not fit into sums of int32 */
    if (!m->n.is_tagger) logits_of(m, ids, count, 0, count, logits);
    for (size_t t = 0; m->n.is_tagger && t < count; t++)
        logits_of(m, ids, count, t, t + 1, logits + t * m->n.labels);
}

static int tag(const compress_model *m, compress_text text, float *logits) {
    const size_t labels = m->n.labels, numbers = compress_word_count(text) * labels;
    int32_t ids[COMPRESS_MOST_TOKENS], starts[COMPRESS_MOST_TOKENS];
    int truncated;
    const size_t count = text_ids(m, text, ids, starts, &truncated);
    for (size_t i = 0; i < numbers; i++) logits[i] = NAN;
    for (size_t t = 0; t < count; t++) {
        if (!starts[t]) continue;
        float *word = logits + (size_t)(starts[t] - 1) * labels;
        logits_of(m, ids, count, t, t + 1, word);
        for (size_t c = 0; c < labels; c++)
            if (!isfinite(word[c])) word[c] = INFINITY;
    }
    return truncated;
}

int compress_classify(const compress_model *m, compress_text text, const compress_text *pair, float *logits) {
    int32_t ids[COMPRESS_MOST_TOKENS];
    int truncated;
    if (m->n.is_tagger) return tag(m, text, logits);
    compress_logits(m, ids, compress_ids(m, text, pair, ids, &truncated), logits);
    return truncated;
}

const char *compress_instructions(const compress_model *model) { return model->kernels->instructions; }
