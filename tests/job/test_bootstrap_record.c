/* SPDX-License-Identifier: Apache-2.0 */
/* test_bootstrap_record.c - which addresses rank 0 publishes, on a machine with more of them than a record has room
 * for. */
#include "unit.h"

#include "job/bootstrap/record.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int __wrap_getifaddrs(struct ifaddrs **all);
void __wrap_freeifaddrs(struct ifaddrs *all);

/* In the order of getifaddrs: 20 link-local addresses of bridges, then 20 others. */
static struct ifaddrs interfaces[40];
static char bridge[] = "br0";
static struct sockaddr_in addresses[40];

int __wrap_getifaddrs(struct ifaddrs **all)
{
    for (size_t i = 0; i < 40; i++) {
        uint32_t host = i < 20 ? 0xa9fe0101u + (uint32_t)i : 0xc6336401u + (uint32_t)i; /* 198.51.100.21 and above */
        addresses[i] = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(host)};
        interfaces[i] = (struct ifaddrs){.ifa_next = i < 39 ? &interfaces[i + 1] : NULL,
                                         .ifa_name = bridge,
                                         .ifa_flags = IFF_UP,
                                         .ifa_addr = (struct sockaddr *)&addresses[i]};
    }
    *all = interfaces;
    return 0;
}

void __wrap_freeifaddrs(struct ifaddrs *all)
{
    assert_ptr_equal(all, interfaces);
}

static void the_best_addresses_are_published(void **state)
{
    char record[WEFT_BOOTSTRAP_BYTES], line[64];
    wfi_secret secret = {.size = WFI_SECRET_MIN};
    wfi_bootstrap_answer answer = {.secret = &secret, .store_fd = -1};
    assert_int_equal(wfi_bootstrap_record_make(&(wfi_bootstrap_ask){0}, false, &answer, record, NULL), WEFT_OK);
    assert_int_equal(close(answer.store_fd), 0);
    const char *at = strstr(record, "address ");
    for (int i = 21; i < 37; i++) {
        snprintf(line, sizeof(line), "address 198.51.100.%d\n", i);
        assert_non_null(at);
        assert_memory_equal(at, line, strlen(line));
        at += strlen(line);
    }
    assert_int_equal(*at, '\0');
    assert_string_equal(answer.address, "198.51.100.21");
}

UNIT_MAIN(the_best_addresses_are_published)
