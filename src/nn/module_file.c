/* SPDX-License-Identifier: Apache-2.0 */
/*
 * module_file.c - modules in files.
 *
 * Little-endian:
 *     "WEFTMOD\0"  u32 version = 1  u32 entries
 *     entry: u8 kind (0 parameter, 1 buffer)  string name (u32 length, bytes)  u8 dtype (weft_dtype)  u8 ndim
 *            i64 size, ndim times  u64 bytes of elements  the elements, row-major
 *     BLAKE2b-256 of all bytes before it
 * Nothing follows. Entries are the module's parameters, then its buffers, in order.
 *
 * Reading puts the elements into tensors of its own and changes the module only when everything has been found right.
 */
#include "base/alloc.h"
#include "nn/nn.h"

#include "base/codec.h"
#include "base/error.h"
#include "base/text/output.h"
#include "tensor/tensor.h"

#include <errno.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "elements are written as they lie in memory: little-endian"
#endif

#define VERSION 1
#define HEAD_BYTES 16
#define ENTRY_BYTES (1 + 4 + WFI_NAME_MAX + 2 + 8 * WEFT_MAX_DIMS + 8)
#define SUM_BYTES crypto_generichash_BYTES

static const char magic[8] = "WEFTMOD";

/* A file being written or read; it keeps its first failure. */
typedef struct module_file {
    FILE *stream;
    const char *path;
    crypto_generichash_state sum;
    weft_status status;
    weft_error **error;
} module_file;

static void fail(module_file *f, weft_status status, const char *format, ...) WEFT_PRINTF(3, 4);
static void fail(module_file *f, weft_status status, const char *format, ...)
{
    va_list args;
    if (f->status != WEFT_OK)
        return;
    f->status = status;
    va_start(args, format);
    wfi_error_give(f->error, wfi_error_create_v(&(wfi_error_detail){.code = status, .worker = -1}, format, args));
    va_end(args);
}

static const wfi_named *list_of(const weft_module *module, int kind)
{
    return kind == 0 ? &module->parameters : &module->buffers;
}

static size_t entry_count(const weft_module *module)
{
    return module->parameters.count + module->buffers.count;
}

/* ---- Writing ---- */

static void put(module_file *f, const void *data, size_t size)
{
    if (f->status != WEFT_OK || size == 0)
        return;
    crypto_generichash_update(&f->sum, data, size);
    if (fwrite(data, 1, size, f->stream) != size)
        fail(f, WEFT_ERR_IO, "cannot write \"%s\": %s", f->path, strerror(errno));
}

static void put_head(module_file *f, const weft_module *module)
{
    uint8_t bytes[HEAD_BYTES];
    wfi_writer w;
    wfi_writer_init(&w, bytes, sizeof(bytes));
    wfi_write_bytes(&w, magic, sizeof(magic));
    wfi_write_u32(&w, VERSION);
    wfi_write_u32(&w, (uint32_t)entry_count(module));
    put(f, bytes, w.size);
}

static void put_entry(module_file *f, int kind, const char *name, weft_tensor *tensor)
{
    uint8_t bytes[ENTRY_BYTES];
    wfi_writer w;
    weft_tensor *packed = weft_tensor_contiguous(tensor);
    if (packed == NULL) {
        fail(f, WEFT_ERR_MEMORY, "out of memory while writing \"%s\"", f->path);
        return;
    }
    wfi_writer_init(&w, bytes, sizeof(bytes));
    wfi_write_u8(&w, (uint8_t)kind);
    wfi_write_string(&w, name);
    wfi_write_u8(&w, (uint8_t)packed->dtype);
    wfi_write_u8(&w, (uint8_t)packed->shape.ndim);
    for (int i = 0; i < packed->shape.ndim; i++)
        wfi_write_i64(&w, packed->shape.dims[i]);
    wfi_write_u64(&w, weft_tensor_nbytes(packed));
    put(f, bytes, w.size);
    put(f, weft_tensor_data(packed), weft_tensor_nbytes(packed));
    weft_tensor_unref(packed);
}

static void put_all(module_file *f, const weft_module *module)
{
    uint8_t sum[SUM_BYTES];
    put_head(f, module);
    for (int kind = 0; kind < 2; kind++) {
        const wfi_named *list = list_of(module, kind);
        for (size_t i = 0; i < list->count; i++)
            put_entry(f, kind, list->names[i], list->tensors[i]);
    }
    crypto_generichash_final(&f->sum, sum, sizeof(sum));
    put(f, sum, sizeof(sum));
}

