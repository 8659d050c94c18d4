/* SPDX-License-Identifier: Apache-2.0 */
/* inside.h - what an attacker knows who has read the source: the store's protocol, the launcher's secret, what lies
 * within agents. */
#ifndef TESTS_HOSTILE_INSIDE_H
#define TESTS_HOSTILE_INSIDE_H

#include "job/launch/launch.h"
#include "job/protocol/protocol.h"
#include "job/protocol/secret.h"
#include "net/inside.h"
#include "rpc/inside.h"

#endif
