/* BERT's tokenizer (Devlin et al. 2019, arXiv:1810.04805): characters are normalised, words end at spaces and around
   punctuation, and each is cut into the longest tokens of the vocabulary from left to right (WordPiece).

   What a character becomes, and which tokens there are, is in tables that write.py makes by asking the library
   `tokenizers`, so that the ids are that library's. */

#include "model_file.h"

#include <string.h>

enum { WORD_CELL = 0, CONTINUATION_CELL = 1, REPLACEMENT = 0xFFFD };

typedef struct {
    size_t size, characters;
    size_t marks; /* where the combining marks begin whose order is still open */
    char bytes[4 * MOST_WORD_CHARACTERS + MOST_BYTES];
} word_buffer;

static void append_id(id_list *list, int32_t id) {
    if (list->held == list->capacity) list->make_room(list);
    if (list->words) list->words[list->held] = list->word;
    list->ids[list->held++] = id;
}

static void put(id_list *list, int32_t id) {
    if (list->count++ - list->skipped < list->room) append_id(list, id); /* not what is skipped: the difference wraps */
}

/* Reads the character at `at` and returns where the next one begins. */
static size_t decode(const unsigned char *s, size_t at, size_t size, uint32_t *character) {
    static const uint32_t least[] = {0, 0x80, 0x800, 0x10000};
    const uint32_t first = s[at];
    const size_t more = first < 0x80 ? 0 : first < 0xE0 ? 1 : first < 0xF0 ? 2 : 3;
    uint32_t value = more ? first & (0x3Fu >> more) : first;
    *character = REPLACEMENT;
    if (more >= size - at || (first >= 0x80 && first < 0xC2) || first > 0xF4) return at + 1;
    for (size_t i = 1; i <= more; i++) {
        if ((s[at + i] & 0xC0) != 0x80) return at + 1;
        value = value << 6 | (s[at + i] & 0x3Fu);
    }
    if (value < least[more] || value >= CODE_POINTS || (value >= 0xD800 && value < 0xE000)) return at + 1;
    *character = value;
    return at + more + 1;
}

static uint32_t entry_of(const compress_model *m, uint32_t character) {
    const size_t page = VALUES(m, CHARACTER_PAGES, uint16_t)[character >> PAGE_BITS];
    return VALUES(m, CHARACTERS, uint32_t)[page << PAGE_BITS | (character & ((1u << PAGE_BITS) - 1))];
}

/* The tokens of a word, or the unknown one where a part of it is in no vocabulary. */
static void end_word(const compress_model *m, word_buffer *word, id_list *list) {
    const trie_cell *trie = VALUES(m, TRIE, trie_cell);
    const int32_t *token_ids = VALUES(m, TRIE_IDS, int32_t);
    int32_t found[MOST_WORD_CHARACTERS];
    size_t count = 0;
    if (!word->characters) return;
    if (word->characters <= m->n.word_characters) {
        for (size_t at = 0; at < word->size;) {
            uint32_t cell = at ? CONTINUATION_CELL : WORD_CELL;
            int32_t id = -1;
            size_t end = at;
            for (size_t i = at; i < word->size; i++) {
                const uint32_t next = trie[cell].base + (unsigned char)word->bytes[i];
                if (trie[next].parent != cell) break;
                cell = next;
                if (token_ids[cell] >= 0) {
                    id = token_ids[cell];
                    end = i + 1;
                }
            }
            if (id < 0 || count == MOST_WORD_CHARACTERS) { /* the latter where a container has broken characters */
                count = 0;
                break;
            }
            found[count++] = id;
            at = end;
        }
    }
    if (!count) found[count++] = (int32_t)m->n.unknown_id;
    for (size_t i = 0; i < count; i++) put(list, found[i]);
    word->size = word->characters = word->marks = 0;
}

/* Appends a character of a word. Of a word that is too long only the number of characters matters. */
static void append(const compress_model *m, word_buffer *word, const void *bytes, size_t size) {
    for (size_t i = 0; i < size; i++) word->characters += (((const uint8_t *)bytes)[i] & 0xC0) != 0x80;
    if (size > sizeof word->bytes - word->size) word->characters = MOST_WORD_CHARACTERS + 1; /* no tokenizer's table */
    if (word->characters > m->n.word_characters) return;
    memcpy(word->bytes + word->size, bytes, size);
    word->size += size;
}

