/* SPDX-License-Identifier: Apache-2.0 */
/* weft.c - a call with a tensor, and a function of autograd, built against an installed weft. */
#include <arpa/inet.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>
#include <weft/rpc.h>
#include <weft/tape.h>
#include <weft/tensor.h>

static weft_status sum(weft_call *call, void *user)
{
    (void)user;
    const weft_tensor *numbers = weft_call_tensor(call, 0);
    double total = 0;
    for (int64_t i = 0; i < weft_tensor_numel(numbers); i++)
        total += weft_tensor_get_f64(numbers, i);
    weft_call_give(call, WEFT_VALUES(weft_of_f64(total)));
    return WEFT_OK;
}

static int free_port(void)
{
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(any);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(fd, (struct sockaddr *)&any, size) != 0 || getsockname(fd, (struct sockaddr *)&any, &size) != 0)
        return -1;
    close(fd);
    return ntohs(any.sin_port);
}

int main(void)
{
    const weft_function functions[] = {{.name = "sum",
                                        .takes = {WEFT_TYPE_TENSOR, WEFT_TYPE_NONE},
                                        .gives = {WEFT_TYPE_F64, WEFT_TYPE_NONE},
                                        .run = sum}};
    weft_agent_options options = {.functions = functions,
                                  .function_count = 1,
                                  .has_rank = true,
                                  .world_size = 1,
                                  .master_addr = "127.0.0.1",
                                  .master_port = free_port()};
    weft_agent *agent;
    weft_values *results;
    double total = 0;
    weft_tensor *numbers = NULL;
    if (weft_tensor_arange(1000, WEFT_DTYPE_FLOAT32, &numbers, NULL) != WEFT_OK)
        return 1;
    if (weft_agent_open(&options, &agent, NULL) != WEFT_OK)
        return 1;
    if (weft_rpc_sync(agent, weft_to_rank(0), "sum", WEFT_VALUES(weft_of_tensor(numbers)), NULL, &results) != WEFT_OK ||
        weft_values_get_f64(results, 0, &total) != WEFT_OK)
        return 1;
    printf("sum %.0f\n", total);
    weft_values_unref(results);
    weft_tensor_unref(numbers);
    weft_tape_close(NULL); /* a WEFT_RPC_ONLY weft lacks it */
    return weft_agent_close(agent, WEFT_FOREVER) != WEFT_OK;
}
