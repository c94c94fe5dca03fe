"""Parameter server: an algorithm in which workers compute gradients, and servers apply the gradients by a strategy.

A schedule is a generator that yields each object it waits for.
"""

import pickle
from dataclasses import replace
from functools import partial
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from grsgd.algorithms.base import Options, Traits
from grsgd.algorithms.central import CentralAlgorithm, Excluded
from grsgd.algorithms.outer_state import FeedbackOptions, outer_memory
from grsgd.algorithms.parameter_server.adsp import AdspOptions
from grsgd.algorithms.parameter_server.bounded import Asp, DsspOptions
from grsgd.algorithms.parameter_server.messages import Answer, Push, Word
from grsgd.algorithms.parameter_server.server import Server, count_workers, make_strategy, server_shards
from grsgd.algorithms.parameter_server.strategies import STRATEGIES
from grsgd.algorithms.parameter_server.strategy import STATES, Strategy
from grsgd.algorithms.parameter_server.time_optimal import MSyncOptions, RennalaOptions, RingmasterOptions
from grsgd.comm import records, tags
from grsgd.comm.allreduce import broadcast, halving_doubling_allreduce
from grsgd.comm.compression.compressors import make_compressor, payload_share
from grsgd.comm.compression.error_feedback import ErrorFeedback
from grsgd.comm.pollables import Until
from grsgd.models.flat import Flat

STATES_UNIT = (
    "1",
    "state of each worker at each of its pushes: " + ", ".join(f"{i} {name}" for i, name in enumerate(STATES)),
)


DROPPED_DESCRIPTION = "gradients of each worker that were dropped as too old; of several servers, by the first server"


class GradientOptions(FeedbackOptions, Options):
    """Options for the ranks on which servers run, the compression of gradients, and the weights of gradients."""

    server: Literal["dedicated", "shared"] = Field(
        "dedicated", description="dedicated: the last ranks only serve; shared: the first ranks serve and train"
    )
    servers: int = Field(1, ge=1, description="number of servers; each server has an equal part of the model")
    staleness_aware: bool = Field(False, description="weight gradients by 1/max(tau, 1), where tau is their staleness")
    compensation: float | None = Field(
        None, ge=0, description="lambda of the delay compensation g + lambda g g (w - w_i); not given: no compensation"
    )


class LostWorkerOptions(Options):
    """Options that decide when a silent worker counts as lost, and whether the run goes on without the worker."""

    on_lost_worker: Literal["stop", "evict"] = Field(
        "stop", description="stop: end the job when a worker is lost; evict: go on without the lost worker"
    )
    worker_timeout: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="seconds without a push after which a worker counts as lost; by default 0.8 times comm.timeout",
    )


class ServerOptions(LostWorkerOptions, GradientOptions):
    """Options, common to all strategies, of a parameter server that applies gradients."""

    @property
    def strategy_class(self) -> type[Strategy]:
        return Asp

    @model_validator(mode="after")
    def one_server_evicts(self):
        if self.on_lost_worker == "evict" and self.servers > 1:
            raise ValueError('on_lost_worker = "evict" needs servers = 1: two servers might exclude different workers')
        return self


class ParameterServerOptions(AdspOptions, DsspOptions, MSyncOptions, RennalaOptions, RingmasterOptions, ServerOptions):
    strategy: Literal["bsp", "asp", "ssp", "dssp", "adsp", "m_sync", "rennala", "ringmaster"] = Field(
        "adsp", description="rule by which the server applies gradients and answers workers"
    )

    @property
    def strategy_class(self):
        return STRATEGIES[self.strategy]


