/* The library as a module of Python, compress.inference.native._core, with the limited API: one binary for all
   versions.

   Model(container) keeps a read-only buffer that begins at a multiple of 64 bytes and copies another one. The
   interpreter's lock is free while texts are read. */

#include <Python.h>

#include "model_file.h"
#include "words.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TEXTS_AT_ONCE = 256, LONGEST_SENTENCES = 16384 /* bytes */ };

/* Keys of a prediction. */
enum { LABEL, PROBABILITY, SCORE, ACCEPTED, PROBABILITIES, TRUNCATED, UNREAD_TOKENS, LABELS, ENTITIES, START, END, TEXT, KEYS };
static const char *const key_names[KEYS] = {"label",         "probability", "score",    "accepted", "probabilities", "truncated",
                                            "unread_tokens", "labels",      "entities", "start",    "end",           "text"};

typedef struct {
    PyObject_HEAD
    compress_model *model;
    Py_buffer container;
    void *copy; /* what is to be freed, or NULL */
    PyObject *labels, *keys[KEYS];
} model_object;

/* Points at the UTF-8 of a str, which lives as long as the str. */
static int text_of(PyObject *object, compress_text *text) {
    Py_ssize_t size = 0;
    text->bytes = PyUnicode_AsUTF8AndSize(object, &size);
    text->size = (size_t)size;
    return text->bytes ? 0 : -1;
}

/* Points at a text, or at both of a tuple of two; says whether it is a pair, or -1 with an exception. */
static int texts_of(const compress_model *model, PyObject *object, compress_text texts[2]) {
    if (!PyTuple_Check(object)) return text_of(object, texts) ? -1 : 0;
    if (PyTuple_Size(object) != 2 || compress_is_tagger(model)) {
        PyErr_SetString(PyExc_TypeError, "a pair has two texts, and a tagger reads no pairs");
        return -1;
    }
    return text_of(PyTuple_GetItem(object, 0), texts) || text_of(PyTuple_GetItem(object, 1), texts + 1) ? -1 : 1;
}

/* The names of the labels, a tuple. */
static PyObject *names_of(const compress_model *model) {
    PyObject *labels = PyTuple_New((Py_ssize_t)compress_label_count(model));
    for (size_t i = 0; labels && i < compress_label_count(model); i++) {
        const compress_text label = compress_label(model, i);
        PyObject *name = PyUnicode_DecodeUTF8(label.bytes, (Py_ssize_t)label.size, "replace");
        if (!name || PyTuple_SetItem(labels, (Py_ssize_t)i, name)) Py_CLEAR(labels);
    }
    return labels;
}

static PyObject *model_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    PyObject *source;
    const char *instructions = NULL;
    char error[COMPRESS_ERROR_BYTES];
    if (keywords && PyDict_Size(keywords)) return PyErr_Format(PyExc_TypeError, "Model takes no keywords");
    if (!PyArg_ParseTuple(args, "O|s", &source, &instructions)) return NULL;
    model_object *self = (model_object *)PyType_GenericAlloc(type, 0);
    if (!self) return NULL;
    if (PyObject_GetBuffer(source, &self->container, PyBUF_SIMPLE)) {
        Py_DECREF(self);
        return NULL;
    }
    const char *bytes = self->container.buf;
    if (!self->container.readonly || (uintptr_t)bytes % ALIGNMENT) {
        self->copy = malloc((size_t)self->container.len + ALIGNMENT);
        if (!self->copy) {
            Py_DECREF(self);
            return PyErr_NoMemory();
        }
        char *aligned = (char *)self->copy + (ALIGNMENT - (uintptr_t)self->copy % ALIGNMENT) % ALIGNMENT;
        bytes = memcpy(aligned, bytes, (size_t)self->container.len);
    }
    self->model = compress_open(bytes, (size_t)self->container.len, error);
    if (!self->model) {
        PyErr_SetString(PyExc_ValueError, error);
        Py_DECREF(self);
        return NULL;
    }
    int number = 0;
    while (instructions && kernels_at(number) && strcmp(kernels_at(number)->instructions, instructions)) number++;
    if (!kernels_at(number)) {
        PyErr_Format(PyExc_ValueError, "this processor has no kernels %s", instructions);
        Py_DECREF(self);
        return NULL;
    }
    self->model->kernels = kernels_at(number);
    int failed = !(self->labels = names_of(self->model));
    for (int i = 0; !failed && i < KEYS; i++) failed = !(self->keys[i] = PyUnicode_InternFromString(key_names[i]));
    if (failed) Py_CLEAR(self);
    return (PyObject *)self;
}