/* The canonical combining class of the character that is at `at` in a word; 0 for one that is no mark. */
static unsigned class_of(const compress_model *m, const word_buffer *word, size_t at) {
    uint32_t character;
    decode((const unsigned char *)word->bytes, at, word->size, &character);
    const uint32_t entry = entry_of(m, character);
    return (entry & ((1u << KIND_BITS) - 1)) == MARKED ? VALUES(m, CHARACTER_BYTES, uint8_t)[entry >> ENTRY_BITS] : 0;
}

/* Appends characters of which some are marks: each goes before the open ones of a higher class (The Unicode Standard,
   section 3.11, canonical ordering). */
static void append_marked(const compress_model *m, word_buffer *word, const uint8_t *items, size_t size) {
    for (size_t i = 0; i < size; i += 2 + items[i + 1]) {
        const size_t bytes = items[i + 1], end = word->size;
        append(m, word, items + i + 2, bytes);
        if (word->size == end) continue;
        size_t at = end;
        while (items[i] && at > word->marks) {
            size_t before = at - 1;
            while (before > word->marks && (word->bytes[before] & 0xC0) == 0x80) before--;
            if (class_of(m, word, before) <= items[i]) break;
            at = before;
        }
        memmove(word->bytes + at + bytes, word->bytes + at, end - at);
        memcpy(word->bytes + at, items + i + 2, bytes);
        if (!items[i]) word->marks = word->size;
    }
}

/* The number of the longest added token that a text has at `at`, and its bytes; -1 for none. */
static int32_t added_at(const compress_model *m, const unsigned char *s, size_t at, size_t size, size_t *bytes) {
    int32_t found = -1;
    *bytes = 0;
    if (!(m->added_begin[s[at] >> 3] >> (s[at] & 7) & 1)) return found;
    for (size_t i = 0, begin = 0; i < COUNT(m, ADDED_ENDS, uint32_t); i++) {
        const size_t end = VALUES(m, ADDED_ENDS, uint32_t)[i], length = end - begin;
        if (length > *bytes && length <= size - at &&
            !memcmp(VALUES(m, ADDED_BYTES, uint8_t) + begin, s + at, length)) {
            found = (int32_t)VALUES(m, ADDED_IDS, uint32_t)[i];
            *bytes = length;
        }
        begin = end;
    }
    return found;
}

/* Appends the ids of a text, without special tokens around it. */
static void read_text(const compress_model *m, compress_text text, id_list *list) {
    const unsigned char *s = (const unsigned char *)text.bytes;
    word_buffer word;
    word.size = word.characters = word.marks = 0;
    for (size_t at = 0, next; at < text.size; at = next) {
        size_t added_bytes;
        const int32_t added = added_at(m, s, at, text.size, &added_bytes);
        if (added >= 0) {
            end_word(m, &word, list);
            put(list, added);
            next = at + added_bytes;
            continue;
        }
        uint32_t character;
        next = decode(s, at, text.size, &character);
        const uint32_t entry = entry_of(m, character), kind = entry & ((1u << KIND_BITS) - 1);
        const uint8_t inside[] = {(uint8_t)(entry >> 8), (uint8_t)(entry >> 16), (uint8_t)(entry >> 24)};
        size_t size = entry >> KIND_BITS & MOST_BYTES;
        const uint8_t *bytes = size <= 3 ? inside : VALUES(m, CHARACTER_BYTES, uint8_t) + (entry >> ENTRY_BITS);
        if (!size && character == REPLACEMENT) {
            bytes = (const uint8_t *)"\xEF\xBF\xBD";
            size = 3;
        } else if (!size) {
            bytes = s + at;
            size = next - at;
        }
        if (kind == WORD) {
            append(m, &word, bytes, size);
            word.marks = word.size;
        } else if (kind == MARKED) {
            append_marked(m, &word, VALUES(m, CHARACTER_BYTES, uint8_t) + (entry >> ENTRY_BITS), size);
        } else if (kind == STARTER) {
            word.marks = word.size;
        } else if (kind != REMOVED) {
            end_word(m, &word, list);
            if (kind == ALONE) {
                append(m, &word, bytes, size);
                end_word(m, &word, list);
            }
        }
    }
    end_word(m, &word, list);
}