weft_status weft_module_save(const weft_module *module, const char *path, weft_error **error)
{
    module_file f = {.path = path, .error = error};
    if (module == NULL || path == NULL || module->status != WEFT_OK) {
        fail(&f, WEFT_ERR_INVALID, "there is no module or no path to save it to");
        return f.status;
    }
    wfi_output out;
    int trouble = wfi_output_open(&out, path);
    if (trouble) {
        fail(&f, trouble == ENOMEM ? WEFT_ERR_MEMORY : WEFT_ERR_IO, "cannot write \"%s\": %s", path, strerror(trouble));
        return f.status;
    }
    f.stream = out.stream;
    crypto_generichash_init(&f.sum, NULL, 0, SUM_BYTES);
    put_all(&f, module);
    trouble = wfi_output_close(&out, f.status == WEFT_OK);
    if (trouble)
        fail(&f, WEFT_ERR_IO, "cannot write \"%s\": %s", path, strerror(trouble));
    return f.status;
}

/* ---- Reading ---- */

/* False: failed, and `into` is undefined. */
static bool get(module_file *f, void *into, size_t size)
{
    if (f->status != WEFT_OK || size == 0)
        return f->status == WEFT_OK;
    if (fread(into, 1, size, f->stream) != size) {
        if (ferror(f->stream))
            fail(f, WEFT_ERR_IO, "cannot read \"%s\": %s", f->path, strerror(errno));
        else
            fail(f, WEFT_ERR_FORMAT, "\"%s\" ends too early", f->path);
        return false;
    }
    crypto_generichash_update(&f->sum, into, size);
    return true;
}

static void get_head(module_file *f, const weft_module *module)
{
    uint8_t bytes[HEAD_BYTES];
    wfi_reader r;
    if (!get(f, bytes, sizeof(bytes)))
        return;
    wfi_reader_init(&r, bytes, sizeof(bytes));
    if (memcmp(wfi_read_bytes(&r, sizeof(magic)), magic, sizeof(magic)) != 0) {
        fail(f, WEFT_ERR_FORMAT, "\"%s\" is not a module's file", f->path);
        return;
    }
    uint32_t version = wfi_read_u32(&r), entries = wfi_read_u32(&r);
    if (version != VERSION)
        fail(f, WEFT_ERR_FORMAT, "\"%s\" has version %u, not %d", f->path, version, VERSION);
    else if (entries != entry_count(module))
        fail(f, WEFT_ERR_SHAPE, "\"%s\" holds %u tensors, the module has %zu", f->path, entries, entry_count(module));
}

static uint8_t get_u8(module_file *f)
{
    uint8_t byte = 0;
    return get(f, &byte, sizeof(byte)) ? byte : 0;
}

static uint64_t get_u64(module_file *f)
{
    uint8_t bytes[8];
    wfi_reader r;
    if (!get(f, bytes, sizeof(bytes)))
        return 0;
    wfi_reader_init(&r, bytes, sizeof(bytes));
    return wfi_read_u64(&r);
}

static void get_name(module_file *f, const char *wanted)
{
    uint8_t bytes[4];
    char name[WFI_NAME_MAX] = "";
    wfi_reader r;
    if (!get(f, bytes, sizeof(bytes)))
        return;
    wfi_reader_init(&r, bytes, sizeof(bytes));
    uint32_t size = wfi_read_u32(&r);
    if (size == 0 || size >= WFI_NAME_MAX) {
        fail(f, WEFT_ERR_FORMAT, "\"%s\" has a name of %u bytes", f->path, size);
        return;
    }
    if (get(f, name, size) && (strlen(name) != size || strcmp(name, wanted) != 0))
        fail(f, WEFT_ERR_SHAPE, "\"%s\" has another tensor where the module has %s", f->path, wanted);
}