static void model_dealloc(PyObject *object) {
    model_object *self = (model_object *)object;
    PyTypeObject *type = Py_TYPE(object);
    compress_close(self->model);
    Py_XDECREF(self->labels);
    for (int i = 0; i < KEYS; i++) Py_XDECREF(self->keys[i]);
    if (self->container.obj) PyBuffer_Release(&self->container);
    free(self->copy);
    PyObject_Free(object);
    Py_DECREF(type);
}

/* Sets an item, and takes over the reference to the value. */
static int put(PyObject *table, PyObject *key, PyObject *value) {
    const int failed = !value || PyDict_SetItem(table, key, value);
    Py_XDECREF(value);
    return failed;
}

/* A number with four digits after the point, as Python's round() gives it but for ties. */
static PyObject *rounded(double number) {
    return PyFloat_FromDouble(fabs(number) < 1e9 ? rint(number * 1e4) / 1e4 : number);
}

/* What answers hold besides the logits: the probability from which each label is accepted, or None; whether to give the
   probabilities of all labels; and whether each label is a decision of its own, of which a text may have several. */
typedef struct {
    PyObject *thresholds;
    int with_all, each_label;
} form;

/* The threshold of a label; an exception is set where there is none. */
static double threshold_of(const form *asked, size_t label) {
    PyObject *threshold = PyTuple_GetItem(asked->thresholds, (Py_ssize_t)label);
    return threshold ? PyFloat_AsDouble(threshold) : 0;
}

/* Writes {"labels", "accepted", "probabilities"}: labels above a probability of 0.5, the likeliest first. */
static int put_labels(const model_object *self, const float *logits, const form *asked, PyObject *found) {
    const size_t count = compress_label_count(self->model);
    double chances[COMPRESS_MOST_LABELS];
    size_t given[COMPRESS_MOST_LABELS], total = 0;
    for (size_t i = 0; i < count; i++) {
        chances[i] = 0.5 * (1 + tanh(0.5 * logits[i]));
        if (!(chances[i] > 0.5)) continue;
        size_t place = total++;
        for (; place && chances[given[place - 1]] < chances[i]; place--) given[place] = given[place - 1];
        given[place] = i;
    }
    PyObject *labels = PyList_New(0), *accepted = PyList_New(0), *all = PyDict_New();
    int failed = !labels || !accepted || !all;
    for (size_t i = 0; !failed && i < total; i++) {
        PyObject *name = PyTuple_GetItem(self->labels, (Py_ssize_t)given[i]);
        failed = PyList_Append(labels, name) ||
                 (asked->thresholds != Py_None && chances[given[i]] >= threshold_of(asked, given[i]) &&
                  PyList_Append(accepted, name)) ||
                 PyErr_Occurred() || (!asked->with_all && put(all, name, rounded(chances[given[i]])));
    }
    for (size_t i = 0; !failed && asked->with_all && i < count; i++)
        failed = put(all, PyTuple_GetItem(self->labels, (Py_ssize_t)i), rounded(chances[i]));
    failed = failed || PyDict_SetItem(found, self->keys[LABELS], labels) ||
             (asked->thresholds != Py_None && PyDict_SetItem(found, self->keys[ACCEPTED], accepted)) ||
             PyDict_SetItem(found, self->keys[PROBABILITIES], all);
    Py_XDECREF(labels);
    Py_XDECREF(accepted);
    Py_XDECREF(all);
    return failed;
}