static void append_special(const compress_model *m, size_t part, id_list *list) {
    const uint32_t *special = VALUES(m, SPECIAL_IDS, uint32_t);
    for (size_t i = 0; i < part; i++) special += m->n.special[i];
    list->word = 0;
    for (uint32_t i = 0; i < m->n.special[part]; i++) append_id(list, (int32_t)special[i]);
}

/* Words are read one by one, as the library reads lists of them: what follows a space is never a part of what is before. */
static void read_words(const compress_model *m, compress_text text, id_list *list) {
    const char *end = text.bytes + text.size;
    for (const char *at = text.bytes, *next; at < end && list->word < INT32_MAX; at = next) {
        next = memchr(at, ' ', (size_t)(end - at));
        if (!next) next = end;
        if (next > at) {
            list->word++;
            read_text(m, (compress_text){at, (size_t)(next - at)}, list);
        }
        if (next < end) next++;
    }
}

/* Reads a text, and appends `room` of its ids after the first `skipped`. */
static void read_part(const compress_model *m, compress_text text, id_list *list, size_t skipped, size_t room) {
    list->skipped = skipped;
    list->room = room;
    list->count = 0;
    list->word = 0;
    (m->n.is_tagger ? read_words : read_text)(m, text, list);
}

/* Appends one text or two with special tokens around them, at most `room` ids; writes how many ids each text has. */
static void append_texts(const compress_model *m, const compress_text *texts, size_t count, const size_t *skipped,
                         const size_t *kept, size_t room, id_list *list, size_t *sizes) {
    const size_t part = count == 2 ? 2 : 0;
    for (size_t i = 0; i < count; i++) {
        const size_t most = kept[i] < room ? kept[i] : room;
        append_special(m, part + i, list);
        read_part(m, texts[i], list, skipped[i], most);
        sizes[i] = list->count;
        room -= sizes[i] - skipped[i] < most ? sizes[i] - skipped[i] : most;
    }
    append_special(m, part + count, list);
}

/* Of pairs that are too long the library cuts the longer text, and then both to a half. Where what is kept depends on
   how many ids the texts have, texts that are cut are read twice; where ids leave the list before all are known, all. */
size_t put_ids(const compress_model *m, compress_text text, const compress_text *pair, id_list *list) {
    const compress_text texts[] = {text, pair ? *pair : text};
    const size_t count = pair ? 2 : 1;
    const uint32_t *special = m->n.special + (pair ? 2 : 0);
    const int is_known = count == 1 && !m->n.truncates_left, counts_first = list->make_room && !is_known;
    size_t room = m->n.max_length, sizes[2] = {0}, skipped[2] = {0};
    for (size_t i = 0; i <= count; i++) room -= special[i];
    size_t kept[] = {room, room};
    if (!counts_first) append_texts(m, texts, count, skipped, kept, room, list, sizes);
    for (size_t i = 0; counts_first && i < count; i++) {
        read_part(m, texts[i], list, 0, 0);
        sizes[i] = list->count;
    }
    const size_t all = sizes[0] + sizes[1], unread = all > room ? all - room : 0;
    if (unread && pair) {
        size_t shorter = sizes[0] < sizes[1] ? sizes[0] : sizes[1];
        if (shorter > room / 2) shorter = room / 2;
        kept[0] = sizes[0] > sizes[1] ? room - shorter : shorter;
        kept[1] = room - kept[0];
    }
    for (size_t i = 0; unread && m->n.truncates_left && i < count; i++) skipped[i] = sizes[i] - kept[i];
    if (counts_first || (unread && !is_known)) {
        list->held = 0;
        append_texts(m, texts, count, skipped, kept, room, list, sizes);
    }
    if (!list->held) append_id(list, (int32_t)m->n.unknown_id);
    return unread;
}

size_t compress_word_count(compress_text text) {
    size_t count = 0;
    for (size_t i = 0; i < text.size; i++) count += text.bytes[i] != ' ' && (!i || text.bytes[i - 1] == ' ');
    return count;
}

size_t compress_ids(const compress_model *m, compress_text text, const compress_text *pair, int32_t *ids,
                    size_t *unread) {
    id_list list = {ids, NULL, 0, SIZE_MAX, NULL, 0, 0, 0, 0};
    *unread = put_ids(m, text, m->n.is_tagger ? NULL : pair, &list);
    return list.held;
}
