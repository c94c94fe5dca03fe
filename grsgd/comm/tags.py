"""Tags of all messages, grouped by the communicator on which the messages travel.

Two kinds of messages that may be under way at once on one communicator have different tags. A run trains with one
algorithm, so the tags of different algorithms may be equal.

GPU transports tag the chunks of a message with the upper half of the tags that the MPI library allows
(`grsgd.comm.gpu.staged`). So all tags in this module are far below that half.
"""

ARRAYS = 0
"""Tag, on any communicator, of messages of all-reduces and broadcasts, and of models to and from neighbours. All ranks
begin these messages in the same order."""

# ---- the stop signal's communicator

STOP = 1

# ---- the communicator whose traffic is not counted: the first broadcast and the last average (ARRAYS), and these

PROGRESS_REPORT, PROGRESS_TOTAL = 2, 3
"""Reports between ranks that run at their own pace: each rank sends its number of samples to rank 0, and rank 0 sends
back the total."""
LASGD_ROUND = 4
"""All-reduces in which ranks agree on the end of a round, while they also report progress."""

# ---- the communicator of a roll call

ROLL_CALL = 1
"""Message that names the collective call in which a rank is, in a user's own training loop."""

# ---- the training's communicator, by algorithm

ADPSGD_CALL, ADPSGD_REPLY = 0, 1
EXCHANGE_REQUEST = 0
"""Request of a rank for an exchange of models, in EASGD and gossip; the models are sent with the further tags below."""
EASGD_MODEL, EASGD_ELASTIC = 1, 2
GOSSIP_ANSWER, GOSSIP_OFFER = 1, 2
SERVER_PUSH, SERVER_GRADIENT, SERVER_ANSWER, SERVER_MODEL, SERVER_LOST_RANKS, SERVER_SETTINGS = 0, 1, 2, 3, 4, 5
CODED_CONTROL, CODED_REPAIRS = 1, 2
"""Messages of coded schemes over IP multicast (`grsgd.comm.coded.ip_multicast`): `CODED_CONTROL` has a rank's progress
and its requests for missing datagrams; `CODED_REPAIRS` has datagrams that are sent again."""
SUM_HEADER, SUM_CONTENT = 0, 1
"""Header and content of a message in a step that may end without silent ranks (`grsgd.comm.coded.streams`)."""
CODED_PACKETS = 3
"""Lowest tag of the packets of coded schemes. Each packet of a sender has its own tag, at least `CODED_PACKETS`
(`grsgd.comm.coded.multicast.Unicast.tag`)."""

# ---- the communicator on which ranks send their measurements to be saved after a failure

RESCUE_AFTER_SIGNAL, RESCUE_AFTER_FAILURE, RESCUED_TIMELINE, ERROR_OF_ANOTHER = 0, 1, 2, 3

# ---- the communicator of all processes, if processes may die and the run goes on

TAKEOVER, TRAINING, FINISHED = 1, 2, 3
"""News that a process sends to all others: the process has taken a rank; it trains from now on; it has ended its
training."""
GROUP = 6
"""Message with a process's knowledge of the other processes, sent when all processes that train together meet after a
death."""
STATE_REQUEST, STATE = 4, 5
"""Request for the initial state, from a process that has just taken a rank to another process, and the answer; these
messages have a communicator for themselves."""
MODEL_REQUEST, MODEL = 7, 8
"""Request for the present model, from a process that averages models to another process, and the answer, on the
communicator of `STATE`."""

# ---- the communicator of signs of life, between all processes of a host

SIGN_OF_LIFE = 1

# ---- the communicator of a calibration

CALIBRATION, CALIBRATION_SIGNAL = 1, 2

# ---- the communicator of an examination, on which pairs of ranks are also measured as in a calibration

EXAMINATION = 3

# ---- the communicator on which ranks agree on checkpoints

MEETING, MEETING_STEPS, MEETING_END, CHECKPOINT = 1, 2, 3, 4
CHECKPOINT_CALL, CHECKPOINT_WRITTEN = 5, 6
"""Call of a checkpoint in which no rank rests, and news that a process writes no file any more for the checkpoint."""
STATE_SIZE, STATE_PIECE = 7, 8
"""Size and pieces of a rank's state that is sent to another host, which keeps the state in memory."""
