/* SPDX-License-Identifier: Apache-2.0 */
/* lanes.h - connects lanes of a fabric, and accepts requests, where a test posts no receives before. */
#ifndef TEST_LANES_H
#define TEST_LANES_H

#include "fabric.h"

static inline weft_status lanes_begin(wfi_fabric *fabric, weft_status made, const void *data, size_t size,
                                      wfi_lane **lane)
{
    weft_status status = made ? made : fabric->ops->connect(*lane, data, size);
    if (!made && status)
        fabric->ops->lane_close(*lane);
    if (status)
        *lane = NULL;
    return status;
}

static inline weft_status lanes_connect(wfi_fabric *fabric, const uint8_t *address, size_t address_size,
                                        const void *data, size_t size, void *user, wfi_lane **lane)
{
    return lanes_begin(fabric, fabric->ops->lane_open(fabric, address, address_size, user, lane), data, size, lane);
}

static inline weft_status lanes_accept(wfi_fabric *fabric, wfi_connect_request *request, const void *data, size_t size,
                                       void *user, wfi_lane **lane)
{
    return lanes_begin(fabric, fabric->ops->lane_take(fabric, request, user, lane), data, size, lane);
}

#endif
