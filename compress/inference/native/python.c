/* The library as a module of Python, compress.inference.native._core, with the limited API: one binary for all
   versions.

   Model(container) keeps a read-only buffer that begins at a multiple of 64 bytes and copies another one. The
   interpreter's lock is free while texts are read. */

#include <Python.h>

#include "model_file.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TEXTS_AT_ONCE = 256 };

typedef struct {
    PyObject_HEAD
    compress_model *model;
    Py_buffer container;
    void *copy; /* what is to be freed, or NULL */
} model_object;

/* Points at the UTF-8 of a str, which lives as long as the str. */
static int text_of(PyObject *object, compress_text *text) {
    Py_ssize_t size = 0;
    text->bytes = PyUnicode_AsUTF8AndSize(object, &size);
    text->size = (size_t)size;
    return text->bytes ? 0 : -1;
}

/* Points at a text, or at both of a tuple of two; says whether it is a pair, or -1 with an exception. */
static int texts_of(PyObject *object, compress_text texts[2]) {
    if (!PyTuple_Check(object)) return text_of(object, texts) ? -1 : 0;
    if (PyTuple_Size(object) != 2) {
        PyErr_SetString(PyExc_TypeError, "a pair has two texts");
        return -1;
    }
    return text_of(PyTuple_GetItem(object, 0), texts) || text_of(PyTuple_GetItem(object, 1), texts + 1) ? -1 : 1;
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
    return (PyObject *)self;
}

static void model_dealloc(PyObject *object) {
    model_object *self = (model_object *)object;
    PyTypeObject *type = Py_TYPE(object);
    compress_close(self->model);
    if (self->container.obj) PyBuffer_Release(&self->container);
    free(self->copy);
    PyObject_Free(object);
    Py_DECREF(type);
}

static PyObject *model_best(PyObject *object, PyObject *text) {
    const compress_model *model = ((model_object *)object)->model;
    compress_text texts[2];
    float logits[COMPRESS_MOST_LABELS];
    const int is_pair = texts_of(text, texts);
    if (is_pair < 0) return NULL;
    size_t best = 0;
    double sum = 0;
    int truncated;
    Py_BEGIN_ALLOW_THREADS
    const size_t labels = compress_label_count(model);
    truncated = compress_classify(model, texts[0], is_pair ? texts + 1 : NULL, logits);
    for (size_t i = 1; i < labels; i++) best = logits[i] > logits[best] ? i : best;
    for (size_t i = 0; i < labels; i++) sum += exp((double)logits[i] - logits[best]);
    Py_END_ALLOW_THREADS
    return Py_BuildValue("ndO", (Py_ssize_t)best, 1 / sum, truncated ? Py_True : Py_False);
}

static PyObject *model_logits(PyObject *object, PyObject *args) {
    const compress_model *model = ((model_object *)object)->model;
    const size_t labels = compress_label_count(model);
    PyObject *list, *rows, *result = NULL;
    Py_buffer logits, truncated;
    if (!PyArg_ParseTuple(args, "Ow*w*", &list, &logits, &truncated)) return NULL;
    rows = PySequence_Tuple(list);
    if (!rows) goto done;
    const size_t count = (size_t)PyTuple_Size(rows);
    if ((size_t)logits.len != count * labels * sizeof(float) || (size_t)truncated.len != count) {
        PyErr_SetString(PyExc_ValueError, "logits are float32 [N, C], and truncated is bool [N]");
        goto done;
    }
    for (size_t begin = 0; begin < count; begin += TEXTS_AT_ONCE) {
        const size_t size = count - begin < TEXTS_AT_ONCE ? count - begin : TEXTS_AT_ONCE;
        compress_text texts[TEXTS_AT_ONCE][2];
        int is_pair[TEXTS_AT_ONCE];
        for (size_t i = 0; i < size; i++) {
            is_pair[i] = texts_of(PyTuple_GetItem(rows, (Py_ssize_t)(begin + i)), texts[i]);
            if (is_pair[i] < 0) goto done;
            if (is_pair[i] != is_pair[0]) {
                PyErr_SetString(PyExc_TypeError, "some are texts and some are pairs of texts");
                goto done;
            }
        }
        Py_BEGIN_ALLOW_THREADS
        for (size_t i = 0; i < size; i++)
            ((char *)truncated.buf)[begin + i] = (char)compress_classify(
                model, texts[i][0], is_pair[i] ? &texts[i][1] : NULL, (float *)logits.buf + (begin + i) * labels);
        Py_END_ALLOW_THREADS
    }
    result = Py_NewRef(Py_None);
done:
    Py_XDECREF(rows);
    PyBuffer_Release(&logits);
    PyBuffer_Release(&truncated);
    return result;
}

