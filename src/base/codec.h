/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codec.h - little-endian writing and reading of bounded byte strings.
 *
 * Both keep their first failure: a writer that ran out of room or a reader that ran past the end does nothing more, and
 * is asked once, at the end. A reader gives zeros after its failure. Reading never allocates and never copies.
 */
#ifndef WFI_CODEC_H
#define WFI_CODEC_H

#include <weft/status.h>

typedef struct wfi_writer {
    uint8_t *data;
    size_t size, capacity;
    bool grows;  /* data is malloc'ed and may be enlarged; wfi_writer_fini frees it */
    bool failed; /* ran out of room or memory */
} wfi_writer;

void wfi_writer_init(wfi_writer *writer, void *data, size_t capacity); /* a fixed buffer */
void wfi_writer_init_growing(wfi_writer *writer);
void wfi_writer_fini(wfi_writer *writer);
void wfi_write_u8(wfi_writer *writer, uint8_t value);
void wfi_write_u16(wfi_writer *writer, uint16_t value);
void wfi_write_u32(wfi_writer *writer, uint32_t value);
void wfi_write_u64(wfi_writer *writer, uint64_t value);
void wfi_write_i64(wfi_writer *writer, int64_t value);
void wfi_write_f64(wfi_writer *writer, double value);
void wfi_write_bytes(wfi_writer *writer, const void *data, size_t size); /* raw, no length */
void wfi_write_blob(wfi_writer *writer, const void *data, size_t size);  /* u32 length, then the bytes */
void wfi_write_string(wfi_writer *writer, const char *text);             /* a blob without the NUL */

typedef struct wfi_reader {
    const uint8_t *data;
    size_t size, at;
    bool failed;
} wfi_reader;

void wfi_reader_init(wfi_reader *reader, const void *data, size_t size);
size_t wfi_reader_left(const wfi_reader *reader);
uint8_t wfi_read_u8(wfi_reader *reader);
uint16_t wfi_read_u16(wfi_reader *reader);
uint32_t wfi_read_u32(wfi_reader *reader);
uint64_t wfi_read_u64(wfi_reader *reader);
int64_t wfi_read_i64(wfi_reader *reader);
double wfi_read_f64(wfi_reader *reader);
const uint8_t *wfi_read_bytes(wfi_reader *reader, size_t size);               /* borrowed; NULL on failure */
const uint8_t *wfi_read_blob(wfi_reader *reader, size_t limit, size_t *size); /* fails over `limit` */
/* Copies a string and a NUL into out[capacity]; fails if it does not fit or holds a NUL. */
void wfi_read_string(wfi_reader *reader, char *out, size_t capacity);

#endif
