/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trace_text.c - writes spans as trace events: complete events ("X") on tracks, flows ("s", "f") from caller to callee,
 * async events ("b", "e") for the time on the network, metadata ("M") for names.
 *
 * A viewer shows each worker as a process, numbered from 1 by rank (0 is special to viewers), and each track as a
 * thread with a unique number. Times are microseconds with three decimals.
 */
#include "rpc/observe/trace_internal.h"

#include "base/text/json.h"

#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TRACKS_BASE 10 /* the first number of a track in a worker's block of numbers */
#define TRACKS_BLOCK (WFI_TRACE_SIDES * WFI_TRACE_TRACKS + TRACKS_BASE)

static const char *const side_names[WFI_TRACE_SIDES] = {"calls", "served", "passes", "groups", "program"};
static const char *const fabric_keys[WFI_LANE_KINDS] = {"control_fabric", "bulk_fabric"};
static const char *const categories[WFI_TRACE_SIDES] = {"call", "serve", "pass", "group", "program"};

static void write_us(FILE *to, const char *key, uint64_t ns)
{
    fprintf(to, ",\"%s\":%" PRIu64 ".%03" PRIu64, key, ns / 1000, ns % 1000);
}

static int process_of(const wfi_trace *trace)
{
    return trace->rank + 1;
}

static unsigned thread_of(const wfi_trace *trace, wfi_trace_side side, uint32_t track)
{
    return (unsigned)process_of(trace) * TRACKS_BLOCK + TRACKS_BASE + (unsigned)side * WFI_TRACE_TRACKS + track;
}

static void begin_event(const wfi_trace *trace, const char *phase, const char *category, const char *name)
{
    fprintf(trace->file, "{\"ph\":\"%s\",\"cat\":\"%s\",\"name\":", phase, category);
    wfi_json_write_string(trace->file, name);
    fprintf(trace->file, ",\"pid\":%d", process_of(trace));
}

static void end_event(const wfi_trace *trace)
{
    fputs("},\n", trace->file);
}

/* ---- The head and the end ---------------------------------------------------------------------------------------- */

static void write_metadata(const wfi_trace *trace, unsigned thread, const char *name, const char *key,
                           const char *value)
{
    begin_event(trace, "M", "__metadata", name);
    fprintf(trace->file, ",\"tid\":%u,\"args\":{\"%s\":", thread, key);
    wfi_json_write_string(trace->file, value);
    fputc('}', trace->file);
    end_event(trace);
}

/* The name of the clock: processes with the same boot of a kernel and the same time namespace share it. "": unknown. */
static void name_clock(char *out, size_t room)
{
    char boot[64] = "";
    struct stat time_namespace;
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    bool is_known = file && fgets(boot, sizeof(boot), file) && stat("/proc/self/ns/time", &time_namespace) == 0;
    if (file)
        (void)fclose(file);
    boot[strcspn(boot, "\n")] = '\0';
    out[0] = '\0';
    if (is_known)
        snprintf(out, room, "%s/%llu", boot, (unsigned long long)time_namespace.st_ino);
}

void wfi_trace_write_head(wfi_trace *trace, const wfi_trace_who *who)
{
    char name[160], host[256] = "", clock[96];
    unsigned thread = (unsigned)process_of(trace) * TRACKS_BLOCK;
    bool simulated = trace->clock != &wfi_clock_real;
    uint64_t now = wfi_now(trace->clock);
    if (simulated || gethostname(host, sizeof(host) - 1))
        snprintf(host, sizeof(host), "%s", simulated ? "sim" : "");
    fputs("[\n", trace->file);
    snprintf(name, sizeof(name), "%s (rank %d)", who->name, who->rank);
    write_metadata(trace, thread, "process_name", "name", name);
    write_metadata(trace, thread, "process_labels", "labels", who->interface);
    begin_event(trace, "M", "__metadata", "weft_anchor");
    fprintf(trace->file, ",\"tid\":%u,\"args\":{\"rank\":%d,\"os_pid\":%d,\"host\":", thread, who->rank,
            simulated ? 0 : (int)getpid());
    wfi_json_write_string(trace->file, host);
    if (simulated)
        snprintf(clock, sizeof(clock), "sim");
    else
        name_clock(clock, sizeof(clock));
    fputs(",\"clock\":", trace->file);
    wfi_json_write_string(trace->file, clock);
    fputs(",\"interface\":", trace->file);
    wfi_json_write_string(trace->file, who->interface);
    /* As text: a reader that keeps numbers as doubles would lose the last digits. */
    fprintf(trace->file, ",\"clock_ns\":\"%" PRIu64 "\",\"realtime_ns\":\"%" PRIu64 "\"}", now,
            now + (uint64_t)trace->realtime_offset_ns);
    end_event(trace);
    fflush(trace->file);
}

void wfi_trace_write_end(wfi_trace *trace, uint64_t dropped)
{
    begin_event(trace, "M", "__metadata", "weft_end");
    fprintf(trace->file, ",\"tid\":%u,\"args\":{\"dropped\":%" PRIu64 "}}\n]\n",
            (unsigned)process_of(trace) * TRACKS_BLOCK, dropped);
}

static void name_tracks(wfi_trace *trace, wfi_trace_side side, uint32_t track)
{
    char name[32];
    while (trace->named[side] < track) {
        uint32_t next = ++trace->named[side];
        snprintf(name, sizeof(name), "%s %u", side_names[side], next);
        write_metadata(trace, thread_of(trace, side, next), "thread_name", "name", name);
    }
}

/* ---- Spans ------------------------------------------------------------------------------------------------------- */

