/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rref.pml - a model of the protocol of remote references, for spin. tools/long.d/models runs it.
 *
 * ONE VALUE, THREE WORKERS. O owns the value. U1 has it made by a call (weft_rpc_remote) and passes its handle to U2, PASSES
 * times, and once to O itself. U2 reads the value through each handle that it gets, or does not, and lets go. What is chosen
 * at the beginning: who dies (nobody, U1, U2), whether U1 gives its creation up, whether it gives up a call that passes the
 * handle, how many messages arrive a second time.
 *
 * WHERE IT IS IN THE C CODE
 *   ordinary[], wire[]      src/net/message/send.c: an urgent message goes ahead of ordinary ones that wait, what has left arrives in
 *                           order; a second copy of any message, later, stands for all that resending could do
 *   O, on CALL              wfi_owned_create_for; on FORK: wfi_owned_take_fork; on DROP: wfi_owned_take_drop; a verdict:
 *                           wfi_owned_peer_gone (src/rpc/rref_table.c)
 *   makers (producers), release() wfi_owned_finish, wfi_owned_release_if_unused
 *   forks_seen, call_seen   struct wfi_ref_peer (src/rpc/agent.h); `came` is creations_seen >= the one name's number
 *   U1's let_go()           weft_rref_unref with withdraw_handle; giving up: wfi_rref_created (src/rpc/rref.c), wfi_net_unsend
 *   pass_out[], creating    a call keeps its arguments, and the handle that it makes, until its end (src/rpc/call.c)
 *   U2, on PASS, FORKED     wfi_rref_import, on_forked; CANCEL: wfi_rref_forget_waiter, the handle goes when the owner answers
 *
 * WHAT IS CHECKED, at every step unless stated
 *   - a handle that is confirmed is counted by the owner, so its value is there;
 *   - no handler sees a handle that is not confirmed;
 *   - a fork is refused only if somebody died or gave up: else the one that passes a handle on keeps the value alive;
 *   - whoever asks for a value has it counted, and is answered;
 *   - when nothing can happen any more, all handles have been let go, nobody waits, and the value has been freed;
 *   - no deadlock (spin's own check).
 *
 * MUTANTS that the checker must refuse: EARLY_DROP (a call does not keep its arguments), READD (an old FORK counts again),
 * OVERTAKE (a message with a reference goes ahead of the call that makes it), SILENT (a creation given up is told to nobody),
 * FORGETFUL (the owner does not know that a name came and went).
 */
#ifndef PASSES
#define PASSES 2
#endif
#ifndef DUPLICATES
#define DUPLICATES 1
#endif

#define ROOM 8
#define O1 0 /* wires: from O to U1 */
#define O2 1
#define W1O 2
#define W2O 3
#define W12 4
#define W21 5

mtype = { CALL, REPLY, FORK, FORKED, REFUSED, DROP, GAVEUP, PASS, PASSED, KEEP, KEPT, CANCEL, FETCH, VALUE };
mtype = { NONE, PENDING, CONFIRMED, LOST, IMPORTING, DOOMED, FETCHING, GONE };

chan wire[6] = [ROOM] of { mtype, byte };
chan ordinary1O = [4] of { mtype, byte };
chan ordinary12 = [4] of { mtype, byte };

/* What the world has in store. */
byte copies = DUPLICATES;
bool late; /* a second copy is under way */
mtype late_type;
byte late_wire, late_number;
bool dies1, dies2, gives_up, cancels;
bool dead1, dead2, gave_up, cancelled; /* it happened */

/* Owner. */
bool entry, made, came, call_seen, keep_seen, home;
byte makers, forks_seen2;
bool fork1, fork2[PASSES + 1], asked[PASSES + 1];
bool told1, told2; /* the store's verdicts */

/* U1. */
mtype h1 = NONE;
bool app1, creating, keeping, pass_out[PASSES + 1];
byte passed;
bool kept;

/* U2: handles by the number of the call that brought them; its forks have the same numbers. */
mtype h2[PASSES + 1] = NONE;
byte pass_seen;

inline post(w, m, n)
{
	assert(nfull(wire[w]));
	wire[w]!m, n
}

/* A message was taken: perhaps there is a second copy of it, which comes whenever it likes. */
inline again(w, m, n)
{
	if
	:: copies > 0 && !late -> copies--; late = true; late_wire = w; late_type = m; late_number = n
	:: true
	fi
}

inline forget(c)
{
	do
	:: nempty(c) -> c?_, _
	:: empty(c) -> break
	od
}

/* ---- The owner -------------------------------------------------------------------------------------------------- */

inline all_counted()
{
	assert(dead1 || h1 != CONFIRMED || (entry && fork1));
	i = 1;
	do
	:: i <= PASSES ->
		assert(dead2 || (h2[i] != CONFIRMED && h2[i] != FETCHING) || (entry && fork2[i]));
		i++
	:: else -> break
	od;
	i = 0
}

inline answer_all()
{
	i = 1;
	do
	:: i <= PASSES ->
		if
		:: asked[i] && !told2 -> asked[i] = false; post(O2, VALUE, i)
		:: else -> asked[i] = false
		fi;
		i++
	:: else -> break
	od;
	i = 0
}

inline release()
{
	any = false;
	i = 1;
	do
	:: i <= PASSES -> any = any || fork2[i]; i++
	:: else -> break
	od;
	i = 0;
	if
	:: entry && !makers && !fork1 && !home && !any -> entry = false; made = false; answer_all()
	:: else
	fi;
	all_counted()
}

inline fail_value()
{
	if
	:: entry && !makers && !made -> made = true; answer_all()
	:: else
	fi
}

inline on_fork(n)
{
	if
	:: fork2[n] -> post(O2, FORKED, n) /* said twice */
#ifndef READD
	:: !fork2[n] && n <= forks_seen2 -> post(O2, REFUSED, n) /* old */
	:: !fork2[n] && n > forks_seen2 ->
#else
	:: !fork2[n] ->
#endif
		forks_seen2 = (n > forks_seen2 -> n : forks_seen2);
		if
#ifndef FORGETFUL
		:: entry || (!came && !told1) ->
#else
		:: entry || !told1 ->
#endif
			if
			:: !entry -> entry = true; made = false
			:: else
			fi;
			fork2[n] = true;
			post(O2, FORKED, n)
		:: else ->
			assert(dead1 || dead2 || gave_up || cancelled);
			post(O2, REFUSED, n)
		fi
	fi
}

active proctype O()
{
	mtype m;
	byte n, i;
	bool any;
end:
	do
	:: atomic { !told1 && nempty(wire[W1O]) -> wire[W1O]?m, n;
		again(W1O, m, n);
		if
		:: m == CALL && !call_seen ->
			call_seen = true; came = true;
			if
			:: !entry -> entry = true; made = false
			:: else
			fi;
			makers = 1; fork1 = true
		:: m == DROP -> fork1 = false; release()
		:: m == GAVEUP -> came = true; fork1 = false; fail_value(); release()
		:: m == KEEP && !keep_seen ->
			keep_seen = true;
			assert(entry || gave_up);
			home = entry;
			post(O1, KEPT, 0)
		:: else
		fi; m = 0; n = 0 }
	:: atomic { !told2 && nempty(wire[W2O]) -> wire[W2O]?m, n;
		again(W2O, m, n);
		if
		:: m == FORK -> on_fork(n); release()
		:: m == DROP -> fork2[n] = false; release()
		:: m == FETCH && h2[n] == FETCHING ->
			assert(dead2 || (entry && fork2[n]));
			asked[n] = true;
			if
			:: made -> answer_all()
			:: else
			fi
		:: else
		fi; m = 0; n = 0 }
	:: atomic { makers > 0 -> /* the handler is done */
		makers = 0; made = true; answer_all();
		if
		:: !told1 -> post(O1, REPLY, 0)
		:: else
		fi;
		release() }
	:: atomic { home -> home = false; release() }
	:: atomic { dead1 && !told1 -> /* the store says so; what was under way is refused from now on */
		told1 = true; forget(wire[W1O]); forget(wire[O1]);
		fork1 = false; fail_value(); release() }
	:: atomic { dead2 && !told2 ->
		told2 = true; forget(wire[W2O]); forget(wire[O2]);
		i = 1;
		do
		:: i <= PASSES -> fork2[i] = false; asked[i] = false; i++
		:: else -> break
		od;
		i = 0;
		release() }
	od
}

/* ---- The creator ------------------------------------------------------------------------------------------------- */

inline let_go1()
{
	any = app1 || creating || keeping;
#ifndef EARLY_DROP
	i = 1;
	do
	:: i <= PASSES -> any = any || pass_out[i]; i++
	:: else -> break
	od;
	i = 0;
#endif
	if
	:: !any && h1 == CONFIRMED -> h1 = GONE; post(W1O, DROP, 0)
	:: !any && h1 == LOST -> h1 = GONE
	:: else
	fi
}

active proctype U1()
{
	mtype m;
	byte n, i;
	bool any, told;
	atomic { h1 = PENDING; app1 = true; creating = true; ordinary1O!CALL, 0 }
end:
	do
	:: atomic { dies1 && !dead1 -> dead1 = true; forget(ordinary1O); forget(ordinary12); break }
	:: atomic { nempty(ordinary1O) && nfull(wire[W1O]) -> ordinary1O?m, n; post(W1O, m, n); m = 0; n = 0 }
	:: atomic { nempty(ordinary12) && nfull(wire[W12]) -> ordinary12?m, n; post(W12, m, n); m = 0; n = 0 }
	:: atomic { app1 && h1 != LOST && passed < PASSES && !dead2 ->
		passed++; pass_out[passed] = true; ordinary12!PASS, passed }
	:: atomic { app1 && h1 != LOST && !kept ->
		kept = true; keeping = true;
#ifdef OVERTAKE
		post(W1O, KEEP, 0)
#else
		ordinary1O!KEEP, 0
#endif
		}
	:: atomic { app1 -> app1 = false; let_go1() }
	:: atomic { wire[O1]?m, n ->
		again(O1, m, n);
		if
		:: m == REPLY && creating -> creating = false; h1 = CONFIRMED; assert(entry && fork1); let_go1()
		:: m == KEPT && keeping -> keeping = false; let_go1()
		:: else
		fi; m = 0; n = 0 }
	:: atomic { wire[W21]?m, n ->
		again(W21, m, n);
		if
		:: m == PASSED && pass_out[n] -> pass_out[n] = false; let_go1()
		:: else
		fi; m = 0; n = 0 }
	:: atomic { gives_up && creating -> /* its time limit, say */
		gives_up = false; gave_up = true; creating = false; h1 = LOST;
		if
		:: ordinary1O??[CALL, 0] -> ordinary1O??CALL, 0
		:: else
		fi;
#ifndef SILENT
		ordinary1O!GAVEUP, 0;
#else
		post(W1O, DROP, 0);
#endif
		let_go1() }
	:: atomic { cancels && passed > 0 && pass_out[passed] ->
		cancels = false; cancelled = true; pass_out[passed] = false;
		if
		:: ordinary12??[PASS, eval(passed)] -> ordinary12??PASS, eval(passed)
		:: else -> post(W12, CANCEL, passed)
		fi;
		let_go1() }
	:: atomic { dead2 && !told ->
		told = true; forget(wire[W12]); forget(wire[W21]); forget(ordinary12);
		i = 1;
		do
		:: i <= PASSES -> pass_out[i] = false; i++
		:: else -> break
		od;
		i = 0;
		let_go1() }
	od
}

/* ---- The user ------------------------------------------------------------------------------------------------------ */

inline say_passed(n)
{
	if
	:: !told -> post(W21, PASSED, n)
	:: else
	fi
}

active proctype U2()
{
	mtype m;
	byte n, i;
	bool told;
end:
	do
	:: atomic { dies2 && !dead2 -> dead2 = true; break }
	:: atomic { !told && nempty(wire[W12]) -> wire[W12]?m, n;
		again(W12, m, n);
		if
		:: m == PASS && n > pass_seen -> pass_seen = n; h2[n] = IMPORTING; post(W2O, FORK, n)
		:: m == CANCEL && h2[n] == IMPORTING -> h2[n] = DOOMED
		:: else
		fi; m = 0; n = 0 }
	:: atomic { wire[O2]?m, n ->
		again(O2, m, n);
		if
		:: m == FORKED && h2[n] == IMPORTING ->
			h2[n] = CONFIRMED;
			assert(entry && fork2[n]); /* the handler runs now, and sees it */
			say_passed(n)
		:: m == FORKED && h2[n] == DOOMED -> h2[n] = GONE; post(W2O, DROP, n)
		:: m == REFUSED && (h2[n] == IMPORTING || h2[n] == DOOMED) -> h2[n] = GONE; say_passed(n)
		:: m == VALUE && h2[n] == FETCHING -> h2[n] = GONE; post(W2O, DROP, n)
		:: else
		fi; m = 0; n = 0 }
	:: atomic { h2[1] == CONFIRMED -> h2[1] = FETCHING; post(W2O, FETCH, 1) }
	:: atomic { h2[1] == CONFIRMED -> h2[1] = GONE; post(W2O, DROP, 1) }
#if PASSES > 1
	:: atomic { h2[2] == CONFIRMED -> h2[2] = FETCHING; post(W2O, FETCH, 2) }
	:: atomic { h2[2] == CONFIRMED -> h2[2] = GONE; post(W2O, DROP, 2) }
#endif
	:: atomic { dead1 && !told ->
		told = true; forget(wire[W12]); forget(wire[W21]);
		i = 1;
		do
		:: i <= PASSES ->
			if
			:: h2[i] == IMPORTING -> h2[i] = DOOMED /* its caller is gone: nobody runs the handler */
			:: else
			fi;
			i++
		:: else -> break
		od;
		i = 0 }
	od
}

/* ---- The world ------------------------------------------------------------------------------------------------------ */

active proctype Resender()
{
end:
	do
	:: atomic { late && nfull(wire[late_wire]) ->
		late = false; wire[late_wire]!late_type, late_number; late_type = 0; late_wire = 0; late_number = 0 }
	od
}

init
{
	byte i;
	atomic {
		if
		:: true
		:: dies1 = true
		:: dies2 = true
		fi;
		if
		:: true
		:: gives_up = true
		fi;
		if
		:: true
		:: cancels = true
		fi
	}
	/* Nothing can happen any more. */
	atomic { timeout ->
		assert(dead1 || (h1 == GONE && !creating));
		i = 1;
		do
		:: i <= PASSES -> assert(dead2 || h2[i] == NONE || h2[i] == GONE); i++
		:: else -> break
		od;
		assert(!entry && !fork1 && !makers && !home)
	}
}
