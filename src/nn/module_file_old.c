/* SPDX-License-Identifier: Apache-2.0 */
/*
 * module_file_old.c - modules in files of the format that weft wrote before safetensors. It is read, no longer written.
 *
 * Little-endian:
 *     "WEFTMOD\0"  u32 version = 1  u32 entries
 *     entry: u8 kind (0 parameter, 1 buffer)  string name (u32 length, bytes)  u8 dtype (weft_dtype)  u8 ndim
 *            i64 size, ndim times  u64 bytes of elements  the elements, row-major
 *     BLAKE2b-256 of all bytes before it
 * Nothing follows. Entries are the module's parameters, then its buffers, in order.
 */
#include "nn/nn.h"

#include "base/codec.h"
#include "base/error.h"
#include "file/safetensors.h"
#include "tensor/tensor.h"

#include <errno.h>
#include <sodium.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "elements are read as they lie in memory: little-endian"
#endif

#define VERSION 1
#define HEAD_BYTES 8 /* behind the magic */
#define SUM_BYTES crypto_generichash_BYTES

const char wfi_module_old_magic[8] = "WEFTMOD";

/* A file being read; it keeps its first failure. */
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

/* False: failed, and `into` is undefined. */
static bool get(module_file *f, void *into, size_t size)
{
    if (f->status != WEFT_OK || size == 0)
        return f->status == WEFT_OK;
    if (fread(into, 1, size, f->stream) != size) {
        if (ferror(f->stream))
            fail(f, WEFT_ERR_IO, "cannot read \"%s\": %s", f->path, strerror(errno));
        else
            fail(f, WEFT_ERR_FORMAT, "\"%s\" ends too early: %zu bytes more are expected, and it has %ld in all",
                 f->path, size, ftell(f->stream));
        return false;
    }
    crypto_generichash_update(&f->sum, into, size);
    return true;
}

/* How many tensors the file says that it has. */
static uint32_t get_head(module_file *f)
{
    uint8_t bytes[HEAD_BYTES];
    wfi_reader r;
    if (!get(f, bytes, sizeof(bytes)))
        return 0;
    wfi_reader_init(&r, bytes, sizeof(bytes));
    uint32_t version = wfi_read_u32(&r), entries = wfi_read_u32(&r);
    if (version != VERSION)
        fail(f, WEFT_ERR_FORMAT, "\"%s\" has version %u: only version %d of this format can be read", f->path, version,
             VERSION);
    return entries;
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

/* `wanted`: the name that the module has there; NULL: it has no more. */
static void get_name(module_file *f, const char *wanted)
{
    uint8_t bytes[4];
    char name[WFI_NAME_MAX] = "", shown[WFI_SHOWN];
    wfi_reader r;
    if (!get(f, bytes, sizeof(bytes)))
        return;
    wfi_reader_init(&r, bytes, sizeof(bytes));
    uint32_t size = wfi_read_u32(&r);
    if (size == 0 || size >= WFI_NAME_MAX) {
        fail(f, WEFT_ERR_FORMAT, "\"%s\" has a name of %u bytes: names have 1 to %d", f->path, size, WFI_NAME_MAX - 1);
        return;
    }
    if (!get(f, name, size))
        return;
    if (wanted == NULL)
        fail(f, WEFT_ERR_SHAPE, "\"%s\" holds \"%s\", which the module does not have", f->path, wfi_shown(name, shown));
    else if (strlen(name) != size || strcmp(name, wanted) != 0)
        fail(f, WEFT_ERR_SHAPE, "\"%s\" holds \"%s\" where the module has \"%s\"", f->path, wfi_shown(name, shown),
             wanted);
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
    for (int i = 0; i < tensor->shape.ndim && f->status == WEFT_OK; i++) {
        long long size = (long long)get_u64(f), wanted = tensor->shape.dims[i];
        if (f->status == WEFT_OK && size != wanted)
            fail(f, WEFT_ERR_SHAPE, "\"%s\": dimension %d of %s has size %lld, the module's has %lld", f->path, i, name,
                 size, wanted);
    }
    size_t size = f->status == WEFT_OK ? (size_t)get_u64(f) : 0;
    if (f->status == WEFT_OK && size != weft_tensor_nbytes(tensor))
        fail(f, WEFT_ERR_FORMAT, "\"%s\": %s has %zu bytes, the module's has %zu", f->path, name, size,
             weft_tensor_nbytes(tensor));
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
    size_t at = 0, entries = get_head(f);
    for (int kind = 0; kind < 2; kind++) {
        const wfi_named *list = list_of(module, kind);
        for (size_t i = 0; i < list->count && f->status == WEFT_OK; i++)
            if (at == entries)
                fail(f, WEFT_ERR_SHAPE, "\"%s\" does not hold \"%s\", which the module has", f->path, list->names[i]);
            else
                loaded[at++] = get_entry(f, kind, list->names[i], list->tensors[i]);
    }
    if (f->status == WEFT_OK && at < entries) {
        (void)get_u8(f); /* its kind */
        get_name(f, NULL);
    }
    crypto_generichash_final(&f->sum, sum, sizeof(sum));
    if (f->status != WEFT_OK || !get(f, wanted, sizeof(wanted)))
        return;
    if (memcmp(sum, wanted, sizeof(sum)) != 0)
        fail(f, WEFT_ERR_FORMAT, "\"%s\" is damaged: the checksum at its end is not that of its bytes: copy it again",
             f->path);
    else if (fgetc(f->stream) != EOF)
        fail(f, WEFT_ERR_FORMAT, "\"%s\" goes on after byte %ld, where it should end", f->path, ftell(f->stream) - 1);
}

weft_status wfi_module_read_old(const weft_module *module, FILE *stream, const char *path, weft_tensor **loaded,
                                weft_error **error)
{
    module_file f = {.stream = stream, .path = path, .error = error};
    crypto_generichash_init(&f.sum, NULL, 0, SUM_BYTES);
    crypto_generichash_update(&f.sum, (const uint8_t *)wfi_module_old_magic, sizeof(wfi_module_old_magic));
    get_all(&f, module, loaded);
    return f.status;
}