/* Writes a slice inside the span, cut to its limits; nothing for a stage that was not reached. */
static void write_stage(const wfi_trace *trace, const wfi_trace_record *record, const char *name, uint64_t from_ns,
                        uint64_t to_ns)
{
    if (from_ns < record->span.begun_ns || to_ns < from_ns || to_ns > record->end_ns)
        return;
    begin_event(trace, "X", "stage", name);
    fprintf(trace->file, ",\"tid\":%u", thread_of(trace, record->side, record->span.track));
    write_us(trace->file, "ts", from_ns);
    write_us(trace->file, "dur", to_ns - from_ns);
    end_event(trace);
}

static void write_flow(const wfi_trace *trace, const wfi_trace_record *record, const char *phase, uint64_t at_ns,
                       uint64_t id)
{
    begin_event(trace, phase, "rpc", "call");
    fprintf(trace->file, ",\"tid\":%u,\"id\":\"0x%" PRIx64 "\"", thread_of(trace, record->side, record->span.track),
            id);
    if (*phase == 'f')
        fputs(",\"bp\":\"e\"", trace->file);
    write_us(trace->file, "ts", at_ns);
    end_event(trace);
}

static void write_wire(const wfi_trace *trace, const wfi_trace_record *record)
{
    const wfi_span *span = &record->span;
    if (!span->left_ns || span->left_ns > span->begun_ns)
        return; /* unknown, or the clocks of the two hosts differ by more than the time on the network */
    for (int end = 0; end < 2; end++) {
        begin_event(trace, end ? "e" : "b", "wire", "wire");
        fprintf(trace->file, ",\"tid\":%u,\"id\":\"0x%" PRIx64 "\"", (unsigned)process_of(trace) * TRACKS_BLOCK,
                span->parent);
        write_us(trace->file, "ts", end ? span->begun_ns : span->left_ns);
        if (!end)
            fprintf(trace->file, ",\"args\":{\"from\":%d}", record->peer);
        end_event(trace);
    }
}

static void write_span(const wfi_trace *trace, const wfi_trace_record *record)
{
    const wfi_span *span = &record->span;
    FILE *to = trace->file;
    begin_event(trace, "X", categories[record->side], record->function);
    fprintf(to, ",\"tid\":%u", thread_of(trace, record->side, span->track));
    write_us(to, "ts", span->begun_ns);
    write_us(to, "dur", record->end_ns - span->begun_ns);
    if (record->side == WFI_TRACE_PROGRAM) {
        end_event(trace);
        return;
    }
    fprintf(to, ",\"args\":{\"trace\":\"0x%" PRIx64 "\",\"span\":\"0x%" PRIx64 "\"", span->trace, span->id);
    if (span->parent)
        fprintf(to, ",\"parent\":\"0x%" PRIx64 "\"", span->parent);
    if (record->side == WFI_TRACE_PASSES)
        fprintf(to, ",\"opener\":%d,\"context\":%" PRIu64 ",\"root\":%d,\"pass\":%" PRIu64, record->opener,
                record->context, record->peer, record->call_id);
    else if (record->side == WFI_TRACE_GROUPS)
        fprintf(to, ",\"operation\":%" PRIu64 ",\"bytes\":%" PRIu64, record->call_id, record->context);
    else
        fprintf(to, ",\"call\":%" PRIu64 ",\"peer\":%d", record->call_id, record->peer);
    fprintf(to, ",\"status\":\"%s\"", weft_status_name(record->status));
    for (int kind = 0; kind < WFI_LANE_KINDS; kind++)
        if (record->fabrics[kind])
            fprintf(to, ",\"%s\":\"%s\"", fabric_keys[kind], record->fabrics[kind]);
    if (record->remote_status)
        fprintf(to, ",\"remote_status\":\"%s\"", weft_status_name(record->remote_status));
    bool is_call = record->side == WFI_TRACE_CALLS || record->side == WFI_TRACE_SERVED;
    if (trace->interface[0] && is_call && record->peer != trace->rank) {
        fputs(",\"interface\":", to);
        wfi_json_write_string(to, trace->interface);
    }
    fputc('}', to);
    end_event(trace);
}

void wfi_trace_write_record(wfi_trace *trace, const wfi_trace_record *record)
{
    const wfi_span *span = &record->span;
    name_tracks(trace, record->side, span->track);
    write_span(trace, record);
    if (record->side == WFI_TRACE_PROGRAM)
        return;
    if (record->side == WFI_TRACE_PASSES) {
        write_stage(trace, record, "step", span->run_ns, span->done_ns);
        return;
    }
    if (record->side == WFI_TRACE_GROUPS) {
        write_stage(trace, record, "turn", span->begun_ns, span->run_ns);
        return;
    }
    if (record->side == WFI_TRACE_CALLS) {
        bool late = span->run_ns && span->run_ns < span->ready_ns; /* the reply arrived before the send was recorded */
        write_stage(trace, record, "send", span->begun_ns, late ? span->run_ns : span->ready_ns);
        write_stage(trace, record, "results", span->run_ns, record->end_ns);
        write_flow(trace, record, "s", span->begun_ns, span->id);
        return;
    }
    write_stage(trace, record, "arguments", span->begun_ns, span->ready_ns);
    write_stage(trace, record, "queue", span->ready_ns, span->run_ns);
    write_stage(trace, record, "handler", span->run_ns, span->done_ns);
    write_stage(trace, record, "reply", span->done_ns, record->end_ns);
    if (span->parent) {
        write_wire(trace, record);
        write_flow(trace, record, "f", span->begun_ns, span->parent);
    }
}
