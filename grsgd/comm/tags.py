"""Tags of all messages between ranks, listed by the communicator on which the messages are sent.

Messages of different kinds have different tags if they may be under way at the same time on one communicator. Messages
of different algorithms may have equal tags, because a run trains with only one algorithm.

GPU transports tag the chunks of a message with the upper half of the tags that the MPI library allows
(`grsgd.comm.gpu.staged`). All tags in this module are far below the upper half of the tags that the MPI library allows.
"""

ARRAYS = 0
"""Tag, on any communicator, of the messages of all-reduces and broadcasts, and of models that neighbouring ranks
exchange. All ranks must start the messages with the tag `ARRAYS` in the same order."""

# ---- tags on the communicator of the stop signal

STOP = 1

# ---- tags on the communicator of uncounted traffic: the first broadcast, the last average, and progress reports

PROGRESS_REPORT, PROGRESS_TOTAL = 2, 3
"""Tags of progress reports, in algorithms whose ranks do not wait for each other. Each rank sends the number of samples
that it has processed to rank 0, and rank 0 sends back the total of all ranks."""
LASGD_ROUND = 4
"""Tag of all-reduces by which the ranks of LASGD agree on the end of a round; progress reports may be under way at the
same time."""

# ---- tags on the communicator by which ranks tell each other which collective they call (roll call)

ROLL_CALL = 1
"""Tag of the message by which a rank in a user's own training loop names the collective that it has begun to call."""

# ---- tags on the communicator of the training, by algorithm

ADPSGD_CALL, ADPSGD_REPLY = 0, 1
EXCHANGE_REQUEST = 0
"""Tag of the message by which a rank in EASGD or gossip requests an exchange of models. The models of an exchange in
EASGD or gossip have the tags whose names begin with EASGD or GOSSIP."""
EASGD_MODEL, EASGD_ELASTIC = 1, 2
GOSSIP_ANSWER, GOSSIP_OFFER = 1, 2
SERVER_PUSH, SERVER_GRADIENT, SERVER_ANSWER, SERVER_MODEL, SERVER_LOST_RANKS, SERVER_SETTINGS = 0, 1, 2, 3, 4, 5
CODED_CONTROL, CODED_REPAIRS = 1, 2
"""Tags of the messages that coded schemes send by MPI in addition to IP multicast (`grsgd.comm.coded.ip_multicast`).
Messages with the tag `CODED_CONTROL` contain a rank's progress, or its requests for missing parts of packets. Messages
with the tag `CODED_REPAIRS` contain the missing parts that were requested."""
SUM_HEADER, SUM_CONTENT = 0, 1
"""Tags of the header and the content of a rank's message in a step that may end without the messages of silent ranks
(`grsgd.comm.coded.streams`)."""
CODED_PACKETS = 3
"""Lowest tag of the packets (parts of gradients) of coded schemes. Each packet of a sender has its own tag, which is
`CODED_PACKETS` or higher (`grsgd.comm.coded.multicast.Unicast.tag`)."""

# ---- tags on the communicator on which ranks send their measurements, so that a failure does not destroy them

RESCUE_AFTER_SIGNAL, RESCUE_AFTER_FAILURE, RESCUED_TIMELINE, ERROR_OF_ANOTHER = 0, 1, 2, 3

# ---- tags on the communicator of all processes, in runs that continue after the death of a process

TAKEOVER, TRAINING, FINISHED = 1, 2, 3
"""Tags of messages by which a process tells all other processes that it has taken a rank (`TAKEOVER`), begins to train
(`TRAINING`), or has ended its training (`FINISHED`)."""
GROUP = 6
"""Tag of the message in which a process lists all processes of which it knows. All processes that train together send
this list to each other when they meet after a death."""
STATE_REQUEST, STATE = 4, 5
"""`STATE_REQUEST`: tag of the message by which a process that has just taken a rank requests the initial state from
another process. `STATE`: tag of the answer to a `STATE_REQUEST`. Messages with the tags `STATE_REQUEST` and `STATE` are
sent on a communicator that carries no messages of the training."""
MODEL_REQUEST, MODEL = 7, 8
"""`MODEL_REQUEST`: tag of the message by which a process that averages models requests the present model of another
process. `MODEL`: tag of the answer to a `MODEL_REQUEST`. Messages with the tags `MODEL_REQUEST` and `MODEL` are sent on
the same communicator as messages with the tag `STATE`."""

# ---- tag on the communicator of all processes of a host, by which they report that they are alive

SIGN_OF_LIFE = 1

# ---- tags on the communicator of a calibration (measurement of the machine for simulations)

CALIBRATION, CALIBRATION_SIGNAL = 1, 2

# ---- tag on the communicator of an examination, on which pairs of ranks are also measured as in a calibration

EXAMINATION = 3

# ---- tags on the communicator by which ranks agree on checkpoints

MEETING, MEETING_STEPS, MEETING_END, CHECKPOINT = 1, 2, 3, 4
CHECKPOINT_CALL, CHECKPOINT_WRITTEN = 5, 6
"""`CHECKPOINT_CALL`: tag of a request to take part in a checkpoint during which all ranks continue to train.
`CHECKPOINT_WRITTEN`: tag of the message by which a rank reports that it will write no more files for the checkpoint."""
STATE_SIZE, STATE_PIECE = 7, 8
"""Tags of messages with the size and the pieces of a rank's state, sent to a process on another host that stores the
state in memory."""