/* Writes {"label", "probability", "accepted", "probabilities"}, or {"score"} of a model of one label. */
static int put_label(const model_object *self, const float *logits, size_t best, const form *asked, PyObject *found) {
    const size_t count = compress_label_count(self->model);
    double sum = 0;
    for (size_t i = 0; i < count; i++) sum += exp((double)logits[i] - logits[best]);
    int failed = count == 1 ? put(found, self->keys[SCORE], rounded(logits[0]))
                            : PyDict_SetItem(found, self->keys[LABEL], PyTuple_GetItem(self->labels, (Py_ssize_t)best)) ||
                                  put(found, self->keys[PROBABILITY], rounded(1 / sum));
    if (!failed && asked->thresholds != Py_None && count > 1) {
        const double least = threshold_of(asked, best);
        failed = PyErr_Occurred() || put(found, self->keys[ACCEPTED], PyBool_FromLong(1 / sum >= least));
    }
    if (!failed && asked->with_all) {
        PyObject *all = PyDict_New();
        for (size_t i = 0; all && !failed && i < count; i++)
            failed = put(all, PyTuple_GetItem(self->labels, (Py_ssize_t)i),
                         rounded(exp((double)logits[i] - logits[best]) / sum));
        failed = put(found, self->keys[PROBABILITIES], all) || failed;
    }
    return failed;
}

/* What a text is. */
static PyObject *prediction(const model_object *self, const float *logits, size_t unread, const form *asked) {
    size_t best = 0;
    double finite = 0;
    for (size_t i = 0; i < compress_label_count(self->model); i++) {
        finite += logits[i] * 0.0;
        best = logits[i] > logits[best] ? i : best;
    }
    if (finite != 0) return PyErr_Format(PyExc_ArithmeticError, "the logits are not finite numbers");
    PyObject *found = PyDict_New();
    if (!found) return NULL;
    int failed = asked->each_label ? put_labels(self, logits, asked, found) : put_label(self, logits, best, asked, found);
    if (!failed && unread)
        failed = PyDict_SetItem(found, self->keys[TRUNCATED], Py_True) ||
                 put(found, self->keys[UNREAD_TOKENS], PyLong_FromSize_t(unread));
    if (failed) Py_CLEAR(found);
    return found;
}

/* The texts of a list of texts or pairs, from `begin` on. */
static int texts_at(const compress_model *model, PyObject *list, Py_ssize_t begin, Py_ssize_t count,
                    compress_text (*texts)[2], int *are_pairs) {
    for (Py_ssize_t i = 0; i < count; i++) {
        const int is_pair = texts_of(model, PyTuple_GetItem(list, begin + i), texts[i]);
        if (is_pair < 0) return -1;
        if (begin + i && is_pair != *are_pairs) {
            PyErr_SetString(PyExc_TypeError, "some are texts and some are pairs of texts");
            return -1;
        }
        *are_pairs = is_pair;
    }
    return 0;
}

static PyObject *predictions(const model_object *self, PyObject *texts, const form *asked) {
    const size_t labels = compress_label_count(self->model);
    PyObject *rows = PySequence_Tuple(texts), *found = rows ? PyList_New(0) : NULL; /* other threads may see it */
    float *logits = malloc(TEXTS_AT_ONCE * labels * sizeof *logits);
    int failed = !found, are_pairs = 0;
    if (!logits) failed = PyErr_NoMemory() == NULL;
    for (Py_ssize_t begin = 0; !failed && begin < PyTuple_Size(rows); begin += TEXTS_AT_ONCE) {
        const Py_ssize_t left = PyTuple_Size(rows) - begin, count = left < TEXTS_AT_ONCE ? left : TEXTS_AT_ONCE;
        compress_text some[TEXTS_AT_ONCE][2];
        size_t unread[TEXTS_AT_ONCE];
        if ((failed = texts_at(self->model, rows, begin, count, some, &are_pairs))) break;
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t i = 0; i < count; i++)
            unread[i] = compress_classify(self->model, some[i][0], are_pairs ? &some[i][1] : NULL,
                                          logits + (size_t)i * labels);
        Py_END_ALLOW_THREADS
        failed = PyErr_CheckSignals();
        for (Py_ssize_t i = 0; !failed && i < count; i++) {
            PyObject *one = prediction(self, logits + (size_t)i * labels, unread[i], asked);
            failed = !one || PyList_Append(found, one);
            Py_XDECREF(one);
        }
    }
    free(logits);
    Py_XDECREF(rows);
    if (failed) Py_CLEAR(found);
    return found;
}