/* Everything is compared with what the module has, so nothing that the file says is ever a size to allocate. */
static void get_geometry(module_file *f, const char *name, const weft_tensor *tensor)
{
    uint8_t dtype = get_u8(f), ndim = get_u8(f);
    if (f->status == WEFT_OK && !wfi_dtype_is_valid((weft_dtype)dtype))
        fail(f, WEFT_ERR_FORMAT, "\"%s\": %s has an unknown dtype %u", f->path, name, dtype);
    else if (f->status == WEFT_OK && dtype != tensor->dtype)
        fail(f, WEFT_ERR_TYPE, "\"%s\": %s is %s, the module's is %s", f->path, name,
             weft_dtype_name((weft_dtype)dtype), weft_dtype_name(tensor->dtype));
    else if (f->status == WEFT_OK && ndim != tensor->shape.ndim)
        fail(f, WEFT_ERR_SHAPE, "\"%s\": %s has %u dimensions, the module's has %d", f->path, name, ndim,
             tensor->shape.ndim);
    for (int i = 0; i < tensor->shape.ndim && f->status == WEFT_OK; i++)
        if ((int64_t)get_u64(f) != tensor->shape.dims[i])
            fail(f, WEFT_ERR_SHAPE, "\"%s\": dimension %d of %s is not the module's", f->path, i, name);
    if (f->status == WEFT_OK && get_u64(f) != weft_tensor_nbytes(tensor))
        fail(f, WEFT_ERR_FORMAT, "\"%s\": %s has a wrong size", f->path, name);
}

static weft_tensor *get_entry(module_file *f, int kind, const char *name, const weft_tensor *tensor)
{
    if (get_u8(f) != kind)
        fail(f, WEFT_ERR_SHAPE, "\"%s\" has no %s where the module has %s", f->path, kind ? "buffer" : "parameter",
             name);
    get_name(f, name);
    get_geometry(f, name, tensor);
    if (f->status != WEFT_OK)
        return NULL;
    weft_tensor *loaded = weft_tensor_empty(tensor->shape, tensor->dtype);
    if (loaded == NULL)
        fail(f, WEFT_ERR_MEMORY, "out of memory while reading \"%s\"", f->path);
    else
        get(f, weft_tensor_data(loaded), weft_tensor_nbytes(loaded));
    return loaded;
}

static void get_all(module_file *f, const weft_module *module, weft_tensor **loaded)
{
    uint8_t sum[SUM_BYTES], wanted[SUM_BYTES];
    size_t at = 0;
    get_head(f, module);
    for (int kind = 0; kind < 2; kind++) {
        const wfi_named *list = list_of(module, kind);
        for (size_t i = 0; i < list->count && f->status == WEFT_OK; i++)
            loaded[at++] = get_entry(f, kind, list->names[i], list->tensors[i]);
    }
    crypto_generichash_final(&f->sum, sum, sizeof(sum));
    if (f->status != WEFT_OK || !get(f, wanted, sizeof(wanted)))
        return;
    if (memcmp(sum, wanted, sizeof(sum)) != 0)
        fail(f, WEFT_ERR_FORMAT, "\"%s\" is damaged: its checksum does not match", f->path);
    else if (fgetc(f->stream) != EOF)
        fail(f, WEFT_ERR_FORMAT, "\"%s\" goes on after its end", f->path);
}

/* Contents of one shape and dtype: it cannot fail any more. */
static void assign_all(module_file *f, weft_module *module, weft_tensor *const *loaded)
{
    for (int kind = 0; kind < 2; kind++) {
        const wfi_named *list = list_of(module, kind);
        for (size_t i = 0; i < list->count && f->status == WEFT_OK; i++) {
            weft_status status = weft_tensor_assign(list->tensors[i], *loaded++);
            if (status != WEFT_OK)
                fail(f, status, "cannot change %s: %s", list->names[i], weft_status_text(status));
        }
    }
}

weft_status weft_module_load(weft_module *module, const char *path, weft_error **error)
{
    module_file f = {.path = path, .error = error};
    if (module == NULL || path == NULL || module->status != WEFT_OK) {
        fail(&f, WEFT_ERR_INVALID, "there is no module or no path to load it from");
        return f.status;
    }
    size_t count = entry_count(module);
    weft_tensor **loaded = wfi_calloc(count + 1, sizeof(weft_tensor *));
    if (loaded == NULL) {
        fail(&f, WEFT_ERR_MEMORY, "out of memory while reading \"%s\"", path);
        return f.status;
    }
    f.stream = fopen(path, "rb");
    if (f.stream == NULL)
        fail(&f, errno == ENOENT ? WEFT_ERR_NOT_FOUND : WEFT_ERR_IO, "cannot open \"%s\": %s", path, strerror(errno));
    crypto_generichash_init(&f.sum, NULL, 0, SUM_BYTES);
    if (f.status == WEFT_OK)
        get_all(&f, module, loaded);
    if (f.status == WEFT_OK)
        assign_all(&f, module, loaded);
    if (f.stream != NULL)
        fclose(f.stream);
    for (size_t i = 0; i < count; i++)
        weft_tensor_unref(loaded[i]);
    free(loaded);
    return f.status;
}
