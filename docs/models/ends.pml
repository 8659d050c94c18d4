/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ends.pml - a model of how a distributed context ends everywhere, for spin. tools/long.d/models runs it.
 *
 * The code is src/dist/release.c. Its names for YES, TELLING and TOLD are WFI_HOLDER_PRESENT, NOTIFYING (elsewhere than at the
 * opener: REPORTED) and RELEASED; the floor is its `oldest_open`.
 *
 * ONE CONTEXT, WORKERS workers, of which 0 opened it. Whoever has a part calls others under it, up to CALLS times in all, one call
 * from a to b at a time. Answers name those whom the callee has called and of whom it has not said so; what no answer will carry goes to the
 * opener in JOINED. The opener closes it at some moment: then it tells each holder that it knows of, by CLOSE or by a call of something
 * else, which says how far its contexts are over (the floor). Messages overtake each other. Up to DEATHS workers die, the opener
 * among them; each other worker notices that by itself, and what the dead one had said may come until then or not. Up to LATE calls run out of time
 * before they are answered; then what the answer says is lost. When nothing else happens, each holder names itself to the opener, once.
 *
 * WAITED: a future waits for the end. The floor does not pass the context then, so only CLOSE ends it, and the answer to CLOSE names
 * all whom the worker knows to have a part. The opener tells these too. If a worker is gone, it tells everybody.
 *
 * WHAT IS CHECKED: when nothing can happen any more and the context was closed, or its opener is dead, no living worker has a part
 * of it, and the opener waits for nobody's word. Where nobody dies and no answer is lost that holds with UNASKED too, where nobody names itself
 * because it hears nothing. With WAITED also: from the moment when the future completes, no living worker has a part.
 *
 * MUTANTS that the checker must refuse, all with UNASKED: UNREPORTED (no JOINED), FORGETFUL (who hears that it is over does not say whom it
 * has called since), UNTOLD (the opener hears of a late holder and does not tell it), UNREPEATED (nobody repeats what a dead worker may have
 * taken along); and UNASKED itself where an answer is lost, and where one of four workers dies. With WAITED: UNNAMED (the answer to CLOSE
 * names nobody), OVERHEARD (the answer to JOINED says that the context is over, before CLOSE does), UNMISSED (a death is no reason to tell
 * everybody).
 */
#ifndef WORKERS
#define WORKERS 4
#endif
#ifndef CALLS
#define CALLS 3
#endif
#ifndef DEATHS
#define DEATHS 0
#endif
#ifndef LATE
#define LATE 0
#endif

#define AT(a, b) ((a) * WORKERS + (b))
#define BIT(w) (1 << (w))
#define FOR_EACH(w) w : 0 .. WORKERS - 1

/* A holder, as a worker knows it: YES, the opener has not heard of it (of a closed context: it has not heard that it is over). */
#define NONE 0
#define YES 1
#define TELLING 2
#define TOLD 3 /* only at the opener: it has heard that the context is over */

/* A call from a to b. */
#define IDLE 0
#define CALLED 1
#define SERVED 2
#define ANSWERED 3

byte calls = CALLS, deaths = DEATHS, late = LATE;
bit over;                     /* the opener has closed it */
byte dead;                    /* sets of bits: who is dead; */
byte noticed[WORKERS];        /* of whom a worker knows it; */
byte part, knows;             /* who has a part; who knows for ever that it is over */
byte holders[WORKERS * WORKERS];
byte call[WORKERS * WORKERS]; /* from a to b */
byte news[WORKERS * WORKERS]; /* whom its answer names */
bit lost[WORKERS * WORKERS];   /* nobody waits for its answer any more */
byte joined, joined_said[WORKERS]; /* JOINED is under way from these, and names those; */
byte answer, answer_over;          /* its answer is, and says so */
byte asked;                        /* these have named themselves because they heard nothing: once */
byte close, closed;           /* CLOSE, or another call that says the floor, is under way to these; its answer is */
byte named[WORKERS];          /* whom that answer names */
bit waits, complete;          /* the future is incomplete; it has completed well */
bit gone_names;               /* a worker is gone that may have called others */
byte a, b, d, r, x;           /* of the step that is taken */
bit busy;

