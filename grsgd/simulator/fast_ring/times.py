"""Compiled code that calculates when messages are posted, leave and arrive, if no two connections share a port."""

import numpy as np
from numba import njit

from grsgd.simulator.fast_ring.program import RECEIVE, SEND, WAIT_UNTIL_RECEIVED, WAIT_UNTIL_SENT

HAS_LEFT, HAS_ARRIVED = 0, 1
"""Codes of two kinds of events: the first message in a connection's queue has left, or a message has arrived."""
NOT_YET = -1.0


@njit(cache=True)
def end_times(starts, waited, first, kinds, messages, nbytes, connection, ends, rate, latency, free_at, eager_bytes):
    """Return three float64 arrays: for each rank, the moment of its last step and its seconds of waiting until this
    moment, and for each connection, the moment at which its last message has left.

    Parameters
    ----------
    starts, waited
        The moment at which each rank begins, and the rank's seconds of waiting before this moment.
    first, kinds, messages, nbytes, connection, ends
        The arrays of `grsgd.simulator.fast_ring.program.Program`.
    rate, latency
        Rate in bytes/s and latency in seconds of each connection.
    free_at
        The moment at which each connection's last earlier message has left.
    eager_bytes
        Greatest size of a message that leaves when it is posted. A longer message waits until its receive is posted.
    """
    ranks, count = len(starts), len(nbytes)
    found = np.full(ranks, NOT_YET)
    waited, free_at = waited.copy(), free_at.copy()
    waits_since = np.full(ranks, NOT_YET)
    now_at = first[:-1].copy()  # now_at has, for each rank, the index of the rank's next step
    posted, receive_posted = np.full(count, NOT_YET), np.full(count, NOT_YET)
    sent, received, arrived = np.zeros(count, np.bool_), np.zeros(count, np.bool_), np.zeros(count, np.bool_)
    sender_waits, receiver_waits = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
    following, head, tail = np.full(count, -1), np.full(len(rate), -1), np.full(len(rate), -1)
    # The four arrays are a heap of future events. ``numbers`` keeps the order of events at the same moment.
    size = len(rate) + count + ranks + 1
    moments, numbers = np.zeros(size), np.zeros(size, np.int64)
    events, subjects = np.zeros(size, np.int8), np.zeros(size, np.int64)
    length = 0
    number = 0
    order = np.argsort(starts)
    begun = 0
    while begun < ranks or length:
        rank = -1
        if begun < ranks and (not length or starts[order[begun]] <= moments[0]):
            rank = order[begun]
            now = starts[rank]
            begun += 1
        else:
            now, event, subject = moments[0], events[0], subjects[0]
            length = pop(moments, numbers, events, subjects, length)
            if event == HAS_LEFT:
                message = head[subject]
                free_at[subject] = now
                head[subject] = following[message]
                if head[subject] >= 0:
                    number += 1
                    moment = now + nbytes[head[subject]] / rate[subject]
                    length = push(moments, numbers, events, subjects, length, moment, number, HAS_LEFT, subject)
                number += 1
                moment = now + latency[subject]
                length = push(moments, numbers, events, subjects, length, moment, number, HAS_ARRIVED, message)
                if not sent[message]:
                    sent[message] = True
                    if sender_waits[message]:
                        rank = ends[subject, 0]
            else:
                arrived[subject] = True
                if receive_posted[subject] != NOT_YET:
                    received[subject] = True
                    if receiver_waits[subject]:
                        rank = ends[connection[subject], 1]
        if rank < 0:
            continue
        if waits_since[rank] != NOT_YET:
            waited[rank] += now - waits_since[rank]
            waits_since[rank] = NOT_YET
        while now_at[rank] < first[rank + 1]:
            step = now_at[rank]
            kind, message = kinds[step], messages[step]
            leaves = False
            is_short = nbytes[message] <= eager_bytes
            if kind == SEND:
                posted[message] = now
                sent[message] = is_short
                leaves = is_short or receive_posted[message] != NOT_YET
            elif kind == RECEIVE:
                receive_posted[message] = now
                received[message] = arrived[message]
                leaves = not is_short and posted[message] != NOT_YET
            elif kind == WAIT_UNTIL_SENT and not sent[message]:
                sender_waits[message] = True
                waits_since[rank] = now
                break
            elif kind == WAIT_UNTIL_RECEIVED and not received[message]:
                receiver_waits[message] = True
                waits_since[rank] = now
                break
            if leaves:
                way = connection[message]
                following[message] = -1
                if head[way] < 0:
                    head[way] = message
                    number += 1
                    moment = max(now, free_at[way]) + nbytes[message] / rate[way]
                    length = push(moments, numbers, events, subjects, length, moment, number, HAS_LEFT, way)
                else:
                    following[tail[way]] = message
                tail[way] = message
            now_at[rank] += 1
        if now_at[rank] == first[rank + 1]:
            found[rank] = now
    return found, waited, free_at


@njit(cache=True)
def push(moments, numbers, events, subjects, length, moment, number, event, subject):
    """Add an event to the heap, which has ``length`` events. Return the new length of the heap."""
    place = length
    while place:
        above = (place - 1) >> 1
        if moments[above] < moment or (moments[above] == moment and numbers[above] < number):
            break
        moments[place], numbers[place] = moments[above], numbers[above]
        events[place], subjects[place] = events[above], subjects[above]
        place = above
    moments[place], numbers[place], events[place], subjects[place] = moment, number, event, subject
    return length + 1


@njit(cache=True)
def pop(moments, numbers, events, subjects, length):
    """Remove the earliest event from the heap, which has ``length`` events. Return the new length of the heap."""
    length -= 1
    moment, number, event, subject = moments[length], numbers[length], events[length], subjects[length]
    place = 0
    while True:
        below = 2 * place + 1
        if below >= length:
            break
        other = below + 1
        if other < length and (
            moments[other] < moments[below] or (moments[other] == moments[below] and numbers[other] < numbers[below])
        ):
            below = other
        if moment < moments[below] or (moment == moments[below] and number < numbers[below]):
            break
        moments[place], numbers[place] = moments[below], numbers[below]
        events[place], subjects[place] = events[below], subjects[below]
        place = below
    moments[place], numbers[place], events[place], subjects[place] = moment, number, event, subject
    return length
