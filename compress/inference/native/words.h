/* ASCII text as the words of a tagger: compress/data/words.py, which reads all other text, has the rule. */

#ifndef COMPRESS_WORDS_H
#define COMPRESS_WORDS_H

#include <stddef.h>
#include <string.h>

typedef struct {
    char *joined; /* the words with a space between them; room for two bytes a byte of the text */
    size_t (*places)[2]; /* where each begins and ends in the text; room for one a byte */
    size_t size, count;
} word_list;

static int is_one_of(char c, const char *some) { return c && strchr(some, c) != NULL; }

static int is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r') || (c >= 0x1C && c <= 0x1F); }

static int is_alphanumeric(char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

static void put_word(word_list *list, const char *text, size_t begin, size_t end) {
    if (begin == end) return;
    if (list->count) list->joined[list->size++] = ' ';
    memcpy(list->joined + list->size, text + begin, end - begin);
    list->size += end - begin;
    list->places[list->count][0] = begin;
    list->places[list->count++][1] = end;
}

/* Marks that are equal and beside each other are a word. */
static void put_marks(word_list *list, const char *text, size_t begin, size_t end) {
    while (begin < end) {
        size_t next = begin + 1;
        while (next < end && text[next] == text[begin]) next++;
        put_word(list, text, begin, next);
        begin = next;
    }
}

/* 's, 'm, 'd, 't, 'll, 're and 've, which are words where a text was split before. */
static int is_ending(const char *s, size_t size) {
    static const char two[][2] = {{'l', 'l'}, {'r', 'e'}, {'v', 'e'}};
    if (size < 2 || size > 3 || s[0] != '\'') return 0;
    const char first = (char)(s[1] | 0x20), second = (char)(size > 2 ? s[2] | 0x20 : 0);
    if (size == 2) return is_one_of(first, "smdt") && is_alphanumeric(s[1]);
    for (size_t i = 0; i < 3; i++)
        if (first == two[i][0] && second == two[i][1] && is_alphanumeric(s[1]) && is_alphanumeric(s[2])) return 1;
    return 0;
}

/* Single letters with dots between them. */
static int is_abbreviation(const char *s, size_t size) {
    if (size < 3 || size % 2 == 0) return 0;
    for (size_t i = 0; i < size; i++)
        if (i % 2 ? s[i] != '.' : !is_alphanumeric(s[i]) && s[i] != '_') return 0;
    return 1;
}

static void split_chunk(word_list *list, const char *text, size_t begin, size_t end) {
    size_t first = begin, last = end, letters = begin;
    while (letters < end && is_alphanumeric(text[letters])) letters++;
    if (letters == end || is_ending(text + begin, end - begin)) {
        put_word(list, text, begin, end);
        return;
    }
    while (first < end && is_one_of(text[first], "\"'`([{<")) first++;
    while (last > first && is_one_of(text[last - 1], "\"'`)]}>.,:;!?")) last--;
    put_marks(list, text, begin, first);
    if (last < end && text[last] == '.' && is_abbreviation(text + first, last - first)) last++;
    const size_t suffix = last >= first + 2 && text[last - 2] == '\'' && text[last - 1] == 's' ? last - 2 : last;
    put_word(list, text, first, suffix);
    put_word(list, text, suffix, last);
    put_marks(list, text, last, end);
}

static void split_words(word_list *list, const char *text, size_t size) {
    list->size = list->count = 0;
    for (size_t at = 0; at < size;) {
        while (at < size && is_space(text[at])) at++;
        const size_t begin = at;
        while (at < size && !is_space(text[at])) at++;
        if (begin < at) split_chunk(list, text, begin, at);
    }
}

#endif