inline has_untold(w) { /* busy: w knows a holder of whom it has not told */
    busy = 0;
    for (FOR_EACH(r)) { busy = busy || holders[AT(w, r)] == YES }
}

inline is_serving(w) {
    busy = 0;
    for (FOR_EACH(r)) { busy = busy || call[AT(r, w)] == SERVED }
}

/* Names itself, and all of whom it has not told. */
inline begin_report(w) {
    joined = joined | BIT(w);
    for (FOR_EACH(r)) {
        if
        :: holders[AT(w, r)] == YES -> joined_said[w] = joined_said[w] | BIT(r); holders[AT(w, r)] = TELLING
        :: else
        fi
    }
}

/* If no answer will carry it. */
inline report(w) {
    is_serving(w);
    if
    :: w == 0 || busy || (joined & BIT(w)) || (answer & BIT(w))
    :: else ->
        has_untold(w);
        if
#ifndef UNREPORTED
        :: busy -> begin_report(w)
#endif
        :: else
        fi
    fi;
    r = 0
}

inline end_part(w) {
    part = part & ~BIT(w);
#ifndef FORGETFUL
    report(w)
#endif
}

inline tell_everybody() {
    for (FOR_EACH(x)) {
        if
        :: x != 0 && holders[AT(0, x)] == NONE && !(noticed[0] & BIT(x)) -> holders[AT(0, x)] = YES
        :: else
        fi
    }
    x = 0
}

inline lose_names() {
#ifndef UNMISSED
    gone_names = 1;
    if
    :: waits -> tell_everybody()
    :: else
    fi
#else
    skip
#endif
}

/* Nobody is left to be told: the future completes. */
inline settle() {
    if
    :: waits ->
        busy = 0;
        for (FOR_EACH(r)) { busy = busy || holders[AT(0, r)] == YES || holders[AT(0, r)] == TELLING }
        if
        :: !busy -> waits = 0; complete = 1
        :: else
        fi;
        r = 0;
        busy = 0
    :: else
    fi
}

/* The opener hears of holder h. */
inline hear_of(h) {
    if
    :: h == 0
    :: h != 0 && (noticed[0] & BIT(h)) -> lose_names()
    :: else ->
        if
        :: holders[AT(0, h)] == NONE -> holders[AT(0, h)] = YES
        :: else
        fi
    fi
}

/* The news of an answer that a reads. */
inline read_news(p, q) {
    for (FOR_EACH(r)) {
        if
        :: (news[AT(p, q)] & BIT(r)) && r != 0 && p == 0 ->
#ifdef UNTOLD
            if
            :: !over -> hear_of(r)
            :: else
            fi
#else
            hear_of(r)
#endif
        :: (news[AT(p, q)] & BIT(r)) && r != 0 && p != 0 && holders[AT(p, r)] != YES -> holders[AT(p, r)] = YES
        :: else
        fi
    }
    news[AT(p, q)] = 0
}

/* Of a call from a to b nothing comes any more. */
inline drop_call(p, q) {
    news[AT(p, q)] = 0;
    lost[AT(p, q)] = 0;
    call[AT(p, q)] = IDLE
}

/* w notices that d is dead. */
inline notice(w, gone) {
    noticed[w] = noticed[w] | BIT(gone);
    drop_call(w, gone);
    drop_call(gone, w);
    if
    :: w == 0 ->
        lose_names();
        holders[AT(0, gone)] = NONE;
        named[gone] = 0;
        joined = joined & ~BIT(gone);
        joined_said[gone] = 0;
        close = close & ~BIT(gone);
        closed = closed & ~BIT(gone)
    :: gone == 0 ->
        part = part & ~BIT(w);
        knows = knows | BIT(w);
        joined = joined & ~BIT(w);
        joined_said[w] = 0;
        answer = answer & ~BIT(w);
        close = close & ~BIT(w)
    :: else ->
        if
        :: part & BIT(w) ->
#ifndef UNREPEATED
            for (FOR_EACH(r)) {
                if
                :: holders[AT(w, r)] == TELLING -> holders[AT(w, r)] = YES
                :: else
                fi
            }
            begin_report(w);
            r = 0
#else
            report(w)
#endif
        :: else -> report(w)
        fi
    fi
}

