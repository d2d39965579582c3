/* Token ids to logits: a state of the text by one of the networks, a ReLU layer, and the classifier.

   The layers are those of models/networks/NAME/model.py. With an int8 table the state is a sum of integers, exactly
   that of the ONNX graph, and the scales of the table's columns are in the dense layer. The states of an LSTM are not
   integers, but are rounded at every token as the graph rounds them. */

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
    return VALUES(m, TABLE, int8_t) + row * row_bytes(&m->n);
}

static void fetch(const compress_model *m, const int8_t *row) {
    for (size_t at = 0; at < row_bytes(&m->n); at += CACHE_LINE) PREFETCH(row + at);
}

/* Where rows are codes, writes what these stand for, and lets `rows` lead there. */
static void decode(const compress_model *m, const int8_t **rows, size_t count, int8_t *decoded) {
    const size_t codes = m->n.has_codes ? code_count(&m->n) : 0;
    const int8_t *book = VALUES(m, CODEBOOKS, int8_t);
    for (size_t g = 0; g < codes; g++, book += CODES * CODE_COLUMNS) /* each book is read once, by all rows */
        for (size_t r = 0; r < count; r++)
            memcpy(decoded + (r * codes + g) * CODE_COLUMNS, book + CODE_COLUMNS * (uint8_t)rows[r][g], CODE_COLUMNS);
    for (size_t r = 0; codes && r < count; r++) rows[r] = decoded + r * codes * CODE_COLUMNS;
}

static size_t least(size_t one, size_t other) { return one < other ? one : other; }

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