class ParameterServer(CentralAlgorithm, name="parameter_server"):
    """Workers compute gradients, and a server has the model w. Worker i (left) and the server of n workers (right)
    compute::

        push grad(x) to the server              on push of g by i:
        wait for the answer: x                      the strategy decides: apply which gradients, answer which workers
                                                    w = w - eta/n * sum of weight * g;  V = V + 1
                                                    send w to the workers that are answered

    With the strategy bsp the server waits for all workers, and with the strategy asp for no worker. With the strategies
    ssp and dssp the server holds the answers to workers that are too far ahead of the slowest worker. The strategy adsp
    (adaptive synchronous parallel) treats gradients according to their worker's state. The rules of adsp are inferred,
    because only the abstract of the adsp paper is known (docs/reference/algorithms/server.md). With the strategy m_sync
    the server waits for the fastest m workers. With the strategy rennala the server sums B gradients of the same model,
    from any workers. With the strategy ringmaster the server drops gradients that are R updates old.

    In each step a worker sends M (the bytes of the model) to the server, and the server sends M back. The server
    updates w with any torch optimizer. The model of the run is the server's w, and a worker's x is the w in the
    server's last answer. With ``compression`` workers send compressed gradients, and add the values that the
    compression leaves out to their next gradient. The server sends the model w uncompressed.
    """

    paper = (
        "Wang, Zhu 2024, adaptive synchronous parallel strategy (adsp); Ho et al. 2013 (ssp); Zhao et al. 2019 (dssp); "
        "Dean et al. 2012, Large scale distributed deep networks (asp); Begunov, Tyurin 2026 (m_sync); Tyurin, "
        "Richtárik 2023 (rennala); Maranjyan, Tyurin, Richtárik 2025 (ringmaster)"
    )
    traits = Traits(synchronous=False, family="server", sends_gradients=True, in_background=True, trains_bfloat16=True)
    Options = ParameterServerOptions
    remembers = ("pushes", "e")
    server_class: ClassVar[type[Server]] = Server

    def __init__(self, options, replica, optimizer, context):
        super().__init__(options, replica, optimizer, context)
        self.n = count_workers(options, self.comm.size)
        self.shards = server_shards(options, self.x.array.size, self.comm.size)
        """Begin and end of each server's shard of the model, by the server's rank."""
        self.server = None
        if self.comm.rank in self.shards:
            self.server = self.server_class(options, replica, optimizer, context)
            self.staleness = self.server.staleness
        self.answer = self.x.like() if self.is_worker else None
        self.replies = {server: records.empty(Answer) for server in self.shards}
        """The last `Answer` message of each server, as packed bytes."""
        self.applied = 0
        """Number of gradients that the first server has applied to the model, according to its last answer."""
        self.pushes = 0
        self.feedback: dict[int, ErrorFeedback] = {}
        """Compressor for each server's part of this worker's gradients, by server; empty without compression."""
        if options.compresses and self.is_worker:
            self.memory = outer_memory(self.x, options.outer_state)
            self.room, self.e = self.memory.room(self.x), self.memory.like(self.x).tensor
            for server, (begin, end) in self.shards.items():
                part = self.e[begin:end]
                self.feedback[server] = ErrorFeedback(
                    make_compressor(options, part), (context.seed, self.comm.rank, server), part
                )
            self.payloads = {server: each.compressor.payload() for server, each in self.feedback.items()}
        self.last_word = Word.FINISHED
        """Kind of this worker's last message to each server: FINISHED after training, RESTS before a checkpoint."""
        self.has_rested = False
        """Whether training had begun earlier and now continues, after a checkpoint or in a new process."""

    @classmethod
    def traits_of(cls, options):
        return replace(
            cls.traits,
            label=" ".join(cls.words_of(options)),
            supports_own_loop=options.on_lost_worker == "stop",
            tolerates_lost_ranks=options.on_lost_worker == "evict",
            splits_model=options.servers > 1,
        )

    @classmethod
    def option_behind(cls, options, trait):
        if trait == "supports_own_loop":
            return "on_lost_worker = 'evict'", "stop"
        return super().option_behind(options, trait)

    @classmethod
    def words_of(cls, options):
        """Yield the words of a run's label in reports: the names of the algorithm, the strategy and the compression."""
        yield cls.name
        if "strategy" in cls.Options.model_fields:
            yield options.strategy
        if options.compresses:
            yield options.compression

    @classmethod
    def workers(cls, options, ranks):
        return count_workers(options, ranks)

    @classmethod
    def keeps_step(cls, options, ranks):
        return make_strategy(options, cls.workers(options, ranks)).keeps_step

    @classmethod
    def check(cls, options, ranks):
        most = ranks - 1 if options.server == "dedicated" else ranks
        if options.servers > most:
            found = f"servers = {options.servers} ({options.server}) with {ranks} ranks"
            raise ValueError(f"{found}; at most {most} can be servers")
        make_strategy(options, cls.workers(options, ranks))

    def start(self):
        if self.server is not None:
            self.server.start()

    def begin(self):
        """Begin to serve workers. After a checkpoint, all workers first receive the servers' model w."""
        if self.has_rested:
            yield from self.pull()
        if self.server is not None:
            self.server.begin()
        self.has_rested = True

    def pull(self):
        """Generator, called on all ranks at once, in which the servers send their model to all workers."""
        if self.server is not None:
            begin, end = self.shards[self.comm.rank]
            self.x.tensor[begin:end].copy_(self.server.w)
            self.server.go_on()
        for server, (begin, end) in self.shards.items():
            yield from broadcast(self.uncounted_comm, self.x.array[begin:end], root=server)

    @property
    def bound_gradients(self):
        return make_strategy(self.options, self.n).bound_gradients

    def state(self):
        of_server = self.server.state() if self.server is not None else {}
        return super().state() | {f"server.{name}": value for name, value in of_server.items()}

    def restore(self, state):
        of_server = {name: value for name, value in state.items() if name.startswith("server.")}
        super().restore({name: value for name, value in state.items() if name not in of_server})
        if self.server is not None:
            self.server.restore({name.removeprefix("server."): value for name, value in of_server.items()})
        self.has_rested = True

    def step(self):
        yield from self.push(self.replica.grads)

    @classmethod
    def arrays_held(cls, options, ranks):
        payload = payload_share(options) if options.compresses else 0
        of_worker = 3 + payload if options.compresses else 1
        of_server = count_workers(options, ranks) * (2 + payload) / options.servers
        return of_server if options.server == "dedicated" else of_server + of_worker

    @classmethod
    def arrays_apart(cls, options, ranks):
        if not options.compresses:
            return cls.arrays_held(options, ranks), 0
        of_worker = 2 + payload_share(options)  # arrays: the error e, the decoded payload, and the compressed payload
        shares_rank = options.server == "shared"
        return cls.arrays_held(options, ranks) - (of_worker if shares_rank else 0), of_worker + 1

    def push(self, g: Flat, steps: int = 1):
        """Generator that sends the servers ``g``, a gradient or a model computed in ``steps`` steps, and waits for the
        servers' answers, which are the next model.

        Raises Excluded if a server has excluded this rank from the run.
        """
        message, pulling = records.pack(Push(Word.GOES_ON, steps)), []
        held = (yield from self.memory.take(g, self.room)) if self.feedback else g
        for server, (begin, end) in self.shards.items():
            if server == self.comm.rank:
                own = self.server.push_own(g.tensor[begin:end], self.answer.tensor[begin:end])
                pulling.append(self.driver.start(own))
            else:
                sent = g.array[begin:end]
                if self.feedback:
                    sent = self.payloads[server].array
                    self.feedback[server].encode(held.tensor[begin:end], self.payloads[server].tensor, self.pushes)
                pulling += [
                    self.comm.Isend(message, server, tags.SERVER_PUSH, header=message.nbytes),
                    self.comm.Isend(sent, server, tags.SERVER_GRADIENT),
                    self.comm.Irecv(self.replies[server], server, tags.SERVER_ANSWER),
                    self.comm.Irecv(self.answer.array[begin:end], server, tags.SERVER_MODEL),
                ]
        self.pushes += 1
        yield pulling
        self.x.tensor.copy_(self.answer.tensor)
        answers = [records.unpack(Answer, reply) for reply in self.replies.values()]
        if self.server is not None:
            self.server.check()
        else:
            self.applied = answers[0].applied
            self.progress.note_steps(self.applied)
        if any(answer.is_evicted for answer in answers):
            raise Excluded(f"rank {self.comm.rank} was silent for too long")

    def tell_settings(self, settings):
        content = np.frombuffer(pickle.dumps(settings), np.uint8)
        message, sending = records.pack(Push(Word.SETTINGS, content.size)), []
        for server in self.shards:
            if server == self.comm.rank:
                self.server.settings[server] = settings
            else:
                sending += [
                    self.comm.Isend(message, server, tags.SERVER_PUSH, header=message.nbytes),
                    self.comm.Isend(content, server, tags.SERVER_SETTINGS, header=content.nbytes),
                ]
        yield sending

    def stuck(self, absent):
        if self.server is None:
            return set()
        with self.server.lock:
            strategy = self.server.strategy
            return set(strategy.blocked) if strategy.active - strategy.blocked <= absent else set()

    def serve(self):
        pushes = self.server.pushes
        yield Until(
            lambda: self.server.is_done() or self.server.pushes > pushes,
            "a push, or the end of the last worker's training",
            in_background=True,
        )
        return self.server.all_done()

    def drain(self):
        if self.is_worker:
            for server in self.shards:
                if server == self.comm.rank:
                    self.server.worker_finished(server, self.last_word == Word.RESTS)
                else:
                    yield self.finish(server)
        if self.server is not None:
            yield Until(self.server.is_done, "the end of the last worker's training", in_background=True)
        if self.options.on_lost_worker == "evict":
            yield from self.exclude_lost_workers()

    def rest(self):
        self.last_word = Word.RESTS
        yield from self.drain()
        self.last_word = Word.FINISHED

    def finish(self, server: int):
        """Begin to send ``server`` the message that this worker has ended its training or pauses for a checkpoint.
        Returns a pollable that is true when the message has been sent."""
        message = records.pack(Push(self.last_word, 0))
        return self.comm.Isend(message, server, tags.SERVER_PUSH, header=message.nbytes)

    def exclude_lost_workers(self):
        """Generator, called after training, that receives the list of lost workers from the server, and excludes the
        lost workers from later messages."""
        ((rank, _),) = self.shards.items()
        if self.server is not None:
            yield from self.server.tell_lost_ranks()
            lost = self.server.lost_ranks
        else:
            lost = np.zeros(self.comm.size, np.int64)
            yield self.comm.Irecv(lost, rank, tags.SERVER_LOST_RANKS)
        self.lost = frozenset(np.flatnonzero(lost).tolist())
        if self.lost and self.comm.rank not in self.lost:
            left = [rank for rank in range(self.comm.size) if rank not in self.lost]
            self.uncounted_comm = self.uncounted_comm.subset(left)

    def extra(self):
        """Return the workers' states at each push and the numbers of dropped gradients, for the run file. The states
        are int8 of shape [workers, pushes], with -1 after a worker's last push."""
        if self.server is None:
            return {}
        found, states, dropped = {}, self.server.states, self.server.strategy.dropped
        if any(states):
            rows = np.full((self.n, max(map(len, states))), -1, np.int8)
            for row, known in zip(rows, states, strict=True):
                row[: len(known)] = known
            found["states"] = (rows, STATES_UNIT)
        if any(dropped):
            found["dropped"] = (np.array(dropped), ("gradients", DROPPED_DESCRIPTION))
        return found

    @property
    def left_out(self):
        if self.comm.rank != min(self.shards):
            return 0
        dropped = enumerate(self.server.strategy.dropped)
        return sum(count for worker, count in dropped if worker not in self.server.evicted)

    def warnings(self):
        if self.server is None:
            return []
        found = [f"went on without rank {worker}: {why}" for worker, why in sorted(self.server.evicted.items())]
        dropped, pushed = sum(self.server.strategy.dropped), sum(self.server.strategy.clocks)
        if 2 * dropped > pushed:
            found.append(f"the server dropped {dropped} of {pushed} gradients: they were too old when they arrived")
        return found

    def snapshot(self):
        if self.server is None:
            return super().snapshot()
        with self.server.lock:
            return self.server.replica.params.tensor.clone(), self.replica.buffers.tensor

    def average(self):
        if self.server is not None:
            self.x.tensor.copy_(self.server.replica.params.tensor)
        yield from self.broadcast_model(self.uncounted_comm)

    def broadcast_model(self, comm):
        for server, (begin, end) in self.shards.items():
            yield from broadcast(comm, self.x.array[begin:end], root=comm.members.index(server))
        if not self.is_worker:
            self.replica.buffers.tensor.copy_(self.replica.buffers_at_start)
        workers = sum(rank < self.n for rank in comm.members)
        if comm.size > 1:
            yield from self.replica.average_buffers(partial(halving_doubling_allreduce, comm, scale=1 / workers))
