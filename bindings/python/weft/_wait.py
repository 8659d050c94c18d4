# SPDX-License-Identifier: Apache-2.0
"""Waits that Ctrl-C ends: functions of C that take long run on a thread, or in slices."""
import threading

SLICE_MS = 100
left = []  # the threads of waits that were interrupted and have not ended


def interruptible(run, interrupt=None, undo=None):
    """The result of run(), which may block in C. If an exception interrupts the wait (KeyboardInterrupt), calls interrupt(), which
    shall make run() return, and raises the exception. run() may return later: then undo(its result) is called. interrupt() is
    never called after run() has returned."""
    if threading.current_thread() is not threading.main_thread():
        return run()
    out = []
    lock = threading.Lock()  # run() has returned, or it was interrupted: whichever is first
    entered, ended, interrupted = threading.Event(), threading.Event(), []

    def work():
        try:
            entered.set()
            out.append((run(), None))
        except BaseException as error:
            out.append((None, error))
        with lock:
            ended.set()
        if interrupted and undo and out[0][1] is None:
            undo(out[0][0])

    def stop():
        entered.wait()
        with lock:
            if not ended.is_set():
                interrupt()

    thread = threading.Thread(target=work, name="weft wait", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # the interpreter ends
        return run()
    try:
        ended.wait()
    except BaseException:
        with lock:
            late = not ended.is_set()
            interrupted.append(True)
        if not late and undo and out[0][1] is None:
            undo(out[0][0])
        if late:
            left.append(thread)
            if interrupt:
                threading.Thread(target=stop, name="weft interrupt", daemon=True).start()
                thread.join(SLICE_MS / 1000)
        raise
    result, error = out[0]
    if error:
        raise error
    return result