static PyObject *model_logits_of_ids(PyObject *object, PyObject *args) {
    const compress_model *model = ((model_object *)object)->model;
    Py_buffer ids, logits;
    if (!PyArg_ParseTuple(args, "y*w*", &ids, &logits)) return NULL;
    const int fits = ids.len % (Py_ssize_t)sizeof(int32_t) == 0 && (uintptr_t)ids.buf % sizeof(int32_t) == 0 &&
                     (size_t)logits.len == compress_label_count(model) * sizeof(float);
    if (fits) {
        Py_BEGIN_ALLOW_THREADS
        compress_logits(model, ids.buf, (size_t)ids.len / sizeof(int32_t), logits.buf);
        Py_END_ALLOW_THREADS
    } else {
        PyErr_SetString(PyExc_ValueError, "ids are int32 [T], and logits float32 [C]");
    }
    PyBuffer_Release(&ids);
    PyBuffer_Release(&logits);
    return fits ? Py_NewRef(Py_None) : NULL;
}

static PyObject *model_ids(PyObject *object, PyObject *text) {
    const compress_model *model = ((model_object *)object)->model;
    compress_text texts[2];
    int32_t ids[COMPRESS_MOST_TOKENS];
    int truncated;
    const int is_pair = texts_of(text, texts);
    if (is_pair < 0) return NULL;
    size_t count;
    Py_BEGIN_ALLOW_THREADS
    count = compress_ids(model, texts[0], is_pair ? texts + 1 : NULL, ids, &truncated);
    Py_END_ALLOW_THREADS
    PyObject *found = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; found && i < count; i++) {
        PyObject *id = PyLong_FromLong(ids[i]);
        if (!id || PyList_SetItem(found, (Py_ssize_t)i, id)) Py_CLEAR(found);
    }
    return found ? Py_BuildValue("NO", found, truncated ? Py_True : Py_False) : NULL;
}

static PyObject *labels_get(PyObject *object, void *unused) {
    (void)unused;
    const compress_model *model = ((model_object *)object)->model;
    PyObject *labels = PyTuple_New((Py_ssize_t)compress_label_count(model));
    for (size_t i = 0; labels && i < compress_label_count(model); i++) {
        const compress_text label = compress_label(model, i);
        PyObject *name = PyUnicode_DecodeUTF8(label.bytes, (Py_ssize_t)label.size, "replace");
        if (!name || PyTuple_SetItem(labels, (Py_ssize_t)i, name)) {
            Py_DECREF(labels);
            return NULL;
        }
    }
    return labels;
}

static PyObject *max_length_get(PyObject *object, void *unused) {
    (void)unused;
    return PyLong_FromSize_t(compress_max_length(((model_object *)object)->model));
}

static PyObject *instructions_get(PyObject *object, void *unused) {
    (void)unused;
    return PyUnicode_FromString(compress_instructions(((model_object *)object)->model));
}

static PyMethodDef model_methods[] = {
    {"best", model_best, METH_O,
     "best(text): the number of the likeliest label of a text or a pair, its probability, and whether it was cut."},
    {"logits", model_logits, METH_VARARGS,
     "logits(texts, logits, truncated): write the logits of texts or pairs, float32 [N, C], and which were cut, [N]."},
    {"logits_of_ids", model_logits_of_ids, METH_VARARGS,
     "logits_of_ids(ids, logits): write the logits of token ids, int32 [T], float32 [C]."},
    {"ids", model_ids, METH_O, "ids(text): the token ids of a text or a pair, and whether it was cut."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef model_attributes[] = {
    {"labels", labels_get, NULL, "Names of the labels.", NULL},
    {"max_length", max_length_get, NULL, "Tokens that are read of a text.", NULL},
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
