/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pass.pml - a model of distributed backward passes, for spin. tools/long.d/models runs it.
 *
 * THREE WORKERS, FIVE PAIRS, PASSES OF THEM. A pair is a tensor that crossed: a send at its origin, a recv at its target; a
 * gradient comes back from the target. Which pairs there are, which sends depend on which recvs, and what the roots use is fixed
 * by GRAPH:
 *   1  a chain 1 -> 2 -> 1 -> 0, a result of 2 that nobody uses, an attempt 1 -> 2 that was lost
 *   2  the same chain begun and ended at the root, 0 -> 1 -> 2 -> 1 -> 0, and an attempt 1 -> 2 that was lost
 *   3  worker 1 alternates with 2 in vain, what goes on to the root is the first answer; the last attempt was lost
 *   4  two tensors of one call 0 -> 1, both used, one result, another worker's unused one, which depends on it
 *   5  two results, of 1 and of 2, both used; 2's depends on 1; an unused tensor 2 -> 1; a lost attempt 1 -> 2
 * In 1, 4 and 5 the unused pair may be recorded at any moment, also while a pass runs. The second pass begins at worker ROOT2
 * when the first has ended there. What is chosen as it runs: who writes when, what waits for company, what is pulled later;
 * and up to FAULTS times somebody dies, or somebody's part is cancelled or fails, at any step.
 *
 * WHAT IS CHECKED, at every step unless stated
 *   - a gradient or a none answers a send that still waits for it, and a statement is said once;
 *   - a worker ends its part with exactly the shares that the roots' graph gives it;
 *   - the root is done only when all shares have arrived, those of workers that have died since among them;
 *   - when nothing can happen any more: nobody's part still runs; all living participants are done if the root is, all have
 *     aborted if it has or is dead;
 *   - a step after the last pass uses the sums of the passes that ended well, and no others;
 *   - no deadlock (spin's own check).
 *
 * MUTANTS that the checker must refuse: EARLY (the root is done when its own part is), NAMELESS (DONE does not say to whom one
 * wrote), SHY (nobody asks), MUTE (whoever is done answers no later asker), TWICE (what a statement leaves out is answered
 * again), OVERTAKE (small messages go ahead of gradients), UNWATCHED (whoever is done no longer watches the root), UNTAKEN
 * (nobody watches those from whom they pull or who pull from them), UNSENT (nor those for whom they have a gradient), STALE (a
 * step takes all sums that it finds), FORGIVING (a worker that has aborted answers nobody).
 */
#ifndef GRAPH
#define GRAPH 1
#endif
#ifndef PASSES
#define PASSES 2
#endif
#ifndef FAULTS
#define FAULTS 1
#endif
#ifndef ROOT2
#define ROOT2 0
#endif

/* Pairs by origin and target (L01: from 0 to 1), as sets of bits; CONS(p): the sends that depend on p's recv; USED: by the root's
 * own operators; REACH: what these depend on; the same of a second root, at worker 0 and at 1. */
#if GRAPH == 1
#define L01 0
#define L02 0
#define L10 4
#define L12 (1 + 16)
#define L20 8
#define L21 2
#define CONS(p) (p == 0 -> 2 + 8 : (p == 1 -> 4 : 0))
#define USED 4
#define REACH 7
#define LOST 16
#define LATE 8
#define LATE_ORIGIN 2
#define USED2 4
#define REACH2 7
#define USED2_AT1 2
#define REACH2_AT1 3
#elif GRAPH == 2
#define L01 1
#define L02 0
#define L10 8
#define L12 (2 + 16)
#define L20 0
#define L21 4
#define CONS(p) (p == 0 -> 2 + 16 : (p == 1 -> 4 : (p == 2 -> 8 : 0)))
#define USED 8
#define REACH 15
#define LOST 16
#define LATE 0
#define LATE_ORIGIN 0
#define USED2 8
#define REACH2 15
#define USED2_AT1 4
#define REACH2_AT1 7
#elif GRAPH == 3
#define L01 0
#define L02 0
#define L10 16
#define L12 (1 + 4)
#define L20 0
#define L21 (2 + 8)
#define CONS(p) (p == 0 -> 2 : (p == 1 -> 4 + 16 : (p == 2 -> 8 : 0)))
#define USED 16
#define REACH 19
#define LOST 8
#define LATE 0
#define LATE_ORIGIN 0
#define USED2 16
#define REACH2 19
#define USED2_AT1 2
#define REACH2_AT1 3
#elif GRAPH == 5
#define L01 0
#define L02 0
#define L10 4
#define L12 (1 + 16)
#define L20 2
#define L21 8
#define CONS(p) (p == 0 -> 2 + 8 : 0)
#define USED (2 + 4)
#define REACH 7
#define LOST 16
#define LATE 8
#define LATE_ORIGIN 2
#define USED2 4
#define REACH2 4
#define USED2_AT1 0
#define REACH2_AT1 0
#else
#define L01 (1 + 2)
#define L02 0
#define L10 4
#define L12 16
#define L20 8
#define L21 0
#define CONS(p) (p == 0 -> 4 : (p == 1 -> 4 + 16 : (p == 4 -> 8 : 0)))
#define USED 4
#define REACH 7
#define LOST 0
#define LATE 8
#define LATE_ORIGIN 2
#define USED2 4
#define REACH2 7
#define USED2_AT1 3
#define REACH2_AT1 3
#endif
#if ROOT2 == 1
#undef USED2
#undef REACH2
#define USED2 USED2_AT1
#define REACH2 REACH2_AT1
#endif
#define LAST (PASSES - 1)

#define LINK(o, t) \
	(o == 0 -> (t == 1 -> L01 : L02) : (o == 1 -> (t == 0 -> L10 : L12) : (t == 0 -> L20 : L21)))
#define SENDS(w) (w == 0 -> L01 + L02 : (w == 1 -> L10 + L12 : L20 + L21))
#define RECVS(w) (w == 0 -> L10 + L20 : (w == 1 -> L01 + L21 : L02 + L12))
#define ROOT(p) (p == 0 -> 0 : ROOT2)
#define USES(p, w) (w == ROOT(p) -> (p == 0 -> USED : USED2) : 0)
#define REACHED(p) (p == 0 -> REACH : REACH2)
#define BIT(w) (1 << (w))

#define ROOM 9
#define ASK 1
#define STATES 2
#define EXPOSED 4
#define AGAIN 8 /* the empty statement of somebody who is done */

mtype = { PASS, TAKEN, DONE, ABORT, STEP };
mtype = { OUT, IN, LOCAL, OVER, ABORTED }; /* LOCAL: this worker's part is done; OVER: the root knows that all are */

typedef Part { /* of a pass, at a worker; sets of pairs, then sets of workers */
	mtype phase = OUT;
	byte waiting;  /* own sends that no answer has come for */
	byte got;      /* those that a gradient came for */
	byte unpulled; /* of these, those that are still to be pulled */
	byte owed;     /* recvs whose origin has no answer yet */
	byte untaken;  /* gradients on offer that their origin has not pulled */
	byte wrote, heard, asked, warned; /* to, from, by whom; who has an ABORT from here */
};
Part part[6]; /* by pass * 3 + worker */
byte named[2], finished[2]; /* at the root: sets of workers */

chan link[9] = [ROOM] of { mtype, byte, byte, byte, byte, byte }; /* from * 3 + to: type, pass, flags, pending, gradients, nones */

byte faults;
bool dead[3];
byte told[3];     /* to whom the store has said so: by who hears it, a set of the dead */
bool sent_late, recorded_late;
bool stepped;

#define X(p) part[p * 3 + me]
#define GONE(w) (told[me] & BIT(w))

/* A recv whose consumers have all answered, with what these brought. */
#define READY1(p, r) (((X(p).owed >> r) & 1) && !(CONS(r) & (X(p).waiting | X(p).unpulled)))
#define GRAD1(p, r) ((READY1(p, r) && ((CONS(r) & X(p).got) || (USES(p, me) & (1 << r)))) << r)
#define NONE1(p, r) ((READY1(p, r) && !((CONS(r) & X(p).got) || (USES(p, me) & (1 << r)))) << r)
#define GRADS(p) (GRAD1(p, 0) | GRAD1(p, 1) | GRAD1(p, 2) | GRAD1(p, 3) | GRAD1(p, 4))
#define NONES(p) (NONE1(p, 0) | NONE1(p, 1) | NONE1(p, 2) | NONE1(p, 3) | NONE1(p, 4))

inline post(to, type, p, flags, pending, grads, nones)
{
	if
	:: dead[to] /* nobody reads it */
	:: else ->
		assert(nfull(link[me * 3 + to]));
		link[me * 3 + to]!type, p, flags, pending, grads, nones
	fi
}

/* ---- A worker's part ----------------------------------------------------------------------------------------------------- */

inline snapshot(p)
{
	X(p).phase = IN;
	X(p).waiting = SENDS(me) & ~((!sent_late -> LATE : 0));
	X(p).owed = RECVS(me) & ~LOST & ~((!recorded_late -> LATE : 0))
}

inline warn(p, to)
{
	if
	:: to != me && !(X(p).warned & BIT(to)) && !(told[me] & BIT(to)) ->
		X(p).warned = X(p).warned | BIT(to);
		post(to, ABORT, p, 0, 0, 0, 0)
	:: else
	fi
}

inline stop(p)
{
	whom = X(p).wrote | X(p).heard | BIT(ROOT(p));
	X(p).phase = ABORTED;
	X(p).waiting = 0; X(p).got = 0; X(p).unpulled = 0; X(p).owed = 0; X(p).untaken = 0; X(p).asked = 0;
	w = 0;
	do
	:: w < 3 ->
		if
		:: whom & BIT(w) -> warn(p, w)
		:: else
		fi;
		w++
	:: else -> break
	od;
	w = 0; whom = 0
}

/* Rule 4: there is something to write to a peer. */
#define FIRST(p, v) (!(X(p).wrote & BIT(v)))
#define ASKS(p, v) ((X(p).waiting & LINK(me, v)) != 0)
#define REASON(p, v) \
	((GRADS(p) & LINK(v, me)) || ((X(p).asked & BIT(v)) && FIRST(p, v)) || (!FIRST(p, v) && (NONES(p) & LINK(v, me))) || \
	 MUST_ASK(p, v))
#ifndef SHY
#define MUST_ASK(p, v) (ASKS(p, v) && FIRST(p, v) && !(X(p).heard & BIT(v)))
#else
#define MUST_ASK(p, v) false
#endif

inline write_to(p, v)
{
	g = GRADS(p) & LINK(v, me);
	n = NONES(p) & LINK(v, me);
	if
	:: true
	:: g & (g - 1) -> g = g & ~(g & (g - 1)) /* the lowest alone, others still wait for company */
	fi;
	a = X(p).owed & LINK(v, me) & ~(g | n); /* what stays pending */
	f = (ASKS(p, v) -> ASK : 0);
	if
	:: FIRST(p, v) ->
		f = f | STATES;
#ifndef TWICE
		X(p).owed = X(p).owed & ~n; /* said by leaving them out */
#endif
		n = 0
	:: else -> X(p).owed = X(p).owed & ~n
	fi;
	if
	:: true
	:: g -> f = f | EXPOSED; X(p).untaken = X(p).untaken | g
	fi;
	X(p).owed = X(p).owed & ~g;
	X(p).wrote = X(p).wrote | BIT(v);
	post(v, PASS, p, f, a, g, n);
	a = 0; f = 0; g = 0; n = 0
}

/* Rule 5, before a worker says DONE. */
#define SETTLED(p, v) \
	(!(GRADS(p) & LINK(v, me)) && (GONE(v) || FIRST(p, v) || !(NONES(p) & LINK(v, me))) && \
	 (GONE(v) || !(X(p).asked & BIT(v)) || !FIRST(p, v)))
#define COMPLETE(p) \
	(X(p).phase == IN && !X(p).waiting && !X(p).unpulled && !X(p).untaken && SETTLED(p, v1) && SETTLED(p, v2))

inline complete(p)
{
	assert(X(p).got == (REACHED(p) & SENDS(me)));
	X(p).phase = LOCAL;
	if
	:: me == ROOT(p) -> named[p] = named[p] | X(p).wrote
	:: else ->
#ifndef NAMELESS
		post(ROOT(p), DONE, p, 0, X(p).wrote, 0, 0)
#else
		post(ROOT(p), DONE, p, 0, 0, 0, 0)
#endif
	fi;
	X(p).owed = 0; X(p).asked = 0
}

/* Who awaits something watches that peer and the root, the root all named. After DONE one goes on watching the root. */
#ifndef UNTAKEN
#define MOVES(p, v) ((X(p).unpulled & LINK(me, v)) || (X(p).untaken & LINK(v, me)))
#else
#define MOVES(p, v) false
#endif
#ifndef UNSENT
#define AWAITS(p, v) ((X(p).waiting & LINK(me, v)) || MOVES(p, v) || (GRADS(p) & LINK(v, me)))
#else
#define AWAITS(p, v) ((X(p).waiting & LINK(me, v)) || MOVES(p, v))
#endif
#ifndef UNWATCHED
#define WATCHES_ROOT(p) (X(p).phase == IN || X(p).phase == LOCAL)
#else
#define WATCHES_ROOT(p) (X(p).phase == IN)
#endif
#define MOURNS(p, v) \
	(GONE(v) && ((X(p).phase == IN && AWAITS(p, v)) || (v == ROOT(p) && WATCHES_ROOT(p)) || \
		     (me == ROOT(p) && (X(p).phase == IN || X(p).phase == LOCAL) && ((named[p] | X(p).wrote) & BIT(v)))))

inline check_not_early(p)
{
	w = 0;
	do
	:: w < 3 ->
		assert(part[p * 3 + w].got == (REACHED(p) & SENDS(w)) && !part[p * 3 + w].unpulled);
		assert(dead[w] || part[p * 3 + w].phase == OUT || part[p * 3 + w].phase == LOCAL || w == me);
		w++
	:: else -> break
	od;
	w = 0
}

inline on_pass(p, v)
{
	if
	:: X(p).phase == OUT -> snapshot(p)
	:: else
	fi;
	if
	:: X(p).phase == IN ->
		assert(!(g & ~X(p).waiting)); /* once each */
		assert(!(f & STATES) || (f & AGAIN) || !(X(p).heard & BIT(v)));
		X(p).got = X(p).got | g;
		X(p).unpulled = X(p).unpulled | ((f & EXPOSED) -> g : 0);
		X(p).waiting = X(p).waiting & ~g;
		if
		:: f & STATES -> X(p).waiting = X(p).waiting & ~(LINK(me, v) & ~a)
		:: else ->
			assert(!(n & ~X(p).waiting & ~LATE));
			X(p).waiting = X(p).waiting & ~n
		fi;
		X(p).heard = X(p).heard | BIT(v);
		X(p).asked = X(p).asked | ((f & ASK) -> BIT(v) : 0)
	:: X(p).phase == LOCAL || X(p).phase == OVER ->
		assert(g == 0);
		X(p).heard = X(p).heard | BIT(v);
		if
#ifndef MUTE
		:: f & ASK -> X(p).wrote = X(p).wrote | BIT(v); post(v, PASS, p, STATES | AGAIN, 0, 0, 0)
#endif
		:: else
		fi
	:: X(p).phase == ABORTED ->
#ifndef FORGIVING
		warn(p, v)
#else
		skip
#endif
	fi
}

inline on_done(p, v)
{
	assert(me == ROOT(p));
	if
	:: X(p).phase == ABORTED -> warn(p, v)
	:: else ->
		assert(!(finished[p] & BIT(v)) && X(p).phase != OVER);
		named[p] = named[p] | BIT(v) | a;
		finished[p] = finished[p] | BIT(v);
		X(p).heard = X(p).heard | BIT(v)
	fi
}

inline on_abort(p, v)
{
	X(p).heard = X(p).heard | BIT(v);
	if
	:: X(p).phase == ABORTED
	:: else ->
		assert(X(p).phase != OUT && X(p).phase != OVER);
		stop(p)
	fi
}

/* The step's owner adds up the passes that the root names, or, the mutant, those that it finds. */
inline on_step()
{
	q = 0;
	do
	:: q < PASSES ->
#ifndef STALE
		assert(dead[ROOT(q)] || !(a & (1 << q)) || X(q).phase == OUT || X(q).phase == LOCAL || X(q).phase == OVER);
#else
		assert((a & (1 << q)) || X(q).phase != LOCAL);
#endif
		q++
	:: else -> break
	od;
	q = 0
}

inline take(v)
{
	if
	:: t == PASS -> on_pass(q, v)
	:: t == TAKEN -> X(q).untaken = X(q).untaken & ~g
	:: t == DONE -> on_done(q, v)
	:: t == ABORT -> on_abort(q, v)
	:: t == STEP -> on_step()
	fi;
	t = 0; q = 0; f = 0; a = 0; g = 0; n = 0
}

inline hear_of_death(v)
{
	told[me] = told[me] | BIT(v);
	do
	:: nempty(link[v * 3 + me]) -> link[v * 3 + me]?_, _, _, _, _, _
	:: empty(link[v * 3 + me]) -> break
	od
}

#ifndef EARLY
#define ALL_DONE(p) (!(named[p] & ~finished[p] & ~BIT(me))) /* rule 6 */
#else
#define ALL_DONE(p) true
#endif
#define RUNS(p) (X(p).phase == IN || X(p).phase == LOCAL)
#define ENDED(p) (part[p * 3 + ROOT(p)].phase == OVER || part[p * 3 + ROOT(p)].phase == ABORTED)
#define MAY_BEGIN(p) (X(p).phase == OUT && me == ROOT(p) && (p == 0 || ENDED(0)))

#define ACTS_WITH(p, v) \
	:: atomic { !dead[me] && X(p).phase == IN && !GONE(v) && REASON(p, v) -> write_to(p, v) } \
	:: atomic { !dead[me] && X(p).phase == IN && !GONE(v) && (X(p).unpulled & LINK(me, v)) -> \
		g = X(p).unpulled & LINK(me, v); \
		X(p).unpulled = X(p).unpulled & ~g; \
		post(v, TAKEN, p, 0, 0, g, 0); g = 0 } \
	:: atomic { !dead[me] && MOURNS(p, v) -> stop(p) }

#define ACTS(p) \
	:: atomic { !dead[me] && MAY_BEGIN(p) -> snapshot(p) } \
	:: atomic { !dead[me] && COMPLETE(p) -> complete(p) } \
	:: atomic { !dead[me] && me == ROOT(p) && X(p).phase == LOCAL && ALL_DONE(p) -> \
		check_not_early(p); X(p).phase = OVER } \
	:: atomic { !dead[me] && faults && RUNS(p) && (X(p).phase == IN || me == ROOT(p)) -> faults--; stop(p) } /* a cancel */

#define HEARS(v) \
	:: atomic { !dead[me] && !GONE(v) && nempty(link[v * 3 + me]) -> link[v * 3 + me]?t, q, f, a, g, n; take(v) } \
	:: atomic { !dead[me] && dead[v] && !GONE(v) -> hear_of_death(v) }

#ifdef OVERTAKE
#define OVERTAKES(v) \
	:: atomic { !dead[me] && !GONE(v) && link[v * 3 + me]??[PASS, _, _, _, 0, _] -> \
		link[v * 3 + me]??PASS, q, f, a, 0, n; t = PASS; take(v) } \
	:: atomic { !dead[me] && !GONE(v) && link[v * 3 + me]??[ABORT, _, _, _, _, _] -> \
		link[v * 3 + me]??ABORT, q, f, a, g, n; t = ABORT; take(v) }
#else
#define OVERTAKES(v)
#endif

proctype Worker(byte me)
{
	mtype t;
	byte q, f, a, g, n, w, whom;
	byte v1, v2;
	atomic { v1 = (me + 1) % 3; v2 = (me + 2) % 3 }
end:
	do
	HEARS(v1)
	HEARS(v2)
	OVERTAKES(v1)
	OVERTAKES(v2)
	ACTS(0)
	ACTS_WITH(0, v1)
	ACTS_WITH(0, v2)
#if PASSES > 1
	ACTS(1)
	ACTS_WITH(1, v1)
	ACTS_WITH(1, v2)
#endif
	:: atomic { !dead[me] && LATE && me == LATE_ORIGIN && !sent_late -> sent_late = true }
	:: atomic { !dead[me] && LATE && (LATE & RECVS(me)) && sent_late && !recorded_late -> recorded_late = true }
	:: atomic { !dead[me] && me == ROOT(LAST) && !stepped && ENDED(0) && ENDED(LAST) ->
		stepped = true;
		a = (part[ROOT(0)].phase == OVER -> 1 : 0) |
		    (PASSES > 1 && part[LAST * 3 + ROOT(LAST)].phase == OVER -> 2 : 0);
		post(v1, STEP, 0, 0, a, 0, 0);
		post(v2, STEP, 0, 0, a, 0, 0);
		a = 0 }
	:: atomic { !dead[me] && faults -> faults--; dead[me] = true; break }
	od
}

inline check_end(p)
{
	w = 0;
	do
	:: w < 3 ->
		if
		:: dead[w] || part[p * 3 + w].phase == OUT
		:: else ->
			assert(part[p * 3 + w].phase != IN);
			if
			:: dead[ROOT(p)] -> assert(part[p * 3 + w].phase == ABORTED)
			:: else ->
				assert(ENDED(p));
				assert((part[p * 3 + w].phase == ABORTED) == (part[p * 3 + ROOT(p)].phase == ABORTED))
			fi
		fi;
		w++
	:: else -> break
	od;
	w = 0
}

init
{
	byte w;
	atomic {
		do
		:: faults < FAULTS -> faults++
		:: break
		od;
		run Worker(0); run Worker(1); run Worker(2)
	}
	/* Nothing can happen any more. */
	atomic { timeout ->
		check_end(0);
#if PASSES > 1
		check_end(1)
#endif
	}
}
