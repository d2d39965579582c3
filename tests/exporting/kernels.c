/* Reads texts, one a line, with every model that is an argument and all kernels that the processor has; writes the
   kernels' name, the token ids and the logits of each. The sources of an exported directory are compiled with it. */

#include "model_file.h"

#include <stdio.h>
#include <stdlib.h>

static char texts[1 << 20];
static int32_t ids[COMPRESS_MOST_TOKENS];
static float logits[COMPRESS_MOST_LABELS];

static void *contents(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END)) return NULL;
    *size = (size_t)ftell(file);
    rewind(file);
    char *bytes = malloc(*size + 64);
    bytes += 64 - (uintptr_t)bytes % 64;
    return fread(bytes, 1, *size, file) == *size ? bytes : NULL;
}

int main(int count, char **arguments) {
    const size_t all = fread(texts, 1, sizeof texts, stdin);
    for (int number = 1; number < count; number++) {
        char error[COMPRESS_ERROR_BYTES];
        size_t size;
        void *bytes = contents(arguments[number], &size);
        compress_model *model = bytes ? compress_open(bytes, size, error) : NULL;
        if (!model) return 1;
        for (int set = 0; kernels_at(set); set++) {
            model->kernels = kernels_at(set);
            for (size_t begin = 0, end; begin < all; begin = end + 1) {
                for (end = begin; texts[end] != '\n'; end++) {
                }
                const compress_text text = {texts + begin, end - begin};
                size_t unread;
                const size_t tokens = compress_ids(model, text, NULL, ids, &unread);
                compress_classify(model, text, NULL, logits);
                printf("%s\t", compress_instructions(model));
                for (size_t i = 0; i < tokens; i++) printf("%d ", (int)ids[i]);
                putchar('\t');
                for (size_t i = 0; i < compress_label_count(model); i++) printf("%.9g ", logits[i]);
                putchar('\n');
            }
        }
        compress_close(model);
    }
    return 0;
}