static PyObject *model_predict(PyObject *object, PyObject *const *args, Py_ssize_t count) {
    const model_object *self = (model_object *)object;
    if (count != 4 || !(args[1] == Py_None || PyTuple_Check(args[1]))) {
        PyErr_SetString(PyExc_TypeError, "predict takes texts, thresholds, whether to give the probabilities of all "
                                         "labels, and whether a text may have several labels");
        return NULL;
    }
    if (compress_is_tagger(self->model)) return PyErr_Format(PyExc_TypeError, "a tagger has an answer for every word");
    const form asked = {args[1], PyObject_IsTrue(args[2]), PyObject_IsTrue(args[3])};
    if (asked.with_all < 0 || asked.each_label < 0) return NULL;
    if (PyList_Check(args[0])) return predictions(self, args[0], &asked);
    compress_text texts[2];
    float logits[COMPRESS_MOST_LABELS];
    size_t unread;
    const int is_pair = texts_of(self->model, args[0], texts);
    if (is_pair < 0) return NULL;
    Py_BEGIN_ALLOW_THREADS
    unread = compress_classify(self->model, texts[0], is_pair ? texts + 1 : NULL, logits);
    Py_END_ALLOW_THREADS
    return prediction(self, logits, unread, &asked);
}

/* Of a tag: the class of its entity, that which it continues, that which may be continued after it, each -1 for none;
   and whether something must continue it. */
typedef struct {
    int32_t kind, continues, opens, is_unfinished;
} move;

static int append_entity(const model_object *self, PyObject *found, PyObject *name, const char *text, size_t begin,
                         size_t end, double probability) {
    PyObject *one = PyDict_New();
    const int failed = !one || put(one, self->keys[START], PyLong_FromSize_t(begin)) ||
                       put(one, self->keys[END], PyLong_FromSize_t(end)) ||
                       !name || PyDict_SetItem(one, self->keys[LABEL], name) ||
                       put(one, self->keys[TEXT], PyUnicode_FromStringAndSize(text + begin, (Py_ssize_t)(end - begin))) ||
                       put(one, self->keys[PROBABILITY], rounded(probability)) || PyList_Append(found, one);
    Py_XDECREF(one);
    return failed;
}

/* The entities of a text by the likeliest tag of each word: 1, 0 where these tags are not legal, -1 with an exception. */
static int read_entities(const model_object *self, const char *text, const word_list *words, const float *logits,
                         PyObject *names, const move *moves, int must_be_legal, PyObject *found) {
    static const move outside = {-1, -1, -1, 0};
    const size_t labels = compress_label_count(self->model);
    move before = outside;
    size_t begin = 0;
    double probability = 0;
    for (size_t word = 0; word <= words->count; word++) {
        const float *own = logits + word * labels;
        move tag = outside;
        double sum = 0;
        if (word < words->count && own[0] == own[0]) { /* it has an answer */
            size_t best = 0;
            for (size_t i = 0; i < labels; i++) {
                if (own[i] - own[i] != 0) {
                    PyErr_SetString(PyExc_ArithmeticError, "the logits are not finite numbers");
                    return -1;
                }
                best = own[i] > own[best] ? i : best;
            }
            for (size_t i = 0; i < labels; i++) sum += exp((double)own[i] - own[best]);
            tag = moves[best];
        }
        const int goes_on = tag.continues >= 0 && tag.continues == before.opens;
        if (must_be_legal && !goes_on && (tag.continues >= 0 || before.is_unfinished)) return 0;
        if (!goes_on && before.kind >= 0 &&
            append_entity(self, found, PyTuple_GetItem(names, before.kind), text, words->places[begin][0],
                          words->places[word - 1][1], probability))
            return -1;
        if (!goes_on) begin = word;
        probability = (goes_on ? probability : 1) / (sum > 0 ? sum : 1);
        before = tag;
    }
    return 1;
}

