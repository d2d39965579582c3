/* The container: a header, numbers, and sections that begin at multiples of 64. All of it is little-endian.

   bytes 0..7    "COMPRESS"
   bytes 8..15   version of the format (u32), number of sections (u32)
   bytes 16..31  bytes of the whole container (u64), checksum of all that follows the header (u64)
   bytes 64..    u32[NUMBERS], then offset and size (u64 each) of every section, then the sections

   model_file.c reads it and checks every number that is later used as an index; write.py writes it. */

#ifndef COMPRESS_MODEL_FILE_H
#define COMPRESS_MODEL_FILE_H

#include "kernels.h"
#include "native.h"

enum { FORMAT_VERSION = 1, HEADER_BYTES = 64, ALIGNMENT = 64 };
#define CHECKSUM_FACTOR 0x9E3779B97F4A7C14u
enum { CODE_POINTS = 0x110000, PAGE_BITS = 7, PAGES = CODE_POINTS >> PAGE_BITS };
enum { MOST_WORD_CHARACTERS = 1000, MOST_GRAM = 8, MOST_WIDTHS = 8, MOST_WIDTH = 16, MOST_DENSE = 2048 };
enum { MOST_FEATURES = 4096, MOST_ADDED = 4096 };
enum { CODES = 256, CODE_COLUMNS = 8 }; /* product quantization: Jegou et al. 2011, doi:10.1109/TPAMI.2010.57 */
enum { DECODED_BYTES = 32768 };         /* of the rows that are decoded at a time */
enum { BUFFER_TOKENS = 8192 };          /* that are held at a time; taggers and siamese networks read no more */
enum { LSTM_TOKENS = 2048, MOST_UNITS = 304 };

/* The numbers, in this order. */
typedef struct {
    uint32_t network;         /* of enum network */
    uint32_t is_int8;         /* the table is int8, and its columns' scales are in the dense layer; of an
                                 LSTM it is int16, and has its own */
    uint32_t labels;          /* C */
    uint32_t max_length;      /* tokens that are read, special tokens included */
    uint32_t truncates_left;  /* whether the first tokens of a long text are left out */
    uint32_t tokenizer_size;  /* ids are below it */
    uint32_t unknown_id;
    uint32_t word_characters; /* longer words are unknown */
    uint32_t special[5];      /* special tokens around a text: before, after; around a pair: before, between, after */
    uint32_t table_rows;      /* R */
    uint32_t table_columns;   /* of a row, numbers */
    uint32_t features;        /* S, what the dense layer reads */
    uint32_t dense;           /* D, what it writes */
    uint32_t pooling;         /* of enum pooling */
    uint32_t longest;         /* ngram: tokens of the longest n-gram */
    uint32_t buckets;         /* ngram: rows of each length */
    uint32_t factors[MOST_GRAM]; /* ngram: of the hash */
    uint32_t filters;         /* cnn: of each width */
    uint32_t width_count;     /* cnn */
    uint32_t widths[MOST_WIDTHS]; /* cnn, ascending */
    uint32_t is_tagger;       /* answers tokens */
    uint32_t is_siamese;      /* reads both texts of a pair by themselves, and compares their states */
    uint32_t separator;       /* siamese: the first one ends the first text */
    uint32_t around[3];       /* siamese: special tokens before, between and after the texts */
    uint32_t second_filters;  /* cnn: of a second layer; 0 for none */
    uint32_t second_width;    /* cnn: places of the first layer that a window of the second one has */
    uint32_t has_codes;       /* int8: each byte of the table stands for CODE_COLUMNS columns */
    uint32_t padding;         /* lstm: the token that is read of a text without tokens */
    uint32_t unused[16];
} numbers;

enum { NUMBERS = 64 };
_Static_assert(sizeof(numbers) == 4 * NUMBERS, "numbers fill their room");

enum network { NGRAM = 1, CNN = 2, LSTM = 3 };
enum pooling { MEAN = 1, SUM = 2, MAXIMUM = 3, MAXIMUM_AND_MEAN = 4 };