#define ALIVE(w) (!(dead & BIT(w)))
#define SEES(w, d) (!(noticed[w] & BIT(d))) /* w has not noticed that d is dead */
#define MAY_CALL(a, b) (a != b && b != 0 && ALIVE(a) && SEES(a, b) && call[AT(a, b)] == IDLE && \
                        (a == 0 -> !over : (part & BIT(a)) && SEES(a, 0)))

inline make_call(p, q) {
    call[AT(p, q)] = CALLED;
    if
    :: holders[AT(p, q)] == NONE -> holders[AT(p, q)] = YES; report(p)
    :: else
    fi
}

/* b takes the call in: it gets a part, or knows that the context is over and refuses. */
inline take_call(p, q) {
    if
    :: (knows & BIT(q)) || !SEES(q, 0) -> call[AT(p, q)] = ANSWERED
    :: else -> part = part | BIT(q); call[AT(p, q)] = SERVED
    fi
}

inline give_answer(p, q) {
    for (FOR_EACH(r)) {
        if
        :: holders[AT(q, r)] == YES -> news[AT(p, q)] = news[AT(p, q)] | BIT(r); holders[AT(q, r)] = TELLING
        :: else
        fi
    }
    call[AT(p, q)] = ANSWERED;
    report(q)
}

inline take_answer(p, q) {
    if
    :: lost[AT(p, q)] -> drop_call(p, q)
    :: else -> call[AT(p, q)] = IDLE; read_news(p, q); report(p)
    fi
}

inline take_joined(w) {
    joined = joined & ~BIT(w);
    hear_of(w);
    for (FOR_EACH(r)) {
        if
        :: joined_said[w] & BIT(r) -> hear_of(r)
        :: else
        fi
    }
    joined_said[w] = 0;
    answer = answer | BIT(w);
#ifdef OVERHEARD
    answer_over = (over -> answer_over | BIT(w) : answer_over & ~BIT(w))
#else
    answer_over = (over && !waits -> answer_over | BIT(w) : answer_over & ~BIT(w))
#endif
}

inline take_joined_answer(w) {
    answer = answer & ~BIT(w);
    if
    :: (answer_over & BIT(w)) && (part & BIT(w)) -> end_part(w)
    :: else -> report(w)
    fi;
    answer_over = answer_over & ~BIT(w)
}

inline take_close(w) {
    close = close & ~BIT(w);
    closed = closed | BIT(w);
    knows = knows | BIT(w);
#ifndef UNNAMED
    for (FOR_EACH(r)) {
        if
        :: (part & BIT(w)) && holders[AT(w, r)] != NONE -> named[w] = named[w] | BIT(r)
        :: else
        fi
    }
    r = 0;
#endif
    end_part(w)
}

inline take_closed(w) {
    closed = closed & ~BIT(w);
    if
    :: holders[AT(0, w)] == TELLING -> holders[AT(0, w)] = TOLD
    :: else
    fi;
    for (FOR_EACH(r)) {
        if
        :: waits && (named[w] & BIT(r)) -> hear_of(r)
        :: else
        fi
    }
    r = 0;
    named[w] = 0
}

/* A step of or between workers a and b. */
#define CAN_TELL(w) (over && ALIVE(0) && holders[AT(0, w)] == YES && SEES(0, w) && !(close & BIT(w)))
#define CAN_ASK(w) ((part & BIT(w)) && ALIVE(w) && SEES(w, 0) && !(asked & BIT(w)))
#define CAN_TAKE(a, b) (call[AT(a, b)] == CALLED && ALIVE(b) && SEES(b, a))
#define CAN_ANSWER(a, b) (call[AT(a, b)] == SERVED && ALIVE(b))
#define CAN_READ(a, b) (call[AT(a, b)] == ANSWERED && ALIVE(a) && SEES(a, b))
#define CAN_HEAR_JOINED(w) ((joined & BIT(w)) && ALIVE(0) && SEES(0, w))
#define CAN_HEAR_ANSWER(w) ((answer & BIT(w)) && ALIVE(w) && SEES(w, 0))
#define CAN_HEAR_CLOSE(w) ((close & BIT(w)) && ALIVE(w) && SEES(w, 0))
#define CAN_HEAR_CLOSED(w) ((closed & BIT(w)) && ALIVE(0) && SEES(0, w))
#define CAN_NOTICE(w, d) (w != d && ALIVE(w) && (dead & BIT(d)) && SEES(w, d))

