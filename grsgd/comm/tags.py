"""All tags of messages, by the communicator on which they travel.

Messages of two purposes that may be under way at once on one communicator have different tags. Each algorithm has the
training's communicator to itself, so the algorithms' tags need only differ from those of the same algorithm.

GPU transports use further tags for the chunks of a message: the upper half of what the MPI library allows
(`grsgd.comm.gpu.staged`). No tag here may come near it.
"""

ARRAYS = 0
"""Any communicator: all-reduces, broadcasts, and models to and from neighbours, which all ranks begin in one order."""

# ---- the stop signal's communicator

STOP = 1

# ---- the communicator whose traffic is not counted: first broadcast and last average (ARRAYS), and beside them

PROGRESS_REPORT, PROGRESS_TOTAL = 2, 3
"""Free-running ranks: samples to rank 0, and the total back."""
LASGD_ROUND = 4
"""All-reduces in which ranks agree on the end of a round, while progress is reported."""

# ---- the communicator of a roll call

ROLL_CALL = 1
"""Own loops: in which collective call a rank is."""

# ---- the training's communicator, by algorithm

ADPSGD_CALL, ADPSGD_REPLY = 0, 1
EXCHANGE_REQUEST = 0
"""EASGD and gossip, which have further tags for the models."""
EASGD_MODEL, EASGD_ELASTIC = 1, 2
GOSSIP_ANSWER, GOSSIP_OFFER = 1, 2
SERVER_PUSH, SERVER_GRADIENT, SERVER_ANSWER, SERVER_MODEL, SERVER_LOST_RANKS = 0, 1, 2, 3, 4
CODED_CONTROL, CODED_REPAIRS = 1, 2
"""Coded schemes by IP multicast: how far a rank is, and what it lacks; that (`grsgd.comm.coded.ip_multicast`)."""
SUM_HEADER, SUM_CONTENT = 0, 1
"""Steps that end without silent ranks (`grsgd.comm.coded.streams`)."""
CODED_PACKETS = 3
"""Coded schemes: this one and all above, one for each packet (`grsgd.comm.coded.multicast.Unicast.tag`)."""

# ---- the communicator on which ranks rescue what they have measured

RESCUE_AFTER_SIGNAL, RESCUE_AFTER_FAILURE, RESCUED_TIMELINE, ERROR_OF_ANOTHER = 0, 1, 2, 3

# ---- the communicator of all processes, where they may die

TAKEOVER, TRAINING, FINISHED = 1, 2, 3
"""A process has taken a rank; it trains from now on; it has ended its training."""
GROUP = 6
"""A process tells what it knows of the others, where all that train together meet after a death."""
STATE_REQUEST, STATE = 4, 5
"""A process that has taken a rank, to another one: what it begins with. On a communicator of their own."""

# ---- the communicator of signs of life, of all processes of a host

SIGN_OF_LIFE = 1

# ---- the communicator of a calibration

CALIBRATION, CALIBRATION_SIGNAL = 1, 2

# ---- the communicator on which ranks agree on checkpoints

MEETING, MEETING_STEPS, MEETING_END, CHECKPOINT = 1, 2, 3, 4
