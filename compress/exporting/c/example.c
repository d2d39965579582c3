/* Reads texts, one a line, from standard input and writes the label and the logits of each, with tabs between.

       cc -O3 *.c -o classify
       ./classify model.native < texts.txt */

#ifndef _WIN32
#define _POSIX_C_SOURCE 200809L
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#endif

#include "native.h"

#include <stdio.h>
#include <stdlib.h>

/* Returns the bytes of a file, which begin at a multiple of 64, or NULL. */
static void *contents(const char *path, size_t *size) {
#ifdef _WIN32
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END)) return NULL;
    *size = (size_t)ftell(file);
    rewind(file);
    char *bytes = malloc(*size + 64);
    if (bytes) bytes += 64 - (uintptr_t)bytes % 64;
    if (bytes && fread(bytes, 1, *size, file) != *size) return NULL;
    fclose(file);
    return bytes;
#else
    struct stat about;
    const int file = open(path, O_RDONLY);
    if (file < 0 || fstat(file, &about)) return NULL;
    *size = (size_t)about.st_size;
    void *bytes = mmap(NULL, *size, PROT_READ, MAP_PRIVATE, file, 0);
    close(file);
    return bytes == MAP_FAILED ? NULL : bytes;
#endif
}

/* Reads a line without its end into a buffer that grows; returns 0 at the end of the input. */
static int read_line(char **line, size_t *size, size_t *room) {
    int byte;
    *size = 0;
    while ((byte = getchar()) != EOF && byte != '\n') {
        if (*size == *room) {
            char *larger = realloc(*line, *room = 2 * *room + 256);
            if (!larger) exit(1);
            *line = larger;
        }
        (*line)[(*size)++] = (char)byte;
    }
    return byte != EOF || *size > 0;
}

int main(int count, char **arguments) {
    const char *path = count > 1 ? arguments[1] : "model.native";
    char error[COMPRESS_ERROR_BYTES], *line = NULL;
    size_t size = 0, room = 0;
    void *bytes = contents(path, &size);
    if (!bytes) {
        perror(path);
        return 1;
    }
    compress_model *model = compress_open(bytes, size, error);
    if (!model) {
        fprintf(stderr, "%s: %s\n", path, error);
        return 1;
    }
    if (compress_is_tagger(model)) {
        fprintf(stderr, "%s: it is a tagger, which has logits for every word (native.h)\n", path);
        return 1;
    }
    const size_t labels = compress_label_count(model);
    float *logits = malloc(labels * sizeof *logits);
    if (!logits) return 1;
    size_t cut = 0;
    while (read_line(&line, &size, &room)) {
        const compress_text text = {line, size};
        size_t best = 0;
        cut += compress_classify(model, text, NULL, logits) > 0;
        for (size_t i = 1; i < labels; i++) best = logits[i] > logits[best] ? i : best;
        const compress_text label = compress_label(model, best);
        fwrite(label.bytes, 1, label.size, stdout);
        for (size_t i = 0; i < labels; i++) printf("\t%.9g", logits[i]);
        putchar('\n');
    }
    if (cut) fprintf(stderr, "%zu texts have more than the %zu tokens that are read\n", cut, compress_max_length(model));
    compress_close(model);
    free(logits);
    free(line);
    return ferror(stdin) || fflush(stdout) ? 1 : 0;
}