/* Adds the n-grams that begin at tokens `begin` to `end`, of int8 as int32. */
static void add_ngrams(const compress_model *m, const int32_t *ids, size_t count, size_t begin, size_t end,
                       void *sums) {
    const numbers *n = &m->n;
    const size_t step = (n->has_codes ? least(ROWS_AT_ONCE, decoded_rows(n)) : ROWS_AT_ONCE) / n->longest;
    const int8_t *rows[ROWS_AT_ONCE];
    int8_t decoded[DECODED_BYTES];
    for (; begin < end; begin += step) {
        const size_t found = ngram_rows(m, ids, count, begin, least(begin + step, end), rows);
        decode(m, rows, found, decoded);
        if (n->is_int8)
            m->kernels->add_int8(rows, found, n->table_columns, sums);
        else
            m->kernels->add_float((const float *const *)rows, found, n->table_columns, sums);
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
    const size_t most = n->has_codes ? least(WINDOWS_AT_ONCE, decoded_rows(n) + 1 - widest) : WINDOWS_AT_ONCE;
    const int8_t *rows[WINDOWS_AT_ONCE + MOST_WIDTH];
    int8_t decoded[DECODED_BYTES];
    for (size_t windows; begin < end; begin += windows) {
        windows = least(end - begin, most);
        token_rows(m, ids, count, (ptrdiff_t)begin - reach, (ptrdiff_t)(begin + windows + widest) - reach - 1, rows);
        decode(m, rows, windows + widest - 1, decoded);
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

/* sums[v][d] = the sum over s of x[v * stride + s] * weights[s][d], for `count` vectors. */
static void products_float(const compress_model *m, const float *x, size_t vectors, size_t stride, size_t count,
                           const float *weights, size_t outputs, float *sums) {
    size_t v = 0;
    for (; v + VECTORS_AT_ONCE <= vectors; v += VECTORS_AT_ONCE)
        m->kernels->products_float(x + v * stride, stride, count, weights, outputs, sums + v * outputs);
    for (; v < vectors; v++)
        m->kernels->product_float(x + v * stride, count, weights, outputs, sums + v * outputs);
}

static void products_int16(const compress_model *m, const int16_t *x, size_t vectors, size_t stride,
                           const int16_t *weights, size_t outputs, int32_t *sums) {
    size_t v = 0;
    for (; v + VECTORS_AT_ONCE <= vectors; v += VECTORS_AT_ONCE)
        m->kernels->products_int16(x + v * stride, stride, stride / 2, weights, outputs, sums + v * outputs);
    for (; v < vectors; v++)
        m->kernels->product_int16(x + v * stride, stride / 2, weights, outputs, sums + v * outputs);
}

/* The same of a second layer, whose windows are of places of the first one. In int8 a window is rounded to 255 steps
   of its own largest number, as in the graph (quantization/quantizers/onnx_dynamic.py). */
static void second_layer(const compress_model *m, const int32_t *ids, size_t count, size_t begin, size_t end,
                         float *largest, float *totals) {
    const numbers *n = &m->n;
    const size_t columns = (size_t)n->width_count * n->filters, size = n->second_width * columns;
    const size_t even = size + size % 2, outputs = n->second_filters;
    const size_t place_bytes = columns * (n->is_int8 ? sizeof(int16_t) : sizeof(float));
    const size_t room = least(1 + (MOST_FEATURES - size) / columns, 2 * MOST_FEATURES / even);
    const size_t most = least(least(VECTORS_AT_ONCE, room), MOST_DENSE / outputs);
    const float *bias = VALUES(m, SECOND_BIAS, float), *scale = VALUES(m, SECOND_SCALE, float);
    union {
        char bytes[4 * MOST_FEATURES];
        float floats[MOST_FEATURES];
        int16_t integers[MOST_FEATURES];
    } places;
    float added[MOST_DENSE];
    if (totals) memset(added, 0, sizeof *added * outputs); /* few to many lose fewer digits than one to all */
    size_t held = 0; /* places that are there from the windows before */
    for (size_t windows; begin < end; begin += windows) {
        windows = least(end - begin, most);
        for (; held < windows + n->second_width - 1; held++) {
            const ptrdiff_t place = (ptrdiff_t)(begin + held) - (n->second_width - 1) / 2;
            memset(places.bytes + held * place_bytes, 0, place_bytes);
            if (place >= 0 && place < (ptrdiff_t)count)
                first_layer(m, ids, count, (size_t)place, (size_t)place + 1, places.bytes + held * place_bytes, NULL);
        }
        float sums[MOST_DENSE];
        if (n->is_int8) {
            int16_t rounded[2 * MOST_FEATURES];
            int32_t integers[MOST_DENSE];
            float ranges[VECTORS_AT_ONCE];
            for (size_t w = 0; w < windows; w++) {
                ranges[w] = m->kernels->round_int16(places.integers + w * columns, size, rounded + w * even);
                if (even > size) rounded[w * even + size] = 0;
            }
            products_int16(m, rounded, windows, even, VALUES(m, SECOND_WEIGHT, int16_t), outputs, integers);
            for (size_t w = 0; w < windows; w++)
                for (size_t c = 0; c < outputs; c++)
                    sums[w * outputs + c] = (float)integers[w * outputs + c] * scale[c] * ranges[w];
        } else {
            products_float(m, places.floats, windows, columns, size, VALUES(m, SECOND_WEIGHT, float), outputs, sums);
        }
        for (size_t w = 0; w < windows; w++)
            for (size_t c = 0; c < outputs; c++) {
                const float sum = sums[w * outputs + c] + bias[c];
                largest[c] = sum > largest[c] ? sum : largest[c];
                if (totals) added[c] += sum > 0 ? sum : 0;
            }
        held = n->second_width - 1;
        memmove(places.bytes, places.bytes + windows * place_bytes, held * place_bytes);
    }
    for (size_t c = 0; totals && c < outputs; c++) totals[c] += added[c];
}

/* The width of a state: of a cnn of its maxima. */
static size_t state_size(const numbers *n) {
    if (n->network == NGRAM) return n->table_columns;
    return n->second_filters ? n->second_filters : (size_t)n->width_count * n->filters;
}

static int has_mean(const numbers *n) { return n->network == CNN && n->pooling == MAXIMUM_AND_MEAN; }

static int has_integers(const numbers *n) { return n->is_int8 && !n->second_filters; }

/* A state of no tokens. Sums are of int32 first, if that is what is added, and maxima of int8 are in `largest`. */
static void begin_state(const compress_model *m, float *state, int16_t *largest) {
    const numbers *n = &m->n;
    const size_t size = state_size(n);
    if (has_mean(n)) memset(state + size, 0, sizeof *state * size);
    if (n->network == CNN && has_integers(n))
        memset(largest, 0, sizeof *largest * (size + 1));
    else
        memset(state, 0, sizeof *state * size);
}

/* Adds tokens `begin` to `end` to a state; the others are there for windows that reach to them. */
static void add_tokens(const compress_model *m, const int32_t *ids, size_t count, size_t begin, size_t end,
                       float *state, int16_t *largest) {
    const numbers *n = &m->n;
    float *mean = has_mean(n) ? state + state_size(n) : NULL;
    if (n->network == NGRAM)
        add_ngrams(m, ids, count, begin, end, state);
    else if (n->second_filters)
        second_layer(m, ids, count, begin, end, state, mean);
    else
        first_layer(m, ids, count, begin, end, has_integers(n) ? (void *)largest : state, mean);
}

/* Makes of sums over `count` tokens what the dense layer reads; where that is integers, they stay in `largest`. */
static void end_state(const compress_model *m, size_t count, float *state, const int16_t *largest) {
    const numbers *n = &m->n;
    const size_t size = state_size(n);
    const int is_ngram = n->network == NGRAM;
    if (m->sections[DENSE_SCALE].size) return;
    if (!is_ngram && has_integers(n))
        for (size_t c = 0; c < size; c++) state[c] = largest[c];
    float *sums = is_ngram ? state : state + size;
    const float divisor = is_ngram && n->pooling == SUM ? 1 : (float)(count ? count : 1);
    for (size_t c = 0; (is_ngram || has_mean(n)) && c < size; c++) {
        int32_t total;
        memcpy(&total, sums + c, sizeof total);
        sums[c] = (has_integers(n) ? (float)total : sums[c]) / divisor;
    }
}

typedef struct {
    float states[MOST_UNITS], cells[MOST_UNITS];
} lstm_state;

/* What a token adds to the gates of one direction. */
static const int8_t *half_row(const compress_model *m, uint32_t id, size_t direction) {
    return row_of(m, VALUES(m, REMAP, uint32_t)[id]) + direction * (row_bytes(&m->n) / 2);
}

/* Fetches it for a token that is read later. */
static void fetch_half(const compress_model *m, uint32_t id, size_t direction) {
    const int8_t *row = half_row(m, id, direction);
    for (size_t at = 0; at < row_bytes(&m->n) / 2; at += CACHE_LINE) PREFETCH(row + at);
}

/* Lets one direction of an LSTM, 0 forwards or 1 backwards, read a token. */
static void lstm_step(const compress_model *m, uint32_t id, size_t direction, lstm_state *at) {
    const size_t units = unit_count(&m->n), gate_count = 4 * units, begin = direction * gate_count;
    const size_t weights = begin * units;
    const int8_t *row = half_row(m, id, direction);
    float gates[4 * MOST_UNITS];
    if (m->n.is_int8) {
        int16_t rounded[MOST_UNITS];
        int32_t sums[4 * MOST_UNITS];
        const float step = m->kernels->round_states(at->states, units, rounded);
        m->kernels->product_int16(rounded, units / 2, VALUES(m, RECURRENT_WEIGHT, int16_t) + weights, gate_count, sums);
        m->kernels->gates_int8((const int16_t *)(const void *)row, VALUES(m, TABLE_SCALE, float) + begin, sums,
                               VALUES(m, RECURRENT_SCALE, float) + begin, step, gate_count, gates);
    } else {
        const float *added = (const float *)(const void *)row;
        m->kernels->product_float(at->states, units, VALUES(m, RECURRENT_WEIGHT, float) + weights, gate_count, gates);
        for (size_t c = 0; c < gate_count; c++) gates[c] += added[c];
    }
    m->kernels->lstm(gates, units, at->cells, at->states);
}

/* Lets it read tokens `begin` to `end`; forwards, each state of those is kept where `kept` is there. */
static void read_forwards(const compress_model *m, const int32_t *ids, size_t count, size_t begin, size_t end,
                          lstm_state *at, float *kept) {
    for (size_t t = begin; t < end; t++) {
        if (t + 1 < count) fetch_half(m, id_at(m, ids, t + 1), 0);
        lstm_step(m, id_at(m, ids, t), 0, at);
        if (kept) memcpy(kept + (t - begin) * MOST_UNITS, at->states, sizeof *kept * unit_count(&m->n));
    }
}

static void read_backwards(const compress_model *m, const int32_t *ids, size_t at_token, lstm_state *at) {
    if (at_token) fetch_half(m, id_at(m, ids, at_token - 1), 1);
    lstm_step(m, id_at(m, ids, at_token), 1, at);
}

/* The last states of both directions. */
static void lstm_text_state(const compress_model *m, const int32_t *ids, size_t count, float *state) {
    const int32_t padding = (int32_t)m->n.padding;
    const size_t bytes = sizeof *state * unit_count(&m->n);
    lstm_state at = {{0}, {0}};
    if (!count) ids = &padding, count = 1; /* as the graph does */
    read_forwards(m, ids, count, 0, count, &at, NULL);
    memcpy(state, at.states, bytes);
    memset(&at, 0, sizeof at);
    for (size_t t = count; t-- > 0;) read_backwards(m, ids, t, &at);
    memcpy(state + unit_count(&m->n), at.states, bytes);
}

/* The state of a text. */
static void text_state(const compress_model *m, const int32_t *ids, size_t count, float *state, int16_t *largest) {
    if (m->n.network == LSTM) {
        lstm_text_state(m, ids, count, state);
        return;
    }
    begin_state(m, state, largest);
    for (size_t begin = 0; begin < count; begin += BUFFER_TOKENS)
        add_tokens(m, ids, count, begin, least(begin + BUFFER_TOKENS, count), state, largest);
    end_state(m, count, state, largest);
}

/* The dense layer and the classifier for some states: of floats, or of the integers that a cnn's maxima are. */
static void answers(const compress_model *m, const float *states, const int16_t *integers, size_t count,
                    float *const *logits) {
    const numbers *n = &m->n;
    const float *bias = VALUES(m, DENSE_BIAS, float), *scale = VALUES(m, DENSE_SCALE, float);
    const float *classifier_bias = VALUES(m, CLASSIFIER_BIAS, float);
    const size_t even = n->features + n->features % 2;
    float hidden[MOST_DENSE];
    if (m->sections[DENSE_SCALE].size) {
        int32_t sums[MOST_DENSE];
        products_int16(m, integers, count, even, VALUES(m, DENSE_WEIGHT, int16_t), n->dense, sums);
        for (size_t i = 0; i < count; i++)
            for (size_t d = 0; d < n->dense; d++) hidden[i * n->dense + d] = (float)sums[i * n->dense + d] * scale[d];
    } else {
        products_float(m, states, count, n->features, n->features, VALUES(m, DENSE_WEIGHT, float), n->dense, hidden);
    }
    for (size_t i = 0; i < count; i++) {
        float *own = hidden + i * n->dense;
        for (size_t d = 0; d < n->dense; d++) {
            const float sum = own[d] + bias[d];
            own[d] = sum < 0 ? 0 : sum; /* what is no number stays so */
        }
        m->kernels->dots(own, n->dense, VALUES(m, CLASSIFIER_WEIGHT, float), n->labels, logits[i]);
        for (size_t c = 0; c < n->labels; c++) logits[i][c] += classifier_bias[c];
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
    for (size_t text = 0; text < 2; text++) {
        const size_t tokens = ends[text] > begins[text] ? ends[text] - begins[text] : 0;
        text_state(m, tokens ? ids + begins[text] : ids, tokens, state + text * size, largest);
    }
    for (size_t c = 0; c < size; c++) {
        const float one = state[c], other = state[size + c];
        state[2 * size + c] = one * other;
        state[3 * size + c] = one > other ? one - other : other - one;
    }
}

/* States of tokens, which are answered when there are `most`. */
typedef struct {
    float states[MOST_FEATURES], *logits[VECTORS_AT_ONCE];
    int16_t largest[MOST_FEATURES + 1];
    size_t count, most;
} token_states;

static void answer_tokens(const compress_model *m, token_states *some) {
    answers(m, some->states, some->largest, some->count, some->logits);
    some->count = 0;
}

/* A text is read forwards in blocks, whose first states are kept. Then, from the last block to the first, each is read
   forwards again, and backwards: so 96 states are held instead of 2,048. */
static void tag_by_lstm(const compress_model *m, const int32_t *ids, size_t count, const int32_t *starts, float *logits,
                        token_states *some) {
    enum { BLOCK = 64 };
    const size_t units = unit_count(&m->n), bytes = sizeof(float) * units;
    lstm_state first[LSTM_TOKENS / BLOCK], forwards = {{0}, {0}}, backwards = {{0}, {0}};
    float kept[BLOCK * MOST_UNITS];
    for (size_t begin = 0; begin < count; begin += BLOCK) {
        first[begin / BLOCK] = forwards;
        if (begin + BLOCK < count) read_forwards(m, ids, count, begin, begin + BLOCK, &forwards, NULL);
    }
    for (size_t end = count; end > 0;) {
        const size_t begin = (end - 1) / BLOCK * BLOCK;
        forwards = first[begin / BLOCK];
        read_forwards(m, ids, count, begin, end, &forwards, kept);
        for (size_t t = end; t-- > begin;) {
            read_backwards(m, ids, t, &backwards);
            if (starts && !starts[t]) continue;
            memcpy(some->states + some->count * m->n.features, kept + (t - begin) * MOST_UNITS, bytes);
            memcpy(some->states + some->count * m->n.features + units, backwards.states, bytes);
            some->logits[some->count++] = logits + (starts ? (size_t)starts[t] - 1 : t) * m->n.labels;
            if (some->count == some->most) answer_tokens(m, some);
        }
        end = begin;
    }
}

static void tag_by_windows(const compress_model *m, const int32_t *ids, size_t count, const int32_t *starts,
                           float *logits, token_states *some) {
    const size_t features = m->n.features, even = features + features % 2;
    for (size_t t = 0; t < count; t++) {
        if (starts && !starts[t]) continue;
        float *state = some->states + some->count * features;
        int16_t *largest = some->largest + some->count * even;
        begin_state(m, state, largest);
        add_tokens(m, ids, count, t, t + 1, state, largest);
        end_state(m, 1, state, largest);
        some->logits[some->count++] = logits + (starts ? (size_t)starts[t] - 1 : t) * m->n.labels;
        if (some->count == some->most) answer_tokens(m, some);
    }
}

/* The logits of tokens; where `starts` is there, of the words that start. */
static void tag(const compress_model *m, const int32_t *ids, size_t count, const int32_t *starts, float *logits) {
    const size_t even = m->n.features + m->n.features % 2;
    token_states some;
    some.count = 0;
    some.most = least(least(VECTORS_AT_ONCE, MOST_FEATURES / even), MOST_DENSE / m->n.dense);
    (m->n.network == LSTM ? tag_by_lstm : tag_by_windows)(m, ids, count, starts, logits, &some);
    if (some.count) answer_tokens(m, &some);
}

void compress_logits(const compress_model *m, const int32_t *ids, size_t count, float *logits) {
    count = least(count, most_tokens(&m->n)); /* more would not fit into sums of int32 */
    if (m->n.is_tagger) {
        tag(m, ids, count, NULL, logits);
        return;
    }
    float state[MOST_FEATURES];
    int16_t largest[MOST_FEATURES + 1];
    (m->n.is_siamese ? pair_state : text_state)(m, ids, count, state, largest);
    answers(m, state, largest, 1, &logits);
}

static size_t tag_words(const compress_model *m, compress_text text, float *logits) {
    const size_t numbers = compress_word_count(text) * m->n.labels;
    int32_t ids[BUFFER_TOKENS], starts[BUFFER_TOKENS];
    id_list list = {ids, starts, 0, BUFFER_TOKENS, NULL, 0, 0, 0, 0};
    const size_t unread = put_ids(m, text, NULL, &list);
    for (size_t t = list.held; t-- > 1;) /* from the end: the token before still has its word */
        if (starts[t] == starts[t - 1]) starts[t] = 0;
    for (size_t i = 0; i < numbers; i++) logits[i] = NAN;
    tag(m, ids, list.held, starts, logits);
    for (size_t t = 0; t < list.held; t++)
        for (size_t c = 0; starts[t] && c < m->n.labels; c++) {
            float *logit = logits + (size_t)(starts[t] - 1) * m->n.labels + c;
            if (!isfinite(*logit)) *logit = INFINITY;
        }
    return unread;
}

/* A text of more tokens than a list holds: it is read whenever the list is full. */
typedef struct {
    id_list list; /* first, so that its address is that of all */
    const compress_model *m;
    size_t begin; /* tokens before it are in the state, and are held for windows that reach back */
    size_t gone;  /* tokens that are not held any more */
    float state[MOST_FEATURES];
    int16_t largest[MOST_FEATURES + 1];
    int32_t ids[BUFFER_TOKENS];
} long_text;

/* Tokens that are held for those behind, which reach back to them, and that those before reach forward to. */
static size_t tokens_back(const numbers *n) {
    if (n->network == NGRAM) return 0;
    return (n->widths[n->width_count - 1] - 1) / 2 + (n->second_width ? (n->second_width - 1) / 2 : 0);
}

static size_t tokens_ahead(const numbers *n) {
    return n->network == NGRAM ? n->longest - 1 : n->widths[n->width_count - 1] / 2 + n->second_width / 2;
}

static void read_full(id_list *list) {
    long_text *text = (long_text *)(void *)list;
    const size_t end = list->held - tokens_ahead(&text->m->n), first = end - tokens_back(&text->m->n);
    add_tokens(text->m, list->ids, list->held, text->begin, end, text->state, text->largest);
    memmove(list->ids, list->ids + first, (list->held - first) * sizeof *list->ids);
    list->held -= first;
    text->gone += first;
    text->begin = end - first;
}

static size_t classify_long(const compress_model *m, compress_text given, const compress_text *pair, float *logits) {
    long_text text;
    text.list = (id_list){text.ids, NULL, 0, BUFFER_TOKENS, read_full, 0, 0, 0, 0};
    text.m = m;
    text.begin = text.gone = 0;
    begin_state(m, text.state, text.largest);
    const size_t unread = put_ids(m, given, pair, &text.list), held = text.list.held;
    add_tokens(m, text.ids, held, text.begin, held, text.state, text.largest);
    end_state(m, text.gone + held, text.state, text.largest);
    answers(m, text.state, text.largest, 1, &logits);
    return unread;
}

size_t compress_classify(const compress_model *m, compress_text text, const compress_text *pair, float *logits) {
    int32_t ids[BUFFER_TOKENS];
    size_t unread;
    if (m->n.is_tagger) return tag_words(m, text, logits);
    if (m->n.max_length > BUFFER_TOKENS) return classify_long(m, text, pair, logits);
    compress_logits(m, ids, compress_ids(m, text, pair, ids, &unread), logits);
    return unread;
}

const char *compress_instructions(const compress_model *model) { return model->kernels->instructions; }