/* {"entities"} of a text, or None where it is left to Python. */
static PyObject *entities_of(const model_object *self, PyObject *object, PyObject *names, const move *moves,
                             int must_be_legal) {
    compress_text text;
    if (text_of(object, &text)) return NULL;
    if (text.size > LONGEST_SENTENCES || (Py_ssize_t)text.size != PyUnicode_GetLength(object)) return Py_NewRef(Py_None);
    word_list words = {malloc(2 * text.size + 1), malloc((text.size + 1) * sizeof *words.places), 0, 0};
    float *logits = NULL;
    PyObject *found = NULL, *list = NULL;
    size_t unread = 0;
    if (words.joined && words.places) {
        split_words(&words, text.bytes, text.size);
        logits = malloc((words.count + 1) * compress_label_count(self->model) * sizeof *logits);
    }
    if (logits) {
        const compress_text joined = {words.joined, words.size};
        Py_BEGIN_ALLOW_THREADS
        if (words.count) unread = compress_classify(self->model, joined, NULL, logits);
        Py_END_ALLOW_THREADS
        list = PyList_New(0);
        const int is_read = list ? read_entities(self, text.bytes, &words, logits, names, moves, must_be_legal, list) : -1;
        if (is_read == 0) found = Py_NewRef(Py_None);
        if (is_read > 0 && (found = PyDict_New()) &&
            (PyDict_SetItem(found, self->keys[ENTITIES], list) ||
             (unread && (PyDict_SetItem(found, self->keys[TRUNCATED], Py_True) ||
                         put(found, self->keys[UNREAD_TOKENS], PyLong_FromSize_t(unread))))))
            Py_CLEAR(found);
    } else {
        PyErr_NoMemory();
    }
    Py_XDECREF(list);
    free(logits);
    free(words.places);
    free(words.joined);
    return found;
}

static PyObject *model_entities(PyObject *object, PyObject *args) {
    const model_object *self = (model_object *)object;
    PyObject *texts, *names, *rows;
    Py_buffer moves;
    int must_be_legal;
    if (!PyArg_ParseTuple(args, "OO!y*p", &texts, &PyTuple_Type, &names, &moves, &must_be_legal)) return NULL;
    PyObject *found = NULL;
    if (!compress_is_tagger(self->model) ||
        (size_t)moves.len != compress_label_count(self->model) * sizeof(move) || (uintptr_t)moves.buf % sizeof(int32_t))
        PyErr_SetString(PyExc_ValueError, "a tagger takes moves, int32 [C, 4]");
    else if ((rows = PySequence_Tuple(texts))) {
        found = PyList_New(0);
        for (Py_ssize_t i = 0; found && i < PyTuple_Size(rows); i++) {
            PyObject *one = entities_of(self, PyTuple_GetItem(rows, i), names, moves.buf, must_be_legal);
            if (!one || PyList_Append(found, one) || (i % TEXTS_AT_ONCE == 0 && PyErr_CheckSignals())) Py_CLEAR(found);
            Py_XDECREF(one);
        }
        Py_DECREF(rows);
    }
    PyBuffer_Release(&moves);
    return found;
}

