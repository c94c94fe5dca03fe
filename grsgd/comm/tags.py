"""Tags of all messages between ranks, grouped by the communicator on which the messages are sent.

Messages of different purposes have different tags if they may be under way at the same time on one communicator. Tags
of different algorithms may be equal, because a run trains with one algorithm.

GPU transports tag the chunks of a message with the upper half of the tags that the MPI library allows
(`grsgd.comm.gpu.staged`). All tags in this module are far below the upper half of the allowed tags.
"""

ARRAYS = 0
"""Tag, on any communicator, of the messages of all-reduces and broadcasts, and of models that neighbours exchange. All
ranks begin the messages with this tag in the same order."""

# ---- the stop signal's communicator

STOP = 1

# ---- the communicator whose traffic is not counted: the first broadcast, the last average, and progress reports

PROGRESS_REPORT, PROGRESS_TOTAL = 2, 3
"""Progress reports between ranks that do not wait for each other. Each rank sends its number of samples to rank 0, and
rank 0 sends back the total."""
LASGD_ROUND = 4
"""All-reduces in which the ranks of LASGD agree on the end of a round, while the ranks also send progress reports."""

# ---- the communicator on which ranks tell each other their collective calls (roll call)

ROLL_CALL = 1
"""Message by which a rank in a user's own training loop names the collective call that the rank has begun."""

# ---- the training's communicator, by algorithm

ADPSGD_CALL, ADPSGD_REPLY = 0, 1
EXCHANGE_REQUEST = 0
"""Request of a rank in EASGD or gossip for an exchange of models. The models are sent with tags whose names begin with
EASGD or GOSSIP."""
EASGD_MODEL, EASGD_ELASTIC = 1, 2
GOSSIP_ANSWER, GOSSIP_OFFER = 1, 2
SERVER_PUSH, SERVER_GRADIENT, SERVER_ANSWER, SERVER_MODEL, SERVER_LOST_RANKS, SERVER_SETTINGS = 0, 1, 2, 3, 4, 5
CODED_CONTROL, CODED_REPAIRS = 1, 2
"""Messages of coded schemes over IP multicast (`grsgd.comm.coded.ip_multicast`). `CODED_CONTROL` has a rank's progress
and requests for missing datagrams. `CODED_REPAIRS` has datagrams that are sent again."""
SUM_HEADER, SUM_CONTENT = 0, 1
"""Header and content of a message in a step that may end without the messages of silent ranks
(`grsgd.comm.coded.streams`)."""
CODED_PACKETS = 3
"""Lowest tag of the packets of coded schemes. Each packet of a sender has its own tag, at least `CODED_PACKETS`
(`grsgd.comm.coded.multicast.Unicast.tag`)."""

# ---- the communicator on which ranks send their measurements to be saved after a failure

RESCUE_AFTER_SIGNAL, RESCUE_AFTER_FAILURE, RESCUED_TIMELINE, ERROR_OF_ANOTHER = 0, 1, 2, 3

# ---- the communicator of all processes, if processes may die and the run goes on

TAKEOVER, TRAINING, FINISHED = 1, 2, 3
"""Messages in which a process tells all other processes that it has taken a rank (`TAKEOVER`), begins to train
(`TRAINING`), or has ended its training (`FINISHED`)."""
GROUP = 6
"""Message in which a process lists all processes that it knows. All processes that train together send this message
when they meet after a death."""
STATE_REQUEST, STATE = 4, 5
"""`STATE_REQUEST`: request for the initial state, from a process that has just taken a rank to another process.
`STATE`: the answer to a `STATE_REQUEST`. Messages with the tags `STATE_REQUEST` and `STATE` are sent on a communicator
that carries no messages of the training."""
MODEL_REQUEST, MODEL = 7, 8
"""`MODEL_REQUEST`: request for the present model, from a process that averages models to another process. `MODEL`: the
answer to a `MODEL_REQUEST`. Messages with the tags `MODEL_REQUEST` and `MODEL` are sent on the communicator of
`STATE`."""

# ---- the communicator of signs of life, between all processes of a host

SIGN_OF_LIFE = 1

# ---- the communicator of a calibration

CALIBRATION, CALIBRATION_SIGNAL = 1, 2

# ---- the communicator of an examination, on which pairs of ranks are also measured as in a calibration

EXAMINATION = 3

# ---- the communicator on which ranks agree on checkpoints

MEETING, MEETING_STEPS, MEETING_END, CHECKPOINT = 1, 2, 3, 4
CHECKPOINT_CALL, CHECKPOINT_WRITTEN = 5, 6
"""`CHECKPOINT_CALL`: request to take part in a checkpoint for which no rank stops training. `CHECKPOINT_WRITTEN`:
message that the sender will write no more files for the checkpoint."""
STATE_SIZE, STATE_PIECE = 7, 8
"""Messages with the size and the pieces of a rank's state, sent to a process on another host that keeps the state in
memory."""
