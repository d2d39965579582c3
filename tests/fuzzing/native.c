/* Changed containers and any texts for the native library, under the sanitizers of the compiler: what is no container
   is refused in one sentence, and what is opened answers every text.

   With clang's libFuzzer: clang -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -DLIBFUZZER, this file and
   the library's tokenizer.c, networks.c and kernels.c; then CONTAINER=FILE ./a.out. Else main() draws the inputs:
   fuzzer CONTAINER SECONDS [SEED]. The checksum is made right again, so that what is behind it is reached. */

#include "../../compress/inference/native/model_file.c"
#include "../../compress/inference/native/words.h"

#include <stdio.h>
#include <time.h>

static unsigned char *container, *changed;
static size_t container_size;

static void read_container(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file) abort();
    fseek(file, 0, SEEK_END);
    container_size = (size_t)ftell(file);
    rewind(file);
    container = aligned_alloc(64, (container_size + 63) & ~(size_t)63);
    if (fread(container, 1, container_size, file) != container_size) abort();
    fclose(file);
}

/* The input: its kind; two characters and a length; how many changes, for each a place and a value; a text and, behind
   its middle, another. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const size_t numbers_end = HEADER_BYTES + sizeof(numbers) + SECTIONS * sizeof(place);
    char error[COMPRESS_ERROR_BYTES];
    size_t at = 0, length = container_size;
    changed = aligned_alloc(64, (container_size + 63) & ~(size_t)63); /* anew, so that its end is guarded */
    memcpy(changed, container, container_size);
    const unsigned kind = size ? data[at++] : 0;
    if (kind & 8 && at + 12 <= size) { /* what two letters become, and how long a word may be */
        place pages, characters;
        uint16_t page;
        const unsigned char *places = container + HEADER_BYTES + sizeof(numbers);
        memcpy(&pages, places + CHARACTER_PAGES * sizeof pages, sizeof pages);
        memcpy(&characters, places + CHARACTERS * sizeof characters, sizeof characters);
        memcpy(&page, container + pages.offset, sizeof page);
        memcpy(changed + characters.offset + 4 * ((size_t)page << PAGE_BITS | 'a'), data + at, 8); /* and of b */
        memcpy(changed + HEADER_BYTES + offsetof(numbers, word_characters), data + at + 8, 2);
        at += 12;
    }
    for (unsigned left = kind % 8; left && at + 5 <= size; left--, at += 5) {
        uint32_t where;
        memcpy(&where, data + at, 4);
        const size_t begin = where & 1 ? HEADER_BYTES : 0, end = where & 1 ? numbers_end : container_size;
        changed[begin + (where >> 1) % (end - begin)] ^= data[at + 4];
    }
    const uint64_t right = checksum(changed + HEADER_BYTES, length - HEADER_BYTES);
    memcpy(changed + 24, &right, sizeof right);
    compress_model *model = compress_open(changed, length, error);
    if (model) {
        const size_t half = (size - at) / 2;
        const compress_text text = {(const char *)data + at, half};
        const compress_text other = {(const char *)data + at + half, size - at - half};
        const size_t answers = compress_is_tagger(model) ? compress_word_count(text) : 1;
        float *logits = malloc(sizeof(float) * compress_label_count(model) * answers);
        for (int number = 0; kernels_at(number); number++) {
            model->kernels = kernels_at(number);
            compress_classify(model, text, NULL, logits);
            compress_classify(model, text, &other, logits);
        }
        word_list words = {malloc(2 * half + 1), malloc((half + 1) * sizeof *words.places), 0, 0};
        split_words(&words, text.bytes, half); /* also what is no ASCII */
        for (size_t i = 0, end = 0; i < words.count; end = words.places[i++][1])
            if (words.places[i][0] < end || words.places[i][1] <= words.places[i][0] || words.places[i][1] > half) abort();
        if (words.size > 2 * half) abort();
        free(words.joined), free(words.places);
        for (size_t label = 0; label < compress_label_count(model); label++)
            if (compress_label(model, label).size > container_size) abort();
        free(logits);
        compress_close(model);
    } else if (strlen(error) >= COMPRESS_ERROR_BYTES) {
        abort();
    }
    free(changed);
    return 0;
}

#ifdef LIBFUZZER
int LLVMFuzzerInitialize(int *count, char ***arguments) {
    (void)count, (void)arguments;
    read_container(getenv("CONTAINER"));
    return 0;
}
#else
int main(int count, char **arguments) {
    static uint8_t data[49152]; /* texts of up to three times what is held at a time */
    if (count < 3) return 2;
    read_container(arguments[1]);
    srand(count > 3 ? (unsigned)atoi(arguments[3]) : 0);
    unsigned long inputs = 0;
    for (const clock_t end = clock() + atoi(arguments[2]) * CLOCKS_PER_SEC; clock() < end; inputs++) { /* CPU time */
        static const char some[] = "ab .[MASK]\xC3\xA9\xE4\xB8\xAD";
        const int is_character = rand() % 2, is_letter = rand() % 2;
        const size_t most = rand() % 16 ? sizeof data / 3 : sizeof data;
        const size_t size = (size_t)rand() % (is_character || rand() % 8 == 0 ? most : 200);
        for (size_t i = 0; i < size; i++)
            data[i] = (uint8_t)(is_character && is_letter ? 'a' : rand() % 3 ? some[rand() % 16] : rand());
        if (size) data[0] = (uint8_t)(rand() % 4 ? 0 : rand() % 3);
        if (size > 20 && is_character) { /* a kind and a size that there are; words of up to 1,000 */
            data[0] |= 8;
            data[1] = (uint8_t)(rand() % 6 | rand() % (rand() % 2 ? 3 : 32) << 3);
            data[2] = (uint8_t)(rand() % 2 ? 0x80 : rand()), data[3] = data[4] = 0;
            data[5] = WORD, data[6] = data[7] = data[8] = 0;
            data[9] = (uint8_t)rand(), data[10] = (uint8_t)(rand() % 4);
        }
        LLVMFuzzerTestOneInput(data, size);
    }
    printf("%lu inputs\n", inputs);
    return 0;
}
#endif