static PyObject *model_logits(PyObject *object, PyObject *args) {
    const compress_model *model = ((model_object *)object)->model;
    const size_t labels = compress_label_count(model);
    const int is_tagger = compress_is_tagger(model);
    PyObject *list, *rows, *result = NULL;
    Py_buffer logits, unread;
    int are_pairs = 0;
    if (!PyArg_ParseTuple(args, "Ow*w*", &list, &logits, &unread)) return NULL;
    rows = PySequence_Tuple(list);
    if (!rows) goto done;
    const size_t count = (size_t)PyTuple_Size(rows);
    const size_t answers = (size_t)logits.len / sizeof(float) / labels; /* that there is room for */
    size_t answered = 0;
    if ((size_t)logits.len != answers * labels * sizeof(float) || (size_t)unread.len != count * sizeof(int64_t) ||
        (uintptr_t)logits.buf % sizeof(float) || (uintptr_t)unread.buf % sizeof(int64_t))
        goto wrong_sizes;
    for (size_t begin = 0; begin < count; begin += TEXTS_AT_ONCE) {
        const size_t size = count - begin < TEXTS_AT_ONCE ? count - begin : TEXTS_AT_ONCE;
        compress_text texts[TEXTS_AT_ONCE][2];
        size_t first[TEXTS_AT_ONCE]; /* answer of each */
        if (texts_at(model, rows, (Py_ssize_t)begin, (Py_ssize_t)size, texts, &are_pairs)) goto done;
        for (size_t i = 0; i < size; i++) {
            first[i] = answered;
            answered += is_tagger ? compress_word_count(texts[i][0]) : 1;
        }
        if (answered > answers) goto wrong_sizes;
        Py_BEGIN_ALLOW_THREADS
        for (size_t i = 0; i < size; i++)
            ((int64_t *)unread.buf)[begin + i] = (int64_t)compress_classify(
                model, texts[i][0], are_pairs ? &texts[i][1] : NULL, (float *)logits.buf + first[i] * labels);
        Py_END_ALLOW_THREADS
        if (PyErr_CheckSignals()) goto done;
    }
    if (answered == answers) result = Py_NewRef(Py_None);
wrong_sizes:
    if (!result) PyErr_SetString(PyExc_ValueError, "logits are float32 [N, C] (of a tagger [words, C]), unread int64 [N]");
done:
    Py_XDECREF(rows);
    PyBuffer_Release(&logits);
    PyBuffer_Release(&unread);
    return result;
}

static PyObject *model_logits_of_ids(PyObject *object, PyObject *args) {
    const compress_model *model = ((model_object *)object)->model;
    Py_buffer ids, logits;
    if (!PyArg_ParseTuple(args, "y*w*", &ids, &logits)) return NULL;
    const int fits = ids.len % (Py_ssize_t)sizeof(int32_t) == 0 && (uintptr_t)ids.buf % sizeof(int32_t) == 0 &&
                     (uintptr_t)logits.buf % sizeof(float) == 0 &&
                     (size_t)ids.len <= most_tokens(&model->n) * sizeof(int32_t) &&
                     (size_t)logits.len == compress_label_count(model) * sizeof(float) *
                                               (compress_is_tagger(model) ? (size_t)ids.len / sizeof(int32_t) : 1);
    if (fits) {
        Py_BEGIN_ALLOW_THREADS
        compress_logits(model, ids.buf, (size_t)ids.len / sizeof(int32_t), logits.buf);
        Py_END_ALLOW_THREADS
    } else {
        PyErr_SetString(PyExc_ValueError, "ids are int32 [T], and logits float32 [C], or [T, C]");
    }
    PyBuffer_Release(&ids);
    PyBuffer_Release(&logits);
    return fits ? Py_NewRef(Py_None) : NULL;
}

static PyObject *model_ids(PyObject *object, PyObject *text) {
    const compress_model *model = ((model_object *)object)->model;
    compress_text texts[2];
    size_t unread, count;
    const int is_pair = texts_of(model, text, texts);
    if (is_pair < 0) return NULL;
    int32_t *ids = malloc(compress_max_length(model) * sizeof *ids);
    if (!ids) return PyErr_NoMemory();
    Py_BEGIN_ALLOW_THREADS
    count = compress_ids(model, texts[0], is_pair ? texts + 1 : NULL, ids, &unread);
    Py_END_ALLOW_THREADS
    PyObject *found = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; found && i < count; i++) {
        PyObject *id = PyLong_FromLong(ids[i]);
        if (!id || PyList_SetItem(found, (Py_ssize_t)i, id)) Py_CLEAR(found);
    }
    free(ids);
    return found ? Py_BuildValue("NN", found, PyLong_FromSize_t(unread)) : NULL;
}

static PyObject *labels_get(PyObject *object, void *unused) {
    (void)unused;
    return Py_NewRef(((model_object *)object)->labels);
}

