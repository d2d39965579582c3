/* Opens a container: whatever its bytes are, no later call reads outside it. */

#include "model_file.h"

#include <stdlib.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "containers are little-endian"
#endif

typedef struct {
    char magic[8];
    uint32_t version, sections;
    uint64_t size, checksum;
} header;

typedef struct {
    uint64_t offset, size;
} place;

/* Fletcher's two sums (1982) over words of 64 bits, modulo 2^64, in one number: one changed bit always changes it. */
static uint64_t checksum(const unsigned char *bytes, size_t size) {
    uint64_t sum = 0, sums = 0;
    for (size_t at = 0; at + 8 <= size; at += 8) {
        uint64_t word;
        memcpy(&word, bytes + at, 8);
        sum += word;
        sums += sum;
    }
    return sum + CHECKSUM_FACTOR * sums;
}

/* Whether all of `count` values are below `limit`. */
static int all_below(const uint32_t *values, size_t count, uint64_t limit) {
    uint32_t largest = 0;
    for (size_t i = 0; i < count; i++) largest = values[i] > largest ? values[i] : largest;
    return count == 0 || largest < limit;
}

/* Whether values ascend and end at `size`. */
static int are_ends(const uint32_t *ends, size_t count, size_t size) {
    for (size_t i = 0; i < count; i++)
        if (ends[i] > size || (i && ends[i] < ends[i - 1])) return 0;
    return count ? ends[count - 1] == size : size == 0;
}

static const char *fault_of_numbers(const numbers *n) {
    if (n->network != NGRAM && n->network != CNN && n->network != LSTM) return "its network is unknown";
    if (n->is_int8 > 1 || n->truncates_left > 1 || n->is_tagger > 1 || n->is_siamese > 1 || n->has_codes > 1)
        return "a switch is neither 0 nor 1";
    for (size_t i = 0; i < sizeof n->unused / sizeof *n->unused; i++)
        if (n->unused[i]) return "it is of a later version";
    if (!n->labels || n->labels > COMPRESS_MOST_LABELS) return "its number of labels is out of range";
    if (!n->max_length || n->max_length > COMPRESS_MOST_TOKENS) return "max_length is out of range";
    if (n->max_length > most_tokens(n))
        return n->network == LSTM ? "it reads more than 2048 tokens, which no LSTM does here"
                                  : "it reads more than 8192 tokens, which no tagger and no siamese network does here";
    if (!n->tokenizer_size || n->tokenizer_size > 1u << 24) return "tokenizer_size is out of range";
    if (n->unknown_id >= n->tokenizer_size) return "unknown_id is no token";
    if (!n->word_characters || n->word_characters > MOST_WORD_CHARACTERS) return "word_characters is out of range";
    for (int i = 0; i < 5; i++)
        if (n->special[i] > 16) return "it has too many special tokens";
    if (n->special[0] + n->special[1] > n->max_length || n->special[2] + n->special[3] + n->special[4] > n->max_length)
        return "special tokens leave no room for text";
    if (!n->table_rows || n->table_rows > 1u << 28 || !n->table_columns || n->table_columns > 1u << 16)
        return "the size of its table is out of range";
    if (n->has_codes && !n->is_int8) return "its table has codes, and is not of int8";
    if (!n->features || n->features > MOST_FEATURES || !n->dense || n->dense > MOST_DENSE)
        return "the size of its dense layer is out of range";
    if (n->is_tagger && (n->is_siamese || n->network == NGRAM || (n->network == CNN && n->pooling != MAXIMUM)))
        return "no tagger has its layers";
    for (int i = 0; i < 3; i++)
        if (n->around[i] > 16) return "it has too many special tokens";
    if (n->dense % 16 || n->second_filters % 16 || (n->network == NGRAM && n->table_columns % 16))
        return "its layers are no multiples of 16 wide";
    const uint64_t texts = n->is_siamese ? 4 : 1;
    if (n->network == NGRAM) {
        if (n->pooling != MEAN && n->pooling != SUM) return "its pooling is unknown";
        if (!n->longest || n->longest > MOST_GRAM || !n->buckets || n->buckets > 1u << 24)
            return "longest or buckets is out of range";
        if (n->second_filters || n->second_width) return "a bag of n-grams has no second layer";
        if (n->features != texts * n->table_columns) return "features are not the table's columns";
        if (n->table_rows < (uint64_t)(n->longest - 1) * n->buckets) return "its table has too few rows";
        if (n->has_codes && decoded_rows(n) < n->longest) return "its table has codes of too many columns";
        return NULL;
    }
    if (n->network == LSTM) {
        if (n->table_columns % 32 || unit_count(n) > MOST_UNITS)
            return "it has more than 304 units of a direction, or no multiple of four";
        if (n->second_filters || n->second_width || n->has_codes) return "an LSTM has no second layer and no codes";
        if (n->padding >= n->tokenizer_size) return "padding is no token";
        return n->features == texts * 2 * unit_count(n) ? NULL : "features are not those of its units";
    }
    if (n->pooling != MAXIMUM && n->pooling != MAXIMUM_AND_MEAN) return "its pooling is unknown";
    if (!n->width_count || n->width_count > MOST_WIDTHS || !n->filters || n->filters > MOST_FEATURES)
        return "its windows are out of range";
    uint64_t columns = 0;
    for (uint32_t i = 0; i < n->width_count; i++) {
        if (!n->widths[i] || n->widths[i] > MOST_WIDTH || (i && n->widths[i] <= n->widths[i - 1]))
            return "its windows do not ascend";
        columns += (uint64_t)n->widths[i] * n->filters;
    }
    if (columns != n->table_columns) return "its table has not the columns of its windows";
    if (n->has_codes && decoded_rows(n) < n->widths[n->width_count - 1])
        return "its table has codes of too many columns";
    const uint64_t windows = (uint64_t)n->width_count * n->filters;
    if (n->second_filters ? !n->second_width || n->second_width > MOST_WIDTH || windows > MOST_FEATURES ||
                                n->second_width * windows > MOST_FEATURES || n->second_filters > MOST_DENSE
                          : n->second_width)
        return "the size of its second layer is out of range";
    const uint64_t state = n->second_filters ? n->second_filters : windows;
    const uint64_t features = texts * state * (n->pooling == MAXIMUM_AND_MEAN ? 2 : 1);
    return features == n->features ? NULL : "features are not those of its windows";
}

