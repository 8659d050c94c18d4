# SPDX-License-Identifier: Apache-2.0
"""Waits that Ctrl-C ends: functions of C that take long run on a thread, or in slices."""
import threading

SLICE_MS = 100
left = []  # events of functions that still run after an interrupt


def interruptible(run, interrupt=None):
    """The result of run(), which may block in C. If an exception comes meanwhile (KeyboardInterrupt), calls interrupt(), which
    makes run() return, and raises it; run() may end later. Without `interrupt` run() is left to itself."""
    if threading.current_thread() is not threading.main_thread():
        return run()
    out = []
    ended = threading.Event()

    def work():
        try:
            out.append((run(), None))
        except BaseException as error:
            out.append((None, error))
        ended.set()

    threading.Thread(target=work, name="weft wait", daemon=True).start()
    try:
        ended.wait()
    except BaseException:
        if interrupt:
            left.append(ended)
            threading.Thread(target=interrupt, name="weft interrupt", daemon=True).start()
            ended.wait(SLICE_MS / 1000)
        raise
    result, error = out[0]
    if error:
        raise error
    return result