static PyObject *max_length_get(PyObject *object, void *unused) {
    (void)unused;
    return PyLong_FromSize_t(compress_max_length(((model_object *)object)->model));
}

static PyObject *is_tagger_get(PyObject *object, void *unused) {
    (void)unused;
    return PyBool_FromLong(compress_is_tagger(((model_object *)object)->model));
}

static PyObject *weights_get(PyObject *object, void *unused) {
    (void)unused;
    const numbers *n = &((model_object *)object)->model->n;
    const uint64_t places = (uint64_t)n->second_width * n->width_count * n->filters;
    const uint64_t units = n->network == LSTM ? unit_count(n) : 0;
    return PyLong_FromUnsignedLongLong((uint64_t)n->table_rows * n->table_columns + 8 * units * units +
                                       (places + 1) * n->second_filters + (n->features + 1ull) * n->dense +
                                       (n->dense + 1ull) * n->labels);
}

static PyObject *instructions_get(PyObject *object, void *unused) {
    (void)unused;
    return PyUnicode_FromString(compress_instructions(((model_object *)object)->model));
}

static PyMethodDef model_methods[] = {
    {"predict", (PyCFunction)(void (*)(void))model_predict, METH_FASTCALL,
     "predict(texts, thresholds, probabilities, several): the prediction of a text or a pair, or those of a list of either."},
    {"entities", model_entities, METH_VARARGS,
     "entities(texts, classes, moves, must_be_legal): those of a tagger; None for a text that is left to Python: it is "
     "long or not ASCII, or its likeliest tags are not legal. Moves are int32 [C, 4]."},
    {"logits", model_logits, METH_VARARGS,
     "logits(texts, logits, unread): write the logits of texts or pairs, float32 [N, C], and how many tokens of each "
     "were not read, int64 [N]. A tagger writes the logits of all words, [W, C]."},
    {"logits_of_ids", model_logits_of_ids, METH_VARARGS,
     "logits_of_ids(ids, logits): write the logits of token ids, int32 [T], float32 [C], or [T, C] of a tagger."},
    {"ids", model_ids, METH_O, "ids(text): the token ids of a text or a pair, and how many more it has, which are not read."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef model_attributes[] = {
    {"labels", labels_get, NULL, "Names of the labels.", NULL},
    {"max_length", max_length_get, NULL, "Tokens that are read of a text.", NULL},
    {"is_tagger", is_tagger_get, NULL, "Whether it answers words.", NULL},
    {"weights", weights_get, NULL, "How many numbers its layers have.", NULL},
    {"instructions", instructions_get, NULL, "The instructions of its kernels.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot model_slots[] = {
    {Py_tp_doc, "Model(container, instructions): a small student with its tokenizer; INSTRUCTIONS[0] by default."},
    {Py_tp_new, model_new},
    {Py_tp_dealloc, model_dealloc},
    {Py_tp_methods, model_methods},
    {Py_tp_getset, model_attributes},
    {0, NULL},
};

static PyType_Spec model_spec = {
    "compress.inference.native._core.Model", sizeof(model_object), 0, Py_TPFLAGS_DEFAULT, model_slots,
};

static int module_exec(PyObject *module) {
    PyObject *type = PyType_FromSpec(&model_spec), *instructions = PyList_New(0);
    int failed = !type || !instructions;
    for (int i = 0; !failed && kernels_at(i); i++) {
        PyObject *name = PyUnicode_FromString(kernels_at(i)->instructions);
        failed = !name || PyList_Append(instructions, name);
        Py_XDECREF(name);
    }
    failed = failed || PyModule_AddObjectRef(module, "Model", type) ||
             PyModule_AddObjectRef(module, "INSTRUCTIONS", instructions);
    Py_XDECREF(type);
    Py_XDECREF(instructions);
    return failed ? -1 : 0;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, module_exec}, {0, NULL}};

static PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT, "_core", "Small students in C.", 0, NULL, module_slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__core(void) { return PyModuleDef_Init(&module_definition); }