static const uint32_t INFINITE = 0x7F800000; /* exponent of a float that is infinite or no number */

static const char *fault_of_sizes(const compress_model *m) {
    const numbers *n = &m->n;
    const int pairs = m->sections[DENSE_SCALE].size > 0;
    const uint64_t places = (uint64_t)n->second_width * n->width_count * n->filters;
    const uint64_t units = n->network == LSTM ? unit_count(n) : 0;
    const uint64_t specials =
        (uint64_t)n->special[0] + n->special[1] + n->special[2] + n->special[3] + n->special[4];
    const struct {
        enum section name;
        uint64_t size;
    } wanted[] = {
        {LABEL_ENDS, 4ull * n->labels},
        {CHARACTER_PAGES, 2ull * PAGES},
        {SPECIAL_IDS, 4 * specials},
        {REMAP, 4ull * n->tokenizer_size},
        {TABLE, (uint64_t)n->table_rows * row_bytes(n)},
        {CODEBOOKS, n->has_codes ? (uint64_t)code_count(n) * CODES * CODE_COLUMNS : 0},
        {DENSE_WEIGHT, (pairs ? 4ull * ((n->features + 1) / 2) : 4ull * n->features) * n->dense},
        {DENSE_SCALE, pairs ? 4ull * n->dense : 0},
        {DENSE_BIAS, 4ull * n->dense},
        {CLASSIFIER_WEIGHT, 4ull * n->labels * n->dense},
        {CLASSIFIER_BIAS, 4ull * n->labels},
        {SECOND_WEIGHT, (n->is_int8 ? 4 * ((places + 1) / 2) : 4 * places) * n->second_filters},
        {SECOND_SCALE, n->is_int8 ? 4ull * n->second_filters : 0},
        {SECOND_BIAS, 4ull * n->second_filters},
        {RECURRENT_WEIGHT, (n->is_int8 ? 2 : 4) * 8 * units * units},
        {RECURRENT_SCALE, n->is_int8 ? 4 * 8 * units : 0},
        {TABLE_SCALE, n->is_int8 ? 4 * 8 * units : 0},
        {TRIE_IDS, m->sections[TRIE].size / sizeof(trie_cell) * 4},
        {ADDED_IDS, m->sections[ADDED_ENDS].size},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        if (m->sections[wanted[i].name].size != wanted[i].size)
            return "a section has another size than its numbers say";
    if (pairs && (!n->is_int8 || n->network != CNN || n->pooling != MAXIMUM || n->is_siamese || n->second_filters))
        return "its dense layer is of integers and its state is not";
    if (m->sections[TRIE].size % sizeof(trie_cell) || m->sections[ADDED_ENDS].size % 4 ||
        m->sections[CHARACTERS].size % (4u << PAGE_BITS))
        return "a section ends within a value";
    return NULL;
}

/* Whether the bytes that a character becomes are there; of a MARKED one, whether they are whole characters. */
static int has_bytes(const compress_model *m, uint32_t entry) {
    const uint32_t kind = entry & ((1u << KIND_BITS) - 1), size = entry >> KIND_BITS & MOST_BYTES;
    const size_t begin = entry >> ENTRY_BITS;
    if (kind > MARKED || (kind == MARKED && !size)) return 0;
    if (size <= 3 && kind != MARKED) return 1;
    if (begin + size > m->sections[CHARACTER_BYTES].size) return 0;
    const uint8_t *bytes = VALUES(m, CHARACTER_BYTES, uint8_t) + begin;
    size_t at = 0;
    while (kind == MARKED && at < size) {
        if (at + 2 > size || bytes[at + 1] > size - at - 2) return 0;
        at += 2 + bytes[at + 1];
    }
    return 1;
}

/* Whether all values of the sections of floats are finite numbers. */
static int are_finite(const compress_model *m) {
    const int is_int8 = m->n.is_int8 != 0, pairs = m->sections[DENSE_SCALE].size > 0;
    const struct {
        enum section name;
        int is_float;
    } some[] = {{TABLE, !is_int8},    {DENSE_WEIGHT, !pairs},   {DENSE_SCALE, 1},  {DENSE_BIAS, 1}, {CLASSIFIER_WEIGHT, 1},
                {CLASSIFIER_BIAS, 1}, {SECOND_WEIGHT, !is_int8}, {SECOND_SCALE, 1}, {SECOND_BIAS, 1},
                {RECURRENT_WEIGHT, !is_int8}, {RECURRENT_SCALE, 1}, {TABLE_SCALE, 1}};
    uint32_t has_other = 0;
    for (size_t s = 0; s < sizeof some / sizeof *some; s++)
        for (size_t i = 0; some[s].is_float && i < COUNT(m, some[s].name, uint32_t); i++)
            has_other |= (VALUES(m, some[s].name, uint32_t)[i] & INFINITE) == INFINITE;
    return !has_other;
}

static const char *fault_of_values(compress_model *m) {
    const numbers *n = &m->n;
    if (!are_ends(VALUES(m, LABEL_ENDS, uint32_t), n->labels, m->sections[LABEL_NAMES].size))
        return "its label names do not fit";
    const size_t pages = COUNT(m, CHARACTERS, uint32_t) >> PAGE_BITS;
    for (size_t i = 0; i < PAGES; i++)
        if (VALUES(m, CHARACTER_PAGES, uint16_t)[i] >= pages) return "a page of characters is not there";
    for (size_t i = 0; i < COUNT(m, CHARACTERS, uint32_t); i++)
        if (!has_bytes(m, VALUES(m, CHARACTERS, uint32_t)[i])) return "the bytes of a character are not there";
    const size_t cells = COUNT(m, TRIE, trie_cell);
    if (cells < 2 + 256 || cells > 1u << 28) return "its trie is too small or too large";
    for (size_t i = 0; i < cells; i++) {
        if (VALUES(m, TRIE, trie_cell)[i].base > cells - 256) return "its trie leads outside";
        const int32_t id = VALUES(m, TRIE_IDS, int32_t)[i];
        if (id < -1 || id >= (int64_t)n->tokenizer_size) return "its trie has an unknown token";
    }
    const size_t added = COUNT(m, ADDED_ENDS, uint32_t);
    const uint32_t *ends = VALUES(m, ADDED_ENDS, uint32_t);
    if (!are_ends(ends, added, m->sections[ADDED_BYTES].size)) return "its added tokens do not fit";
    if (added > MOST_ADDED) return "it has too many added tokens"; /* each is looked for at many places of a text */
    for (size_t i = 0; i < added; i++) {
        const uint32_t begin = i ? ends[i - 1] : 0;
        if (begin == ends[i]) return "an added token is empty";
        const uint8_t first = VALUES(m, ADDED_BYTES, uint8_t)[begin];
        m->added_begin[first >> 3] |= (uint8_t)(1 << (first & 7));
    }
    if (!all_below(VALUES(m, ADDED_IDS, uint32_t), added, n->tokenizer_size) ||
        !all_below(VALUES(m, SPECIAL_IDS, uint32_t), COUNT(m, SPECIAL_IDS, uint32_t), n->tokenizer_size))
        return "it has an unknown special token";
    const uint64_t shared = n->network == NGRAM ? (uint64_t)(n->longest - 1) * n->buckets : 0;
    if (!all_below(VALUES(m, REMAP, uint32_t), n->tokenizer_size, n->table_rows - shared))
        return "a token's row is not in its table";
    return are_finite(m) ? NULL : "a weight is no finite number";
}

static const char *fault_of(compress_model *m, const unsigned char *bytes, size_t size) {
    header h;
    if ((uintptr_t)bytes % ALIGNMENT) return "it is not aligned to 64 bytes";
    if (size < HEADER_BYTES || size % 8) return "it is cut short";
    memcpy(&h, bytes, sizeof h);
    if (memcmp(h.magic, "COMPRESS", 8)) return "it is no container of compress";
    if (h.version != FORMAT_VERSION || h.sections > SECTIONS) return "it is of another version; export it again";
    const size_t begin = HEADER_BYTES + sizeof(numbers) + h.sections * sizeof(place); /* those that follow are empty */
    if (h.size != size || size < begin) return "it is cut short";
    if (h.checksum != checksum(bytes + HEADER_BYTES, size - HEADER_BYTES)) return "it is damaged";
    memcpy(&m->n, bytes + HEADER_BYTES, sizeof m->n);
    for (uint32_t i = 0; i < h.sections; i++) {
        place p;
        memcpy(&p, bytes + HEADER_BYTES + sizeof(numbers) + i * sizeof p, sizeof p);
        if (p.offset % ALIGNMENT || p.offset < begin || p.offset > size || p.size > size - p.offset)
            return "a section is outside it";
        m->sections[i] = (section_bytes){bytes + p.offset, (size_t)p.size};
    }
    const char *fault = fault_of_numbers(&m->n);
    if (!fault) fault = fault_of_sizes(m);
    return fault ? fault : fault_of_values(m);
}

/* Writes why a model cannot be read, as much as there is room for. */
static void tell(const char *fault, char *error) {
    const char *parts[] = {"the model cannot be read: ", fault};
    size_t at = 0;
    for (int i = 0; i < 2; i++)
        for (const char *c = parts[i]; *c && at < COMPRESS_ERROR_BYTES - 1; c++) error[at++] = *c;
    error[at] = 0;
}

compress_model *compress_open(const void *bytes, size_t size, char *error) {
    compress_model *model = calloc(1, sizeof *model);
    const char *fault = model ? fault_of(model, bytes, size) : "there is no memory for it";
    if (!fault) {
        model->kernels = kernels_at(0);
        return model;
    }
    tell(fault, error);
    free(model);
    return NULL;
}

void compress_close(compress_model *model) { free(model); }

size_t compress_max_length(const compress_model *model) { return model->n.max_length; }

int compress_is_tagger(const compress_model *model) { return (int)model->n.is_tagger; }

size_t compress_label_count(const compress_model *model) { return model->n.labels; }

compress_text compress_label(const compress_model *model, size_t label) {
    const uint32_t *ends = VALUES(model, LABEL_ENDS, uint32_t);
    const uint32_t begin = label ? ends[label - 1] : 0;
    return (compress_text){VALUES(model, LABEL_NAMES, char) + begin, ends[label] - begin};
}