enum section {
    LABEL_ENDS,        /* u32 [C]: where the name of each label ends */
    LABEL_NAMES,       /* u8: UTF-8 */
    CHARACTER_PAGES,   /* u16 [PAGES]: the page of 128 code points */
    CHARACTERS,        /* u32 [pages * 128]: of enum character */
    CHARACTER_BYTES,   /* u8: what characters become, where it is longer than 3 bytes; of MARKED, see there */
    TRIE,              /* trie_cell [T]: words begin at cell 0, what continues one at cell 1 */
    TRIE_IDS,          /* i32 [T]: the token that ends there; -1 for none */
    ADDED_ENDS,        /* u32 [n]: where the text of each added token ends */
    ADDED_BYTES,       /* u8 */
    ADDED_IDS,         /* u32 [n] */
    SPECIAL_IDS,       /* u32 [sum of special] */
    REMAP,             /* u32 [tokenizer_size]: row of each token */
    TABLE,             /* i8 or f32 [R, columns], or, where it has codes, u8 [R, ceil(columns / CODE_COLUMNS)]. Of an LSTM
                          i16 or f32 [R, 2, 4, U]: what a token adds to the gates of all units, forwards and backwards */
    DENSE_WEIGHT,      /* f32 [S, D], or i16 [ceil(S / 2), D, 2] where DENSE_SCALE is there */
    DENSE_SCALE,       /* f32 [D], or nothing */
    DENSE_BIAS,        /* f32 [D] */
    CLASSIFIER_WEIGHT, /* f32 [C, D] */
    CLASSIFIER_BIAS,   /* f32 [C] */
    SECOND_WEIGHT,     /* f32 [second_width * filters of the first layer = P, second_filters], or, of an int8 model,
                          i16 [ceil(P / 2), second_filters, 2] */
    SECOND_SCALE,      /* f32 [second_filters], of an int8 model */
    SECOND_BIAS,       /* f32 [second_filters] */
    CODEBOOKS,         /* i8 [ceil(columns / CODE_COLUMNS), CODES, CODE_COLUMNS], or nothing */
    RECURRENT_WEIGHT,  /* f32 [2, U, 4 * U] of an LSTM, or, of an int8 model, i16 [2, U / 2, 4 * U, 2] */
    RECURRENT_SCALE,   /* f32 [2, 4 * U], of an int8 model */
    TABLE_SCALE,       /* f32 [2, 4 * U], of an int8 model */
    SECTIONS
};

/* A character: what it is (3 bits), how many bytes it becomes (5 bits; 0 where it stays as it is), and these bytes (up
   to 3) or, if they are more or it is MARKED, where they begin in CHARACTER_BYTES. */
enum character {
    REMOVED = 0, /* as if it were not there */
    STARTER = 1, /* removed, but marks before it are not ordered with marks behind */
    WORD = 2,    /* a part of a word */
    ALONE = 3,   /* a word of its own */
    SPACE = 4,   /* ends a word */
    MARKED = 5   /* a part of a word with combining marks that stay: for each character its canonical combining class,
                    its number of bytes, and the bytes */
};

enum { KIND_BITS = 3, SIZE_BITS = 5, ENTRY_BITS = KIND_BITS + SIZE_BITS, MOST_BYTES = (1 << SIZE_BITS) - 1 };

typedef struct {
    uint32_t base; /* the child for byte b is cell base + b, if that names this one as its parent */
    uint32_t parent;
} trie_cell;

typedef struct {
    const void *bytes;
    size_t size;
} section_bytes;

struct compress_model {
    numbers n;
    section_bytes sections[SECTIONS];
    uint8_t added_begin[32]; /* bit b: an added token begins with byte b */
    const kernels *kernels;
};

/* Where ids go. `words`, where it is there, has the word of each, counted from 1, or 0. `make_room` takes some out of a
   full list; without it a list has room for all that a model reads. */
typedef struct id_list {
    int32_t *ids, *words;
    size_t held, capacity;
    void (*make_room)(struct id_list *);
    size_t skipped, room, count; /* of a text `room` ids are kept after the first `skipped`, and all are counted */
    int32_t word;
} id_list;

/* Puts the ids of a text, or of a pair where `pair` is not NULL, special tokens included, into an empty list, and returns
   how many more the text has. */
size_t put_ids(const compress_model *model, compress_text text, const compress_text *pair, id_list *list);

/* Tokens that a container may read of a text. */
static inline size_t most_tokens(const numbers *n) {
    if (n->network == LSTM) return LSTM_TOKENS;
    return n->is_tagger || n->is_siamese ? BUFFER_TOKENS : COMPRESS_MOST_TOKENS;
}

/* Units of each direction of an LSTM. */
static inline size_t unit_count(const numbers *n) { return n->table_columns / 8; }

/* The bytes of a row of the table, and what a row of codes becomes. */
static inline size_t code_count(const numbers *n) { return (n->table_columns + CODE_COLUMNS - 1) / CODE_COLUMNS; }
static inline size_t row_bytes(const numbers *n) {
    return n->has_codes ? code_count(n) : (size_t)n->table_columns * (!n->is_int8 ? 4 : n->network == LSTM ? 2 : 1);
}
static inline size_t decoded_rows(const numbers *n) { return DECODED_BYTES / (code_count(n) * CODE_COLUMNS); }

/* The values of a section, and how many there are. */
#define VALUES(model, name, type) ((const type *)(model)->sections[name].bytes)
#define COUNT(model, name, type) ((model)->sections[name].size / sizeof(type))

#endif