/* Whether anything is left to happen that is not the user's or fate's choice. */
inline look_around() {
    busy = 0;
    for (FOR_EACH(a)) {
        busy = busy || CAN_HEAR_JOINED(a) || CAN_HEAR_ANSWER(a) || CAN_HEAR_CLOSE(a) || CAN_HEAR_CLOSED(a) || CAN_TELL(a);
        for (FOR_EACH(b)) {
            busy = busy || CAN_TAKE(a, b) || CAN_ANSWER(a, b) || CAN_READ(a, b) || CAN_NOTICE(a, b)
        }
    }
    a = 0;
    b = 0
}

active proctype world() {
    part = BIT(0);
    do
    :: atomic {
        select(a : 0 .. WORKERS - 1);
        select(b : 0 .. WORKERS - 1);
        if
        :: calls > 0 && MAY_CALL(a, b) -> d_step { calls--; make_call(a, b) }
        :: CAN_TAKE(a, b) -> d_step { take_call(a, b) }
        :: CAN_ANSWER(a, b) -> d_step { give_answer(a, b) }
        :: CAN_READ(a, b) -> d_step { take_answer(a, b) }
        :: late > 0 && ALIVE(a) && call[AT(a, b)] != IDLE && !lost[AT(a, b)] -> late--; lost[AT(a, b)] = 1
        :: CAN_ANSWER(a, b) && lost[AT(a, b)] && ALIVE(a) -> d_step { drop_call(a, b); report(b) } /* it was cancelled in time */
        :: b == 0 && late > 0 && CAN_HEAR_CLOSED(a) -> d_step {
            late--; /* and here the answer to CLOSE was lost */
            closed = closed & ~BIT(a);
            named[a] = 0;
            waits = 0; /* the future fails */
            holders[AT(0, a)] = (holders[AT(0, a)] == TELLING -> YES : holders[AT(0, a)])
        }
        :: CAN_NOTICE(a, b) -> d_step { d = b; notice(a, d) }
        :: b == 0 && CAN_HEAR_JOINED(a) -> d_step { take_joined(a) }
        :: b == 0 && CAN_HEAR_ANSWER(a) -> d_step { take_joined_answer(a) }
        :: b == 0 && CAN_HEAR_CLOSE(a) -> d_step { take_close(a) }
        :: b == 0 && CAN_HEAR_CLOSED(a) -> d_step { take_closed(a) }
        :: b == 0 && CAN_TELL(a) -> close = close | BIT(a); holders[AT(0, a)] = TELLING
        :: a == 0 && b == 0 && !over && ALIVE(0) -> d_step {
            over = 1;
            part = part & ~BIT(0);
#ifdef WAITED
            waits = 1;
            if
            :: gone_names -> tell_everybody()
            :: else
            fi
#endif
        }
        :: b == 0 && deaths > 0 && ALIVE(a) -> deaths--; dead = dead | BIT(a); part = part & ~BIT(a)
        :: else
        fi;
        d_step { settle() };
        assert(!complete || !part);
        a = 0; b = 0; d = 0; r = 0; busy = 0
       }
    :: atomic {
        d_step { look_around() };
        if
        :: (over || !ALIVE(0)) && !busy ->
            if
#ifndef UNASKED
            :: CAN_ASK(1) -> asked = asked | BIT(1); d_step { begin_report(1); r = 0 }
            :: CAN_ASK(2) -> asked = asked | BIT(2); d_step { begin_report(2); r = 0 }
#if WORKERS > 3
            :: CAN_ASK(3) -> asked = asked | BIT(3); d_step { begin_report(3); r = 0 }
#endif
#endif
            :: else -> goto done
            fi
        :: else -> busy = 0
        fi
       }
    od;
done:
    skip;
    d_step {
        for (FOR_EACH(a)) {
            assert(!ALIVE(a) || !(part & BIT(a)));
            assert(!ALIVE(0) || holders[AT(0, a)] == NONE || holders[AT(0, a)] == TOLD);
            assert(!ALIVE(0) || !waits)
        }
    }
}
